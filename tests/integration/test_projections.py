"""What the watcher says of objects that are not ours: disruption budgets and namespaces, as the allocator needs them."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from bus import codec, history
from bus.connection import Bus
from bus.kube.client import MERGE, Client, resource_path
from bus.streams import STATE
from producers.watcher import service
from producers.watcher.plan import About, fact
from producers.watcher.service import Watcher
from schemas.pod import GpuRequest, Pod
from schemas.preemption import DisruptionBudget
from tests.integration.cluster import Cluster, hami_pod, play_agents
from tests.integration.observe import agree

pytestmark = pytest.mark.integration


async def said(bus: Bus, subject: str, right) -> Any:
    """Wait until STATE says something right on ``subject``, and return it."""
    found: Any = None
    try:
        async with asyncio.timeout(20):
            while True:
                records, _ = await history.newest(bus, STATE, [subject])
                found = codec.decode(records[0].payload).data if records else None
                if right(found):
                    return found
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{subject} says {found}") from None


async def test_disruption_budgets_and_namespaces_are_said_as_they_are(cluster: Cluster, bus: Bus, start) -> None:
    await cluster.add_pool()
    await cluster.add_nodes(["node-a"])
    await play_agents(bus, ["node-a"])
    pods = [hami_pod(f"pod-{number}") for number in range(3)]
    for made, app in zip(pods, ("training", "training", "serving"), strict=True):
        made["metadata"]["labels"] = {"app": app}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "careful", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "training"}}},
    }
    path = resource_path("policy/v1", "poddisruptionbudgets", "default", "careful")
    subject = "gpubus.state.disruption.default.careful"
    label = json.dumps({"metadata": {"labels": {"team": "vision"}}}).encode()
    await cluster.client.call("PATCH", resource_path("v1", "namespaces", "", "default"), body=label, content_type=MERGE)
    await asyncio.gather(*map(start, ("allocator", "watcher", "binder")))
    assert (await said(bus, "gpubus.state.namespace.default", bool)).labels["team"] == "vision"

    created = await asyncio.gather(*map(cluster.create, pods), cluster.create(budget))
    uids = [one["metadata"]["uid"] for one in created[:3]]
    await agree(bus, cluster, placed=3, timeout=30)
    try:
        before = await said(bus, subject, lambda one: one is not None and len(one.pods) == 2)
        assert before == DisruptionBudget(namespace="default", name="careful", pods=tuple(sorted(uids[:2])))
        status = {
            "observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
        }  # fmt: skip
        body = json.dumps({"status": status}).encode()
        await cluster.client.call("PATCH", f"{path}/status", body=body, content_type=MERGE)
        await said(bus, subject, lambda one: one.allowed == 1)
        await cluster.delete("Pod", "pod-0", "default")
        assert (await said(bus, subject, lambda one: len(one.pods) == 1)).pods == (uids[1],)
    finally:
        await cluster.client.call("DELETE", path)
    await said(bus, subject, lambda one: one is None)


async def test_the_watcher_is_ready_when_its_view_is_complete_and_current(
    cluster: Cluster, bus: Bus, kubeconfig_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.add_pool()
    # What a pod left behind that went while no watcher ran: whoever hears that we are ready must not find it any more.
    left = Pod(namespace="default", name="gone", uid="u", resource_version="1", request=GpuRequest(pool="shared"))
    about = About("gpubus.state.pod.default.gone", ("default", "gone"), "u", 1, datetime.now(UTC))
    await bus.publisher.publish(about.subject, fact(about, left), expected=0)
    async with await Client.connect(str(await kubeconfig_of("watcher"))) as client:
        watcher = Watcher(bus, client)
        assert "nodes, pods" in watcher.unready()
        stop, ready = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(watcher.run(stop, ready=ready))
        await asyncio.wait_for(ready.wait(), 30)
        assert not watcher.unready()
        assert (await history.newest(bus, STATE, [about.subject]))[0] == []
        monkeypatch.setattr(service, "FRESH_S", 0.0)  # as if nothing had been heard for so long
        assert "pods" in watcher.unready()
        stop.set()
        await running
