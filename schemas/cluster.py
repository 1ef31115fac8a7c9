"""What exists: nodes, the GPUs on them, and the pools they belong to."""

from typing import Annotated, Final, Literal

import msgspec

from schemas import units
from schemas.event import Timestamp
from schemas.hardware import GpuLink, MigInstance, PartitionTemplate, Trouble
from schemas.node_rules import Taint
from schemas.placement import GpuPolicy, NodePolicy, ScoringWeights, TopologyRules

Vendor = str
PlacementMode = Literal[
    "NodeCompactGPULowLoad", "CompactFirst", "LowLoadFirst", "FragmentationGradient", "PackingValue"
]

Isolation = Literal["", "shared", "soft", "hard", "partitioned"]
"""How the GPU is kept apart (``tensor-fusion.ai/isolation``); empty accepts any. ``shared`` takes whole idle GPUs, ``soft``
and ``hard`` limit in the process and in a worker, ``partitioned`` takes a hardware partition such as a MIG instance.
"""
VgpuMode = Literal["hami-core", "mig", "mps"]

PreemptionScope = Literal["never", "namespace", "cluster"]
"""Whose pods may be evicted to make room for a pod of higher quality of service or priority: nobody's, those of its own
namespace, or everybody's (``preemptClusterWideFromEnv``).
"""

Amount = units.Amount

EVERY_GPU = "*"
"""Stands for all GPUs of a node where it lists some of them."""


KEEP_WORDS: Final = ("tensor-fusion.ai/do-not-disrupt", "karpenter.sh/do-not-disrupt")
"""Annotations that forbid to disrupt a node or a pod where they say ``true``: the contract's and Karpenter's."""


class Namespace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A namespace, by whose labels pods may be told apart."""

    name: str
    labels: dict[str, str] = {}


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Kubernetes node as the scheduler sees it: allocatable amounts and whether it takes new pods.

    Attributes:
        name: Kubernetes node name.
        pool: Name of the pool the node belongs to; empty when none claims it.
        cpu_milli: Allocatable CPU in thousandths of a core.
        memory_bytes: Allocatable memory.
        max_pods: Allocatable pod slots.
        disk_bytes: Local data disk that VRAM may expand to (``vramExpandToHostDisk``).
        ready: The node's Ready condition.
        unschedulable: ``kubectl cordon``.
        labels: Node labels.
        taints: Node taints.
        taken_cpu_milli: CPU of the node's pods that are not in the ledger, such as daemons.
        taken_memory_bytes: Their memory.
        taken_pods: Their number.
        cordoned_gpus: UUIDs of GPUs that take no new pods because an operator said so (``hami.io/device-cordon``),
            or all while the node's agent is being replaced.
        claimed_gpus: UUIDs of GPUs that pods outside the ledger claim, by annotations written by hand for example.
            ``EVERY_GPU`` in either list stands for all GPUs of the node: for who cannot tell which.
        keep: Whether an annotation forbids to disrupt it (:data:`KEEP_WORDS`).
    """

    name: str
    pool: str = ""
    cpu_milli: Amount = 0
    memory_bytes: Amount = 0
    max_pods: Amount = 110
    disk_bytes: Amount = 0
    ready: bool = True
    unschedulable: bool = False
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    taken_cpu_milli: Amount = 0
    taken_memory_bytes: Amount = 0
    taken_pods: Amount = 0
    cordoned_gpus: tuple[str, ...] = ()
    claimed_gpus: tuple[str, ...] = ()
    keep: bool = False


class GpuDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One physical GPU. ``tflops_milli`` and ``vram_bytes`` are physical, before any oversubscription."""

    uuid: str
    index: Amount
    model: str
    tflops_milli: Amount
    vram_bytes: Amount
    vendor: Vendor = "NVIDIA"
    numa_node: int = -1
    healthy: bool = True
    used_by: str = ""
    """The foreign allocator that hands this GPU out, such as ``nvidia-device-plugin``; empty when it is ours."""
    slots: Amount = 0
    """Most containers that may share it (``deviceSplitCount``); 0 for no limit."""
    mode: VgpuMode = "hami-core"
    """What it is operated in (``operatingmode``)."""
    isolations: tuple[Isolation, ...] = ()
    """Isolations that it can give; empty for all. A whole GPU (``shared``) can always be given."""
    troubles: tuple[Trouble, ...] = ()
    """Why it is not ``healthy``."""
    instances: tuple[MigInstance, ...] = ()
    """The MIG devices on it."""
    pci: str = ""
    """PCI address, such as ``00000000:3B:00.0``."""
    compute_capability: str = ""
    """CUDA compute capability, such as ``9.0``."""
    nvlink_mbps: Amount = 0
    """Bandwidth of all its NVLinks together in one direction, in megabytes per second; 0 where it is not known."""
    ecc: bool | None = None
    """Whether memory errors are corrected; None where the GPU cannot."""
    persistence: bool | None = None
    """Whether the driver stays loaded without clients; None where the driver does not say."""
    mps: bool = False
    """Whether processes on it go through an MPS server."""
    estimated: bool = False
    """Whether ``tflops_milli`` is a guess, because no catalogue knows the model."""

    @property
    def hami_type(self) -> str:
        """What HAMi calls the model: the driver's name, behind the vendor's unless that begins with it (HAMi ``register.go``)."""
        return self.model if self.model.startswith(self.vendor) else f"{self.vendor}-{self.model}"


class GpuInventory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All GPUs of one node, published on change and as a heartbeat by the node's agent.

    Attributes:
        valid_s: Seconds for which it holds after the server stored it: if nothing newer has come by then, the agent is silent
            and its GPUs take no new pods. 0 holds until it is replaced.
        links: How its GPUs reach each other, each pair once; what is not listed is not known.
        partitions: The hardware partitions that its GPUs can be cut into; none for a GPU that cannot be cut at present.
        driver: Driver version, such as ``550.54.15``.
        cuda: Newest CUDA version that the driver supports, such as ``12.4``.

    Raises:
        ValueError: A link names a GPU that is not there, or a pair is listed twice or the wrong way round; or two templates of
            one model have the same id.
    """

    node: str
    gpus: list[GpuDevice]
    observed_at: Timestamp
    valid_s: Amount = 0
    links: tuple[GpuLink, ...] = ()
    partitions: tuple[PartitionTemplate, ...] = ()
    driver: str = ""
    cuda: str = ""

    def __post_init__(self) -> None:
        pairs = {(link.first, link.second) for link in self.links}
        if len(pairs) < len(self.links) or any(not a < b < len(self.gpus) for a, b in pairs):
            raise ValueError(
                f"links of node {self.node} must name two of its {len(self.gpus)} GPUs by place, the smaller first, "
                "and each pair once",
            )
        if len({(template.model, template.id) for template in self.partitions}) < len(self.partitions):
            raise ValueError(f"node {self.node} lists a partition template twice: each needs its own id per model")


