"""What is allocated under the names of HAMi's scheduler, for dashboards that exist. Pure.

Quotas are in HAMi's units, MiB and percent of one GPU. Where several objects bound a namespace the narrowest is shown.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from bus.exposition import Family, Sample
from consumers.recorder.view import View
from schemas.cluster import GpuDevice
from schemas.ledger import Allocation
from schemas.quota import Budget, Usage

ZONE: Final = {"zone": "vGPU"}
"""A label that every metric of HAMi has."""

_FULL: Final = 100.0
_GPU: Final = {
    "hami_gpu_memory_limit_bytes": "Physical VRAM of a GPU.",
    "hami_gpu_core_limit_ratio": "Compute of a GPU, in percent of itself.",
    "hami_gpu_shared_count": "Pods on a GPU.",
    "hami_gpu_core_allocated_ratio": "Compute given out, in percent of the GPU.",
    "hami_gpu_memory_allocated_bytes": "VRAM given out.",
    "hami_node_gpu_overview": "VRAM given out, with what the GPU is.",
    "hami_node_gpu_memory_allocated_ratio": "VRAM given out, as a part of the GPU's.",
}
_POD: Final = {
    "hami_vgpu_memory_allocated_bytes": "VRAM given to a pod on a GPU.",
    "hami_vgpu_core_allocated_ratio": "Compute given to a pod on a GPU, in percent of the GPU.",
}
_MIG: Final = "hami_node_gpu_mig_instance_info"
_MIB: Final = 2**20
_PER_PERCENT: Final = 10
_QUOTAS: Final = (
    ("nvidia.com/gpu", "gpus", 1),
    ("nvidia.com/gpumem", "vram_bytes", _MIB),
    ("nvidia.com/gpucores", "compute_milli", _PER_PERCENT),
)
"""Resource, its field in budgets and usage, and how many of that field's units are one of the resource's."""


def build_info(version: str, runtime: str, platform: str) -> Family:
    """Return which software this is. What only a build of HAMi has, such as a version of Go, stays empty."""
    labels = {"version": version, "revision": "", "build_date": "", "go_version": "", "compiler": runtime}
    return Family("hami_build_info", "What is running.", [Sample(1, labels | {"platform": platform})])


def families(view: View) -> Iterator[Family]:
    """Yield the families as of now."""
    samples: dict[str, list[Sample]] = {name: [] for name in (*_GPU, *_POD)}
    for node, inventory in view.inventories.items():
        held = list(view.held.get(node, {}).values())
        for gpu in inventory.gpus:
            _gpu(samples, node, gpu, held)
    for name, text in (*_GPU.items(), *_POD.items()):
        yield Family(name, text, samples[name])
    yield Family(_MIG, "A MIG device that exists.", list(_instances(view)))
    yield from _quotas(view)


def _instances(view: View) -> Iterator[Sample]:
    for node, inventory in view.inventories.items():
        for gpu in inventory.gpus:
            for instance in gpu.instances:
                labels = {
                    "node": node,
                    "device_uuid": gpu.uuid,
                    "device_index": str(gpu.index),
                    "mig_uuid": instance.uuid,
                    "profile": instance.profile,
                    "gpu_instance_id": str(instance.gpu_instance),
                    "compute_instance_id": str(instance.compute_instance),
                    "placement_start": str(instance.start),
                    "placement_size": str(instance.slots),
                }
                yield Sample(1, ZONE | labels)


def _quotas(view: View) -> Iterator[Family]:
    used: dict[str, Usage] = defaultdict(Usage)
    for node in view.held.values():
        for allocation in node.values():
            if allocation.gpus:
                used[allocation.namespace] += allocation.usage()
    taken, limits = [], []
    for namespace in sorted(used.keys() | {name for name, quotas in view.quotas.items() if quotas}):
        budget = Budget()
        for quota in view.quotas.get(namespace, {}).values():
            budget = budget.narrowed(quota.total)
        for resource, field, unit in _QUOTAS:
            limit = getattr(budget, field)
            labels = ZONE | {"namespace": namespace, "quota_name": resource}
            # HAMi too writes 0 where there is no limit; only the other metric tells that from a limit of 0.
            named = labels | {"limit": str((limit or 0) // unit)}
            taken.append(Sample(getattr(used[namespace], field) / unit, named))
            if limit is not None:
                limits.append(Sample(limit / unit, labels))
    yield Family("hami_resource_quota_used", "What the pods of a namespace hold.", taken)
    yield Family("hami_resource_quota_limit", "What they may hold at most.", limits)


def _gpu(samples: dict[str, list[Sample]], node: str, gpu: GpuDevice, held: list[Allocation]) -> None:
    labels = {
        **ZONE,
        "node": node,
        "device_uuid": gpu.uuid,
        "device_index": str(gpu.index),
        "device_type": gpu.hami_type,
    }
    grants = [(allocation, grant) for allocation in held for grant in allocation.gpus if grant.uuid == gpu.uuid]
    vram = sum(grant.vram_bytes for _, grant in grants)
    cores = sum(_percent(grant.tflops_milli, gpu.tflops_milli) for _, grant in grants)
    shared, with_cores = len(grants), {**labels, "device_cores": f"{cores:g}"}
    for name, value, named in (
        ("hami_gpu_memory_limit_bytes", float(gpu.vram_bytes), labels),
        ("hami_gpu_core_limit_ratio", _FULL, labels),
        ("hami_gpu_shared_count", float(shared), labels),
        ("hami_gpu_core_allocated_ratio", cores, labels),
        ("hami_gpu_memory_allocated_bytes", float(vram), with_cores),
        ("hami_node_gpu_overview", float(vram), {**with_cores, "device_memory_limit": str(gpu.vram_bytes)}),
        ("hami_node_gpu_memory_allocated_ratio", vram / gpu.vram_bytes if gpu.vram_bytes else 0.0, labels),
    ):
        samples[name].append(Sample(value, named))
    for allocation, grant in grants:
        named = {
            **ZONE,
            "namespace": allocation.namespace,
            "node": node,
            "pod": allocation.name,
            "container_index": "0",
            "device_uuid": gpu.uuid,
        }
        samples["hami_vgpu_memory_allocated_bytes"].append(Sample(float(grant.vram_bytes), named))
        percent = _percent(grant.tflops_milli, gpu.tflops_milli)
        samples["hami_vgpu_core_allocated_ratio"].append(Sample(percent, named))


def _percent(part: int, whole: int) -> float:
    return _FULL * part / whole if whole else 0.0
