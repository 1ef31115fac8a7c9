"""The recorder: what is said on the bus comes to the tables, once, and outages of the store lose nothing that is held."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec
import pytest

from bus import codec, records, subjects
from bus.connection import Bus
from bus.deadletter import list_letters
from bus.streams import STATE, USAGE, StreamLimits, ensure_streams
from consumers.metrics.duckdb import MEMORY, DuckDBStore
from consumers.metrics.settings import store as open_store
from consumers.metrics.store import MetricsStore
from consumers.recorder import service
from consumers.recorder.counters import SUBJECT
from consumers.recorder.pricing import Price, cost
from consumers.recorder.service import Recorder
from schemas.cluster import GpuDevice, GpuInventory, Node, Oversubscription, Pool
from schemas.decision import Basis, Decision, GpuGrant
from schemas.event import Event
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import GpuRequest, Pod
from schemas.record import RecorderCounters
from schemas.registry import TYPE_NAMES
from schemas.usage import GpuSample, NodeUsage, ProcessUsage
from tests.conftest import eventually
from tests.stores.greptime import GreptimeStandIn

GIB = 2**30


class Cluster:
    """One node with two GPUs, a pod on one of them, and decisions."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus

    async def say(self, subject: str, data, event_id: str) -> None:
        event = Event(
            id=event_id, source="/t", type=TYPE_NAMES[type(data)], subject="s", time=datetime.now(UTC), data=data
        )
        await self.bus.publisher.publish(subject, codec.encode(event), msg_id=event_id)

    async def start(self) -> None:
        over = Oversubscription(tflops_ratio=200, host_memory=50)
        await self.say(subjects.state("pool", "p"), Pool(name="p", oversubscription=over), "pool")
        await self.say(subjects.state("node", "n"), Node(name="n", pool="p", memory_bytes=64 * GIB), "node")
        gpus = [
            GpuDevice(uuid=f"GPU-{i}", index=i, model="A100", tflops_milli=100_000, vram_bytes=32 * GIB) for i in (0, 1)
        ]
        await self.say(
            subjects.state("gpu", "n"), GpuInventory(node="n", gpus=gpus, observed_at=datetime.now(UTC)), "g"
        )
        request = GpuRequest(
            pool="p", tflops_milli=50_000, vram_bytes=8 * GIB, tflops_limit_milli=80_000, vram_limit_bytes=16 * GIB
        )
        pod = Pod(
            namespace="d", name="train-0", uid="u1", resource_version="1", request=request, phase="Running",
            labels={"tensor-fusion.ai/workload": "train"},
        )  # fmt: skip
        await self.say(subjects.state("pod", "d", "train-0", "u1"), pod, "pod")
        grant = GpuGrant(uuid="GPU-0", index=0, tflops_milli=50_000, vram_bytes=8 * GIB)
        allocation = Allocation(pod_uid="u1", namespace="d", name="train-0", pool="p", gpus=(grant,), qos="high")
        record = NodeRecord(node="n", txn="t", allocations=(allocation,), changes=())
        await self.say(subjects.ledger_node("n"), record, "ledger")

    async def decide(self, number: int, outcome: str) -> None:
        decision = Decision(
            outcome=outcome, namespace="d", name=f"pod-{number}", pod_uid=f"{number}", pool="p", allocator="a",
            basis=Basis(state=1, ledger=1, ordinal=1), message=f"because {number}",
        )  # fmt: skip
        await self.say(subjects.decision("d", f"pod-{number}"), decision, f"decision:{number}")

    async def use(self, at: float, **gpu) -> None:
        process = ProcessUsage(pod_uid="u1", vram_bytes=4 * GIB, sm_percent=30.0, throttled_count=7)
        samples = (
            GpuSample(uuid="GPU-0", sm_percent=40.0, vram_used_bytes=8 * GIB, processes=(process, process), **gpu),
            GpuSample(uuid="GPU-1", absent=True),
        )
        usage = NodeUsage(node="n", at=datetime.fromtimestamp(at, UTC), gpus=samples)
        await self.say(subjects.usage_gpu("n"), usage, f"usage:{at}")


