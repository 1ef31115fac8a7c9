"""Pods that make room in a real API server: evicted as their disruption budget allows, and the other bound in their place."""

import asyncio
import json
from typing import Any

import pytest

from bus import codec, history
from bus.connection import Bus
from bus.kube.client import MERGE, resource_path
from bus.streams import CAPACITY, LEDGER
from schemas.ledger import NodeRecord
from schemas.observed import PodNotice
from tests.integration.cluster import Cluster, play_agents, tensorfusion_pod
from tests.integration.kubelet import say_status

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
BUDGET = resource_path("policy/v1", "poddisruptionbudgets", "default", "careful")


async def until(look, timeout: float = PATIENCE_S) -> Any:
    """Wait until what is looked at is there, and return it."""
    async with asyncio.timeout(timeout):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.1)


def whole(name: str, qos: str, **spec: Any) -> dict[str, Any]:
    """A pod that takes the only GPU there is."""
    made = tensorfusion_pod(name, tflops="312", vram="80Gi", qos=qos)
    made["metadata"]["labels"]["app"] = name
    made["spec"] |= {"terminationGracePeriodSeconds": 0, **spec}
    return made


async def budget(cluster: Cluster) -> None:
    await cluster.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "careful", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "low"}}},
        }
    )


async def allow(cluster: Cluster, disruptions: int) -> None:
    """Say what the controller of disruption budgets would say."""
    status = {
        "observedGeneration": 1, "disruptionsAllowed": disruptions, "currentHealthy": 1, "desiredHealthy": 1,
        "expectedPods": 1,
    }  # fmt: skip
    body = json.dumps({"status": status}).encode()
    await cluster.client.call("PATCH", f"{BUDGET}/status", body=body, content_type=MERGE)


async def node_of(cluster: Cluster, name: str) -> str:
    pods = {one["metadata"]["name"]: one for one in await cluster.list("Pod", "default")}
    return pods[name]["spec"].get("nodeName", "") if name in pods else ""


async def events(cluster: Cluster, reason: str) -> list[str]:
    found = await cluster.list("Event", "default", api="events.k8s.io/v1")
    return [one["note"] for one in found if one["reason"] == reason]


async def notices(bus: Bus) -> list[PodNotice]:
    records: list[history.Record] = []
    await history.read(bus, CAPACITY, ["gpubus.notice.>"], records.append)
    return [codec.decode_as(PodNotice, record.payload).data for record in records]


async def holds(bus: Bus) -> list[str]:
    records, _ = await history.newest(bus, LEDGER, ["gpubus.ledger.node.*"])
    return [hold.key for record in records for hold in codec.decode_as(NodeRecord, record.payload).data.holds]


async def one_gpu(cluster: Cluster, bus: Bus, start) -> None:
    """A cluster with one GPU, and a pod of low quality of service that has it."""
    await cluster.add_pool()
    await cluster.add_nodes(["node-a"])
    await play_agents(bus, ["node-a"], gpus=1)
    await asyncio.gather(*map(start, ("allocator", "watcher", "binder")))
    await cluster.create(whole("low", "low"))
    await until(lambda: node_of(cluster, "low"))
    await say_status(cluster, await cluster.get("Pod", "low", "default"))  # budgets do not cover a pod that is pending


async def test_a_pod_is_bound_where_the_one_that_it_goes_before_has_made_room(
    cluster: Cluster, bus: Bus, start
) -> None:
    await one_gpu(cluster, bus, start)
    await start("actuator")
    await cluster.create(whole("high", "high"))
    assert await until(lambda: node_of(cluster, "high")) == "node-a"
    assert await node_of(cluster, "low") == ""
    (note,) = await until(lambda: events(cluster, "Preempted"))
    assert "makes room on node-a for default/high, which goes before it: QoS high" in note
    assert any("default/low" in note for note in await until(lambda: events(cluster, "FailedScheduling")))
    assert await holds(bus) == []


async def test_a_disruption_budget_forbids_an_eviction_and_the_pod_that_waits_is_told_why(
    cluster: Cluster, bus: Bus, start
) -> None:
    await budget(cluster)
    await allow(cluster, 1)
    try:
        await one_gpu(cluster, bus, start)
        await cluster.create(whole("high", "high"))
        await until(lambda: holds(bus))  # nobody evicts yet, and the budget changes its mind
        await allow(cluster, 0)
        await start("actuator")
        (notice, *_) = await until(lambda: notices(bus))
        assert (notice.reason, notice.name, notice.node) == ("EvictionBlocked", "high", "node-a")
        assert "default/low may not be evicted from node-a" in notice.message
        assert "careful" in notice.message
        assert any("careful" in note for note in await until(lambda: events(cluster, "EvictionBlocked")))
        assert (await node_of(cluster, "low"), await node_of(cluster, "high")) == ("node-a", "")
        await allow(cluster, 1)
        assert await until(lambda: node_of(cluster, "high")) == "node-a"
        assert await node_of(cluster, "low") == ""
    finally:
        await cluster.client.call("DELETE", BUDGET)
