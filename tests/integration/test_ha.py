"""The last step of guides for production: whoever works is killed, and new pods go on being changed, placed and bound.

Everything is as the chart has it: two pods of each group of roles with its own accounts, three NATS servers with TLS, the chart's
webhook. Deployments in both dialects are kept short of pods by deleting them all the time.
"""

import asyncio
import base64
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import pytest

from bus.connection import Bus
from bus.kube.reflector import Reflector, Resource
from bus.streams import LEDGER
from bus.tasks import end
from schemas.kube.annotations import VISIBLE_DEVICES
from schemas.kube.core import KubePod
from tests.conftest import eventually
from tests.integration.cluster import Cluster, hami_pod, play_agents, tensorfusion_pod
from tests.integration.observe import agree
from tests.integration.parts import PARTS, Parts, Pod, leader
from tests.integration.plane import ControlPlane, find_assets
from tests.integration.secured import RELEASE, SecuredBus
from tests.integration.service import Service

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.slow]

REPLICAS = 8
"""Of each of two Deployments."""
BINDINGS = 20
"""How many new pods have to be bound before the next is killed."""
PAUSE_S = 0.1
PATIENCE_S = 60.0


class Load:
    """Deletes pods all the time and sees when their successors are bound.

    Attributes:
        bound: How many have been bound so far.
        gap: Longest time in which pods were lacking and none was bound, since :meth:`begin`.
        wait: Longest time from a pod's creation to its binding, since then.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._dice = random.Random(5)
        self._reflector = Reflector(cluster.client, Resource("v1", "pods", KubePod), self)
        self._seen: dict[str, float] = {}
        self.standing: dict[str, str] = {}
        self._lacking: float | None = time.monotonic()
        self.bound = 0
        self.begin()

    def begin(self) -> None:
        self.gap = self.wait = 0.0

    def put(self, pod: KubePod) -> None:
        meta, now = pod.metadata, time.monotonic()
        if meta.namespace != "default":
            return
        self._seen.setdefault(meta.uid, now)
        assert pod.spec.scheduler_name in ("tensor-fusion-scheduler", "hami-scheduler"), f"{meta.name} was not changed"
        if pod.spec.node_name and meta.name not in self.standing:
            assert meta.annotations.get(VISIBLE_DEVICES)
            self.standing[meta.name] = meta.uid
            self.bound += 1
            self.gap = max(self.gap, now - (self._lacking or now))
            self.wait = max(self.wait, now - self._seen[meta.uid])
            self._lacking = now if len(self.standing) < 2 * REPLICAS else None

    def gone(self, namespace: str, name: str, version: int) -> None:
        del version
        if namespace == "default" and self.standing.pop(name, None):
            self._lacking = self._lacking or time.monotonic()

    def complete(self, version: int) -> None: ...

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._reflector.run()), asyncio.create_task(self._delete())]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await end(*self._tasks)

    async def rest(self) -> None:
        """Delete no more, and wait until all that are wanted stand."""
        await end(self._tasks.pop())
        await eventually(lambda: self._lacking is None, PATIENCE_S)

    async def _delete(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_S)
            if self.standing:
                await self._cluster.delete("Pod", self._dice.choice(sorted(self.standing)), "default")


def deployment(name: str, pod: dict[str, Any]) -> dict[str, Any]:
    """What users write: no scheduler, no environment."""
    meta, spec = pod["metadata"], pod["spec"]
    del spec["schedulerName"]
    labels = {"app": name, **meta.get("labels", {})}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels, "annotations": meta.get("annotations", {})}, "spec": spec},
        },
    }


@asynccontextmanager
async def admitting(cluster: Cluster, secured: SecuredBus, pods: list[Pod]) -> AsyncIterator[None]:
    """The chart's webhook, by an address instead of its Service's name."""
    hook = secured.objects["MutatingWebhookConfiguration", f"{RELEASE}-mutating-webhook"]
    async with Service([pod.gateway for pod in pods]) as service:
        for one in hook["webhooks"]:
            path = one["clientConfig"].pop("service")["path"]
            authority = base64.b64encode(secured.secrets["webhook-tls"]["ca.crt"]).decode()
            one["clientConfig"] |= {"url": f"https://localhost:{service.port}{path}", "caBundle": authority}
        await cluster.apply(hook)
        try:
            yield
        finally:
            await cluster.delete(hook["kind"], hook["metadata"]["name"], api=hook["apiVersion"])


@asynccontextmanager
async def deployments(cluster: Cluster, plane: ControlPlane) -> AsyncIterator[None]:
    if find_assets("kube-controller-manager") is None:
        pytest.skip("no kube-controller-manager: run `make test-assets`")
    plane.start_controllers("deployment-controller", "replicaset-controller")
    try:
        await cluster.apply(deployment("fusion", tensorfusion_pod("")))
        await cluster.apply(deployment("hami", hami_pod("")))
        yield
    finally:
        plane.stop("kube-controller-manager")
        for kind in ("Deployment", "ReplicaSet"):
            for one in await cluster.list(kind, "default", api="apps/v1"):
                await cluster.delete(kind, one["metadata"]["name"], "default", api="apps/v1")


@pytest.mark.timeout(300)
async def test_killing_one_of_each_group_in_turn_stops_nobody_from_getting_gpus(
    plane: ControlPlane, cluster: Cluster, secured: SecuredBus, admin_bus: Bus, parts: Parts
) -> None:
    names = ["node-a", "node-b", "node-c", "node-d"]
    await cluster.add_pool()
    await cluster.add_nodes(names)
    await play_agents(admin_bus, names)
    made = await asyncio.gather(*(parts.pod(part, GPUBUS_ALERT_RULES="") for part in PARTS * 2))
    pods = {part: made[place :: len(PARTS)] for place, part in enumerate(PARTS)}
    seen: dict[str, tuple[float, float]] = {}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(admitting(cluster, secured, pods["webhook"]))
        await stack.enter_async_context(deployments(cluster, plane))
        load = await stack.enter_async_context(Load(cluster))
        await eventually(lambda: load.bound >= 3 * REPLICAS, PATIENCE_S)

        async def go_on(what: str) -> None:
            wanted = load.bound + BINDINGS
            await eventually(lambda: load.bound >= wanted, PATIENCE_S)
            seen[what] = (load.gap, load.wait)

        load.begin()
        await go_on("nobody")
        for part in PARTS:
            load.begin()
            await pods[part][0].kill()
            await go_on(part)
            await pods[part][0].start()
        load.begin()
        killed = await secured.kill(await leader(admin_bus, LEDGER))
        await go_on("nats (leader)")
        await secured.start_one(killed)
        await load.rest()
        await agree(admin_bus, cluster, placed=2 * REPLICAS, timeout=PATIENCE_S)
    assert secured.violations() == []
    for what, (gap, wait) in seen.items():
        print(f"{what + ' killed':22} longest without a binding {gap:5.2f} s, longest wait of a pod {wait:5.2f} s")
