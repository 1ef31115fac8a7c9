"""The API server takes our kinds, fills in their defaults, and refuses what the contract rules out."""

import copy
from typing import Any

import pytest

from bus.kube.errors import KubeRefusedError
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.integration

POOL = {"nodeManagerConfig": {"nodePoolRollingUpdatePolicy": {}, "nodeCompaction": {}}}
PROFILE = {
    "replicas": 4,
    "gangScheduling": {"minMembers": 2},
    "resources": {"requests": {"tflops": "10", "vram": "4Gi"}},
}


def made(kind: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    meta = {"name": "one"} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "tensor-fusion.ai/v1", "kind": kind, "metadata": meta, "spec": spec}


def changed(spec: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    spec = copy.deepcopy(spec)
    *way, last = path.split(".")
    at = spec
    for step in way:
        at = at.setdefault(step, {})
    at[last] = value
    return spec


async def test_defaults_are_filled_in(cluster: Cluster) -> None:
    pool = (await cluster.apply(made("GPUPool", POOL)))["spec"]["nodeManagerConfig"]
    assert pool["provisioningMode"] == "AutoSelect"
    assert pool["defaultIsolationMode"] == "soft"
    policy = pool["nodePoolRollingUpdatePolicy"]
    assert (policy["batchPercentage"], policy["batchInterval"], policy["maxDuration"]) == (100, "1s", "10m")
    assert pool["nodeCompaction"] == {"period": "5m"}
    quota = await cluster.apply(made("GPUResourceQuota", {"total": {}}, "default"))
    assert quota["spec"]["total"] == {"alertThresholdPercent": 95, "maxWorkers": 32768}


REFUSED = [
    ("GPUPool", POOL, "nodeManagerConfig.nodePoolRollingUpdatePolicy.batchPercentage", 0, "greater than or equal to 1"),
    ("GPUPool", POOL, "nodeManagerConfig.provisioningMode", "Manual", "Unsupported value"),
    ("GPUPool", POOL, "capacityConfig.oversubscription.vramExpandToHostMem", 101, "less than or equal to 100"),
    ("GPUPool", POOL, "capacityConfig.oversubscription.tflopsOversellRatio", 99, "greater than or equal to 100"),
    ("GPUPool", POOL, "capacityConfig.maxResources.vram", "80 GB", "should match"),
    ("GPUPool", POOL, "nodeManagerConfig.nodePoolRollingUpdatePolicy.batchInterval", "1 minute", "should match"),
    (
        "GPUPool",
        POOL,
        "nodeManagerConfig.nodePoolRollingUpdatePolicy.maintenanceWindow",
        {"includes": ["nightly"]},
        "should match",
    ),
    (
        "GPUPool",
        POOL,
        "nodeManagerConfig.nodePoolRollingUpdatePolicy.maintenanceWindow",
        {"includes": ["* 2 * * *", "CRON_TZ=Europe/Berlin 0 3 * * *"]},
        "write every minute of it",
    ),
    ("WorkloadProfile", PROFILE, "gangScheduling.minMembers", 5, "at most replicas"),
    ("WorkloadProfile", PROFILE, "gangScheduling.minMembers", 1, "at least 2"),
    ("WorkloadProfile", PROFILE, "resources.requests.compute", "50", "not both"),
    ("WorkloadProfile", PROFILE, "resources.limits", {"compute": "101"}, "from 0 to 100"),
    ("WorkloadProfile", PROFILE, "gpuCount", 129, "less than or equal to 128"),
    ("WorkloadProfile", PROFILE, "isolation", "strict", "Unsupported value"),
]


async def test_what_the_contract_rules_out_is_refused(cluster: Cluster) -> None:
    for kind, spec, path, value, says in REFUSED:
        namespace = "default" if kind == "WorkloadProfile" else ""
        await cluster.apply(made(kind, spec, namespace))
        with pytest.raises(KubeRefusedError, match=says) as refused:
            await cluster.apply(made(kind, changed(spec, path, value), namespace))
        assert refused.value.code == 422


async def test_only_one_pool_of_a_cluster_is_the_default(cluster: Cluster) -> None:
    pools = [{"name": name, "isDefault": True, "specTemplate": POOL} for name in ("a", "b")]
    with pytest.raises(KubeRefusedError, match="at most one pool is the default"):
        await cluster.apply(made("TensorFusionCluster", {"gpuPools": pools}))
