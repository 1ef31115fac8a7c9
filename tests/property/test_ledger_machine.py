"""Real allocators that fight over a small cluster on a real nats-server keep every invariant of the ledger."""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bus import codec, history, subjects
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.streams import DECISION, LEDGER, WORK, ensure_streams, stream_info
from consumers.allocator import service
from deploy.local.audit import audit
from deploy.local.server import LocalServer
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.decision import Decision
from schemas.event import Event
from schemas.ledger import NodeRecord
from schemas.pod import GpuRequest, Release, Schedule
from schemas.quota import Budget, Quota
from schemas.reasons import GANG_TIMEOUT, QUOTA
from schemas.registry import TYPE_NAMES
from schemas.requirements import Gang
from tests.conftest import SHM, eventually

pytestmark = pytest.mark.slow

POOL = Pool(name="p")
NODES = "gpubus.ledger.node.*"
REST_S = 60.0
SHORT_SCHEDULE = msgspec.structs.replace(service.SCHEDULE, ack_wait_s=1.0)
SHORT_RELEASE = msgspec.structs.replace(service.RELEASE, ack_wait_s=1.0)
"""Leases so short that some run out: commands that come again are part of the game."""

GPUS = 2

BOUND = "q"
"""The namespace with a quota."""

SHAPES = {
    "small": GpuRequest(pool="p", compute_milli=300, vram_milli=300, cpu_milli=100),
    "urgent": GpuRequest(pool="p", compute_milli=500, vram_milli=500, priority=9, cpu_milli=100),
    "whole": GpuRequest(pool="p", compute_milli=1000, vram_milli=1000, cpu_milli=300),
    "pair": GpuRequest(pool="p", compute_milli=600, vram_milli=600, count=2, cpu_milli=300),
}


class Step(msgspec.Struct, frozen=True):
    """Pods that come at once, how many of them belong to the namespace with a quota, how many are asked for twice, and how
    many of those there are then end.
    """

    arrive: tuple[str, ...]
    bound: int
    repeated: int
    end: int
    settle: bool
    """Whether to let everything be decided before the next step; otherwise releases overtake decisions."""


class Scenario(msgspec.Struct, frozen=True):
    """A cluster and what happens on it."""

    nodes: int
    allocators: int
    workers: int
    """Pods that the quota allows."""
    steps: tuple[Step, ...]


steps = st.builds(
    Step,
    arrive=st.lists(st.sampled_from(sorted(SHAPES)), min_size=1, max_size=12).map(tuple),
    bound=st.integers(0, 12),
    repeated=st.integers(0, 3),
    end=st.integers(0, 8),
    settle=st.booleans(),
)
scenarios = st.builds(
    Scenario,
    nodes=st.integers(3, 6),
    allocators=st.integers(2, 3),
    workers=st.integers(0, 5),
    steps=st.lists(steps, min_size=2, max_size=5).map(tuple),
)


