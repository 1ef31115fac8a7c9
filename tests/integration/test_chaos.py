"""Everything around the pods is killed, some of it twice; no pod is lost, and none is bound twice or to a full GPU."""

import asyncio

import pytest

from bus.connection import Bus
from deploy.local.server import LocalServer
from tests.integration.cluster import Cluster, create_all, mixed, play_agents
from tests.integration.observe import agree, bound
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
