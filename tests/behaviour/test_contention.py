"""Several allocators after the same room at once: gangs stand whole or not at all, and a quota is used up to the last pod."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec

from bus import codec, history, subjects
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.streams import DECISION, LEDGER
from consumers.allocator.service import Allocator
from deploy.local.audit import audit
from deploy.local.server import LocalServer
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.decision import Decision
from schemas.event import Event
from schemas.ledger import GangRecord, NodeRecord
from schemas.pod import GpuRequest, Release, Schedule
from schemas.quota import Budget, Quota
from schemas.reasons import GANG_UNFULFILLABLE, QUOTA
from schemas.registry import TYPE_NAMES
from schemas.requirements import Gang
from tests.conftest import eventually

POOL = Pool(name="p")
PATIENCE_S = 90.0


class World:
    """Nodes of eight GPUs and the newest decision about each pod."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.newest: dict[str, Decision] = {}
        self._follower = Follower(bus, DECISION, ["gpubus.decision.>"], self._on_decision)

    def _on_decision(self, record: Record) -> None:
        if not record.deleted:
            decision = codec.decode_as(Decision, record.payload).data
            self.newest[decision.pod_uid] = decision

    async def say(self, subject: str, data: msgspec.Struct, event_id: str) -> None:
        kind = TYPE_NAMES[type(data)]
        event = Event(id=event_id, source="/test", type=kind, subject="s", time=datetime.now(UTC), data=data)
        await self._bus.publisher.publish(subject, codec.encode(event), msg_id=event_id)

    async def start(self, nodes: int) -> None:
        await self._follower.start()
        await self.say(subjects.state("pool", POOL.name), POOL, "pool")
        for name in (f"n{number}" for number in range(nodes)):
            gpus = [
                GpuDevice(uuid=f"{name}-{index}", index=index, model="m", tflops_milli=1000, vram_bytes=1000)
                for index in range(8)
            ]
            inventory = GpuInventory(node=name, gpus=gpus, observed_at=datetime.now(UTC))
            await self.say(subjects.state("gpu", name), inventory, f"gpu {name}")
            await self.say(
                subjects.state("node", name), Node(name=name, pool=POOL.name, cpu_milli=16_000), f"node {name}"
            )

    async def create(self, uid: str, request: GpuRequest) -> None:
        command = Schedule(namespace="ns", name=uid, uid=uid, request=request)
        await self.say(subjects.work("schedule", POOL.name), command, f"{uid}:schedule")

    async def end(self, uid: str) -> None:
        node = self.newest[uid].node
        command = Release(namespace="ns", name=uid, uid=uid, pool=POOL.name, node=node)
        await self.say(subjects.work("release", node), command, f"{uid}:release")

    def among(self, prefix: str) -> Counter[tuple[str, str]]:
        """Count what was decided last about pods whose names begin so."""
        return Counter((one.outcome, one.reason) for uid, one in self.newest.items() if uid.startswith(prefix))

    async def standing(self) -> Counter[str]:
        """Count who stands by the ledger, by the first letter of their names, on each node and in all."""
        records, _ = await history.newest(self._bus, LEDGER, ["gpubus.ledger.node.*"])
        found: Counter[str] = Counter()
        for record in records:
            for held in codec.decode_as(NodeRecord, record.payload).data.allocations:
                found.update((held.pod_uid[0], f"{held.pod_uid[0]} on {record.subject.rsplit('.', 1)[-1]}"))
        return found


@asynccontextmanager
async def allocators(server: LocalServer, count: int):
    """Run so many allocators, each with a connection of its own."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        ready = [asyncio.Event() for _ in range(count)]

        async def run(number: int) -> None:
            async with await Bus.connect([server.url], name=f"a{number}") as bus:
                await Allocator(bus, f"a{number}").run(stop, ready=ready[number])

        for number in range(count):
            group.create_task(run(number))
        try:
            await asyncio.gather(*(one.wait() for one in ready))
            yield
        finally:
            stop.set()


async def test_of_two_gangs_of_sixteen_that_need_all_four_nodes_one_stands_at_any_time(
    bus: Bus, server: LocalServer
) -> None:
    world = World(bus)
    await world.start(nodes=4)
    single = GpuRequest(pool=POOL.name, compute_milli=100, cpu_milli=100)
    async with allocators(server, 3):
        for number in range(16):  # the last member of each comes while the others are being tried
            for key in "xy":
                gang = Gang(key=f"ns/{key}", min_members=16)
                request = GpuRequest(pool=POOL.name, compute_milli=500, count=2, cpu_milli=3500, gang=gang)
                await world.create(f"{key}{number}", request)
            await world.create(f"s{number}", single)
        await eventually(lambda: world.among("s")["allocated", ""] == 16, PATIENCE_S)
        await eventually(
            lambda: 16 in (world.among("x")["allocated", ""], world.among("y")["allocated", ""]), PATIENCE_S
        )
        winner, loser = "xy" if world.among("x")["allocated", ""] else "yx"
        await eventually(lambda: world.among(loser)["unschedulable", GANG_UNFULFILLABLE] > 0, PATIENCE_S)
        found = await world.standing()
        assert (found[winner], found[loser], found["s"]) == (16, 0, 16)
        assert [found[f"{winner} on n{number}"] for number in range(4)] == [4, 4, 4, 4]
        for number in range(16):
            await world.end(f"{winner}{number}")
        await eventually(lambda: world.among(loser)["allocated", ""] == 16, PATIENCE_S)
        found = await world.standing()
        assert (found[winner], found[loser], found["s"]) == (0, 16, 16)

    records: list[Record] = []
    await history.read(bus, LEDGER, ["gpubus.ledger.gang.*"], records.append)
    sizes: dict[str, list[int]] = {}
    for record in records:
        gang = codec.decode_as(GangRecord, record.payload).data
        sizes.setdefault(gang.key, []).append(len(gang.members))
    assert sizes[f"ns/{loser}"] == [16]
    assert sizes[f"ns/{winner}"][0] == 16
    assert sizes[f"ns/{winner}"] == sorted(sizes[f"ns/{winner}"], reverse=True)  # it only shrinks as its pods end
    assert (await audit(bus)).violations == []


async def test_of_three_hundred_pods_that_eight_allocators_place_in_one_namespace_its_quota_of_a_hundred_stand(
    bus: Bus, server: LocalServer
) -> None:
    world = World(bus)
    await world.start(nodes=16)
    await world.say(subjects.state("quota", "ns", "q"), Quota(namespace="ns", name="q", total=Budget(workers=100)), "q")
    async with allocators(server, 8):
        request = GpuRequest(pool=POOL.name, compute_milli=100, cpu_milli=10)
        await asyncio.gather(*(world.create(f"p{number}", request) for number in range(300)))
        await eventually(
            lambda: world.among("p") == {("allocated", ""): 100, ("unschedulable", QUOTA): 200}, PATIENCE_S
        )
        assert (await world.standing())["p"] == 100
    found = await audit(bus)
    assert (found.holding, found.violations, found.unsealed) == (100, [], 0)
