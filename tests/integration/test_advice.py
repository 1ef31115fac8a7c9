"""Advice on requests, from recorded use to the status of the workload; whoever advises is killed on the way."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bus import records, subjects
from bus.connection import Bus
from bus.kube.client import Client
from bus.streams import STATE
from consumers.metrics.duckdb import MEMORY, DuckDBStore
from consumers.metrics.tables import WORKER_USAGE
from consumers.scaler.advisor import Advisor
from consumers.scaler.histogram import add, percentile
from schemas.quantity import parse_bytes, parse_milli
from schemas.scaling import Histogram, WorkloadUse
from tests.conftest import eventually
from tests.integration.cluster import POOL, Cluster

pytestmark = pytest.mark.integration

API = "tensor-fusion.ai/v1"
GIB = 1024**3
KEY = ("default", "model")
STEPS = ("read", "learnt", "written")


def workload(**scaling: Any) -> dict[str, Any]:
    amounts = {"requests": {"tflops": "50", "vram": "8Gi"}, "limits": {"tflops": "60", "vram": "10Gi"}}
    spec = {"replicas": 1, "poolName": POOL, "qos": "high", "resources": amounts, "autoScalingConfig": scaling}
    return {
        "apiVersion": API,
        "kind": "TensorFusionWorkload",
        "metadata": {"name": "model", "namespace": "default"},
        "spec": spec,
    }


AUTO = {"autoSetResources": {"enable": True, "interval": "15s", "marginFraction": "0"}}


class Clock:
    def __init__(self) -> None:
        self.at = datetime.now(UTC).replace(microsecond=0)

    def __call__(self) -> float:
        return self.at.timestamp()


def rows(start: datetime, count: int) -> list[tuple[datetime, int, int]]:
    return [(start + timedelta(seconds=15 * n), 20_000 + 500 * n, (2 + n % 4) * GIB) for n in range(count)]


async def record(store: DuckDBStore, samples: list[tuple[datetime, int, int]]) -> None:
    tags = {"uuid": "GPU-1", "node": "n", "pool": POOL, "pod_name": "w", "namespace": "default", "workload": "model",
            "worker": "uid"}  # fmt: skip
    fields = dict.fromkeys(WORKER_USAGE.fields)
    await store.write(
        {
            WORKER_USAGE: [
                (
                    round(at.timestamp() * 1000),
                    *(tags[tag] for tag in WORKER_USAGE.tags),
                    *(fields | {"compute_tflops": milli / 1000, "memory_bytes": vram}).values(),
                )
                for at, milli, vram in samples
            ]
        }
    )


async def uses(bus: Bus) -> WorkloadUse | None:
    _, found = await records.read(bus, STATE, subjects.state("use", *KEY), WorkloadUse)
    return found


@asynccontextmanager
async def advising(
    bus: Bus, client: Client, store: DuckDBStore, clock: Clock, **options: Any
) -> AsyncIterator[Advisor]:
    advisor = Advisor(bus, client, "a", store, clock=clock, **options)
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(advisor.run(stop, ready=ready))
    await ready.wait()
    try:
        await eventually(lambda: advisor.workloads.known() == [KEY], timeout=20)
        yield advisor
    finally:
        stop.set()
        await running


async def shown(cluster: Cluster, wanted) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            found = (await cluster.get("TensorFusionWorkload", "model", "default", API)).get("status", {})
            if wanted(found):
                return found
            await asyncio.sleep(0.05)


@pytest.fixture
async def metrics() -> AsyncIterator[DuckDBStore]:
    clock = Clock()
    opened = await DuckDBStore(MEMORY, clock=clock).open()
    yield opened
    await opened.close()


@pytest.fixture
async def scaler(kubeconfig_of, start) -> AsyncIterator[Client]:
    """The API server as the scaler's own account sees it; the watcher runs."""
    await start("watcher")
    async with await Client.connect(str(await kubeconfig_of("scaler"))) as client:
        yield client


