"""A pool that grows and shrinks: a real API server, a real allocator, and a cloud that is late, fails, or sends too little.

Whoever keeps the pool's size is killed at every step on the way. At every instant the nodes there and on their way are within
the pool's maximum, no claim is made twice, and none is left without a node.
"""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bus import history, records, subjects
from bus.connection import Bus
from bus.kube.client import Client
from bus.streams import CAPACITY, STATE
from consumers.scaler.sizer import Sizer
from schemas.capacity import Offer, PoolCapacity
from schemas.cluster import Node
from tests.integration.cluster import Cluster, create_all, node, play_agents, tensorfusion_pod

pytestmark = [pytest.mark.integration, pytest.mark.slow]

API = "tensor-fusion.ai/v1"
POOL = "burst"
GIB = 2**30
STEPS = ("read", "planned", "written", "dropped", "ordered", "closed", "removed")
OFFERS = tuple(
    Offer(
        instance_type=f"a100-{gpus}", gpus=gpus, model="A100", tflops_milli=312_000, vram_bytes=80 * GIB,
        microdollars=gpus * 4_000_000 - gpus, cpu_milli=64_000, memory_bytes=512 * GIB,
    )
    for gpus in (1, 4)
)  # fmt: skip
MOST_GPUS = 20
AGAIN = 0.2
"""How often a step is deadly once it has been."""


def pool(minimum: int, most: int) -> dict[str, Any]:
    def unit(gpus: int) -> dict[str, str]:
        return {"tflops": f"{312 * gpus}", "vram": f"{80 * gpus}Gi"}

    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": [POOL]}]}]
    capacity = {
        "minResources": unit(minimum),
        "maxResources": unit(most),
        "oversubscription": {"vramExpandToHostMem": 0, "vramExpandToHostDisk": 0, "tflopsOversellRatio": 100},
    }
    return {
        "apiVersion": API,
        "kind": "GPUPool",
        "metadata": {"name": POOL, "annotations": {"tensor-fusion.ai/is-default-pool": "true"}},
        "spec": {
            "nodeManagerConfig": {
                "provisioningMode": "Provisioned",
                "nodeSelector": {"nodeSelectorTerms": terms},
                "nodeCompaction": {"period": "5m"},
                "nodeProvisioner": {
                    "nodeClass": "burst",
                    "gpuRequirements": [{"key": "karpenter.sh/capacity-type", "values": ["on-demand"]}],
                },
            },
            "capacityConfig": capacity,
        },
    }


class Cloud:
    """Makes nodes of claims, sometimes late, sometimes with a GPU less, sometimes never."""

    def __init__(self, cluster: Cluster, bus: Bus, dice: random.Random) -> None:
        self._cluster = cluster
        self._bus = bus
        self._dice = dice
        self._delay: dict[str, int] = {}
        self.nodes: dict[str, int] = {}
        self.made: Counter[str] = Counter()

    async def step(self) -> None:
        claims = {one["metadata"]["name"]: one for one in await self._cluster.list("GPUNodeClaim", api=API)}
        for name, claim in claims.items():
            uid = claim["metadata"]["uid"]
            if uid not in self._delay:
                self.made[name] += 1
                self._delay[uid] = self._dice.choice([1, 2, 3, 10**6])
            self._delay[uid] -= 1
            if not self._delay[uid]:
                offered = claim["spec"]["gpuDeviceOffered"]
                gpus = offered if self._dice.random() < 0.8 else max(offered - 1, 1)
                await self._cluster.create(node(name, POOL))
                await play_agents(self._bus, [name], gpus)
                self.nodes[name] = gpus
        for name in set(self.nodes) - set(claims):
            await self._cluster.delete("Node", name)
            where = subjects.state("gpu", name)
            stored = await records.latest(self._bus, STATE, where)
            await records.erase(self._bus, where, expected=stored.seq)
            del self.nodes[name]
        # A claim whose node is there counts as that node, else as what it says.
        on_the_way = sum(one["spec"]["gpuDeviceOffered"] for name, one in claims.items() if name not in self.nodes)
        assert sum(self.nodes.values()) + on_the_way <= MOST_GPUS


class KilledError(Exception):
    """The process ends here."""


