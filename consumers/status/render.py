"""Status of each kind from the fold. Pure: what it says follows from what was said on the bus.

Totals are physical, ``virtual`` is what may be asked for under the pool's oversubscription, and available is what pods have
left of either.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from consumers.status.fold import Fold
from schemas.cluster import GpuDevice, Node, Pool
from schemas.kube.annotations import gpu_name
from schemas.kube.base import Condition
from schemas.kube.gpu_status import pod_info, status_of
from schemas.kube.nodes import GPUNodeStatus, GPUStatus, NodeInfo
from schemas.kube.pools import GPUPoolStatus, Phase, TensorFusionClusterStatus
from schemas.quantity import format_bytes, format_milli, parse

RUNNING = "Running"


class Sums(NamedTuple):
    """Amounts over GPUs, in thousandths of a TFLOPS and bytes."""

    tflops: int = 0
    vram: int = 0
    virtual_tflops: int = 0
    virtual_vram: int = 0
    granted_tflops: int = 0
    granted_vram: int = 0

    def plus(self, other: "Sums") -> "Sums":
        """Return both together."""
        return Sums(*(one + more for one, more in zip(self, other, strict=True)))

    def capacity(self) -> dict[str, Any]:
        """Return the fields that every capacity status has."""
        return {
            "total_tflops": format_milli(self.tflops),
            "total_vram": format_bytes(self.vram),
            "virtual_tflops": format_milli(self.virtual_tflops),
            "virtual_vram": format_bytes(self.virtual_vram),
            "available_tflops": format_milli(max(self.tflops - self.granted_tflops, 0)),
            "available_vram": format_bytes(max(self.vram - self.granted_vram, 0)),
            "virtual_available_tflops": format_milli(max(self.virtual_tflops - self.granted_tflops, 0)),
            "virtual_available_vram": format_bytes(max(self.virtual_vram - self.granted_vram, 0)),
        }


def gpu_status(fold: Fold, node: Node, gpu: GpuDevice) -> GPUStatus:
    """Return the status of one GPU."""
    return status_of(node, gpu, fold.on_gpu(node.name, gpu.uuid))


def node_status(fold: Fold, node: Node) -> GPUNodeStatus:
    """Return the status of one node."""
    inventory = fold.inventories.get(node.name)
    gpus = inventory.gpus if inventory is not None else []
    held = fold.held.get(node.name, ())
    taken = {gpu.uuid: fold.on_gpu(node.name, gpu.uuid) for gpu in gpus}
    return GPUNodeStatus(
        **node_sums(fold, node).capacity(),
        phase="Running" if node.ready and gpus else "Pending" if node.ready else "Unknown",
        node_info=NodeInfo(ram_size=format_bytes(node.memory_bytes), data_disk_size=format_bytes(node.disk_bytes)),
        loaded_models=tuple(sorted({gpu.model for gpu in gpus})),
        total_gpus=len(gpus),
        managed_gpus=sum(not gpu.used_by for gpu in gpus),
        managed_gpu_device_ids=tuple(gpu.uuid for gpu in gpus if not gpu.used_by),
        total_gpu_pods=sum(bool(one.gpus) for one in held),
        allocated_pods={
            gpu_name(uuid): tuple(pod_info(one, uuid) for one in holders) for uuid, holders in taken.items() if holders
        },
    )


def node_sums(fold: Fold, node: Node) -> Sums:
    """Return the amounts of one node."""
    inventory = fold.inventories.get(node.name)
    gpus = inventory.gpus if inventory is not None else []
    over = fold.pools.get(node.pool, Pool(name=node.pool)).oversubscription
    vram = sum(gpu.vram_bytes for gpu in gpus)
    tflops = sum(gpu.tflops_milli for gpu in gpus)
    extra = node.memory_bytes * over.host_memory // 100 + node.disk_bytes * over.host_disk // 100 if gpus else 0
    grants = [grant for one in fold.held.get(node.name, ()) for grant in one.gpus]
    return Sums(
        tflops=tflops,
        vram=vram,
        virtual_tflops=tflops * over.tflops_ratio // 100,
        virtual_vram=vram + extra,
        granted_tflops=sum(grant.tflops_milli for grant in grants),
        granted_vram=sum(grant.vram_bytes for grant in grants),
    )


def pool_status(fold: Fold, name: str, before: Iterable[Condition], now: str) -> GPUPoolStatus:
    """Return the status of a pool; conditions that say what they said ``before`` keep their time."""
    members = fold.members(name)
    sums, gpus, apps, ready = Sums(), 0, 0, 0
    for node in members:
        sums = sums.plus(node_sums(fold, node))
        inventory = fold.inventories.get(node.name)
        gpus += len(inventory.gpus) if inventory is not None else 0
        apps += sum(bool(one.gpus) for one in fold.held.get(node.name, ()))
        ready += bool(node.ready and inventory is not None and inventory.gpus)
    phase = _pool_phase(fold, name, len(members), ready)
    message = f"{ready} of {len(members)} nodes run"
    return GPUPoolStatus(
        **sums.capacity(),
        cluster=next(iter(fold.clusters_of(name)), msgspec.UNSET),
        phase=phase,
        conditions=_conditions(phase == RUNNING, message, before, now),
        total_nodes=len(members),
        total_gpus=gpus,
        ready_nodes=ready,
        not_ready_nodes=len(members) - ready,
        running_apps_cnt=apps,
    )


def cluster_status(fold: Fold, name: str, before: Iterable[Condition], now: str) -> TensorFusionClusterStatus:
    """Return the status of a cluster: the sum of its pools."""
    item = fold.settings.clusters.items["", name]
    kept = [f"{name}-{pool.name}" for pool in item.spec.gpu_pools]
    sums, nodes, gpus = Sums(), 0, 0
    ready: list[str] = []
    for pool in kept:
        status = pool_status(fold, pool, (), now)
        nodes, gpus = nodes + status.total_nodes, gpus + status.total_gpus
        for node in fold.members(pool):
            sums = sums.plus(node_sums(fold, node))
        if status.phase == RUNNING:
            ready.append(pool)
    missing = sorted(set(kept) - set(ready))
    return TensorFusionClusterStatus(
        **sums.capacity(),
        phase="Running" if not missing else "Updating",
        conditions=_conditions(not missing, f"{len(ready)} of {len(kept)} pools run", before, now),
        total_pools=len(kept),
        total_nodes=nodes,
        total_gpus=gpus,
        ready_gpu_pools=tuple(ready),
        not_ready_gpu_pools=tuple(missing),
        allocated_tflops_percent=_percent(sums.granted_tflops, sums.tflops),
        allocated_vram_percent=_percent(sums.granted_vram, sums.vram),
    )


def _pool_phase(fold: Fold, name: str, nodes: int, ready: int) -> Phase:
    """A pool runs when all its nodes do. Without any it does only if none are asked for."""
    item = fold.settings.pools.items.get(("", name))
    config = item.spec.capacity_config if item is not None else None
    least = config.min_resources if config is not None else None
    if not nodes and least is not None and (parse(str(least.tflops)) or parse(str(least.vram))):
        return "Updating"
    return "Running" if ready == nodes else "Updating"


def _conditions(ready: bool, message: str, before: Iterable[Condition], now: str) -> tuple[Condition, ...]:  # noqa: FBT001
    status = "True" if ready else "False"
    same = next((one for one in before if one.type == "Ready" and one.status == status), None)
    return (
        Condition(
            type="Ready",
            status="True" if ready else "False",
            reason="CheckPassed" if ready else "ResourcesUpdated",
            message=message,
            last_transition_time=same.last_transition_time if same is not None else now,
        ),
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "0.00"
