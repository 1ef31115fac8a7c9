"""A campaign on a real API server: a node is emptied, its pods find their places, and whoever does it is killed at every step."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from bus import records, subjects
from bus.connection import Bus
from bus.kube.client import MERGE, Client, resource_path
from bus.streams import LEDGER, STATE
from consumers.scaler.sizer import Sizer
from schemas.defrag import Campaign
from schemas.ledger import Allocation, NodeRecord
from tests.conftest import eventually
from tests.integration.cluster import POOL, Cluster, create_all, play_agents, tensorfusion_pod

pytestmark = [pytest.mark.integration, pytest.mark.slow]

API = "tensor-fusion.ai/v1"
NODES = ("a", "b", "c")
STEPS = ("decided", "written", "closed", "evicted", "opened")


async def enable(cluster: Cluster) -> None:
    compaction = {"defrag": {"enabled": True, "timezone": "UTC", "schedule": "* * * * *", "maxDuration": "2h"}}
    found = await cluster.get("GPUPool", POOL, api=API)
    spec = found["spec"] | {"nodeManagerConfig": found["spec"]["nodeManagerConfig"] | {"nodeCompaction": compaction}}
    meta = {"name": POOL, "annotations": found["metadata"]["annotations"]}
    await cluster.apply({"apiVersion": API, "kind": "GPUPool", "metadata": meta, "spec": spec})


def owned(name: str, node: str = "", gpus: int = 1, **annotations: str) -> dict[str, Any]:
    """A pod that a controller would make anew."""
    made = tensorfusion_pod(name, tflops="312", vram="80Gi", gpu_count=str(gpus), **annotations)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "11111111-2222-3333-4444-555555555555"}
    made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    made["spec"]["terminationGracePeriodSeconds"] = 0
    if node:
        made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return made


async def places(cluster: Cluster) -> dict[str, str]:
    return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in await cluster.list("Pod", "default")}


async def settled(cluster: Cluster) -> dict[str, str]:
    async with asyncio.timeout(30):
        while not all((found := await places(cluster)).values()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


async def held(bus: Bus, name: str) -> tuple[Allocation, ...]:
    _, record = await records.read(bus, LEDGER, subjects.ledger_node(name), NodeRecord)
    return record.allocations if record is not None else ()


class KilledError(Exception):
    """The process ends here."""


class Campaigner:
    """Takes every step with a new process, which is killed once at every step."""

    def __init__(self, bus: Bus, client: Client) -> None:
        self._bus, self._client = bus, client
        self.kills: Counter[str] = Counter()
        self.ahead = 0.0

    async def look(self) -> Campaign | None:
        def step(name: str) -> None:
            if not self.kills[name]:
                self.kills[name] += 1
                raise KilledError

        sizer = Sizer(self._bus, self._client, "s", clock=lambda: time.time() + self.ahead, step=step)
        stop, ready = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(sizer.run(stop, ready=ready))
        await ready.wait()
        await eventually(lambda: bool(sizer.pools.names()), timeout=20)
        try:
            await sizer.defragment(POOL)
        except KilledError:
            pass
        finally:
            stop.set()
            await running
        _, campaign = await records.read(self._bus, STATE, subjects.state("defrag", POOL), Campaign)
        return campaign

    async def until(self, wanted: Callable[[Campaign], bool]) -> Campaign:
        """Look until the campaign is as wanted."""
        async with asyncio.timeout(120):
            while (campaign := await self.look()) is None or not wanted(campaign):
                self.ahead += 5.0
        return campaign


async def test_a_node_is_emptied_and_opened_again_whoever_dies(
    cluster: Cluster, bus: Bus, start, kubeconfig_of
) -> None:
    await cluster.add_pool()
    await cluster.add_nodes(NODES)
    await play_agents(bus, NODES)
    for role in ("watcher", "allocator", "binder", "inspector"):
        await start(role)
    # ``b`` and ``c`` are full, and one of the four GPUs of ``a`` is taken: nothing can be emptied.
    await create_all(cluster, [owned("b-0", "b", 3), owned("b-1", "b"), owned("c-0", "c", 4)])
    await settled(cluster)
    await create_all(cluster, [owned("free-1")])
    assert (await settled(cluster))["free-1"] == "a"
    await enable(cluster)
    async with await Client.connect(str(await kubeconfig_of("scaler"))) as client:
        campaigner = Campaigner(bus, client)
        over = await campaigner.until(lambda campaign: campaign.end == "Done" and campaign.reopened)
        assert over.emptied == ()
        await cluster.delete("Pod", "b-1", "default")
        async with asyncio.timeout(20):
            while len(await held(bus, "b")) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        campaigner.ahead += 61.0  # the next slot
        await campaigner.until(lambda campaign: campaign.slot > over.slot)
        await campaigner.until(lambda campaign: campaign.node == "a" or "a" in campaign.emptied)
        async with asyncio.timeout(60):
            while "defrag-source" not in str((await cluster.get("Node", "a"))["spec"].get("taints")):
                await campaigner.look()
        cordon = json.dumps({"spec": {"unschedulable": True}}).encode()  # an operator has other plans with it
        await cluster.client.call("PATCH", resource_path("v1", "nodes", "", "a"), body=cordon, content_type=MERGE)
        async with asyncio.timeout(60):
            while "free-1" in await places(cluster):
                await campaigner.look()
        await create_all(cluster, [owned("free-2")])  # as its controller would
        done = await campaigner.until(lambda campaign: campaign.end == "Done" and campaign.reopened)
        assert done.emptied == ("a",)
        assert (await settled(cluster))["free-2"] == "b"
        found = await cluster.get("Node", "a")
        assert found["spec"].get("unschedulable") is True  # what is not ours to open stays closed
        assert "defrag-source" not in str(found["spec"].get("taints"))
        assert "tensor-fusion.ai/defrag-source" not in found["metadata"]["labels"]
    assert set(campaigner.kills) == set(STEPS)