class Keeper:
    """Looks at the pool with a new process each time, many of which are killed on the way; its clock runs ahead."""

    def __init__(self, bus: Bus, client: Client, dice: random.Random, *, deadly: bool = True) -> None:
        self._bus, self._client, self._dice, self._deadly = bus, client, dice, deadly
        self._ahead = 0.0
        self.kills: Counter[str] = Counter()

    async def look(self, seconds: float) -> PoolCapacity:
        self._ahead += seconds

        def step(name: str) -> None:
            if self._deadly and (not self.kills[name] or self._dice.random() < AGAIN):
                self.kills[name] += 1
                raise KilledError

        sizer = Sizer(self._bus, self._client, "s", OFFERS, clock=lambda: time.time() + self._ahead, step=step)
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
        _, record = await records.read(self._bus, STATE, subjects.state("capacity", POOL), PoolCapacity)
        return record or PoolCapacity(pool=POOL)


async def allocated(cluster: Cluster) -> int:
    return sum(bool(one["spec"].get("nodeName")) for one in await cluster.list("Pod", "default"))


async def test_bursts_are_absorbed_within_the_maximum_whatever_the_cloud_does_and_whoever_dies(
    cluster: Cluster, bus: Bus, start, kubeconfig_of
) -> None:
    dice = random.Random(11)
    await start("watcher")
    await start("allocator")
    await start("binder")
    await cluster.create(pool(minimum=2, most=MOST_GPUS))
    cloud = Cloud(cluster, bus, dice)
    async with await Client.connect(str(await kubeconfig_of("scaler"))) as client:
        keeper = Keeper(bus, client, dice)
        async with asyncio.timeout(60):
            while sum(cloud.nodes.values()) < 2:
                await keeper.look(150)
                await cloud.step()
        for burst, pods in enumerate((24, 36)):  # half a GPU each: the second asks for all that may be there
            names = [f"burst-{burst}-{number}" for number in range(pods)]
            await create_all(cluster, [tensorfusion_pod(name, tflops="156", vram="40Gi") for name in names])
            async with asyncio.timeout(120):
                while await allocated(cluster) < pods:
                    await keeper.look(150)
                    await cloud.step()
            for name in names:
                await cluster.delete("Pod", name, "default")
            async with asyncio.timeout(120):
                while sum(cloud.nodes.values()) > 4:  # the minimum is two GPUs; a node of four may be what holds it
                    await keeper.look(150)
                    await cloud.step()
        async with asyncio.timeout(60):  # what the cloud never sent is given up in the end
            while True:
                await keeper.look(301)
                await cloud.step()
                if {one["metadata"]["name"] for one in await cluster.list("GPUNodeClaim", api=API)} == set(cloud.nodes):
                    break
        assert sum(cloud.nodes.values()) >= 2
    assert set(keeper.kills) == set(STEPS)
    told, _ = await history.newest(bus, CAPACITY, ["gpubus.capacity.>"])
    assert told


