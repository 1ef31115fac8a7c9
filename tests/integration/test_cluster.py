"""Pods of a real API server are placed by us and bound, and what they held comes back; the roles have their own accounts."""

import asyncio

import pytest

from bus.connection import Bus
from schemas.quantity import format_milli
from tests.integration.cluster import POOL, TFLOPS_MILLI, Cluster, create_all, mixed, play_agents
from tests.integration.observe import agree, bound
from tests.integration.test_status import shown

pytestmark = pytest.mark.integration


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [200])
async def test_two_thousand_pods_are_bound_and_give_back_what_they_held(
    cluster: Cluster, bus: Bus, start, nodes: int
) -> None:
    names = [f"node-{number:03}" for number in range(nodes)]
    slots = nodes * 5 * 2
    await cluster.add_pool()
    await cluster.add_nodes(names)
    await play_agents(bus, names, gpus=5)
    await asyncio.gather(*(start(role) for role in ("allocator", "watcher", "binder", "status")))

    await create_all(cluster, mixed(slots))
    await agree(bus, cluster, placed=slots, timeout=90)
    full = await shown(cluster, "GPUPool", POOL, lambda status: status["runningAppsCnt"] == slots)
    assert (full["totalNodes"], full["totalGPUs"], full["availableTFlops"]) == (nodes, nodes * 5, "0")

    late = slots // 20
    await create_all(cluster, mixed(late, first=slots))
    async with asyncio.timeout(30):
        while True:
            waiting = [pod for pod in await cluster.list("Pod", "default") if not pod["spec"].get("nodeName")]
            if len(waiting) == late and all(condition_of(pod) for pod in waiting):
                break
            await asyncio.sleep(0.2)
    assert all("Insufficient" in condition_of(pod)["message"] for pod in waiting)
    assert {condition_of(pod)["reason"] for pod in waiting} == {"Unschedulable"}

    gone = bound(await cluster.list("Pod", "default"))[::2]
    await asyncio.gather(*(cluster.delete("Pod", pod["metadata"]["name"], "default") for pod in gone))
    pods = await agree(bus, cluster, placed=slots - len(gone) + late, timeout=60)
    left = await shown(cluster, "GPUPool", POOL, lambda status: status["runningAppsCnt"] == len(pods))
    assert left["availableTFlops"] == format_milli((slots - len(pods)) * TFLOPS_MILLI // 2)


def condition_of(pod: dict) -> dict | None:
    """Return the condition that says why a pod has no node."""
    found = [one for one in pod["status"].get("conditions", []) if one["type"] == "PodScheduled"]
    return found[0] if found and found[0]["status"] == "False" else None
