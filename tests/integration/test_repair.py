"""What happens while a part of us is away, or behind our back: it is seen, what is safe is repaired, the rest is reported."""

import asyncio
import json
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from bus import codec, history, records, subjects
from bus.connection import Bus
from bus.kube.client import Client
from bus.streams import CAPACITY, LEDGER
from consumers.reconciler.service import Reconciler
from deploy.local.server import LocalServer
from schemas.event import Event
from schemas.kube.annotations import VISIBLE_DEVICES
from schemas.ledger import NodeRecord
from schemas.observed import Drift
from schemas.usage import GpuSample, NodeUsage, ProcessUsage
from tests.integration.cluster import Cluster, create_all, hami_pod, mixed, play_agents, pod
from tests.integration.observe import agree, ledger
from tests.integration.plane import ControlPlane

pytestmark = pytest.mark.integration


@pytest.fixture
async def reconciler(bus: Bus, kubeconfig_of):
    """A reconciler in this process, with its own account."""
    async with await Client.connect(str(await kubeconfig_of("reconciler"))) as client:
        yield Reconciler(bus, client, "test")


@pytest.fixture
def drift(plane: ControlPlane, server: LocalServer):
    """What ``gpubus drift`` finds."""

    async def look() -> dict[str, Any]:
        return json.loads(await gpubus("drift", "--json", plane, server))

    return look


async def until(ready, timeout: float = 20.0) -> Any:
    """Wait until the coroutine function returns something true, and return that."""
    async with asyncio.timeout(timeout):
        while True:
            found = await ready()
            if found:
                return found
            await asyncio.sleep(0.05)


async def play_use(bus: Bus, node: str, uid: str = "") -> None:
    """Say what the agent of a node would say: processes of a pod on the GPU that it was given, or none."""
    now = datetime.now(UTC)
    _, record = await records.read(bus, LEDGER, subjects.ledger_node(node), NodeRecord)
    given = [one.gpus[0].uuid for one in (record.allocations if record is not None else ()) if one.pod_uid == uid]
    processes = (ProcessUsage(pod_uid=uid, vram_bytes=7),) if uid else ()
    usage = NodeUsage(
        node=node, at=now, gpus=(GpuSample(uuid=given[0] if given else f"GPU-{node}-0", processes=processes),)
    )
    event = Event(id=f"usage:{node}:{uid}", source="/test", type="gpubus.usage.v1", subject=node, time=now, data=usage)
    await bus.publisher.publish(subjects.usage_gpu(node), codec.encode(event))


async def test_pods_that_vanished_while_nobody_watched_are_released(
    cluster: Cluster, bus: Bus, start, reconciler, drift
) -> None:
    await cluster.add_pool()
    await cluster.add_nodes(["node-a"])
    await play_agents(bus, ["node-a"])
    _, watcher, _ = await asyncio.gather(*map(start, ("allocator", "watcher", "binder")))
    await create_all(cluster, mixed(4))
    await agree(bus, cluster, placed=4, timeout=30)
    assert await reconciler.reconcile() == []

    await watcher.kill()
    for name in ("pod-00000", "pod-00001"):
        await cluster.delete("Pod", name, "default")
    shown = (await drift())["differences"]
    assert [(one["api"], one["repair"], one["ledger"][:9]) for one in shown] == [
        ("there is no such pod", "release", "it holds ")
    ] * 2
    # Whatever the API server says: as long as its processes run, nobody else may be given its GPU.
    still = next(one for one in shown if one["name"] == "pod-00001")
    await play_use(bus, "node-a", still["uid"])
    found = await reconciler.reconcile()
    assert sorted((one.kind, one.name, one.repair) for one in found) == [
        ("PodGone", "pod-00000", "release"),
        ("PodGone", "pod-00001", "none"),
    ]

    async def three_held() -> bool:
        return len(await ledger(bus)) == 3

    await until(three_held)
    await play_use(bus, "node-a")
    await reconciler.reconcile()
    await agree(bus, cluster, placed=2, timeout=10)
    assert await reconciler.reconcile() == []
    assert await drift() == {"pods": 2, "dark": [], "differences": []}
    drifts: list[Drift] = []
    await history.read(
        bus, CAPACITY, ["gpubus.drift.node-a"], lambda record: drifts.append(codec.decode(record.payload).data)
    )
    assert {drift.kind for drift in drifts} == {"PodGone"}
    assert sum(drift.resolved for drift in drifts) == 2
    assert any(drift.observed.startswith("it uses 7 bytes") for drift in drifts)


async def test_what_a_forged_pod_claims_is_given_to_nobody(cluster: Cluster, bus: Bus, start) -> None:
    forged = pod("forged", schedulerName="hami-scheduler", nodeName="node-a")
    forged["metadata"]["annotations"] = {VISIBLE_DEVICES: "GPU-node-a-0"}
    forged["metadata"]["creationTimestamp"] = None
    await cluster.add_pool()
    await cluster.add_nodes(["node-a"])
    await cluster.create(forged)
    await play_agents(bus, ["node-a"], gpus=1)
    await asyncio.gather(*map(start, ("allocator", "watcher", "binder")))
    await create_all(cluster, [hami_pod("honest")])

    async def refused() -> str:
        conditions = (await cluster.get("Pod", "honest", "default"))["status"].get("conditions", [])
        return next((one["message"] for one in conditions if one["type"] == "PodScheduled"), "")

    assert "Gpu" in await until(refused)
    assert await ledger(bus) == {}
    await cluster.delete("Pod", "forged", "default")
    await agree(bus, cluster, placed=1, timeout=20)


