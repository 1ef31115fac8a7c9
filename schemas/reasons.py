"""Reason codes: why a node, a GPU or a pod was refused.

The order of :data:`REASONS` is the order in which filters run and the order of precedence: an unschedulable pod's dominant
reason is the *last* filter that still refused nodes, because that is the one whose change would make it fit soonest.
Every code has a line that says what would help. Codes are stable; new ones may be added.
"""

from typing import Final

import msgspec


class Reason(msgspec.Struct, frozen=True):
    """A code, what it means, and what helps."""

    code: str
    meaning: str
    help: str


INVALID_REQUEST: Final = "InvalidRequest"
NEEDS_KUBE_SCHEDULER: Final = "NeedsKubeScheduler"
POOL_UNKNOWN: Final = "PoolUnknown"
UNSUPPORTED: Final = "NotSupported"
POOL_EMPTY: Final = "PoolEmpty"
NODE_SELECTOR: Final = "NodeSelectorMismatch"
NODE_AFFINITY: Final = "NodeAffinityMismatch"
NODE_NOT_READY: Final = "NodeNotReady"
LEDGER_FROZEN: Final = "LedgerFrozen"
TAINT: Final = "TaintNotTolerated"
INVENTORY_MISSING: Final = "InventoryMissing"
AGENT_SILENT: Final = "AgentSilent"
GPU_UNHEALTHY: Final = "GpuUnhealthy"
GPU_CORDONED: Final = "GpuCordoned"
GPU_FOREIGN: Final = "GpuUsedByForeignAllocator"
GPU_CLAIMED: Final = "GpuClaimedOutsideLedger"
VENDOR_MISMATCH: Final = "VendorMismatch"
MODEL_MISMATCH: Final = "ModelMismatch"
MODEL_WORD: Final = "ModelWordMismatch"
VGPU_MODE: Final = "VgpuModeMismatch"
UUID_MISMATCH: Final = "UuidMismatch"
INDEX_MISMATCH: Final = "IndexMismatch"
ISOLATION_UNAVAILABLE: Final = "IsolationUnavailable"
GPU_COUNT: Final = "TooFewGpus"
ISOLATION_CONFLICT: Final = "IsolationConflict"
GPU_NOT_IDLE: Final = "GpuNotIdle"
GPU_EXCLUSIVE: Final = "GpuHeldExclusively"
SLOTS: Final = "GpuSlotsUsedUp"
PARTITION: Final = "NoPartition"
COMPUTE: Final = "InsufficientCompute"
VRAM: Final = "InsufficientVram"
SAME_NODE: Final = "TooFewGpusOnOneNode"
CONTAINERS: Final = "ContainersDoNotFit"
NUMA: Final = "NumaNodeTooSmall"
TOPOLOGY: Final = "GpusTooFarApart"
WORKERS: Final = "TooManyWorkers"
PODS: Final = "TooManyPods"
CPU: Final = "InsufficientCpu"
MEMORY: Final = "InsufficientMemory"
QUOTA_SINGLE: Final = "QuotaForOnePodExceeded"
QUOTA: Final = "QuotaExceeded"
GANG_WAITING: Final = "GangWaitingForMembers"
GANG_UNFULFILLABLE: Final = "GangUnfulfillable"
GANG_TIMEOUT: Final = "GangSchedulingTimeout"
AWAITING_EVICTION: Final = "AwaitingEviction"
EVICTION_OVERDUE: Final = "EvictionOverdue"
NOT_IN_POOL: Final = "NodeNotInPool"
NOT_OFFERED: Final = "NotOfferedByKubeScheduler"

