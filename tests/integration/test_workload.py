"""Workers in a real API server: as many as their workload wants, none made twice, and none touched that may stay."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from bus import codec, history
from bus.connection import Bus
from bus.kube.client import resource_path
from bus.streams import STATE
from schemas.rollout import ComponentSpec, Member
from schemas.rollout_template import member_hashes
from tests.integration.cluster import POOL, Cluster
from tests.integration.kubelet import say_status

pytestmark = pytest.mark.integration

PATIENCE_S = 30.0
API = "tensor-fusion.ai/v1"
WORKERS = [f"model-tf-worker-{number}" for number in range(4)]


def workload(replicas: int) -> dict[str, Any]:
    amounts = {"requests": {"tflops": "10", "vram": "4Gi"}, "limits": {"tflops": "20", "vram": "4Gi"}}
    return {
        "apiVersion": API,
        "kind": "TensorFusionWorkload",
        "metadata": {"name": "model", "namespace": "default"},
        "spec": {"replicas": replicas, "poolName": POOL, "resources": amounts},
    }


def pool(image: str) -> dict[str, Any]:
    container = {"name": "vgpu", "resources": {"requests": {"cpu": "10m"}}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}
    return {
        "apiVersion": API,
        "kind": "GPUPool",
        "metadata": {"name": POOL},
        "spec": {
            "nodeManagerConfig": {"nodeSelector": {"nodeSelectorTerms": []}},
            "componentConfig": {"worker": {"image": image, "podTemplate": {"template": template}}},
        },
    }


async def workers(
    cluster: Cluster, names: list[str], then: Callable[[list[dict[str, Any]]], bool] = lambda _: True
) -> dict[str, str]:
    """Wait until exactly these workers are there, all shown in the workload's status, and return their UIDs by name."""
    pods: list[dict[str, Any]] = []
    shown: dict[str, Any] = {}
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                pods = await cluster.list("Pod", "default")
                shown = (await cluster.get("TensorFusionWorkload", "model", "default", API)).get("status", {})
                there = sorted(pod["metadata"]["name"] for pod in pods) == names
                if there and shown.get("workerCount", 0) == len(names) and then(pods):
                    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not {names}: {[pod['metadata']['name'] for pod in pods]}, {shown}") from None


async def version(cluster: Cluster) -> str:
    """Return how far the history of pods has come."""
    found = json.loads(await cluster.client.call("GET", resource_path("v1", "pods", "default")))
    return found["metadata"]["resourceVersion"]


async def made(cluster: Cluster, since: str) -> Counter[str]:
    """Return how often a pod of each name has been made: the API server's own history misses none."""
    query = {"watch": "1", "resourceVersion": since, "timeoutSeconds": "1"}
    lines = (await cluster.client.call("GET", resource_path("v1", "pods", "default"), query=query)).splitlines()
    events = [json.loads(line) for line in lines]
    return Counter(event["object"]["metadata"]["name"] for event in events if event["type"] == "ADDED")


async def test_two_keepers_keep_as_many_workers_as_are_wanted_and_touch_no_other(cluster: Cluster, start) -> None:
    since = await version(cluster)
    await cluster.apply(pool("worker:1"))
    await cluster.apply(workload(3))
    await asyncio.gather(*map(start, ("watcher", "workload", "workload")))
    three = await workers(cluster, WORKERS[:3])
    await cluster.apply(workload(2))
    two = await workers(cluster, WORKERS[:2])
    assert two == {name: three[name] for name in WORKERS[:2]}
    await cluster.apply(workload(4))
    four = await workers(cluster, WORKERS)
    assert {name: four[name] for name in two} == two
    await cluster.delete("Pod", WORKERS[1], "default")
    replaced = await workers(cluster, WORKERS, lambda pods: two[WORKERS[1]] not in {p["metadata"]["uid"] for p in pods})
    assert {name for name in WORKERS if replaced[name] != four[name]} == {WORKERS[1]}
    assert await made(cluster, since) == {WORKERS[0]: 1, WORKERS[1]: 2, WORKERS[2]: 2, WORKERS[3]: 1}


async def test_workers_are_made_from_what_their_pool_wants_and_the_workload_says_how_they_are(
    cluster: Cluster, bus: Bus, start
) -> None:
    await cluster.apply(pool("worker:1"))
    await cluster.apply(workload(2))
    await asyncio.gather(*map(start, ("watcher", "workload")))
    await workers(cluster, WORKERS[:2])
    pods = await cluster.list("Pod", "default")
    await asyncio.gather(*(say_status(cluster, pod) for pod in pods))
    status: dict[str, Any] = {}
    async with asyncio.timeout(PATIENCE_S):
        while status.get("phase") != "Running":
            status = (await cluster.get("TensorFusionWorkload", "model", "default", API))["status"]
            await asyncio.sleep(0.05)
    assert (status["workerCount"], status["readyWorkers"]) == (2, 2)
    assert [(one["type"], one["status"]) for one in status["conditions"]] == [("Ready", "True")]
    (spec,) = await said(bus, f"gpubus.state.component.{POOL}.worker", ComponentSpec)
    (member,) = await said(bus, f"gpubus.state.member.{POOL}.worker.*", Member)
    wanted = member_hashes(spec.template)(member)
    assert (member.name, member.hash, member.pods_ready) == ("default/model", wanted, 2)
    assert status["podTemplateHash"] == wanted
    assert {pod["metadata"]["labels"]["tensor-fusion.ai/pod-template-hash"] for pod in pods} == {wanted}
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"worker:1"}


async def said(bus: Bus, subject: str, kind: type[Any]) -> list[Any]:
    """Return what STATE says."""
    records, _ = await history.newest(bus, STATE, [subject])
    return [codec.decode_as(kind, record.payload).data for record in records]