class Owner:
    """Whoever creates pods and ends them, and hears what was decided about them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._follower = Follower(bus, DECISION, ["gpubus.decision.>"], self._on_decision)
        self._messages = 0
        self.pods: dict[str, Schedule] = {}
        self.gone: set[str] = set()
        self.repeated: set[str] = set()
        self.verdicts: defaultdict[str, list[Decision]] = defaultdict(list)

    async def start(self, nodes: int, workers: int) -> None:
        """Announce the cluster and begin to listen."""
        await self._say(subjects.state("pool", POOL.name), POOL)
        await self.allow(workers)
        for number in range(nodes):
            name = f"n{number}"
            gpus = [
                GpuDevice(uuid=f"{name}-{index}", index=index, model="m", tflops_milli=1000, vram_bytes=1000)
                for index in range(GPUS)
            ]
            inventory = GpuInventory(node=name, gpus=gpus, observed_at=datetime.now(UTC))
            await self._say(subjects.state("node", name), Node(name=name, pool=POOL.name, cpu_milli=800, max_pods=9))
            await self._say(subjects.state("gpu", name), inventory)
        await self._follower.start()

    async def allow(self, workers: int) -> None:
        """Say how many pods the namespace with a quota may have."""
        quota = Quota(namespace=BOUND, name="it", total=Budget(workers=workers))
        await self._say(subjects.state("quota", BOUND, "it"), quota)

    async def _say(self, subject: str, data: msgspec.Struct) -> None:
        self._messages += 1
        event = Event(
            id=f"{self._messages}",
            source="/test",
            type=TYPE_NAMES[type(data)],
            subject="s",
            time=datetime.now(UTC),
            data=data,
        )
        await self._bus.publisher.publish(subject, codec.encode(event), msg_id=f"owner {event.id}")

    def _on_decision(self, record: Record) -> None:
        decision = codec.decode_as(Decision, record.payload).data
        self.verdicts[decision.pod_uid].append(decision)
        if decision.outcome == "allocated" and decision.pod_uid in self.gone:
            self._bus.spawn(self.end(decision.pod_uid), name="ghost")

    async def play(self, step: Step) -> None:
        """Create pods, some of them twice, and end some."""
        commands = [
            self._create(shape, BOUND if number < step.bound else "d") for number, shape in enumerate(step.arrive)
        ]
        self.repeated.update(command.uid for command in commands[: step.repeated])
        subject = subjects.work("schedule", POOL.name)
        twice = commands + commands[: step.repeated]
        await asyncio.gather(*(self._say(subject, command) for command in twice))
        if step.settle:
            await self.settled()
        ending = sorted(self.pods.keys() - self.gone)[: step.end]
        self.gone.update(ending)
        await asyncio.gather(*(self.end(uid) for uid in ending))

    def _create(self, shape: str, namespace: str, gang: Gang | None = None) -> Schedule:
        uid = f"u{len(self.pods):03}"
        request = msgspec.structs.replace(SHAPES[shape], gang=gang)
        command = self.pods[uid] = Schedule(namespace=namespace, name=uid, uid=uid, request=request)
        return command

    async def gang(self, gang: Gang, members: int, namespace: str = "d") -> set[str]:
        """Create members of a gang and return their UIDs."""
        commands = [self._create("small", namespace, gang) for _ in range(members)]
        subject = subjects.work("schedule", POOL.name)
        await asyncio.gather(*(self._say(subject, command) for command in commands))
        return {command.uid for command in commands}

    def standing(self, uids: set[str]) -> int:
        """Return how many of the pods stand."""
        return sum(bool(self.place(uid)) for uid in uids)

    async def end(self, uid: str) -> None:
        """Ask for what the pod holds to be given back."""
        namespace = self.pods[uid].namespace
        await self._say(
            subjects.work("release", "any"), Release(namespace=namespace, name=uid, uid=uid, pool=POOL.name)
        )

    def place(self, uid: str) -> str:
        """Return the node that a pod was given last and has not given back."""
        lasting = [decision for decision in self.verdicts[uid] if decision.outcome != "unschedulable"]
        return lasting[-1].node if lasting and lasting[-1].outcome == "allocated" else ""

    def _is_settled(self, uid: str) -> bool:
        if uid in self.gone:
            return any(decision.outcome == "released" for decision in self.verdicts[uid]) and not self.place(uid)
        return bool(self.verdicts[uid])

    async def settled(self) -> None:
        """Wait until every pod is decided and every release is answered."""
        await eventually(lambda: all(map(self._is_settled, self.pods)), REST_S)

    async def idle(self) -> None:
        """Wait until no command is left."""
        async with asyncio.timeout(REST_S):
            while (await stream_info(self._bus, WORK)).state.messages:  # noqa: ASYNC110  a stream tells nobody that it is empty
                await asyncio.sleep(0.02)


async def stand(bus: Bus) -> dict[str, list[str]]:
    """Return where each pod stands, by the newest record of every node."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for newest in (await history.newest(bus, LEDGER, [NODES]))[0]:
        record = codec.decode_as(NodeRecord, newest.payload).data
        for allocation in record.allocations:
            found[allocation.pod_uid].append(record.node)
    return found


@asynccontextmanager
async def run(
    url: str, nodes: int, allocators: int, workers: int
) -> AsyncIterator[tuple[Bus, Owner, list[service.Allocator]]]:
    """Start allocators over an empty bus, each with a connection of its own, and stop them in good order."""
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(await Bus.connect(url, name="owner"))
        await ensure_streams(bus)
        owner = Owner(bus)
        await owner.start(nodes, workers)
        buses = [
            await stack.enter_async_context(await Bus.connect(url, name=f"allocator {number}"))
            for number in range(allocators)
        ]
        members = [service.Allocator(own, f"a{number}") for number, own in enumerate(buses)]
        running = [asyncio.create_task(member.run(stop)) for member in members]
        try:
            yield bus, owner, members
        finally:
            stop.set()
            await asyncio.gather(*running)


async def rest(owner: Owner, members: list[service.Allocator]) -> None:
    """Wait until nothing moves any more."""
    await owner.settled()
    await owner.idle()
    await eventually(lambda: not any(a.core.busy or a.core.pending for a in members), REST_S)


async def play(scenario: Scenario, url: str) -> None:
    """Run a scenario from an empty bus to the audit."""
    async with run(url, scenario.nodes, scenario.allocators, scenario.workers) as (bus, owner, members):
        for step in scenario.steps:
            await owner.play(step)
        await rest(owner, members)
        await check(bus, owner)


