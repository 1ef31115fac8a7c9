"""What the allocators promise holds while processes and servers die under them: nothing lost, nothing given twice."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec
import pytest

from bus import codec, history, subjects
from bus.connection import Bus
from bus.deadletter import list_letters
from bus.follower import Follower, Record
from bus.streams import DECISION, LEDGER, STATE, WORK, ensure_streams
from consumers.allocator.service import LEASE_S, SCHEDULE
from deploy.local.audit import audit
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalBus, LocalServer
from deploy.replay.jobs import verify
from producers.simulator.build import pod_uid
from producers.simulator.generator import generate
from producers.simulator.service import Simulator
from producers.simulator.trace import Trace
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.deadletter import DeadLetter
from schemas.decision import Decision
from schemas.event import Event
from schemas.ledger import NodeRecord
from schemas.pod import GpuRequest, Schedule
from schemas.quota import Budget, Quota
from schemas.reasons import GANG_WAITING, LEDGER_FROZEN
from schemas.registry import TYPE_NAMES
from schemas.requirements import Gang
from tests.conftest import eventually

pytestmark = pytest.mark.fault

POOL = Pool(name="p")
PATIENCE_S = 45.0
"""How long a disturbed run may take to come to rest."""


class Run:
    """A simulated cluster in mid-run, with the allocators that serve it."""

    def __init__(self, urls: list[str], trace: Trace, simulator: Simulator, allocators: list[RoleProcess]) -> None:
        self.urls = urls
        self.trace = trace
        self.simulator = simulator
        self.allocators = allocators

    async def offered(self, share: float) -> None:
        """Wait until this share of the pods has been offered."""
        pods = share * len(self.trace.pods)
        await eventually(lambda: self.simulator.progress().offered >= pods, PATIENCE_S)

    async def finished(self) -> None:
        """Wait until every pod is decided and every release confirmed."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.simulator.finished.wait()
        except TimeoutError:
            raise AssertionError(f"not at rest after {PATIENCE_S:g} s: {self.simulator.progress()}") from None

    async def check(self, *, undecodable: int = 0) -> None:
        """Compare what the log says from its first record with what was offered."""
        assert self.simulator.progress().double_started == 0
        offered = {pod_uid(pod.name) for pod in self.trace.pods}
        async with await Bus.connect(self.urls, name="audit") as bus:
            found = await audit(bus)
            replayed = await verify(bus)
        assert [violation.rule for violation in found.violations] == ["Undecodable"] * undecodable
        assert found.double_allocations == 0
        assert (replayed.different, replayed.unexplained, replayed.astray, replayed.notes[undecodable:]) == (
            0,
            0,
            [],
            [],
        )
        assert replayed.reproduced == replayed.decisions >= len(offered)
        lost = offered - found.placed - found.refused
        assert not lost
        progress = self.simulator.progress()
        assert (progress.undecided, progress.releasing) == (0, 0)
        assert found.holding == progress.running


@asynccontextmanager
async def run(
    bus: Bus, urls: list[str], *, nodes: int = 25, pods: int = 300, rate: float = 100.0, allocators: int = 2
) -> AsyncIterator[Run]:
    """Start allocators and a simulation, and stop the allocators in good order at the end."""
    trace = generate(nodes, pods, seed=7)
    processes = [RoleProcess("allocator", urls) for _ in range(allocators)]
    simulator = Simulator(bus, trace, pool=POOL, rate=rate, seed=7)
    stop = asyncio.Event()
    try:
        await asyncio.gather(*(process.start() for process in processes))
        playing = asyncio.create_task(simulator.run(stop))
        yield Run(urls, trace, simulator, processes)
        stop.set()
        await playing
    finally:
        await asyncio.gather(*(process.stop() for process in processes))


@pytest.mark.slow
async def test_allocators_killed_again_and_again_lose_and_double_nothing(bus: Bus, server: LocalServer) -> None:
    async with run(bus, [server.url], allocators=3) as disturbed:
        for share, victim in ((0.2, 0), (0.5, 1), (0.8, 0)):
            await disturbed.offered(share)
            await disturbed.allocators[victim].kill()
            await disturbed.allocators[victim].start()
        await disturbed.finished()
    await disturbed.check()


