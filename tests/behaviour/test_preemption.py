"""Room is made on a real bus: two allocators, a cluster whose pods leave when they are told to, and the log of it all."""

import asyncio
from collections import Counter

from bus import codec, history
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec
from bus.streams import DECISION, LEDGER, WORK
from consumers.allocator.service import Allocator
from deploy.cli.main import main
from deploy.local.audit import audit
from deploy.local.server import LocalServer
from deploy.replay.jobs import verify
from producers.simulator.service import Simulator
from producers.simulator.trace import Trace, TraceNode, TracePod
from schemas.cluster import Pool
from schemas.decision import Decision
from schemas.ledger import NodeRecord
from schemas.preemption import Evict
from tests.conftest import eventually

GPUS, LOW, HIGH = 8, 16, 4
POOL = Pool(name="p", preemption="cluster")


def trace() -> Trace:
    """Pods of low quality of service that fill all GPUs by halves, and then some that want whole ones."""
    host = {"cpu_milli": 1000, "memory_mib": 1024, "num_gpu": 1}
    nodes = [
        TraceNode(name=f"n{i}.x", cpu_milli=64_000, memory_mib=2**18, gpus=GPUS // 2, model="A100-80G")
        for i in range(2)
    ]
    low = [TracePod(name=f"low-{i}", arrives_s=i, runs_s=None, gpu_milli=500, qos="BE", **host) for i in range(LOW)]
    high = [
        TracePod(name=f"high-{i}", arrives_s=LOW + i, runs_s=None, gpu_milli=1000, qos="LS", **host)
        for i in range(HIGH)
    ]
    return Trace(nodes, [*low, *high])


async def decisions(bus: Bus) -> list[Decision]:
    records: list[history.Record] = []
    await history.read(bus, DECISION, ["gpubus.decision.>"], records.append)
    return [codec.decode_as(Decision, record.payload).data for record in records]


async def test_pods_make_room_for_those_that_go_before_them_and_the_log_tells_it_again(
    server: LocalServer, bus: Bus, capsys
) -> None:
    stop = asyncio.Event()
    allocators = [Allocator(bus, f"a{number}") for number in range(2)]
    simulator = Simulator(bus, trace(), pool=POOL, rate=0.0, window=LOW, seed=1)
    running = [asyncio.create_task(one.run(stop)) for one in (*allocators, simulator)]
    try:
        await eventually(lambda: simulator.progress().allocated == LOW + HIGH, 30)
        await asyncio.wait_for(simulator.finished.wait(), 30)
    finally:
        stop.set()
        await asyncio.gather(*running)
    told = await decisions(bus)
    counted = Counter((one.outcome, one.reason) for one in told)
    assert counted["evicted", "Preempted"] == counted["released", "Deleted"] == 2 * HIGH
    evicted = {one.pod_uid: one for one in told if one.outcome == "evicted"}
    placed = {one.name: one for one in told if one.outcome == "allocated"}
    for one in evicted.values():
        assert one.preemption is not None
        assert one.name.startswith("low-")
        assert placed[one.preemption.preemptor.name].node == one.node
    records, _ = await history.newest(bus, LEDGER, ["gpubus.ledger.node.*"])
    left = [codec.decode_as(NodeRecord, record.payload).data for record in records]
    assert not any(record.holds for record in left)
    assert sum(len(record.allocations) for record in left) == LOW + HIGH - 2 * HIGH
    orders = PullConsumer(bus, ConsumerSpec(stream=WORK, durable="e", filters=("gpubus.work.evict.>",), ack_wait_s=5.0))
    await orders.start()
    taken = [codec.decode_as(Evict, (await orders.take(1))[0].payload).data for _ in range(HIGH)]
    await orders.stop()
    victims = [pod for order in taken for pod in order.preemption.victims]
    assert {pod.uid for pod in victims} == evicted.keys()

    found = await audit(bus)
    assert found.violations == []
    again = await verify(bus)
    assert (again.reproduced, again.different, again.unexplained) == (again.decisions, 0, 0)
    assert (again.violations, again.astray, again.notes) == ([], [], [])

    one = next(iter(evicted.values()))
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["why", f"default/{one.name}", "--all", "--nats", server.url]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert one.preemption is not None
    assert f"default/{one.preemption.preemptor.name}, which goes before it" in shown
    assert (
        await asyncio.to_thread(
            main, ["why", f"default/{one.preemption.preemptor.name}", "--all", "--nats", server.url]
        )
        == 0
    )
    assert "AwaitingEviction" in capsys.readouterr().out