async def check(bus: Bus, owner: Owner) -> None:
    """Compare the log with what the owner has been told."""
    found = await audit(bus)
    assert found.unsealed == 0
    for violation in found.violations:  # a pod asked for twice may stand on two nodes until the later is taken back
        assert violation.rule == "PodOnTwoNodes", violation
        assert violation.detail.split()[1] in owner.repeated, violation
    assert await stand(bus) == {uid: [node] for uid in owner.pods if (node := owner.place(uid))}
    for uid, verdicts in owner.verdicts.items():
        places = {decision.node for decision in verdicts if decision.outcome == "allocated"}
        assert uid in owner.gone or len(places) <= 1, f"{uid} was told of {places}"


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(scenarios)
def test_allocators_that_race_keep_the_ledger_whole_and_account_for_every_pod(scenario: Scenario) -> None:
    async def example() -> None:
        with tempfile.TemporaryDirectory(prefix="gpubus-test-", dir=SHM if SHM.is_dir() else None) as store:
            server = LocalServer(Path(store))
            await server.start()
            try:
                with patch.object(service, "SCHEDULE", SHORT_SCHEDULE), patch.object(service, "RELEASE", SHORT_RELEASE):
                    await play(scenario, server.url)
            finally:
                await server.stop()

    asyncio.run(example())


async def holding(bus: Bus, namespace: str) -> int:
    """Return how many pods of a namespace stand somewhere, by the newest record of every node."""
    records = [codec.decode_as(NodeRecord, r.payload).data for r in (await history.newest(bus, LEDGER, [NODES]))[0]]
    return sum(a.namespace == namespace for record in records for a in record.allocations)


async def test_a_race_for_a_quota_ends_exactly_at_its_limit(server: LocalServer) -> None:
    async with run(server.url, nodes=60, allocators=8, workers=100) as (bus, owner, members):
        await owner.play(Step(arrive=("small",) * 300, bound=300, repeated=0, end=0, settle=True))
        await rest(owner, members)
        assert await holding(bus, BOUND) == 100
        refused = [verdicts[-1] for verdicts in owner.verdicts.values() if verdicts[-1].outcome == "unschedulable"]
        assert {decision.reason for decision in refused} == {QUOTA}
        assert all("of 100 used" in decision.message for decision in refused)

        await owner.allow(120)
        await eventually(lambda: sum(bool(owner.place(uid)) for uid in owner.pods) == 120)
        await owner.play(Step(arrive=(), bound=0, repeated=0, end=15, settle=True))
        await eventually(lambda: sum(bool(owner.place(uid)) for uid in owner.pods) == 120)
        await rest(owner, members)
        assert await holding(bus, BOUND) == 120
        await check(bus, owner)


async def rises(bus: Bus, members: set[str]) -> list[tuple[int, int]]:
    """Return how many of these pods stood before and after every transaction, of all in the ledger, that placed some."""
    held: dict[str, set[str]] = {}
    standing: dict[str, int] = {}

    def on_record(record: Record) -> None:
        data = codec.decode(record.payload).data
        if isinstance(data, NodeRecord):
            held[data.node] = members & {allocation.pod_uid for allocation in data.allocations}
        standing[data.txn] = sum(map(len, held.values()))

    await history.read(bus, LEDGER, ["gpubus.ledger.>"], on_record)
    return [(before, after) for before, after in pairwise([0, *standing.values()]) if after > before]


async def test_gangs_that_race_among_other_pods_stand_whole_or_not_at_all(server: LocalServer) -> None:
    async with run(server.url, nodes=4, allocators=3, workers=9) as (bus, owner, members):
        gang, other = (Gang(key=f"d/{name}", min_members=16) for name in ("one", "other"))
        both = await asyncio.gather(
            owner.gang(gang, 15), owner.gang(other, 16), owner.play(Step(("small",) * 5, 2, 0, 0, settle=False))
        )
        first, second = both[0], both[1]
        first |= await owner.gang(gang, 1)
        await rest(owner, members)
        winner, loser = (first, second) if owner.standing(first) else (second, first)
        assert (owner.standing(winner), owner.standing(loser)) == (16, 0)

        for uid in sorted(winner):
            owner.gone.add(uid)
            await owner.end(uid)
        await eventually(lambda: owner.standing(loser) == 16)
        restarted = min(loser)
        owner.gone.add(restarted)
        await owner.end(restarted)
        await eventually(lambda: owner.standing(loser) == 15)  # another allocator may hear of its successor before
        alone = await owner.gang(other if loser == second else gang, 1)
        await eventually(lambda: owner.standing(alone) == 1)
        await rest(owner, members)
        assert await rises(bus, winner) == [(0, 16)]
        assert await rises(bus, loser | alone) == [(0, 16), (15, 16)]
        await check(bus, owner)


async def test_a_gang_that_is_not_complete_in_time_is_told_so_and_placed_all_the_same_when_it_is(
    server: LocalServer,
) -> None:
    async with run(server.url, nodes=3, allocators=2, workers=9) as (bus, owner, members):
        gang = Gang(key="d/late", min_members=3, timeout_s=1)
        early = await owner.gang(gang, 2)

        def reasons() -> list[set[str]]:
            return [{decision.reason for decision in owner.verdicts[uid]} for uid in sorted(early)]

        await eventually(lambda: all(GANG_TIMEOUT in told for told in reasons()))
        last = owner.verdicts[min(early)][-1]
        assert last.message == "2 of the 3 members that gang d/late needs came within 1 s"
        everyone = early | await owner.gang(gang, 1)
        await eventually(lambda: owner.standing(everyone) == 3)
        await rest(owner, members)
        await check(bus, owner)
