"""``kubectl get`` shows the truth: nodes, GPUs, pools and clusters as the log has them."""

import asyncio
import json
import re
import ssl
import urllib.request
from pathlib import Path

import pytest

from bus.connection import Bus
from tests.integration.cluster import Cluster, create_all, mixed, play_agents
from tests.integration.observe import agree
from tests.integration.plane import ControlPlane

pytestmark = pytest.mark.integration

API = "tensor-fusion.ai/v1"
README = Path(__file__).parents[2] / "README.md"
COMMAND = "kubectl get tensorfusioncluster,gpupool,gpunode,gpu"
CLUSTER = {
    "apiVersion": API,
    "kind": "TensorFusionCluster",
    "metadata": {"name": "demo"},
    "spec": {
        "gpuPools": [
            {
                "name": "shared",
                "isDefault": True,
                "specTemplate": {
                    "nodeManagerConfig": {
                        "nodeSelector": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["shared"]}]}
                            ]
                        }
                    },
                    "capacityConfig": {
                        "oversubscription": {
                            "tflopsOversellRatio": 200,
                            "vramExpandToHostMem": 0,
                            "vramExpandToHostDisk": 0,
                        }
                    },
                },
            }
        ]
    },
}


async def test_custom_resources_show_what_the_log_says(plane: ControlPlane, cluster: Cluster, bus: Bus, start) -> None:
    names = ["node-a", "node-b", "node-c"]
    await cluster.add_nodes(names)
    await cluster.apply(CLUSTER)
    await asyncio.gather(*map(start, ("watcher", "allocator", "binder", "status", "status")))
    await play_agents(bus, names)
    await create_all(cluster, mixed(6))
    await agree(bus, cluster, placed=6, timeout=30)

    pool = await shown(cluster, "GPUPool", "demo-shared", lambda status: status["availableTFlops"] == "2808")
    assert pool["phase"] == "Running"
    assert (pool["totalNodes"], pool["readyNodes"], pool["totalGPUs"], pool["runningAppsCnt"]) == (3, 3, 12, 6)
    assert (pool["totalTFlops"], pool["virtualTFlops"], pool["virtualAvailableTFlops"]) == ("3744", "7488", "6552")
    assert (pool["totalVRAM"], pool["availableVRAM"]) == ("960Gi", "720Gi")
    assert pool["cluster"] == "demo"
    assert [(one["type"], one["status"]) for one in pool["conditions"]] == [("Ready", "True")]

    whole = await shown(cluster, "TensorFusionCluster", "demo", lambda status: status["availableTFlops"] == "2808")
    assert (whole["phase"], whole["totalPools"], whole["totalGPUs"]) == ("Running", 1, 12)
    assert (whole["readyGPUPools"], whole["notReadyGPUPools"]) == (["demo-shared"], [])
    assert whole["allocatedTFlopsPercent"] == "25.00"

    async with asyncio.timeout(20):
        while True:
            gpus = {one["metadata"]["name"]: one for one in await cluster.list("GPU", api=API)}
            apps = [app for one in gpus.values() for app in one.get("status", {}).get("runningApps", [])]
            if len(gpus) == 12 and len(apps) == 6:
                break
            await asyncio.sleep(0.1)
    for pod in await cluster.list("Pod", "default"):
        (name,) = pod["metadata"]["annotations"]["tensor-fusion.ai/gpu-ids"].split(",")
        gpu = gpus[name]
        assert gpu["metadata"]["labels"]["tensor-fusion.ai/managed-by"] == pod["spec"]["nodeName"]
        assert pod["metadata"]["uid"] in {app["pods"][0]["uid"] for app in gpu["status"]["runningApps"]}
        assert gpu["status"]["capacity"] == {"tflops": "312", "vram": "80Gi"}

    node = await shown(cluster, "GPUNode", "node-a", lambda status: status["totalGPUs"] == 4)
    assert node["phase"] == "Running"
    await shows_what_the_readme_shows(plane)

    await cluster.delete("Node", "node-c")
    await shown(cluster, "GPUPool", "demo-shared", lambda status: status["totalNodes"] == 2)
    async with asyncio.timeout(10):
        while len(await cluster.list("GPUNode", api=API)) > 2:  # noqa: ASYNC110  the API server is asked
            await asyncio.sleep(0.1)
    (defined,) = CLUSTER["spec"]["gpuPools"]
    await cluster.apply(CLUSTER | {"spec": {"gpuPools": [defined | {"name": "other"}]}})
    async with asyncio.timeout(20):
        while [one["metadata"]["name"] for one in await cluster.list("GPUPool", api=API)] != ["demo-other"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_quota_shows_what_is_used_and_that_it_is_nearly_full(cluster: Cluster, bus: Bus, start) -> None:
    await cluster.add_pool()
    await cluster.add_nodes(["node-a"])
    total = {"requests": {"tflops": "400", "vram": "200Gi"}, "maxWorkers": 10, "alertThresholdPercent": 75}
    meta = {"name": "gpus", "namespace": "default"}
    await cluster.apply({"apiVersion": API, "kind": "GPUResourceQuota", "metadata": meta, "spec": {"total": total}})
    await asyncio.gather(*map(start, ("watcher", "allocator", "binder", "status", "status")))
    await play_agents(bus, ["node-a"])
    status = await shown(cluster, "GPUResourceQuota", "gpus", lambda status: "used" in status)
    assert (status["used"].get("workers", 0), status["availablePercent"]["requests.tflops"]) == (0, "100.00")
    await create_all(cluster, mixed(2))  # each 156 TFLOPS and 40 GiB
    await agree(bus, cluster, placed=2, timeout=30)
    status = await shown(cluster, "GPUResourceQuota", "gpus", lambda status: status["used"].get("workers") == 2)
    assert status["used"]["requests"] == {"tflops": "312", "vram": "80Gi"}
    assert status["availablePercent"] == {"requests.tflops": "22.00", "requests.vram": "60.00", "workers": "80.00"}
    (condition,) = status["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "AlertThresholdReached")
    assert "requests.tflops 312 of 400" in condition["message"]
    await cluster.delete("Pod", "pod-00000", "default")
    status = await shown(cluster, "GPUResourceQuota", "gpus", lambda status: status["used"].get("workers") == 1)
    assert status["conditions"][0]["reason"] == "CapacitySufficient"


async def shown(cluster: Cluster, kind: str, name: str, right) -> dict:
    """Return an object's status once it is ``right``."""
    status: dict = {}
    try:
        async with asyncio.timeout(20):
            while True:
                found = [one for one in await cluster.list(kind, api=API) if one["metadata"]["name"] == name]
                status = found[0].get("status", {}) if found else {}
                if status and right(status):
                    return status
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{kind} {name} has the status {status}") from None


async def shows_what_the_readme_shows(plane: ControlPlane) -> None:
    """Ask for tables as ``kubectl get`` does, until they have the headings and the rows that the README has, ages aside."""
    block = README.read_text().partition(f"$ {COMMAND}\n")[2].partition("```")[0]
    wanted = [list(map(cells, part.splitlines())) for part in block.strip().split("\n\n")]
    assert len(wanted) == 4
    for heading, *rows in wanted:
        kind = rows[0][0].partition(".")[0]
        shown = [row for row in rows if row != ["..."]]
        found: list[list[str]] = []
        try:
            async with asyncio.timeout(20):
                while True:
                    found = table(plane, f"{kind}s", f"{kind}.tensor-fusion.ai/")
                    if found[0] == heading and all(row[:-1] in [one[:-1] for one in found] for row in shown):
                        break
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"README shows {[heading, *shown]}, kubectl would show {found}") from None
        assert len(found) == 1 + len(shown) or ["..."] in rows


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def table(plane: ControlPlane, plural: str, prefix: str) -> list[list[str]]:
    """Return heading and rows as the API server renders them."""
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    request = urllib.request.Request(
        f"{plane.url}/apis/{API}/{plural}", headers={"Authorization": f"Bearer {plane.token}", "Accept": accept}
    )
    context = ssl.create_default_context(cafile=str(plane.ca))
    with urllib.request.urlopen(request, context=context, timeout=10) as answer:
        got = json.load(answer)
    places = [place for place, column in enumerate(got["columnDefinitions"]) if not column["priority"]]
    heading = [got["columnDefinitions"][place]["name"].upper() for place in places]
    rows = [[str(row["cells"][place]) for place in places] for row in got["rows"]]
    return [heading, *([f"{prefix}{name}", *rest] for name, *rest in rows)]