@asynccontextmanager
async def recording(bus: Bus, store: MetricsStore, count: int = 1) -> AsyncIterator[list[Recorder]]:
    stop = asyncio.Event()
    recorders = [Recorder(bus, f"r{number}", store) for number in range(count)]
    ready = [asyncio.Event() for _ in recorders]
    tasks = [asyncio.create_task(r.run(stop, ready=e)) for r, e in zip(recorders, ready, strict=True)]
    try:
        for event in ready:
            await event.wait()
        yield recorders
    finally:
        stop.set()
        await asyncio.gather(*tasks)


@pytest.fixture
async def tables() -> AsyncIterator[DuckDBStore]:
    opened = await DuckDBStore(MEMORY, clock=time.time).open()
    yield opened
    await opened.close()


async def ask(store: MetricsStore, sql: str) -> list[dict]:
    return (await store.query(sql, timeout=10)).named()


async def snapshot(bus: Bus) -> None:
    """Tick now instead of in ten seconds."""
    event = Event(id="t", source="/t", type="gpubus.timer.v1", subject="s", time=datetime.now(UTC), data=None)
    await bus.publisher.publish(subjects.work("tick", "record", "snapshot"), codec.encode(event))


async def until(ask_again: Callable[[], Awaitable[object]], expected: object) -> None:
    async with asyncio.timeout(20):
        while await ask_again() != expected:  # noqa: ASYNC110  the server tells nobody
            await asyncio.sleep(0.05)


async def test_what_is_said_on_the_bus_is_in_the_tables(bus: Bus, tables: DuckDBStore) -> None:
    cluster = Cluster(bus)
    await cluster.start()
    async with recording(bus, tables) as (recorder,):
        await cluster.use(1_764_500_000.0, temperature_c=80, power_mw=250_500, pcie_rx_bytes=9)
        await bus.publisher.publish(subjects.usage_gpu("n"), b"{nonsense")
        await eventually(lambda: recorder.statistics().samples == 1)
        assert await ask(tables, "SELECT * EXCLUDE (ts) FROM tf_gpu_usage") == [
            {
                "uuid": "GPU-0", "node": "n", "pool": "p", "rx": 9.0, "tx": 0.0, "temperature": 80.0,
                "memory_bytes": 8.0 * GIB, "memory_percentage": 25.0, "compute_percentage": 40.0,
                "compute_tflops": 40.0, "power_usage": 250.5, "graphics_clock_mhz": None, "sm_clock_mhz": None,
                "memory_clock_mhz": None, "video_clock_mhz": None, "nvlink_rx": 0.0, "nvlink_tx": 0.0,
            }
        ]  # fmt: skip
        assert await ask(tables, "SELECT * EXCLUDE (ts) FROM tf_worker_usage") == [
            {
                "uuid": "GPU-0", "node": "n", "pool": "p", "pod_name": "train-0", "namespace": "d", "workload": "train",
                "worker": "u1", "compute_percentage": 60.0, "compute_tflops": 60.0, "memory_percentage": 50.0,
                "memory_bytes": 8 * GIB, "compute_throttled_cnt": 14, "vram_freezed_cnt": None, "vram_resumed_cnt": None,
            }
        ]  # fmt: skip
        await snapshot(bus)
        await eventually(lambda: recorder.statistics().writes >= 2)
        (node,) = await ask(tables, "SELECT * FROM tf_node_metrics")
        assert node["allocated_tflops_percent"] == 25.0  # 50 of 200 TFLOPS that there are
        assert node["allocated_tflops_percent_virtual"] == 12.5  # and of 400 that can be scheduled
        assert node["allocated_vram_percent"] == 12.5
        assert node["allocated_vram_percent_virtual"] == pytest.approx(100 * 8 / (64 + 32))
        assert node["limited_tflops"] == 80.0
        assert node["gpu_count"] == 2
        (worker,) = await ask(tables, "SELECT * FROM tf_worker_resources")
        assert (worker["workload"], worker["qos"], worker["ready"]) == ("train", "high", True)
        expected = cost(Price(), (50.0, 8.0 * GIB, 80.0, 16.0 * GIB), gpus=1, seconds=10)
        assert worker["raw_cost"] == pytest.approx(expected) == node["raw_cost"]
        (allocation,) = await ask(tables, "SELECT gpu_model_index, gpu_name FROM tf_gpu_allocation")
        assert allocation == {"gpu_model_index": "A100:0", "gpu_name": "GPU-0"}
        assert len(await ask(tables, "SELECT * FROM tf_gpu_metrics")) == 2
        assert len(await ask(tables, "SELECT * FROM tf_pool_metrics")) == 1
    (letter,) = [letter.data async for letter in list_letters(bus)]
    assert letter.stream == USAGE


