"""A warm reserve that is kept by placeholder pods: a real API server, real roles, and only the cluster autoscaler is played."""

import asyncio
from typing import Any

import pytest

from bus import records, subjects
from bus.connection import Bus
from bus.kube.client import Client
from bus.streams import STATE
from consumers.scaler.placeholders import LABEL, RESERVE
from consumers.scaler.sizer import Sizer
from schemas.capacity import PoolCapacity
from schemas.cluster import Pool
from tests.integration.cluster import SYSTEM, Cluster, node, play_agents, tensorfusion_pod

pytestmark = [pytest.mark.integration, pytest.mark.slow]

POOL = "elastic"
API = "tensor-fusion.ai/v1"


def pool(warm_gpus: int, reserve: str = "placeholders") -> dict[str, Any]:
    def unit(gpus: int) -> dict[str, str]:
        return {"tflops": f"{312 * gpus}", "vram": f"{80 * gpus}Gi"}

    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": [POOL]}]}]
    over = {"vramExpandToHostMem": 0, "vramExpandToHostDisk": 0, "tflopsOversellRatio": 100}
    warm = {**unit(warm_gpus), "cpu": f"{4 * warm_gpus}", "memory": f"{32 * warm_gpus}Gi"}
    return {
        "apiVersion": API,
        "kind": "GPUPool",
        "metadata": {
            "name": POOL,
            "annotations": {"tensor-fusion.ai/is-default-pool": "true", **({RESERVE: reserve} if reserve else {})},
        },
        "spec": {
            "nodeManagerConfig": {
                "nodeSelector": {"nodeSelectorTerms": terms},
                "nodeProvisioner": {"gpuTaints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]},
            },
            "capacityConfig": {"warmResources": warm, "maxResources": unit(4), "oversubscription": over},
        },
    }


def real(name: str) -> dict[str, Any]:
    """A pod that takes a whole GPU, of no more than usual rank."""
    made = tensorfusion_pod(name, tflops="312", vram="80Gi", qos="low")
    made["spec"]["terminationGracePeriodSeconds"] = 0
    return made


async def until(look) -> Any:
    async with asyncio.timeout(30):
        while not (found := await look()):  # noqa: ASYNC110  the API server is looked at
            await asyncio.sleep(0.1)
        return found


class Places:
    """Where pods are."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def kept(self) -> dict[str, dict[str, Any]]:
        """Return the placeholders that are not leaving, by name."""
        found = await self._cluster.list("Pod", SYSTEM)
        return {
            one["metadata"]["name"]: one
            for one in found
            if LABEL in one["metadata"].get("labels", {}) and "deletionTimestamp" not in one["metadata"]
        }

    async def standing(self) -> list[str]:
        return sorted(name for name, one in (await self.kept()).items() if one["spec"].get("nodeName"))

    async def waiting(self) -> list[dict[str, Any]]:
        """Return the placeholders of which the API server says that they find no place."""
        return [
            one
            for one in (await self.kept()).values()
            if any(
                (condition["type"], condition["status"], condition.get("reason"))
                == ("PodScheduled", "False", "Unschedulable")
                for condition in one["status"].get("conditions", ())
            )
        ]

    async def node_of(self, name: str) -> str:
        pods = {one["metadata"]["name"]: one for one in await self._cluster.list("Pod", "default")}
        return pods[name]["spec"].get("nodeName", "") if name in pods else ""


class KilledError(Exception):
    """The process ends here."""


async def look(bus: Bus, client: Client, *, dies_at: str = "") -> PoolCapacity | None:
    """Look at the pool once, with a process of its own that may die on the way."""

    def step(name: str) -> None:
        if name == dies_at:
            raise KilledError

    sizer = Sizer(bus, client, "s", step=step)
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(sizer.run(stop, ready=ready))
    await ready.wait()
    try:
        await sizer.look(POOL)
    except KilledError:
        pass
    finally:
        stop.set()
        await running
    return (await records.read(bus, STATE, subjects.state("capacity", POOL), PoolCapacity))[1]


async def test_placeholders_keep_the_reserve_give_way_to_real_pods_and_are_made_anew_for_an_autoscaler_to_see(
    cluster: Cluster, bus: Bus, start, kubeconfig_of
) -> None:
    places = Places(cluster)
    await asyncio.gather(*map(start, ("watcher", "allocator", "binder", "actuator")))
    await cluster.apply(pool(warm_gpus=2))
    await cluster.create(node("node-a", POOL))
    await play_agents(bus, ["node-a"], gpus=2)

    async def told() -> bool:
        _, seen = await records.read(bus, STATE, subjects.state("pool", POOL), Pool)
        return seen is not None and seen.preemption == "cluster"

    await until(told)
    async with await Client.connect(str(await kubeconfig_of("scaler"))) as client:
        # Killed after the first of two was made; whoever looks next makes the other and no third.
        await look(bus, client, dies_at="reserved")
        assert len(await places.kept()) == 1
        record = await look(bus, client)
        assert record is not None
        assert record.placeholders == 2
        both = [f"{POOL}-warm-0", f"{POOL}-warm-1"]
        assert await until(lambda: _is(places.standing, both)) == both

        # What they stand in counts as free.
        record = await look(bus, client)
        assert record is not None
        assert (record.available.gpus, record.available.tflops_milli, record.missing) == (2, 624_000, ())
        assert sorted(await places.kept()) == both

        # A pod that needs their room gets it, however little it goes before others.
        await cluster.create(real("train"))
        assert await until(lambda: places.node_of("train")) == "node-a"
        assert len(await places.standing()) == 1

        # Made anew it waits, in the words that cluster autoscaler and Karpenter read.
        await look(bus, client)
        (short,) = await until(places.waiting)
        assert sorted(await places.kept()) == both
        spec = short["spec"]
        assert spec["priority"] == -10
        assert spec["containers"][0]["resources"]["requests"] == {"cpu": "4", "memory": "32Gi"}
        (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert term["matchExpressions"] == [{"key": "pool", "operator": "In", "values": [POOL]}]
        assert {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"} in spec["tolerations"]

        # The cluster grows.
        await cluster.create(node("node-b", POOL))
        await play_agents(bus, ["node-b"], gpus=1)
        assert await until(lambda: _is(places.standing, both)) == both

        # The pool wants none any more; who dies after the first is deleted leaves the rest to the next.
        await cluster.apply(pool(warm_gpus=2, reserve=""))
        await until(lambda: _unset(bus))
        await look(bus, client, dies_at="freed")
        assert len(await places.kept()) == 1
        await look(bus, client)
        assert await places.kept() == {}
        record = await look(bus, client)
        assert record is not None
        assert record.placeholders == 0
        assert await places.node_of("train") == "node-a"


async def _is(look, wanted: list[str]) -> list[str]:
    return wanted if await look() == wanted else []


async def _unset(bus: Bus) -> bool:
    stored = await records.latest(bus, STATE, subjects.state("config", "gpupools", "", POOL))
    return bool(stored.payload) and RESERVE.encode() not in stored.payload