async def unacknowledged(bus: Bus) -> tuple[int, int]:
    """Return how many schedule commands are with an allocator, and how many have been delivered more than once."""
    info = msgspec.json.decode(await bus.api(f"CONSUMER.INFO.{WORK}.{SCHEDULE.durable}"))
    return info["num_ack_pending"], info["num_redelivered"]


async def test_a_stopped_allocator_finishes_what_it_began_and_leaves_the_rest_at_once(
    bus: Bus, server: LocalServer
) -> None:
    async with run(bus, [server.url], pods=400, rate=400.0, allocators=1) as disturbed:
        progress = disturbed.simulator.progress
        await disturbed.offered(0.3)
        await disturbed.allocators[0].stop()
        await disturbed.offered(1.0)
        await disturbed.allocators[0].start()
        await eventually(lambda: progress().undecided == 0, LEASE_S - 1.0)  # nothing had to wait for a lease to end
        await disturbed.finished()
    await disturbed.check()
    assert await unacknowledged(bus) == (0, 0)


@pytest.mark.slow
async def test_an_allocator_that_sleeps_through_its_leases_doubles_nothing_when_it_wakes(
    bus: Bus, server: LocalServer
) -> None:
    async with run(bus, [server.url], pods=400, rate=50.0) as disturbed:
        await disturbed.offered(0.1)
        sleeper = disturbed.allocators[0]._process
        assert sleeper is not None
        sleeper.send_signal(signal.SIGSTOP)
        asleep_until = asyncio.get_running_loop().time() + LEASE_S + 1.0
        try:
            await eventually(lambda: asyncio.get_running_loop().time() > asleep_until, 2 * LEASE_S)
        finally:
            sleeper.send_signal(signal.SIGCONT)
        await disturbed.finished()
    await disturbed.check()


@pytest.mark.parametrize("outage_s", [0.0, pytest.param(LEASE_S + 1.0, marks=pytest.mark.slow)])
async def test_a_killed_server_that_comes_back_has_lost_nothing(bus: Bus, server: LocalServer, outage_s: float) -> None:
    async with run(bus, [server.url]) as disturbed:
        await disturbed.offered(0.4)
        server.kill()
        dark_until = asyncio.get_running_loop().time() + outage_s
        await eventually(lambda: asyncio.get_running_loop().time() >= dark_until, 2 * LEASE_S)
        await server.start()
        await disturbed.finished()
    await disturbed.check()


@pytest.mark.slow
async def test_all_is_decided_again_in_another_process_after_an_allocator_and_the_server_were_killed(
    bus: Bus, server: LocalServer
) -> None:
    async with run(bus, [server.url], pods=400) as disturbed:
        await disturbed.offered(0.3)
        await disturbed.allocators[0].kill()
        await disturbed.offered(0.5)
        server.kill()
        await server.start()
        await disturbed.offered(0.6)
        await disturbed.allocators[0].start()
        await disturbed.finished()
    await disturbed.check()
    command = [sys.executable, "-m", "deploy.cli.main", "replay", "--verify", "--json", "--nats", server.url]
    replay = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    shown, _ = await replay.communicate()
    found = json.loads(shown)
    assert replay.returncode == 0
    assert found["allocators"] >= 2  # three if the one that was killed came back in time to decide
    assert found["reproduced"] == found["decisions"] >= 400
    assert not any(found[field] for field in ("different", "violations", "unexplained", "undecodable", "gaps", "notes"))


async def leader_and_copies(bus: Bus) -> tuple[str, int]:
    """Return the server that leads the LEDGER stream, and on how many servers it is."""
    info = msgspec.json.decode(await bus.api(f"STREAM.INFO.{LEDGER}"))
    return info["cluster"]["leader"], info["config"]["num_replicas"]


