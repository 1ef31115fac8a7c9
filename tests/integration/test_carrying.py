"""Advice carried out on workers that run: in the ledger, within capacity and quota, and on the pods, whoever dies on the way."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from bus import records, subjects
from bus.connection import Bus
from bus.kube.client import Client
from bus.streams import LEDGER
from consumers.metrics.duckdb import MEMORY, DuckDBStore
from consumers.scaler.applied import MARK
from deploy.replay.jobs import verify
from schemas.ledger import Allocation, NodeRecord
from tests.integration.cluster import POOL, Cluster, node, play_agents
from tests.integration.test_advice import (
    API,
    AUTO,
    GIB,
    KEY,
    Clock,
    KilledError,
    advising,
    record,
    rows,
    uses,
    workload,
)
from tests.integration.test_workload import pool

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WORKERS = ("model-tf-worker-0", "model-tf-worker-1")


def elastic() -> dict[str, Any]:
    """A pool of nodes that sells no more than there is."""
    made = pool("worker:1")
    made["metadata"]["annotations"] = {"tensor-fusion.ai/is-default-pool": "true"}
    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": [POOL]}]}]
    made["spec"]["nodeManagerConfig"]["nodeSelector"]["nodeSelectorTerms"] = terms
    over = {"vramExpandToHostMem": 0, "vramExpandToHostDisk": 0, "tflopsOversellRatio": 100}
    return made | {"spec": made["spec"] | {"capacityConfig": {"oversubscription": over}}}


@pytest.fixture
async def metrics() -> AsyncIterator[DuckDBStore]:
    opened = await DuckDBStore(MEMORY, clock=Clock()).open()
    yield opened
    await opened.close()


@pytest.fixture
async def scaler(cluster: Cluster, bus: Bus, kubeconfig_of, start) -> AsyncIterator[Client]:
    """The API server as the scaler's own account sees it; a node with one GPU, and every role that workers need."""
    await asyncio.gather(*map(start, ("watcher", "allocator", "binder", "workload")))
    await cluster.apply(elastic())
    await cluster.create(node("node-a"))
    await play_agents(bus, ["node-a"], gpus=1)
    async with await Client.connect(str(await kubeconfig_of("scaler"))) as client:
        yield client


async def held(bus: Bus) -> dict[str, Allocation]:
    _, found = await records.read(bus, LEDGER, subjects.ledger_node("node-a"), NodeRecord)
    return {one.name: one for one in found.allocations} if found is not None else {}


async def amounts(bus: Bus, name: str) -> tuple[float, float]:
    """Return TFLOPS and GiB that a worker holds."""
    (gpu,) = (await held(bus))[name].gpus
    return gpu.tflops_milli / 1000, gpu.vram_bytes / GIB


