"""What tests do to a cluster: nodes with GPUs, pods in either dialect, and looking at what became of them."""

import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from bus import subjects
from bus.codec import encode
from bus.connection import Bus
from bus.kube.client import APPLY, Client, resource_path
from bus.kube.errors import KubeRefusedError
from schemas.cluster import GpuDevice, GpuInventory
from schemas.event import Event
from schemas.kube.kinds import KINDS
from tests.integration.plane import SYSTEM

GIB = 1024**3
GPUS = 4
TFLOPS_MILLI = 312_000
VRAM = 80 * GIB
POOL = "shared"


class Cluster:
    """An API server, spoken to as administrator."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def apply(self, document: dict[str, Any]) -> dict[str, Any]:
        """Apply one object, server-side."""
        meta = document["metadata"]
        path = resource_path(document["apiVersion"], _plural(document["kind"]), meta.get("namespace", ""), meta["name"])
        query = {"fieldManager": "test", "force": "true"}
        body = json.dumps(document).encode()
        return json.loads(await self.client.call("PATCH", path, query=query, body=body, content_type=APPLY))

    async def create(self, document: dict[str, Any]) -> dict[str, Any]:
        path = resource_path(
            document["apiVersion"], _plural(document["kind"]), document["metadata"].get("namespace", "")
        )
        return json.loads(await self.client.call("POST", path, body=json.dumps(document).encode()))

    async def get(self, kind: str, name: str, namespace: str = "", api: str = "v1") -> dict[str, Any]:
        return json.loads(await self.client.call("GET", resource_path(api, _plural(kind), namespace, name)))

    async def list(self, kind: str, namespace: str = "", api: str = "v1") -> list[dict[str, Any]]:
        return json.loads(await self.client.call("GET", resource_path(api, _plural(kind), namespace)))["items"]

    async def delete(self, kind: str, name: str, namespace: str = "", api: str = "v1") -> None:
        body = json.dumps({"gracePeriodSeconds": 0}).encode()
        await self.client.call("DELETE", resource_path(api, _plural(kind), namespace, name), body=body)

    async def established(self) -> None:
        """Wait until our kinds are served."""
        async with asyncio.timeout(20):
            for kind in KINDS:
                while True:
                    try:
                        await self.client.call("GET", resource_path("tensor-fusion.ai/v1", kind.plural))
                        break
                    except KubeRefusedError:
                        await asyncio.sleep(0.02)

    async def empty(self) -> None:
        """Delete what tests have made."""
        body = json.dumps({"gracePeriodSeconds": 0}).encode()
        paths = [resource_path("v1", "pods", namespace) for namespace in ("default", SYSTEM)]
        paths.append(resource_path("events.k8s.io/v1", "events", "default"))
        paths += [resource_path("v1", "nodes"), resource_path("v1", "persistentvolumeclaims", "default")]
        paths += [resource_path("apps/v1", plural, "default") for plural in ("deployments", "replicasets")]
        for kind in KINDS:
            namespace = "default" if kind.scope == "Namespaced" else ""
            paths.append(resource_path("tensor-fusion.ai/v1", kind.plural, namespace))
        for path in paths:
            await self.client.call("DELETE", path, body=body, timeout=120)

    async def add_pool(self, name: str = POOL, **capacity: int) -> None:
        terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": [name]}]}]
        over = {"vramExpandToHostMem": 0, "vramExpandToHostDisk": 0, "tflopsOversellRatio": 100} | capacity
        await self.apply(
            {
                "apiVersion": "tensor-fusion.ai/v1",
                "kind": "GPUPool",
                "metadata": {"name": name, "annotations": {"tensor-fusion.ai/is-default-pool": "true"}},
                "spec": {
                    "nodeManagerConfig": {"nodeSelector": {"nodeSelectorTerms": terms}},
                    "capacityConfig": {"oversubscription": over},
                },
            }
        )

    async def add_nodes(self, names: Iterable[str], pool: str = POOL) -> None:
        await asyncio.gather(*(self.create(node(name, pool)) for name in names))


async def play_agents(bus: Bus, names: Iterable[str], gpus: int = GPUS) -> None:
    """Say what the agents of nodes would say: their GPUs."""
    now = datetime.now(UTC)
    said = []
    for name in names:
        inventory = GpuInventory(
            node=name,
            gpus=[
                GpuDevice(
                    uuid=f"GPU-{name}-{index}", index=index, model="A100", tflops_milli=TFLOPS_MILLI, vram_bytes=VRAM
                )
                for index in range(gpus)
            ],
            observed_at=now,
        )
        event = Event(
            id=f"gpu:{name}:{now.timestamp()}",
            source="/test",
            type="gpubus.gpu.v1",
            subject=name,
            time=now,
            data=inventory,
        )
        said.append((subjects.state("gpu", name), encode(event), event.id))
    await bus.publisher.publish_all(said)


def node(name: str, pool: str = POOL) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"pool": pool, "kubernetes.io/hostname": name}},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"},
            "capacity": {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def pod(name: str, **extra: Any) -> dict[str, Any]:
    """A bare pod of namespace ``default``; ``extra`` goes into its spec."""
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    spec = {"containers": [{"name": "main", "image": "none", "resources": resources}]} | extra
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def tensorfusion_pod(name: str, tflops: str = "31.2", vram: str = "8Gi", **annotations: str) -> dict[str, Any]:
    """A pod in TensorFusion's words, as admission leaves it."""
    made = pod(name, schedulerName="tensor-fusion-scheduler")
    made["metadata"]["labels"] = {"tensor-fusion.ai/enabled": "true"}
    prefix = "tensor-fusion.ai/"
    made["metadata"]["annotations"] = {
        f"{prefix}tflops-request": tflops,
        f"{prefix}vram-request": vram,
        **{prefix + key.replace("_", "-"): value for key, value in annotations.items()},
    }
    return made


def hami_pod(name: str, gpumem: str = "8192", gpucores: str = "10", gpus: str = "1") -> dict[str, Any]:
    """A pod in HAMi's words."""
    limits = {"nvidia.com/gpu": gpus, "nvidia.com/gpumem": gpumem, "nvidia.com/gpucores": gpucores}
    resources = {"limits": {**limits, "cpu": "100m", "memory": "64Mi"}}
    return pod(
        name,
        schedulerName="hami-scheduler",
        containers=[{"name": "main", "image": "none", "resources": resources}],
    )


async def create_all(cluster: Cluster, pods: list[dict]) -> None:
    slots = asyncio.Semaphore(32)

    async def one(pod: dict) -> None:
        async with slots:
            await cluster.create(pod)

    await asyncio.gather(*map(one, pods))


def mixed(count: int, first: int = 0) -> list[dict]:
    """Pods of half a GPU, every other one in each dialect."""
    return [
        tensorfusion_pod(f"pod-{number:05}", tflops="156", vram="40Gi")
        if number % 2
        else hami_pod(f"pod-{number:05}", gpumem="40960", gpucores="50")
        for number in range(first, first + count)
    ]


def _plural(kind: str) -> str:
    ours = {one.name: one.plural for one in KINDS}
    if kind in ours:
        return ours[kind]
    if kind.endswith("Policy"):
        return kind.lower().removesuffix("y") + "ies"
    return kind.lower() + ("es" if kind.endswith(("s", "Class")) else "s")