@pytest.mark.slow
async def test_a_cluster_that_loses_the_leader_of_the_ledger_loses_nothing_else(
    cluster_bus: Bus, cluster: LocalBus
) -> None:
    async with run(cluster_bus, cluster.urls) as disturbed:
        await disturbed.offered(0.4)
        name, copies = await leader_and_copies(cluster_bus)
        assert copies == 3  # starting an allocator left them alone
        (victim,) = (server for server in cluster.servers if server.name == name)
        victim.kill()
        await disturbed.offered(0.9)
        await victim.start()
        await disturbed.finished()
    await disturbed.check()


NONSENSE = b"{half a mess"
POISONED = {
    subjects.state("node", "x"): "STATE",
    subjects.state("gpu", "x"): "STATE",
    subjects.state("pool", "x"): "STATE",
    subjects.ledger_node("x"): "LEDGER",
    subjects.work("schedule", "p"): "WORK",
    subjects.work("release", "x"): "WORK",
}


async def buried(bus: Bus, names: Iterable[str]) -> dict[str, DeadLetter]:
    """Wait until there is a dead letter for each of the subjects."""
    wanted = set(names)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = {letter.data.subject: letter.data async for letter in list_letters(bus)}
            if found.keys() >= wanted:
                return found
            await asyncio.sleep(0.02)


async def test_undecodable_messages_are_buried_with_their_reason_and_stop_nobody(bus: Bus, server: LocalServer) -> None:
    async with run(bus, [server.url], pods=200) as disturbed:
        await disturbed.offered(0.3)
        for subject in POISONED:
            await bus.publisher.publish(subject, NONSENSE)
        found = await buried(bus, POISONED)
        await disturbed.finished()
    await disturbed.check(undecodable=1)
    assert {subject: found[subject].stream for subject in POISONED} == POISONED
    for subject in POISONED:
        assert found[subject].payload == NONSENSE
        assert "JSON is malformed" in found[subject].reason


async def test_an_impossible_inventory_is_buried_and_keeps_no_allocator_from_starting(
    bus: Bus, server: LocalServer
) -> None:
    twin = GpuDevice(uuid="GPU-1", index=0, model="m", tflops_milli=1, vram_bytes=1)
    cluster, subject = Cluster(bus), subjects.state("gpu", "twins")
    await cluster.start()
    await cluster.say(subject, GpuInventory(node="twins", gpus=[twin, twin], observed_at=datetime.now(UTC)), "twins")
    allocator = RoleProcess("allocator", [server.url])
    await allocator.start()
    try:
        assert "lists a GPU UUID twice" in (await buried(bus, [subject]))[subject].reason
        await cluster.schedule("pod", "a")
        await cluster.decided("pod", "allocated")
    finally:
        await allocator.stop()


