"""Everything around the pods is killed, some of it twice; no pod is lost, and none is bound twice or to a full GPU."""

import asyncio
import signal
import sys

import pytest

from bus.connection import Bus
from bus.kube.reflector import Reflector, Resource
from bus.tasks import end
from deploy.local.server import LocalServer
from schemas.kube.policy import KubeNamespace
from tests.integration.cluster import Cluster, create_all, hami_pod, mixed, play_agents
from tests.integration.observe import agree, bound, ledger
from tests.integration.plane import ControlPlane

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.slow]

NODES = 25
SLOTS = NODES * 4 * 2


async def test_killing_everything_around_the_pods_loses_none(
    plane: ControlPlane, cluster: Cluster, bus: Bus, server: LocalServer, start
) -> None:
    names = [f"node-{number:03}" for number in range(NODES)]
    await cluster.add_pool()
    await cluster.add_nodes(names)
    await play_agents(bus, names)
    roles = ("allocator", "watcher", "watcher", "binder", "binder")
    _, watcher, _, binder, _ = await asyncio.gather(*map(start, roles))

    pods = mixed(SLOTS)
    third = SLOTS // 3
    await create_all(cluster, pods[:third])
    await binder.kill()
    await create_all(cluster, pods[third : 2 * third])
    await watcher.kill()
    # The same names, other pods: whatever was decided for the first must not reach the second.
    again = pods[: third // 2]
    await asyncio.gather(*(cluster.delete("Pod", pod["metadata"]["name"], "default") for pod in again))
    await create_all(cluster, again)
    # A restarted server has forgotten all older versions: watchers are told 410 and list anew.
    plane.stop("kube-apiserver")
    # Not in a thread: the server would be killed when that ends, as it is to be when its parent does.
    plane.start_apiserver()
    await asyncio.gather(binder.start(), watcher.start())
    await create_all(cluster, pods[2 * third :])
    server.kill()
    gone = bound(await cluster.list("Pod", "default"))[:20]
    await asyncio.gather(*(cluster.delete("Pod", pod["metadata"]["name"], "default") for pod in gone))
    await server.start()

    await agree(bus, cluster, placed=SLOTS - len(gone), timeout=90)


UNCACHED = "--watch-cache-sizes=pods#0,nodes#0,gpupools.tensor-fusion.ai#0"


async def test_what_vanished_behind_a_compaction_is_given_back(
    plane: ControlPlane, cluster: Cluster, bus: Bus, start
) -> None:
    """Watches resume at versions that etcd has compacted, nothing caches them, and pods have gone in between."""
    names = ["node-a", "node-b"]
    await cluster.add_pool()
    await cluster.add_nodes(names)
    await play_agents(bus, names)
    await asyncio.gather(*map(start, ("allocator", "watcher", "watcher", "binder")))
    slots = 2 * 4 * 2
    await create_all(cluster, mixed(slots + 4))
    first = await agree(bus, cluster, placed=slots, timeout=60)
    plane.stop("kube-apiserver")
    try:
        for pod in first[: slots // 2]:
            plane.remove("pods", "default", pod["metadata"]["name"])
        plane.compact()
        # Not in a thread: the server would be killed when that ends, as it is to be when its parent does.
        plane.start_apiserver(UNCACHED)
        placed = await agree(bus, cluster, placed=slots // 2 + 4, timeout=90)
        assert {pod["metadata"]["uid"] for pod in first[slots // 2 :]} < {pod["metadata"]["uid"] for pod in placed}
    finally:
        plane.stop("kube-apiserver")
        plane.start_apiserver()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_binder_killed_around_its_binding_leaves_no_reservation_behind(
    cluster: Cluster, bus: Bus, server: LocalServer, start, kubeconfig_of, *, when: str
) -> None:
    """Killed between commit and bind, or between bind and event: the pod ends bound once, and its Event is written."""
    await cluster.add_pool()
    await cluster.add_nodes(["node-a"])
    await play_agents(bus, ["node-a"])
    await asyncio.gather(*map(start, ("allocator", "watcher")))
    await create_all(cluster, [hami_pod("pod-0")])
    async with asyncio.timeout(20):
        while not await ledger(bus):  # noqa: ASYNC110  the server is asked
            await asyncio.sleep(0.05)
    command = [
        sys.executable,
        "-m",
        "tests.integration.binder_process",
        server.url,
        str(await kubeconfig_of("binder")),
        when,
    ]
    process = await asyncio.create_subprocess_exec(*command)
    assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGKILL
    assert len(bound(await cluster.list("Pod", "default"))) == (when == "after")
    assert await cluster.list("Event", "default", api="events.k8s.io/v1") == []
    await start("binder")
    await agree(bus, cluster, placed=1, timeout=60)
    async with asyncio.timeout(60):  # the decision comes again when the lease of the dead is over
        while not (events := await cluster.list("Event", "default", api="events.k8s.io/v1")):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert [one["reason"] for one in events] == ["Scheduled"]
    await cluster.delete("Pod", "pod-0", "default")
    await agree(bus, cluster, placed=0, timeout=20)


async def test_a_compacted_etcd_makes_the_view_complete_again(plane: ControlPlane, cluster: Cluster) -> None:
    """Events are served from etcd, not from a cache: a compaction is a 410 at once, and what vanished meanwhile is told."""
    there: set[str] = set()
    gone: list[str] = []

    class Names:
        def put(self, item: KubeNamespace) -> None:
            there.add(item.metadata.name)

        def gone(self, namespace: str, name: str, version: int) -> None:
            del namespace, version
            there.discard(name)
            gone.append(name)

        def complete(self, version: int) -> None: ...

    async def create(name: str) -> None:
        regarding = {"kind": "Pod", "name": "a", "namespace": "default"}
        meta = {"name": name, "namespace": "default"}
        said = {"eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "test", "reportingInstance": "t"}
        what = {"action": "Test", "reason": "Test", "type": "Normal", "regarding": regarding}
        await cluster.create({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": meta, **said, **what})

    for name in ("one", "two"):
        await create(name)
    reflector = Reflector(cluster.client, Resource("events.k8s.io/v1", "events", KubeNamespace), Names())
    running = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.loaded.wait(), 10)
    assert there == {"one", "two"}
    await end(running)
    await cluster.delete("Event", "one", "default", api="events.k8s.io/v1")
    await create("three")
    plane.compact()
    running = asyncio.create_task(reflector.run())
    async with asyncio.timeout(20):
        while there != {"two", "three"}:  # noqa: ASYNC110  it tells nobody when it has listed anew
            await asyncio.sleep(0.02)
    await end(running)
    assert gone == ["one"]
    assert reflector.statistics().lists == 2