async def test_use_becomes_advice_in_the_status_when_the_timer_ticks(cluster, bus, scaler, metrics) -> None:
    await cluster.create(workload(**AUTO))
    clock = Clock()
    await record(metrics, rows(clock.at - timedelta(hours=1), 200))
    async with advising(bus, scaler, metrics, clock) as advisor:
        await eventually(lambda: advisor.statistics().workloads == 1)
        await bus.publisher.publish(subjects.work("tick", "scaling", "default/model"), b"")
        status = await shown(cluster, lambda status: "recommendation" in status)
        wanted = status["recommendation"]
        assert 0.99 <= parse_milli(wanted["requests"]["tflops"], field="") / (20_000 + 500 * 190) <= 1.01
        assert 0.99 <= parse_bytes(wanted["requests"]["vram"], field="") / (5 * GIB) <= 1.01
        # Another configuration is another timer, and what cannot be followed is said and changes nothing.
        await cluster.apply(workload(autoSetResources={"enable": True, "targetVRAMPercentile": "0.1"}))
        async with asyncio.timeout(20):
            while not (use := await uses(bus)) or "not between the lower bound" not in use.advice.reason:
                await advisor.look(KEY)
        await shown(cluster, lambda status: "recommendation" not in status)
        await cluster.delete("TensorFusionWorkload", "model", "default", API)
        await eventually(lambda: not advisor.workloads.known())
        async with asyncio.timeout(20):
            while await uses(bus):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


class KilledError(Exception):
    """The process ends here."""


async def test_who_is_killed_at_any_step_loses_no_sample_and_counts_none_twice(cluster, bus, scaler, metrics) -> None:
    await cluster.create(workload(**AUTO))
    clock, dice, kills = Clock(), random.Random(7), 0
    start = clock.at - timedelta(minutes=90)
    samples = rows(start, 300)
    await record(metrics, samples)
    deadly = ""

    def step(name: str) -> None:
        if name == deadly:
            raise KilledError

    clock.at = start
    for _ in range(12):
        async with (
            advising(bus, scaler, metrics, clock, step=step) as one,
            advising(bus, scaler, metrics, clock) as other,
        ):
            clock.at += timedelta(seconds=dice.randint(1, 900))
            deadly = dice.choice(STEPS)
            results = await asyncio.gather(one.look(KEY), other.look(KEY), return_exceptions=True)
            kills += isinstance(results[0], KilledError)
            assert results[1] is None
    clock.at = samples[-1][0] + timedelta(hours=1)
    deadly = ""
    async with advising(bus, scaler, metrics, clock) as one:
        await one.look(KEY)
    use = await uses(bus)
    assert use is not None
    assert kills == 12
    assert (use.samples, use.since) == (len(samples), samples[0][0])
    alone = add(Histogram(), [(at, milli) for at, milli, _ in samples], half_life_s=7200)
    for fraction in (0.1, 0.5, 0.95, 0.99):
        assert abs(percentile(use.compute, fraction) / percentile(alone, fraction) - 1) <= 0.01


async def test_an_external_scaler_is_asked_with_what_the_contract_says(cluster, bus, scaler, metrics) -> None:
    asked = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        asked.append(json.loads(await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))))
        body = json.dumps(
            {"needScaleUp": True, "reason": "a sale", "recommendedResources": {"requests": {"tflops": "70"}}}
        )
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        external = {"enable": True, "url": f"http://127.0.0.1:{port}/", "initialDelayPeriod": "0s", "interval": "15s"}
        await cluster.create(workload(externalScaler=external))
        clock = Clock()
        async with advising(bus, scaler, metrics, clock) as advisor:
            clock.at += timedelta(seconds=1)
            await advisor.look(KEY)
            await advisor.look(KEY)
    assert asked == [
        {
            "workloadName": "model",
            "namespace": "default",
            "currentResources": {
                "requests": {"tflops": "50", "vram": "8Gi"},
                "limits": {"tflops": "60", "vram": "10Gi"},
            },
        }
    ]
    status = await shown(cluster, lambda status: "recommendation" in status)
    assert status["recommendation"] == {"requests": {"tflops": "70"}, "limits": {}}
