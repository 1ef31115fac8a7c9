"""What pools are to be like, and what of the pods that wait says that they need more nodes. Pure."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from consumers.scaler.sizes import LEAVING_LABEL, Bounds
from schemas import reasons
from schemas.capacity import Shape, Size
from schemas.dialects.text import RequestError, seconds
from schemas.kube.pools import CapacityConfig, GPUPoolSpec, ResourceUnit
from schemas.node_rules import Taint, Toleration
from schemas.pod import GpuRequest
from schemas.quantity import parse_bytes, parse_milli

PATIENCE: Final = timedelta(seconds=10)
"""How long a pod must have waited before a node is ordered for it (tensorfusion.md §9)."""

LONGEST_S: Final = 366 * 86_400

CURABLE: Final = frozenset(
    (
        reasons.POOL_EMPTY, reasons.NODE_NOT_READY, reasons.INVENTORY_MISSING, reasons.AGENT_SILENT, reasons.GPU_UNHEALTHY,
        reasons.GPU_CORDONED, reasons.GPU_FOREIGN, reasons.GPU_CLAIMED, reasons.LEDGER_FROZEN, reasons.VENDOR_MISMATCH,
        reasons.MODEL_MISMATCH, reasons.MODEL_WORD, reasons.GPU_COUNT, reasons.ISOLATION_CONFLICT, reasons.GPU_NOT_IDLE,
        reasons.GPU_EXCLUSIVE, reasons.SLOTS, reasons.COMPUTE, reasons.VRAM, reasons.SAME_NODE, reasons.CONTAINERS,
        reasons.NUMA, reasons.TOPOLOGY, reasons.WORKERS, reasons.PODS, reasons.CPU, reasons.MEMORY,
        reasons.GANG_UNFULFILLABLE,
    )
)  # fmt: skip
"""Reasons that another node may cure."""


def bounds_of(config: CapacityConfig | None, field: str = "spec.capacityConfig") -> Bounds:
    """Return a pool's bounds.

    Raises:
        QuantityError: An amount cannot be read.
    """
    if config is None:
        return Bounds()
    return Bounds(
        minimum=_size(config.min_resources, f"{field}.minResources"),
        maximum=_size(config.max_resources, f"{field}.maxResources"),
        warm=_size(config.warm_resources, f"{field}.warmResources"),
    )


def _size(unit: ResourceUnit | None, field: str) -> Size:
    if unit is None:
        return Size()
    return Size(
        tflops_milli=parse_milli(str(unit.tflops), field=f"{field}.tflops"),
        vram_bytes=parse_bytes(str(unit.vram), field=f"{field}.vram"),
    )


def compaction_of(spec: GPUPoolSpec) -> timedelta | None:
    """Return how long a node must be empty before it is given back; None where none is to be.

    Raises:
        RequestError: It cannot be followed.
    """
    compaction = spec.node_manager_config.node_compaction
    if compaction is None:
        return None
    field = "spec.nodeManagerConfig.nodeCompaction.period"
    period = seconds(compaction.period, field=field)
    if period > LONGEST_S:
        raise RequestError(field, compaction.period, f"is more than {LONGEST_S // 3600}h", "write one such as 30m")
    return timedelta(seconds=period)


def kept_off_by_us(request: GpuRequest, taints: Iterable[Taint]) -> bool:
    """Return whether nothing but a taint of ours keeps a pod off a node that we have closed."""
    tolerations = request.nodes.tolerations if request.nodes is not None else ()
    return all(
        taint.key == LEAVING_LABEL
        or taint.effect == "PreferNoSchedule"
        or any(_tolerates(one, taint) for one in tolerations)
        for taint in taints
    )


def _tolerates(one: Toleration, taint: Taint) -> bool:
    """Source: Kubernetes, ``ToleratesTaint``."""
    return (
        one.effect in ("", taint.effect)
        and one.key in ("", taint.key)
        and (one.operator == "Exists" or one.value == taint.value)
    )


def shape_of(request: GpuRequest) -> Shape:
    """Return what matters of a request to how many nodes are needed."""
    return Shape(
        gpus=request.count,
        tflops_milli=request.tflops_milli,
        compute_milli=request.compute_milli,
        vram_bytes=request.vram_bytes,
        vram_milli=request.vram_milli,
        dedicated=request.dedicated,
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        models=request.models,
        vendor=request.vendor,
        other=", ".join(word for word, asked in _others(request) if asked),
    )


def _others(request: GpuRequest) -> tuple[tuple[str, object], ...]:
    """Return in words what a request may ask for that an offer does not tell, each with what is asked."""
    return (
        ("words of the model", request.model_words or request.excluded_model_words),
        ("UUIDs", request.uuids or request.excluded_uuids),
        ("GPU indices", request.gpu_indices),
        ("a partition", request.isolation == "partitioned" or request.partition_template),
        ("a mode of the GPU", request.vgpu_mode),
        ("a NUMA node", request.numa_bind),
        ("a topology", request.topology),
        ("rules for nodes", request.nodes),
    )
