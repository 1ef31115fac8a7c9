"""The recorder: what is said on the bus comes to the tables, once, and outages of the store lose nothing that is held."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from bus import codec, records, subjects
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.deadletter import list_letters
from bus.streams import STATE, USAGE, StreamLimits, ensure_streams
from consumers.metrics.duckdb import MEMORY, DuckDBStore
from consumers.metrics.progress import COUNTERS, progress, said
from consumers.metrics.settings import store as open_store
from consumers.metrics.store import MetricsStore, StoreError, StoreUnavailableError
from consumers.recorder import service, usage, writer
from consumers.recorder.pricing import STANDARD, Price, PriceError, cost, model_prices, pool_prices
from consumers.recorder.service import USAGE_SPEC, Recorder
from schemas.cluster import GpuDevice, GpuInventory, Node, Oversubscription, Pool
from schemas.decision import Basis, Decision, GpuGrant
from schemas.event import Event
from schemas.kube.pools import QosConfig, QosPrices, QosPricing
from schemas.kube.resources import CustomResource
from schemas.kube.settings import HardwareModel
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
        await self.say(subjects.state("pod", "d", "train-0"), pod, "pod")
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
        counts = {"throttled_count": 7, "vram_frozen_count": 2, "vram_resumed_count": 1}
        process = ProcessUsage(pod_uid="u1", vram_bytes=4 * GIB, sm_percent=30.0, **counts)
        samples = (
            GpuSample(uuid="GPU-0", sm_percent=40.0, vram_used_bytes=8 * GIB, processes=(process, process), **gpu),
            GpuSample(uuid="GPU-1", absent=True),
        )
        sample = NodeUsage(node="n", at=datetime.fromtimestamp(at, UTC), gpus=samples)
        await self.say(subjects.usage_gpu("n"), sample, f"usage:{at}")


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
        await cluster.use(time.time(), temperature_c=80, power_mw=250_500, pcie_rx_bytes=9)
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
                "memory_bytes": 8 * GIB, "compute_throttled_cnt": 7, "vram_freezed_cnt": 2, "vram_resumed_cnt": 1,
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
        assert worker["raw_cost"] == pytest.approx(expected)
        assert node["raw_cost"] is None  # nobody says what an A100 costs
        (allocation,) = await ask(tables, "SELECT gpu_model_index, gpu_name FROM tf_gpu_allocation")
        assert allocation == {"gpu_model_index": "A100:0", "gpu_name": "GPU-0"}
        assert len(await ask(tables, "SELECT * FROM tf_gpu_metrics")) == 2
        assert len(await ask(tables, "SELECT * FROM tf_pool_metrics")) == 1
    (letter,) = [letter.data async for letter in list_letters(bus)]
    assert letter.stream == USAGE


async def test_workers_pay_what_their_pool_says_and_nodes_what_their_gpus_cost(bus: Bus, tables: DuckDBStore) -> None:
    cluster = Cluster(bus)
    await cluster.start()
    pricing = {
        "qos": "high",
        "requests": {"perFP16TFlopsPerHour": "$0.01", "perGBOfVRAMPerHour": "0.02"},
        "limitsOverRequests": "0.5",
    }
    metadata = [{"model": "A100", "fullModelName": "NVIDIA A100-SXM4-80GB", "costPerHour": "1.8"}]
    provider = {"vendor": "NVIDIA", "images": {"middleware": "m"}, "hardwareMetadata": metadata}

    async def configure(plural: str, name: str, spec: dict, event_id: str) -> None:
        resource = CustomResource(plural=plural, name=name, spec=spec)
        await cluster.say(subjects.state("config", plural, "", name), resource, event_id)

    async def price(event_id: str, **changed: object) -> None:
        spec = {"nodeManagerConfig": {}, "qosConfig": {"pricing": [pricing | changed]}}
        await configure("gpupools", "p", spec, event_id)

    async def costs(recorder: Recorder) -> tuple[float | None, float | None]:
        await asyncio.sleep(0.002)  # rows of one millisecond replace each other
        wrote = recorder.statistics().writes
        await snapshot(bus)
        await eventually(lambda: recorder.statistics().writes > wrote)
        (worker,) = await ask(tables, "SELECT raw_cost FROM tf_worker_resources ORDER BY ts DESC LIMIT 1")
        (node,) = await ask(tables, "SELECT raw_cost FROM tf_node_metrics ORDER BY ts DESC LIMIT 1")
        return worker["raw_cost"], node["raw_cost"]

    requested, over = 50 * 0.01 + 8 * 0.02, (30 * 0.01 + 8 * 0.02) * 0.5
    async with recording(bus, tables) as (recorder,):
        await configure("providerconfigs", "nvidia", provider, "provider")
        await price("priced")
        await eventually(lambda: "p" in recorder.view.prices and recorder.view.node_price(gpus(recorder)) is not None)
        assert await costs(recorder) == pytest.approx(((requested + over) * 10 / 3600, 2 * 1.8 * 10 / 3600))
        pod = recorder.view.pods["u1"]
        request = msgspec.structs.replace(pod.request, eviction_protection_s=3600)
        young = msgspec.structs.replace(pod, request=request, created_at=datetime.now(UTC))
        await cluster.say(subjects.state("pod", "d", "train-0"), young, "young")
        await eventually(lambda: recorder.view.pods["u1"].created_at is not None)
        assert (await costs(recorder))[0] == pytest.approx(1.2 * (requested + over) * 10 / 3600)
        old = msgspec.structs.replace(young, created_at=datetime.now(UTC) - timedelta(hours=2))
        await cluster.say(subjects.state("pod", "d", "train-0"), old, "old")
        await eventually(lambda: recorder.view.pods["u1"].created_at == old.created_at)
        assert (await costs(recorder))[0] == pytest.approx((requested + over) * 10 / 3600)
        before = recorder.view.prices["p"]
        await price("unreadable", limitsOverRequests="half")
        await eventually(lambda: recorder.view.prices["p"] != before)
        assert (await costs(recorder))[0] is None
        await price("other", qos="low")
        await eventually(lambda: "low" in recorder.view.prices["p"].levels)
        assert (await costs(recorder))[0] is None  # a level that has no price among those that have


def gpus(recorder: Recorder) -> GpuInventory:
    return recorder.view.inventories["n"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (QosConfig(pricing=(QosPricing(qos="low", limits_over_requests="-1"),)), "limitsOverRequests is '-1': write a"),
        (QosConfig(pricing=(QosPricing(qos="low", limits_over_requests="nan"),)), "limitsOverRequests is 'nan'"),
        (QosConfig(pricing=(QosPricing(qos="low", limits_over_requests="1e3"),)), "limitsOverRequests is '1e3'"),
        (
            QosConfig(pricing=(QosPricing(qos="low", requests=QosPrices(per_gb_of_vram_per_hour="€1")),)),
            "qosConfig.pricing of low: perGBOfVRAMPerHour is '€1'",
        ),
        (
            QosConfig(pricing=(QosPricing(qos="low"),), eviction_protection_price_ratio="0.5"),
            "evictionProtectionPriceRatio is '0.5': protection cannot be cheaper",
        ),
    ],
)
def test_prices_that_make_no_sense_are_refused_with_field_and_value(config: QosConfig, says: str) -> None:
    with pytest.raises(PriceError, match=re.escape(says)):
        pool_prices(config)


def test_protection_costs_critical_workers_nothing_and_no_prices_mean_the_standard_ones() -> None:
    of = (50.0, 8.0 * GIB, 80.0, 16.0 * GIB)
    assert pool_prices(None) is pool_prices(QosConfig()) is STANDARD
    plain = cost(Price(), of, gpus=2, seconds=60)
    for qos, ratio in (("low", 1.2), ("high", 1.2), ("critical", 1.0)):
        assert STANDARD.cost(qos, of, gpus=2, seconds=60, protected=True) == pytest.approx(plain * ratio)
        assert STANDARD.cost(qos, of, gpus=2, seconds=60) == plain


def test_a_gpu_is_priced_by_the_nearest_of_the_names_that_its_model_goes_by() -> None:
    hardware = (
        HardwareModel(model="H100", cost_per_hour="4"),
        HardwareModel(model="H100_PCIe", cost_per_hour="$2.5"),
        HardwareModel(model="X1", full_model_name="Maker X1 Ultra", cost_per_hour=3),
        HardwareModel(model="T4", full_model_name="Tesla T4"),
    )
    prices = model_prices(hardware)
    assert prices["NVIDIA H100 80GB HBM3"] == 4.0
    assert prices["NVIDIA H100 PCIe"] == 2.5
    assert (prices["X1"], prices["Maker X1 Ultra"]) == (3.0, 3.0)
    assert "Tesla T4" not in prices  # no price is not a price of 0
    with pytest.raises(PriceError, match="hardwareMetadata of A: costPerHour is 'much'"):
        model_prices([HardwareModel(model="A", cost_per_hour="much")])


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
            _, counters = await records.read(bus, STATE, COUNTERS, RecorderCounters)
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


async def test_recorders_share_the_work_and_a_redelivery_doubles_nothing(
    bus: Bus, tables: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "SKEW_MS", 60_000)  # samples of a minute in a moment, each of its own time
    cluster = Cluster(bus)
    await cluster.start()
    began = time.time()
    for number in range(50):
        await cluster.use(began + number / 10)
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
    monkeypatch.setattr(usage, "SKEW_MS", 60_000)  # samples of a minute in a moment, each of its own time
    monkeypatch.setattr(writer, "LONGEST_BACK_OFF_S", 0.2)
    cluster = Cluster(bus)
    await cluster.start()
    async with GreptimeStandIn() as stand_in:
        metrics = await open_store(stand_in.url).open()
        async with recording(bus, metrics) as (recorder,):
            began = time.time()
            await cluster.use(began)
            await snapshot(bus)
            await eventually(lambda: recorder.statistics().writes >= 2)
            await stand_in.stop()
            published = 1
            for number in range(1, 399):
                await cluster.use(began + number / 10)
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
            await cluster.use(began + 45)  # it goes on as if nothing had been
            await eventually(lambda: recorder.statistics().samples == kept + 1, 20)
            assert (await ask(metrics, "SELECT count(*) AS n FROM tf_gpu_usage"))[0]["n"] == kept + 1
        await metrics.close()


async def test_samples_of_a_node_whose_clock_is_wrong_are_dated_by_the_bus(bus: Bus, tables: DuckDBStore) -> None:
    cluster = Cluster(bus)
    await cluster.start()
    async with recording(bus, tables) as (recorder,):
        for number, off in enumerate((86_400.0, -86_400.0, 4.0, -4.0, 0.5)):
            await cluster.use(time.time() + off)
            await eventually(lambda number=number: recorder.statistics().samples == number + 1)
            assert recorder.statistics().skewed == (off != 0.5)
    sql = "SELECT count(*) AS n FROM tf_gpu_usage WHERE ts > now() - '30s'::INTERVAL AND ts < now() + '1s'::INTERVAL"
    assert await ask(tables, sql) == [{"n": 5}]


async def test_how_far_usage_is_written_is_what_no_recorder_has_in_hand(bus: Bus) -> None:
    begin = time.time_ns()
    assert (await progress(bus)).usage is None
    members = [PullConsumer(bus, USAGE_SPEC, prefetch=2) for _ in range(2)]
    for member in members:
        await member.start()
    now = await progress(bus)
    assert now.usage == now.at  # nothing was said, so nothing is missing
    for number in range(4):
        await Cluster(bus).use(begin / 1e9 + number)
    await eventually(lambda: sum(member.delivered for member in members) == 4)
    held = {d.position.seq: d for member in members for d in await member.take_now(4)}
    for seq, oldest in ((3, 1), (1, 2), (2, 4)):
        await held[seq].ack()
        async with asyncio.timeout(10):
            while (now := await progress(bus)).usage != held[oldest].position.time_ns:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    at = held[4].position.time_ns
    assert [await said(bus, *span) for span in ((at - 1, at), (at, at + 1), (at + 1, at + 10**9))] == [
        False,
        True,
        False,
    ]
    await bus.api(f"STREAM.PURGE.{USAGE}", {"filter": "gpubus.usage.>"})
    now = await progress(bus)
    assert now.usage == now.at  # what was dropped cannot be written any more
    assert now.snapshot == 0
    for member in members:
        await member.stop()


async def test_what_the_store_refuses_is_a_dead_letter_and_said_but_a_login_that_it_refuses_is_waited_for(
    bus: Bus,
) -> None:
    cluster = Cluster(bus)
    await cluster.start()
    async with GreptimeStandIn() as stand_in:
        metrics = await open_store(stand_in.url).open()
        async with recording(bus, metrics) as (recorder,):
            stand_in.fail = ["401"] * 3
            await cluster.use(time.time())
            await eventually(lambda: recorder.statistics().samples == 1, 20)
            assert recorder.statistics().failures == 1
            assert not [letter async for letter in list_letters(bus)]
            assert (await progress(bus)).refused == 0
            before = time.time_ns()
            stand_in.fail = ["400"]
            await cluster.use(time.time())
            await eventually(lambda: recorder.statistics().refused == 1, 20)
            (letter,) = [letter.data async for letter in list_letters(bus)]
            assert "told to fail" in letter.reason
            now = await progress(bus)
            assert before <= now.refused <= now.at
            await snapshot(bus)  # which keeps it
            await eventually(lambda: recorder.statistics().writes >= 2, 20)
            await until(lambda: snapshots(bus), True)
            assert (await progress(bus)).refused == now.refused
        await metrics.close()


async def test_a_message_that_no_row_can_be_made_of_ends_no_recorder_and_is_said(
    bus: Bus, tables: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(view, said, stored_ms, rows, sound=service.usage_rows):
        sound(view, said, stored_ms, rows)
        if said.gpus[0].temperature_c == 66:
            raise OverflowError("int too large to convert to float")

    monkeypatch.setattr(service, "usage_rows", broken)
    cluster = Cluster(bus)
    await cluster.start()
    before = time.time_ns()
    for celsius in (65, 66, 67):
        await cluster.use(time.time() + celsius / 100, temperature_c=celsius)
    huge = codec.encode(
        Event(
            id="huge", source="/t", type="gpubus.usage.v1", subject="n", time=datetime.now(UTC),
            data=NodeUsage(node="n", at=datetime.now(UTC), gpus=(GpuSample(uuid="GPU-0", temperature_c=71),)),
        )
    ).replace(b":71", b":" + b"9" * 400)  # fmt: skip
    await bus.publisher.publish(subjects.usage_gpu("n"), huge, msg_id="huge")
    async with recording(bus, tables) as (recorder,):
        await eventually(lambda: recorder.statistics().samples == 2 and recorder.statistics().refused == 2)
        reasons = [letter.data.reason async for letter in list_letters(bus)]
        assert "OverflowError" in reasons[0]
        assert "temperature_c" in reasons[1]
        now = await progress(bus)
        assert before <= now.refused <= now.at
    assert await ask(tables, "SELECT temperature FROM tf_gpu_usage ORDER BY 1") == [
        {"temperature": 65.0},
        {"temperature": 67.0},
    ]


async def test_of_a_batch_the_store_refuses_only_what_it_cannot_take_whatever_our_clock_says(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Picky(DuckDBStore):
        async def write(self, rows):
            if any(66.0 in row for row in rows.get(service.GPU_USAGE, ())):
                raise StoreError("invalid line")
            await super().write(rows)

    picky = await Picky(MEMORY, clock=time.time).open()
    monkeypatch.setattr(time, "time_ns", lambda: 2**62)  # years ahead
    cluster = Cluster(bus)
    await cluster.start()
    for number in range(12):
        await cluster.use(time.time() + number / 100, temperature_c=60 + number)
    async with recording(bus, picky) as (recorder,):
        await eventually(lambda: recorder.statistics().samples == 11 and recorder.statistics().refused == 1)
        assert [letter.data.reason async for letter in list_letters(bus)] == ["invalid line"]
        now = await progress(bus)
        assert 0 < now.refused <= now.at
    await picky.close()


async def test_a_recorder_that_is_cut_off_from_the_store_leaves_its_messages_to_another(
    bus: Bus, tables: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CutOff(DuckDBStore):
        cut = False

        async def write(self, rows):
            if self.cut:
                raise StoreUnavailableError("no route to host")
            await tables.write(rows)

    monkeypatch.setattr(writer, "GIVE_UP_S", 0.5)
    monkeypatch.setattr(service, "LONGEST_ASIDE_S", 0.2)
    lame = await CutOff(MEMORY, clock=time.time).open()
    cluster = Cluster(bus)
    await cluster.start()
    async with recording(bus, lame) as (lonely,):
        lame.cut = True
        await cluster.use(time.time())
        await eventually(lambda: "no route to host" in lonely.unready(), 20)
        began = time.monotonic()
        async with recording(bus, tables) as (other,):
            for number in range(20):
                await cluster.use(time.time() + number / 100)
            await eventually(lambda: other.statistics().samples == 21)
            assert time.monotonic() - began < writer.LEASE_S  # given back, not lapsed

            async def reached() -> bool:
                now = await progress(bus)
                return now.usage == now.at

            await until(reached, True)  # so that rules go on
            assert lonely.unready()
            assert lonely.statistics().samples == 0
        lame.cut = False
        await eventually(lambda: not lonely.unready() and lonely.statistics().samples == 1, 20)
        await cluster.use(time.time())
        await eventually(lambda: lonely.statistics().samples == 2, 20)
    assert await ask(tables, "SELECT count(*) AS n FROM tf_gpu_usage") == [{"n": 22}]
    await lame.close()


async def snapshots(bus: Bus) -> bool:
    return (await progress(bus)).snapshot > 0