async def stand(cluster: Cluster, bus: Bus, *names: str) -> None:
    async with asyncio.timeout(30):
        while not set(names) <= (await held(bus)).keys():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        for name in names:
            while not (await cluster.get("Pod", name, "default"))["spec"].get("nodeName"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def annotations(cluster: Cluster, name: str) -> dict[str, str]:
    found: dict[str, str] = (await cluster.get("Pod", name, "default"))["metadata"]["annotations"]
    return found


async def two(cluster: Cluster, bus: Bus, **scaling: Any) -> None:
    """Two workers of 50 TFLOPS and 8 GiB each, on one GPU."""
    made = workload(**scaling)
    made["spec"]["replicas"] = 2
    await cluster.apply(made)
    await stand(cluster, bus, *WORKERS)


def cron(tflops: str) -> dict[str, Any]:
    """A rule that has always started and never ends but in a leap second's minute."""
    wanted = {"requests": {"tflops": tflops, "vram": "16Gi"}, "limits": {"tflops": tflops, "vram": "20Gi"}}
    rule = {"enable": True, "name": "always", "start": "* * * * *", "end": "0 0 29 2 *", "desiredResources": wanted}
    return {**AUTO, "cronScalingRules": [rule]}


async def test_workers_that_run_hold_what_is_advised_and_nothing_is_restarted(
    cluster: Cluster, bus: Bus, scaler: Client, metrics: DuckDBStore
) -> None:
    await two(cluster, bus, **AUTO)
    uids = {name: one.pod_uid for name, one in (await held(bus)).items()}
    clock = Clock()
    await record(metrics, rows(clock.at - timedelta(hours=1), 200))

    def step(name: str) -> None:
        if name == "carried":
            raise KilledError

    async with advising(bus, scaler, metrics, clock, step=step) as advisor:
        with pytest.raises(KilledError):  # it has carried it out and tells nobody
            await advisor.look(KEY)
    async with advising(bus, scaler, metrics, clock) as advisor:
        await advisor.look(KEY)
    use = await uses(bus)
    assert use is not None
    assert (use.applied, use.problem) == (2, "")
    wanted = use.advice.resources
    for name in WORKERS:
        assert await amounts(bus, name) == (
            wanted.requests.tflops_milli / 1000,
            wanted.requests.vram_bytes / GIB,
        )
        says = await annotations(cluster, name)
        assert says[MARK] == "percentile"
        assert msgspec.json.decode(says["gpubus.io/allocation"], type=Allocation).gpus == (await held(bus))[name].gpus
    assert {name: one.pod_uid for name, one in (await held(bus)).items()} == uids
    status = (await cluster.get("TensorFusionWorkload", "model", "default", API))["status"]
    assert status["appliedRecommendedReplicas"] == 2


async def test_what_the_gpu_or_the_quota_does_not_allow_is_not_done_and_told(
    cluster: Cluster, bus: Bus, scaler: Client, metrics: DuckDBStore
) -> None:
    await two(cluster, bus, **cron("200"))  # one of them fits beside the other as it is, and not both
    clock = Clock()
    await record(metrics, rows(clock.at - timedelta(hours=1), 200))  # what is in use is known
    async with advising(bus, scaler, metrics, clock) as advisor:
        await advisor.look(KEY)
        use = await uses(bus)
        assert use is not None
        assert (use.applied, use.advice.rule) == (1, "always")
        assert use.problem.startswith("model-tf-worker-1: InsufficientCompute: the GPUs that it stands on")
        assert [await amounts(bus, name) for name in WORKERS] == [(200, 16), (50, 8)]
        # Less is asked for: both have it, and what is over goes to whoever comes.
        await cluster.apply(_replicas(workload(**cron("100"))))
        await _until(advisor, bus, applied=2)
        assert [await amounts(bus, name) for name in WORKERS] == [(100, 16), (100, 16)]
        quota = {
            "apiVersion": API, "kind": "GPUResourceQuota", "metadata": {"name": "q", "namespace": "default"},
            "spec": {"total": {"requests": {"tflops": "220", "vram": "64Gi"}}},
        }  # fmt: skip
        await cluster.apply(quota)
        await cluster.apply(_replicas(workload(**cron("120"))))
        use = await _until(advisor, bus, applied=1)
        assert "quota GPUResourceQuota/q" in use.problem
        assert sorted([await amounts(bus, name) for name in WORKERS]) == [(100, 16), (120, 16)]
        # The rule is gone, and nothing is advised: workers go back to what their workload states.
        later = {"autoSetResources": {**AUTO["autoSetResources"], "initialDelayPeriod": "2h"}}
        await cluster.apply(_replicas(workload(**later)))
        async with asyncio.timeout(30):
            while [await amounts(bus, name) for name in WORKERS] != [(50, 8), (50, 8)]:
                await advisor.look(KEY)
        assert MARK not in await annotations(cluster, WORKERS[0])
    # Whatever was decided comes out the same when it is decided again.
    verdict = await verify(bus)
    assert (verdict.different, verdict.unexplained, verdict.gaps, verdict.undecodable) == (0, 0, 0, 0)
    assert (verdict.violations, verdict.astray, verdict.notes) == ([], [], [])
    assert verdict.decisions >= 8


async def test_where_the_workload_does_not_enable_it_nothing_is_carried_out(
    cluster: Cluster, bus: Bus, scaler: Client, metrics: DuckDBStore
) -> None:
    off = {**cron("100"), "autoSetResources": {**AUTO["autoSetResources"], "enable": False}}
    await two(cluster, bus, **off)
    async with advising(bus, scaler, metrics, Clock()) as advisor:
        await advisor.look(KEY)
    use = await uses(bus)
    assert use is not None
    assert (use.advice.rule, use.applied) == ("always", 0)
    assert [await amounts(bus, name) for name in WORKERS] == [(50, 8), (50, 8)]


def _replicas(made: dict[str, Any]) -> dict[str, Any]:
    made["spec"]["replicas"] = 2
    return made


async def _until(advisor, bus: Bus, *, applied: int):
    async with asyncio.timeout(30):
        while True:
            await advisor.look(KEY)
            use = await uses(bus)
            if use is not None and use.applied == applied:
                return use
            await asyncio.sleep(0.05)