class Oversubscription(msgspec.Struct, frozen=True, kw_only=True):
    """How far a pool's schedulable capacity exceeds the physical one, in percent (``capacityConfig.oversubscription``).

    Schedulable TFLOPS = physical x ``tflops_ratio`` / 100. Schedulable VRAM of a GPU = physical plus its equal share of
    the node's memory x ``host_memory`` / 100 and data disk x ``host_disk`` / 100. The default is no oversubscription.
    """

    tflops_ratio: Annotated[int, msgspec.Meta(ge=100, le=100_000)] = 100
    host_memory: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    host_disk: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0


class PodKind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pods that ask for the same: one line of the workload that a placement mode prepares a pool for.

    Attributes:
        cpu_milli: CPU of one pod.
        gpus: GPUs of one pod; 0 for a pod that only takes CPU and memory.
        share_milli: Share of each GPU, in thousandths of the whole.
        models: GPU models the pod accepts; empty accepts all.
        pods: How many such pods there are among those counted.
    """

    cpu_milli: Amount = 0
    gpus: Annotated[int, msgspec.Meta(ge=0, le=128)] = 0
    share_milli: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    models: tuple[str, ...] = ()
    pods: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] = 1


class ExpectedPods(msgspec.Struct, frozen=True, kw_only=True):
    """What allocators have learnt of the pods that come to a pool that states no workload. They decide by it.

    Attributes:
        pool: The pool.
        seen: From how many pods it was learnt.
        kinds: As :attr:`Pool.workload`.
    """

    pool: str
    seen: Amount
    kinds: Annotated[tuple[PodKind, ...], msgspec.Meta(min_length=1, max_length=512)]


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A set of nodes that is allocated from under one policy.

    Attributes:
        name: Pool name, the last token of ``gpubus.work.schedule.<pool>``.
        placement: TensorFusion placement mode of the pool's scheduling template, or one of the two that keep the free GPUs
            of use to the pods to come: ``FragmentationGradient`` and ``PackingValue``.
        vram_weight: Weight of VRAM in a GPU's score, in percent (upstream chart default 0.7).
        tflops_weight: Weight of compute in a GPU's score, in percent (upstream chart default 0.3).
        oversubscription: See :class:`Oversubscription`.
        workload: The pods that are expected, for the placement modes that prepare for them; empty for what is
            learnt from those that come, and a vague guess at first.
        max_workers_per_node: Most pods with GPUs on one node (``maxWorkerPerNode``); 0 for no limit.
        preemption: See :data:`PreemptionScope`. A watcher states it for every pool; what nobody has stated evicts nobody.
        node_policy: HAMi's choice among nodes for pods that state none (``nodeSchedulerPolicy``). With this, ``gpu_policies`` or
            ``scoring_weights`` HAMi's scores take the place of the placement mode.
        gpu_policies: HAMi's choice among GPUs for pods that state none (``gpuSchedulerPolicy``), the first word counting most.
        scoring_weights: Weights of HAMi's GPU score for pods that state none; equal if nobody states any.
        topology: How near each other a pod's GPUs are to be; None looks at it only for pods that ask.
    """

    name: str
    placement: PlacementMode = "NodeCompactGPULowLoad"
    vram_weight: Annotated[int, msgspec.Meta(ge=0, le=100)] = 70
    tflops_weight: Annotated[int, msgspec.Meta(ge=0, le=100)] = 30
    oversubscription: Oversubscription = Oversubscription()
    workload: tuple[PodKind, ...] = ()
    node_policy: NodePolicy = ""
    gpu_policies: tuple[GpuPolicy, ...] = ()
    scoring_weights: ScoringWeights | None = None
    topology: TopologyRules | None = None
    max_workers_per_node: Amount = 0
    preemption: PreemptionScope = "never"