async def test_counters_grow_over_restarts_and_count_every_decision_once(bus: Bus, tables: DuckDBStore) -> None:
    cluster = Cluster(bus)
    await cluster.start()
    await cluster.decide(0, "allocated")  # before counting began
    for round_number in range(3):
        async with recording(bus, tables, count=2) as recorders:
            await snapshot(bus)
            await eventually(lambda rs=recorders: sum(r.statistics().writes for r in rs) >= 1)
            for number in range(2):
                outcome = "allocated" if number else "unschedulable"
                await cluster.decide(1 + round_number * 2 + number, outcome)
    async with recording(bus, tables):
        await snapshot(bus)
        expected = {"p": (3, 3)}

        async def counted() -> dict:
            _, counters = await records.read(bus, STATE, SUBJECT, RecorderCounters)
            assert counters is not None
            return {pool: (c.allocated, c.failed) for pool, c in counters.pools.items()}

        await until(counted, expected)
    (row,) = await ask(
        tables,
        "SELECT max(total_allocation_success_cnt) AS ok, max(total_allocation_fail_cnt) AS no FROM tf_system_metrics",
    )
    assert row == {"ok": 3, "no": 3}
    lines = await ask(tables, "SELECT pod, message FROM tf_system_log ORDER BY pod")
    assert [line["pod"] for line in lines] == [f"pod-{number}" for number in range(1, 7)]
    assert lines[0]["message"] == "because 1"


async def test_recorders_share_the_work_and_a_redelivery_doubles_nothing(bus: Bus, tables: DuckDBStore) -> None:
    cluster = Cluster(bus)
    await cluster.start()
    for second in range(50):
        await cluster.use(1_764_500_000.0 + second)
    async with recording(bus, tables, count=2) as recorders:
        await eventually(lambda: sum(r.statistics().samples for r in recorders) == 50)
    await bus.api(f"CONSUMER.DELETE.{USAGE}.{service.USAGE_SPEC.durable}")  # forgets that anything was acknowledged
    async with recording(bus, tables) as (recorder,):
        await eventually(lambda: recorder.statistics().samples == 50)
    assert await ask(tables, "SELECT count(*) AS n FROM tf_gpu_usage") == [{"n": 50}]
    assert await ask(tables, "SELECT count(*) AS n FROM tf_worker_usage") == [{"n": 50}]


async def test_a_store_that_is_down_is_waited_for_in_bounded_memory_and_what_the_bus_drops_is_counted(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BATCH", 32)
    monkeypatch.setattr(service, "LONGEST_BACK_OFF_S", 0.2)
    cluster = Cluster(bus)
    await cluster.start()
    async with GreptimeStandIn() as stand_in:
        metrics = await open_store(stand_in.url).open()
        async with recording(bus, metrics) as (recorder,):
            await cluster.use(1.0)
            await snapshot(bus)
            await eventually(lambda: recorder.statistics().writes >= 2)
            await stand_in.stop()
            published = 1
            for second in range(2, 400):
                await cluster.use(float(second))
                published += 1
            await eventually(lambda: recorder.statistics().failures >= 1, 20)
            assert recorder.statistics().held <= 32
            # The stream is full: the bus drops the oldest.
            limits = StreamLimits(usage_bytes=20_000)
            await ensure_streams(bus, limits)
            await stand_in.start()
            await eventually(lambda: recorder.statistics().samples > 32, 20)

            async def settled() -> bool:
                info = msgspec.json.decode(await bus.api(f"CONSUMER.INFO.{USAGE}.{service.USAGE_SPEC.durable}"))
                return info["num_pending"] == info["num_ack_pending"] == 0

            await until(settled, True)
            kept = recorder.statistics().samples
            assert kept < published
            assert recorder.statistics().lost_usage == published - kept
            await cluster.use(1000.0)  # it goes on as if nothing had been
            await eventually(lambda: recorder.statistics().samples == kept + 1, 20)
            assert (await ask(metrics, "SELECT count(*) AS n FROM tf_gpu_usage"))[0]["n"] == kept + 1
        await metrics.close()
