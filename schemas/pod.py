"""Who asks: pods, what they request, and the commands that set the allocator to work."""

from typing import Annotated, Literal

import msgspec

from schemas.cluster import Amount, Vendor
from schemas.event import Timestamp

Qos = Literal["low", "medium", "high", "critical"]
PodPhase = Literal["Pending", "Running", "Succeeded", "Failed"]

WHOLE: int = 1000
"""One whole GPU in thousandths, the unit of ``compute_milli`` and ``vram_milli``."""

Share = Annotated[int, msgspec.Meta(ge=0, le=1000)]


class GpuRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one pod asks for, whichever dialect it was written in. GPU amounts are per GPU.

    Attributes:
        pool: Pool to allocate from.
        count: GPUs, each on a different device of one node; 0 for a pod that only takes CPU and memory.
        tflops_milli: Compute in thousandths of a TFLOPS (``tensor-fusion.ai/tflops-request``).
        compute_milli: Compute as a share of each GPU's physical compute (``compute-percent-request``, ``gpucores``).
        vram_bytes: VRAM (``vram-request``, ``gpumem``).
        vram_milli: VRAM as a share of each GPU's physical VRAM (``gpumem-percentage``).
        cpu_milli: CPU of all containers.
        memory_bytes: Memory of all containers.
        models: GPU models the pod accepts; empty accepts all.
        vendor: GPU vendor the pod accepts; empty accepts all.
        qos: Quality of service level.
        priority: Kubernetes pod priority; larger goes first.

    Raises:
        ValueError: Compute or VRAM is stated both as an amount and as a share, or GPU amounts are stated for no GPU.
    """

    pool: str
    count: Annotated[int, msgspec.Meta(ge=0, le=128)] = 1
    tflops_milli: Amount = 0
    compute_milli: Share = 0
    vram_bytes: Amount = 0
    vram_milli: Share = 0
    cpu_milli: Amount = 0
    memory_bytes: Amount = 0
    models: tuple[str, ...] = ()
    vendor: Vendor = ""
    qos: Qos = "medium"
    priority: int = 0

    def __post_init__(self) -> None:
        if self.tflops_milli and self.compute_milli:
            raise ValueError(
                f"request states compute twice, tflops_milli={self.tflops_milli} and compute_milli={self.compute_milli}: "
                "keep one",
            )
        if self.vram_bytes and self.vram_milli:
            raise ValueError(
                f"request states VRAM twice, vram_bytes={self.vram_bytes} and vram_milli={self.vram_milli}: keep one",
            )
        if self.count == 0 and (self.tflops_milli or self.compute_milli or self.vram_bytes or self.vram_milli):
            raise ValueError(
                "request states GPU amounts with count=0: set count to the number of GPUs or drop the amounts"
            )


class Pod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trimmed projection of a Kubernetes pod."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    request: GpuRequest
    phase: PodPhase = "Pending"
    node: str = ""
    labels: dict[str, str] = {}
    created_at: Timestamp | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Command: find a place for this pod. Carries the request so that the allocator need not hold every pod."""

    namespace: str
    name: str
    uid: str
    request: GpuRequest


class Release(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Command: the pod has ended or is gone, give back what it holds.

    Attributes:
        node: Where the pod was bound, a hint; empty when it never was.
        reason: Short CamelCase word, such as ``Succeeded`` or ``Deleted``.
    """

    namespace: str
    name: str
    uid: str
    pool: str
    node: str = ""
    reason: str = "Deleted"


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod that fits nowhere at present. Kept on the bus so that any allocator can wake it.

    Attributes:
        reason: Dominant reason code of the decision that put it here; see :mod:`schemas.reasons`.
        state_seq: STATE sequence that decision had reached.
        ledger_seq: LEDGER sequence that decision had reached. Capacity that came after it has not been tried yet.
    """

    namespace: str
    name: str
    uid: str
    request: GpuRequest
    reason: str
    state_seq: Amount
    ledger_seq: Amount
    since: Timestamp