class Cluster:
    """Two nodes with a GPU each, of models of their own, so that a pod can choose; and the decisions about pods."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.decisions: list[Decision] = []
        self.waiting: set[str] = set()
        self._follower = Follower(bus, DECISION, ["gpubus.decision.>"], self._on_decision)
        self._state = Follower(bus, STATE, ["gpubus.state.waiting.>"], self._on_waiting)

    def _on_waiting(self, record: Record) -> None:
        (self.waiting.discard if record.deleted else self.waiting.add)(record.subject)

    def _on_decision(self, record: Record) -> None:
        if not record.deleted:
            self.decisions.append(codec.decode_as(Decision, record.payload).data)

    async def say(self, subject: str, data: msgspec.Struct, event_id: str) -> int:
        kind = TYPE_NAMES[type(data)]
        event = Event(id=event_id, source="/test", type=kind, subject="s", time=datetime.now(UTC), data=data)
        return (await self.bus.publisher.publish(subject, codec.encode(event), msg_id=event_id)).seq

    async def start(self) -> None:
        await self._follower.start()
        await self._state.start()
        await self.say(subjects.state("pool", POOL.name), POOL, "pool")
        for name in ("a", "b"):
            gpu = GpuDevice(uuid=f"GPU-{name}", index=0, model=name, tflops_milli=1000, vram_bytes=1000)
            inventory = GpuInventory(node=name, gpus=[gpu], observed_at=datetime.now(UTC))
            await self.say(subjects.state("node", name), Node(name=name, pool=POOL.name, max_pods=9), f"node {name}")
            await self.say(subjects.state("gpu", name), inventory, f"gpu {name}")

    async def schedule(self, pod: str, model: str) -> None:
        await self.command(pod, GpuRequest(pool=POOL.name, compute_milli=100, models=(model,)))

    async def command(self, pod: str, request: GpuRequest) -> None:
        command = Schedule(namespace="d", name=pod, uid=pod, request=request)
        await self.say(subjects.work("schedule", POOL.name), command, f"{pod}:schedule")

    async def decided(self, pod: str, outcome: str) -> Decision:
        """Wait for a decision."""
        await eventually(lambda: any((d.pod_uid, d.outcome) == (pod, outcome) for d in self.decisions))
        return next(d for d in self.decisions if (d.pod_uid, d.outcome) == (pod, outcome))

    async def restore(self, node: str) -> None:
        """Write the last good ledger record of a node again."""
        records: list[Record] = []
        await history.read(self.bus, LEDGER, [subjects.ledger_node(node)], records.append)
        good = codec.decode_as(NodeRecord, records[-2].payload).data
        await self.say(
            subjects.ledger_node(node), msgspec.structs.replace(good, txn="restored", changes=()), "restored"
        )


async def test_a_node_with_a_bad_ledger_record_takes_nothing_until_a_good_one_is_written(
    bus: Bus, server: LocalServer
) -> None:
    cluster, allocator = Cluster(bus), RoleProcess("allocator", [server.url])
    await cluster.start()
    await allocator.start()
    try:
        await cluster.schedule("before", "a")
        await cluster.decided("before", "allocated")
        await bus.publisher.publish(subjects.ledger_node("a"), NONSENSE)
        await buried(bus, [subjects.ledger_node("a")])
        await cluster.schedule("elsewhere", "b")
        await cluster.schedule("here", "a")
        assert (await cluster.decided("elsewhere", "allocated")).node == "b"
        refusal = await cluster.decided("here", "unschedulable")
        assert [report.examples for report in refusal.filters if report.reason == LEDGER_FROZEN] == [("a",)]
        await cluster.restore("a")
        assert (await cluster.decided("here", "allocated")).node == "a"
        found = await audit(bus)
        assert (found.holding, found.double_allocations) == (3, 0)
        assert [violation.rule for violation in found.violations] == ["Undecodable"]
    finally:
        await allocator.stop()


async def test_a_gang_whose_allocator_dies_between_batch_and_announcement_is_announced_by_another(
    bus: Bus, server: LocalServer
) -> None:
    cluster, allocator = Cluster(bus), RoleProcess("allocator", [server.url])
    await cluster.start()
    quota = Quota(namespace="d", name="it", total=Budget(workers=4))
    await cluster.say(subjects.state("quota", "d", "it"), quota, "quota")
    keys: set[str] = set()
    follower = Follower(bus, LEDGER, ["gpubus.ledger.*.>"], lambda record: keys.add(record.subject.split(".")[2]))
    await follower.start()
    await allocator.start()
    try:
        for number in range(4):
            if number == 3:
                await bus.api(f"STREAM.DELETE.{DECISION}")  # what follows can be committed, and not be announced
            gang = Gang(key="d/w", min_members=4)
            request = GpuRequest(pool=POOL.name, compute_milli=500, gang=gang)
            await cluster.command(f"g{number}", request)
            if number < 3:
                assert (await cluster.decided(f"g{number}", "unschedulable")).reason == GANG_WAITING
        await eventually(lambda: keys == {"node", "quota", "gang"})
        await allocator.kill()
        await ensure_streams(bus)
        await allocator.start()
        placed = [await cluster.decided(f"g{number}", "allocated") for number in range(4)]
        assert [decision.node for decision in placed].count("a") == 2
        found = await audit(bus)
        assert (found.holding, found.violations, found.unsealed) == (4, [], 0)
        await eventually(lambda: not cluster.waiting)
    finally:
        await allocator.stop()
        await follower.stop()