async def test_a_pod_that_somebody_else_bound_gives_its_place_back(cluster: Cluster, bus: Bus, start) -> None:
    await cluster.add_pool()
    await cluster.add_nodes(["node-a"])
    await play_agents(bus, ["node-a"])
    await asyncio.gather(*map(start, ("allocator", "watcher")))
    await create_all(cluster, mixed(3))

    async def three_held() -> bool:
        return len(await ledger(bus)) == 3

    await until(three_held)
    binding = {"metadata": {"name": "pod-00000"}, "target": {"kind": "Node", "name": "elsewhere"}}
    path = "/api/v1/namespaces/default/pods/pod-00000/binding"
    await cluster.client.call("POST", path, body=json.dumps(binding).encode())
    await cluster.delete("Pod", "pod-00001", "default")
    await create_all(cluster, mixed(1, first=1))
    await start("binder")

    async def events() -> list[str]:
        found = await cluster.list("Event", "default", api="events.k8s.io/v1")
        return [one["reason"] for one in found if one["regarding"]["name"] == "pod-00000"]

    assert await until(events) == ["BoundElsewhere"]

    async def two_held() -> bool:
        names = {one.name for _, one in (await ledger(bus)).values()}
        pods = await cluster.list("Pod", "default")
        there = {one["metadata"]["name"] for one in pods if one["spec"].get("nodeName") == "node-a"}
        return names == there == {"pod-00001", "pod-00002"}

    await until(two_held)


async def test_one_reason_is_said_once(cluster: Cluster, bus: Bus, start) -> None:
    await cluster.add_pool()
    await cluster.add_nodes(["node-a"])
    await play_agents(bus, ["node-a"], gpus=1)
    await asyncio.gather(*map(start, ("allocator", "watcher", "binder", "binder")))
    affinity = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
            ]
        }
    }
    needy = hami_pod("needy")
    needy["spec"]["affinity"] = affinity
    wrong = hami_pod("wrong")
    wrong["metadata"]["annotations"] = {"nvidia.com/vgpu-mode": "magic"}
    await create_all(cluster, [*mixed(3), needy, wrong])
    await agree(bus, cluster, placed=2, timeout=20)

    async def reasons() -> dict[str, list[str]] | None:
        said: dict[str, list[str]] = {}
        for one in await cluster.list("Event", "default", api="events.k8s.io/v1"):
            if one["reason"] == "FailedScheduling":
                said.setdefault(one["regarding"]["name"], []).append(one["note"].split(":")[0])
        return said if len(said) == 3 else None

    said = await until(reasons)
    assert said.pop("needy") == ["NeedsKubeScheduler"]
    assert said.pop("wrong") == ["InvalidRequest"]
    (left,) = said.values()
    assert len(left) == 1
    # A place is freed and taken again: the waiting pod is tried, and nothing new is said of the refused ones.
    await cluster.delete("Pod", "wrong", "default")
    for name in [
        one["metadata"]["name"] for one in await cluster.list("Pod", "default") if one["spec"].get("nodeName")
    ][:1]:
        await cluster.delete("Pod", name, "default")
    await agree(bus, cluster, placed=2, timeout=20)
    assert (await reasons() or {})["needy"] == ["NeedsKubeScheduler"]


async def test_a_lost_ledger_is_rebuilt_from_the_pods(
    plane: ControlPlane, cluster: Cluster, bus: Bus, server: LocalServer, start
) -> None:
    await cluster.add_pool()
    await cluster.add_nodes(["node-a", "node-b"])
    await play_agents(bus, ["node-a", "node-b"])
    allocator, watcher, _ = await asyncio.gather(*map(start, ("allocator", "watcher", "binder")))
    await create_all(cluster, mixed(10))
    await agree(bus, cluster, placed=10, timeout=30)
    before = await ledger(bus)
    copied = pod("copied", schedulerName="hami-scheduler", nodeName="node-a")
    copied["metadata"]["annotations"] = (await cluster.get("Pod", "pod-00000", "default"))["metadata"]["annotations"]
    await cluster.create(copied)

    await allocator.stop()
    await watcher.stop()
    await bus.api(f"STREAM.PURGE.{LEDGER}", {})
    assert "10 pods written, 1 pods left out" in await gpubus("ledger", "rebuild", plane, server)
    after = await ledger(bus)
    assert after.keys() == before.keys()
    assert all(after[uid][0] == node and after[uid][1].says_as(one) for uid, (node, one) in before.items())
    assert "not empty" in await gpubus("ledger", "rebuild", plane, server)

    await asyncio.gather(start("allocator"), start("watcher"))
    await create_all(cluster, mixed(6, first=10))
    await cluster.delete("Pod", "copied", "default")
    await agree(bus, cluster, placed=16, timeout=30)


async def gpubus(command: str, verb: str, plane: ControlPlane, server: LocalServer) -> str:
    """Run the command line and return all it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "deploy.cli.main", command, verb, "--nats", server.url, "--kubeconfig", str(plane.kubeconfig),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    return out.decode()