async def test_the_role_claims_what_the_minimum_needs_when_the_server_ticks(
    cluster: Cluster, start, tmp_path: Path, monkeypatch
) -> None:
    offers = tmp_path / "offers.yaml"
    offers.write_text("- {instanceType: g, gpuModel: A100, tflops: 312, vram: 80Gi, gpus: 2, costPerHour: 8}")
    monkeypatch.setenv("GPUBUS_OFFERS", str(offers))
    monkeypatch.delenv("GPUBUS_METRICS", raising=False)  # pools are kept at their size without a metrics store
    await start("watcher")
    await start("scaler")
    await cluster.create(pool(minimum=3, most=4))
    async with asyncio.timeout(60):
        while len(claims := await cluster.list("GPUNodeClaim", api=API)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert {claim["metadata"]["name"] for claim in claims} == {f"{POOL}-0", f"{POOL}-1"}
    spec = claims[0]["spec"]
    assert (spec["instanceType"], spec["gpuDeviceOffered"], spec["tflopsOffered"]) == ("g", 2, "624")
    assert "ownerReferences" not in claims[0]["metadata"]  # whoever deletes the pool must not lose its nodes


class Steady(random.Random):
    """Dice of a cloud that is quick and gives what is asked."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def random(self) -> float:
        return 0.1


async def test_a_busy_node_is_kept_when_another_pool_takes_it_over(
    cluster: Cluster, bus: Bus, start, kubeconfig_of
) -> None:
    for role in ("watcher", "allocator", "binder"):
        await start(role)
    await cluster.create(pool(minimum=1, most=4))
    cloud = Cloud(cluster, bus, Steady())
    async with await Client.connect(str(await kubeconfig_of("scaler"))) as client:
        keeper = Keeper(bus, client, Steady(), deadly=False)
        async with asyncio.timeout(60):
            while not cloud.nodes:
                await keeper.look(10)
                await cloud.step()
            await create_all(cluster, [tensorfusion_pod("train", tflops="156", vram="40Gi")])
            while await allocated(cluster) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            for _ in range(3):
                await keeper.look(601)  # long enough for a claim to be given up
            await cluster.create(pool(minimum=0, most=4) | {"metadata": {"name": "a-new"}})
            where = subjects.state("node", next(iter(cloud.nodes)))
            while True:
                _, seen = await records.read(bus, STATE, where, Node)
                if seen is not None and seen.pool == "a-new":
                    break
                await asyncio.sleep(0.05)
        await keeper.look(10)
        assert await cluster.list("GPUNodeClaim", api=API)


async def test_a_node_whose_claim_is_deleted_stays_closed_until_it_is_gone(
    cluster: Cluster, bus: Bus, start, kubeconfig_of
) -> None:
    for role in ("watcher", "allocator", "binder"):
        await start(role)
    await cluster.create(pool(minimum=0, most=4))
    cloud = Cloud(cluster, bus, Steady())
    async with await Client.connect(str(await kubeconfig_of("scaler"))) as client:
        keeper = Keeper(bus, client, Steady(), deadly=False)
        await create_all(cluster, [tensorfusion_pod("train", tflops="156", vram="40Gi")])
        async with asyncio.timeout(60):
            while not cloud.nodes:
                await keeper.look(60)
                await cloud.step()
            while await allocated(cluster) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await cluster.delete("Pod", "train", "default")
            while await cluster.list("GPUNodeClaim", api=API):
                await keeper.look(301)
        await keeper.look(10)
        (left,) = await cluster.list("Node")
        assert [taint["key"] for taint in left["spec"]["taints"]] == ["tensor-fusion.ai/should-delete"]
        assert not left["spec"].get("unschedulable")


async def test_a_claim_that_somebody_else_has_made_is_adopted_with_its_node_and_not_ordered_again(
    cluster: Cluster, bus: Bus, start, kubeconfig_of
) -> None:
    await start("watcher")
    await cluster.create(pool(minimum=1, most=4))
    spec = {
        "nodeName": "",
        "instanceType": "other",
        "gpuDeviceOffered": 1,
        "tflopsOffered": "312",
        "vramOffered": "80Gi",
    }
    annotations = {"tensor-fusion.ai/gpupool": POOL}
    claim = {"apiVersion": API, "kind": "GPUNodeClaim", "metadata": {"name": "by-hand", "annotations": annotations}}
    await cluster.create({**claim, "spec": spec})
    async with await Client.connect(str(await kubeconfig_of("scaler"))) as client:
        keeper = Keeper(bus, client, Steady(), deadly=False)
        async with asyncio.timeout(30):  # until the watcher has told of both
            while not (record := await keeper.look(10)).claims:  # noqa: ASYNC110  the server is what changes
                await asyncio.sleep(0.1)
        assert (list(record.claims), record.coming.gpus) == (["by-hand"], 1)
        # Its node is called otherwise and says whose it is.
        there = node("machine-7", POOL)
        there["metadata"]["labels"]["tensor-fusion.ai/node-claim"] = "by-hand"
        await cluster.create(there)
        await play_agents(bus, ["machine-7"], 1)
        async with asyncio.timeout(30):
            while not record.came:
                record = await keeper.look(1)
        assert (record.total.gpus, record.coming.gpus, record.came) == (1, 0, ("by-hand",))
        await keeper.look(601)  # it would be given up by now if it were not known to have come
        assert [one["metadata"]["name"] for one in await cluster.list("GPUNodeClaim", api=API)] == ["by-hand"]