REASONS: Final[tuple[Reason, ...]] = (
    Reason(INVALID_REQUEST, "The pod's request cannot be understood.", "Correct the field that the message names."),
    Reason(
        NEEDS_KUBE_SCHEDULER,
        "The pod needs what only kube-scheduler knows: other pods' places or ports, or a volume tied to nodes.",
        "Drop what the message names, or have kube-scheduler place the pod with gpubus as its extender.",
    ),
    Reason(POOL_UNKNOWN, "The request names a pool that does not exist.", "Create the pool or correct the pod's pool."),
    Reason(
        UNSUPPORTED,
        "The request asks for something that this version cannot promise.",
        "Drop the field that the message names.",
    ),
    Reason(POOL_EMPTY, "The pool has no nodes.", "Label nodes so that the pool's selector matches them."),
    Reason(
        NODE_SELECTOR,
        "The node lacks a label that the pod selects nodes by.",
        "Label the node, or correct the pod's nodeSelector.",
    ),
    Reason(
        NODE_AFFINITY,
        "The node matches no term of the pod's required node affinity.",
        "Label the node, or widen the required terms.",
    ),
    Reason(NODE_NOT_READY, "The node is not ready or is cordoned.", "Repair or uncordon the node."),
    Reason(
        LEDGER_FROZEN,
        "The node's ledger record cannot be decoded, so nothing more is given out there.",
        "Read it with `gpubus dead list` and restore a good record.",
    ),
    Reason(
        TAINT,
        "The node has a taint that the pod does not tolerate.",
        "Add a toleration to the pod, or remove the taint from the node.",
    ),
    Reason(INVENTORY_MISSING, "No GPU inventory is known for the node.", "Check that the node agent runs there."),
    Reason(
        AGENT_SILENT,
        "The node's agent has said nothing for longer than it promised to.",
        "Look at the agent on the node; its GPUs take pods again as soon as it speaks.",
    ),
    Reason(GPU_UNHEALTHY, "The GPU is unhealthy.", "Look at the GPU's XID and ECC errors on the node."),
    Reason(
        GPU_CORDONED,
        "The GPU is cordoned, by an operator or while its node's agent is being replaced.",
        "Take the GPU out of the node's list of cordoned GPUs, or see `gpubus rollout status`.",
    ),
    Reason(GPU_FOREIGN, "Another allocator hands this GPU out.", "Remove the device plugin from the node."),
    Reason(
        GPU_CLAIMED,
        "A pod that is not in the ledger claims the GPU.",
        "Remove that pod, or have it scheduled by gpubus.",
    ),
    Reason(VENDOR_MISMATCH, "The GPU is of another vendor.", "Drop the vendor from the request or add such GPUs."),
    Reason(MODEL_MISMATCH, "The GPU is of another model.", "Accept more models or add such GPUs."),
    Reason(
        MODEL_WORD,
        "The GPU's model is not among those asked for by a part of its name, or among those ruled out.",
        "Change the list of words, or add such GPUs.",
    ),
    Reason(
        VGPU_MODE,
        "The GPU is operated in another mode than asked for.",
        "Accept more modes, or operate GPUs in the one asked for.",
    ),
    Reason(UUID_MISMATCH, "The GPU is not among the UUIDs asked for, or is ruled out.", "Change the lists of UUIDs."),
    Reason(INDEX_MISMATCH, "The GPU is not among the indices asked for.", "Ask for other indices, or for none."),
    Reason(
        ISOLATION_UNAVAILABLE,
        "The GPU cannot give the isolation asked for.",
        "Ask for another isolation, or allow this one on the node.",
    ),
    Reason(GPU_COUNT, "The node has fewer GPUs than asked for.", "Ask for fewer GPUs or add larger nodes."),
    Reason(
        ISOLATION_CONFLICT,
        "Pods on the GPU are isolated in a way that does not go with the one asked for.",
        "Ask for the same isolation, wait until they end, or add GPUs.",
    ),
    Reason(
        GPU_NOT_IDLE,
        "The pod asks for idle GPUs, and something is on this one.",
        "Wait for a release, drop the exclusive request or the policy `mutex`, or add GPUs.",
    ),
    Reason(GPU_EXCLUSIVE, "A pod holds the GPU for itself alone.", "Wait until it ends, or add GPUs."),
    Reason(
        SLOTS,
        "As many containers share the GPU as it has slots.",
        "Wait for a release, raise the node's split count, or add GPUs.",
    ),
    Reason(
        PARTITION,
        "The GPU has no room for the partition, or cannot be cut into such a one.",
        "Ask for a smaller partition, wait for a release, or add GPUs that are operated in partitions.",
    ),
    Reason(COMPUTE, "Too little compute is free.", "Lower the compute request, wait for a release, or add GPUs."),
    Reason(VRAM, "Too little VRAM is free.", "Lower the VRAM request, wait for a release, or add GPUs."),
    Reason(
        SAME_NODE,
        "Enough GPUs fit, but fewer than asked for on any one node.",
        "Ask for fewer GPUs per pod, or free a node by moving small pods away.",
    ),
    Reason(
        CONTAINERS,
        "The node's GPUs cannot hold all containers of the pod at once.",
        "Lower what the containers ask for, wait for a release, or add GPUs.",
    ),
    Reason(
        NUMA,
        "No NUMA node has as many free GPUs as asked for.",
        "Ask for fewer GPUs, drop `numa-bind`, or free GPUs of one NUMA node.",
    ),
    Reason(
        TOPOLOGY,
        "The free GPUs are further apart than the pod allows.",
        "Allow a higher tier, do not require topology, or free GPUs that are near each other.",
    ),
    Reason(
        WORKERS,
        "As many pods with GPUs are on the node as the pool allows.",
        "Raise the pool's limit of workers per node, or add nodes.",
    ),
    Reason(PODS, "The node holds as many pods as it may.", "Raise the kubelet's maxPods or add nodes."),
    Reason(CPU, "Too little CPU is free beside the GPUs.", "Lower the CPU request or add nodes with more CPU."),
    Reason(MEMORY, "Too little memory is free beside the GPUs.", "Lower the memory request or add memory."),
    Reason(
        QUOTA_SINGLE,
        "The pod asks for more than its namespace's quota allows any one pod.",
        "Lower the request that the message names, or raise the quota.",
    ),
    Reason(
        QUOTA,
        "The pods of the namespace would hold more than its quota allows.",
        "End other pods of the namespace, lower the request, or raise the quota that the message names.",
    ),
    Reason(
        GANG_WAITING,
        "Not enough members of the pod's gang are there.",
        "Create the missing members, or lower tensor-fusion.ai/gang-min-members.",
    ),
    Reason(
        GANG_UNFULFILLABLE,
        "Not enough members of the pod's gang fit at once, so none is placed.",
        "Look at the reason of the member that the message names, or lower tensor-fusion.ai/gang-min-members.",
    ),
    Reason(
        GANG_TIMEOUT,
        "The pod's gang has not become complete in the time it was given. Its members are placed once it is.",
        "Create the missing members, or delete those that wait.",
    ),
    Reason(
        AWAITING_EVICTION,
        "Pods that the pod goes before are being evicted, and what they leave is kept for it.",
        "Wait until the pods that the message names are gone: a disruption budget or their grace period may delay it.",
    ),
    Reason(
        EVICTION_OVERDUE,
        "Pods that were to be evicted for the pod have not gone in time, so nothing is kept for it any more.",
        "Look at the pods that the message names, and at the disruption budgets that cover them.",
    ),
    Reason(
        NOT_IN_POOL,
        "kube-scheduler asks about a node that is not in the pod's pool.",
        "Label the node so that the pool's selector matches it, or name the pool that it is in.",
    ),
    Reason(
        NOT_OFFERED,
        "The pod fits on nodes that kube-scheduler does not offer for it.",
        "Look at what kube-scheduler says of the pod: affinity, topology spread or volumes keep it from them.",
    ),
)

CODES: Final[dict[str, Reason]] = {reason.code: reason for reason in REASONS}


def markdown() -> str:
    """Return the reasons as ``schemas/REASONS.md`` has them, to be written there whenever they change."""
    lines = [
        "# Reason codes",
        "",
        "Why a node, a GPU or a pod was refused. The numbers are the order in which the filters run; of a pod that fits nowhere",
        "the last one that still refused a node is the dominant reason. `gpubus why` shows them for one pod, and",
        "`consumers/allocator/engine/rules.py` says what a filter takes off.",
        "",
        "| | code | meaning | what helps |",
        "|---|---|---|---|",
    ]
    lines += [f"| {place} | `{one.code}` | {one.meaning} | {one.help} |" for place, one in enumerate(REASONS, 1)]
    return "\n".join([*lines, ""])
