"""Who asks: pods, what they request, and the commands that set the allocator to work."""

from typing import Annotated, Literal

import msgspec

from schemas.cluster import Amount, Isolation, Vendor, VgpuMode
from schemas.decision import Way
from schemas.event import Timestamp
from schemas.node_rules import NodeRules
from schemas.placement import GpuPolicy, NodePolicy, ScoringWeights, Topology
from schemas.requirements import ContainerRequest, Dialect, Gang
from schemas.units import Share

Qos = Literal["low", "medium", "high", "critical"]
PodPhase = Literal["Pending", "Running", "Succeeded", "Failed"]

WHOLE: int = 1000
"""One whole GPU in thousandths, the unit of ``compute_milli`` and ``vram_milli``."""


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
        tflops_limit_milli: Compute it may use (``tflops-limit``), in thousandths of a TFLOPS; 0 states no limit, as do the
            other limits. Limits bound use and are not counted against capacity.
        compute_limit_milli: The same as a share of each GPU (``compute-percent-limit``).
        vram_limit_bytes: VRAM it may use (``vram-limit``).
        isolation: See :data:`schemas.cluster.Isolation`.
        partition_template: Id of the partition template (``partition-id``); empty lets the smallest that holds the amounts
            be chosen. Only with ``isolation="partitioned"``.
        gpu_indices: The only GPUs of a node that may be given, by index (``gpu-indices``); as many as ``count``.
        dedicated: Every GPU is given idle and nothing joins it, whatever the amounts (``dedicated-gpu``, ``isolation: shared``,
            ``nvidia.com/gpucores: 100``).
        uuids: The only GPUs that may be given, by exact UUID (``nvidia.com/use-gpuuuid``); empty allows all.
        excluded_uuids: GPUs that may not be given (``nvidia.com/nouse-gpuuuid``).
        model_words: Lower-case words of which the GPU model must contain one, whatever its case
            (``nvidia.com/use-gputype``); empty allows all.
        excluded_model_words: Lower-case words of which it may contain none (``nvidia.com/nouse-gputype``).
        numa_bind: All GPUs of one container from one NUMA node (``nvidia.com/numa-bind``).
        vgpu_mode: Modes that the GPU may be operated in (``nvidia.com/vgpu-mode``); empty allows all.
        node_policy: Overrides the scheduler's choice among nodes (``hami.io/node-scheduler-policy``).
        gpu_policies: Overrides the choice among GPUs (``hami.io/gpu-scheduler-policy``), the first word counting most.
        scoring_weights: Weights of a GPU's score (``hami.io/device-scoring-weights``).
        gang: Pods it is placed together with.
        topology: How near its GPUs must be to each other.
        workload_profile: The profile its defaults came from (``workload-profile``).
        eviction_protection_s: Seconds after its creation in which it may not be preempted (``eviction-protection``).
        preempts: Whether others may be evicted for it (``preemptionPolicy``).
        remote: The amounts are for a worker pod elsewhere, and the pod itself takes no GPU (``is-local-gpu: false``).
        container_names: Containers that the GPUs are for, when ``containers`` is empty (``inject-container``).
        container_counts: How many of the GPUs each of those gets, in order; empty when each sees all of them.
        containers: Containers that ask for amounts of their own (HAMi), when there are several or the only one is an init
            container. What is booked is then decided by them. The pod's own ``count`` and amounts are an upper bound that
            is safe to book for who cannot tell containers apart: every container on GPUs of its own.
        nodes: What it says of nodes in Kubernetes' own words; None when nothing.
        dialect: How the pod wrote it.

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
    tflops_limit_milli: Amount = 0
    compute_limit_milli: Share = 0
    vram_limit_bytes: Amount = 0
    isolation: Isolation = ""
    partition_template: str = ""
    gpu_indices: tuple[Amount, ...] = ()
    dedicated: bool = False
    uuids: tuple[str, ...] = ()
    excluded_uuids: tuple[str, ...] = ()
    model_words: tuple[str, ...] = ()
    excluded_model_words: tuple[str, ...] = ()
    numa_bind: bool = False
    vgpu_mode: tuple[VgpuMode, ...] = ()
    node_policy: NodePolicy = ""
    gpu_policies: tuple[GpuPolicy, ...] = ()
    scoring_weights: ScoringWeights | None = None
    gang: Gang | None = None
    topology: Topology | None = None
    workload_profile: str = ""
    eviction_protection_s: Amount = 0
    preempts: bool = True
    remote: bool = False
    container_names: tuple[str, ...] = ()
    container_counts: tuple[Amount, ...] = ()
    containers: tuple[ContainerRequest, ...] = ()
    nodes: NodeRules | None = None
    dialect: Dialect = ""

    def __post_init__(self) -> None:
        # Decoding checks bounds; building one in a program does not.
        amounts = (self.count, self.tflops_milli, self.compute_milli, self.vram_bytes, self.vram_milli)
        if min(*amounts, self.cpu_milli, self.memory_bytes) < 0:
            raise ValueError(f"request states a negative amount: {self}")
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

    def command(self) -> "Schedule":
        """Return the command to find a place for it."""
        created_s = int(self.created_at.timestamp()) if self.created_at is not None else 0
        return Schedule(
            namespace=self.namespace, name=self.name, uid=self.uid, request=self.request, created_s=created_s
        )


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Command: find a place for this pod. Carries the request so that the allocator need not hold every pod.

    Attributes:
        way: Who asks: the watcher, a kube-scheduler whose extender we are, or the scaler for a pod that stands and is to hold
            more or less where it is.
        node: The only node that it may go to: kube-scheduler has chosen it, or it stands there.
        created_s: Second since the epoch at which the pod was created, from which its eviction protection counts; 0 if unknown.
    """

    namespace: str
    name: str
    uid: str
    request: GpuRequest
    way: Way = "native"
    node: str = ""
    created_s: Amount = 0


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
        created_s: As in :class:`Schedule`.
    """

    namespace: str
    name: str
    uid: str
    request: GpuRequest
    reason: str
    state_seq: Amount
    ledger_seq: Amount
    since: Timestamp
    created_s: Amount = 0

    def command(self) -> Schedule:
        """Return the command to try the pod again."""
        return Schedule(
            namespace=self.namespace, name=self.name, uid=self.uid, request=self.request, created_s=self.created_s
        )
