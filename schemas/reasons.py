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


POOL_UNKNOWN: Final = "PoolUnknown"
UNSUPPORTED: Final = "NotSupported"
POOL_EMPTY: Final = "PoolEmpty"
NODE_NOT_READY: Final = "NodeNotReady"
LEDGER_FROZEN: Final = "LedgerFrozen"
INVENTORY_MISSING: Final = "InventoryMissing"
GPU_UNHEALTHY: Final = "GpuUnhealthy"
GPU_FOREIGN: Final = "GpuUsedByForeignAllocator"
VENDOR_MISMATCH: Final = "VendorMismatch"
MODEL_MISMATCH: Final = "ModelMismatch"
GPU_COUNT: Final = "TooFewGpus"
COMPUTE: Final = "InsufficientCompute"
VRAM: Final = "InsufficientVram"
SAME_NODE: Final = "TooFewGpusOnOneNode"
IN_USE: Final = "GpuNotIdle"
NUMA: Final = "NumaNodeTooSmall"
TOPOLOGY: Final = "GpusTooFarApart"
PODS: Final = "TooManyPods"
CPU: Final = "InsufficientCpu"
MEMORY: Final = "InsufficientMemory"
QUOTA_SINGLE: Final = "QuotaForOnePodExceeded"
QUOTA: Final = "QuotaExceeded"

REASONS: Final[tuple[Reason, ...]] = (
    Reason(POOL_UNKNOWN, "The request names a pool that does not exist.", "Create the pool or correct the pod's pool."),
    Reason(
        UNSUPPORTED,
        "The request asks for something that this version cannot promise.",
        "Drop the field that the message names.",
    ),
    Reason(POOL_EMPTY, "The pool has no nodes.", "Label nodes so that the pool's selector matches them."),
    Reason(NODE_NOT_READY, "The node is not ready or is cordoned.", "Repair or uncordon the node."),
    Reason(
        LEDGER_FROZEN,
        "The node's ledger record cannot be decoded, so nothing more is given out there.",
        "Read it with `gpubus dead list` and restore a good record.",
    ),
    Reason(INVENTORY_MISSING, "No GPU inventory is known for the node.", "Check that the node agent runs there."),
    Reason(GPU_UNHEALTHY, "The GPU is unhealthy.", "Look at the GPU's XID and ECC errors on the node."),
    Reason(GPU_FOREIGN, "Another allocator hands this GPU out.", "Remove the device plugin from the node."),
    Reason(VENDOR_MISMATCH, "The GPU is of another vendor.", "Drop the vendor from the request or add such GPUs."),
    Reason(MODEL_MISMATCH, "The GPU is of another model.", "Accept more models or add such GPUs."),
    Reason(GPU_COUNT, "The node has fewer GPUs than asked for.", "Ask for fewer GPUs or add larger nodes."),
    Reason(COMPUTE, "Too little compute is free.", "Lower the compute request, wait for a release, or add GPUs."),
    Reason(VRAM, "Too little VRAM is free.", "Lower the VRAM request, wait for a release, or add GPUs."),
    Reason(
        SAME_NODE,
        "Enough GPUs fit, but fewer than asked for on any one node.",
        "Ask for fewer GPUs per pod, or free a node by moving small pods away.",
    ),
    Reason(
        IN_USE,
        "Other pods are on GPUs that the pod wants to share with nobody at first.",
        "Drop `mutex` from the GPU policy, wait for a release, or add GPUs.",
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
)

CODES: Final[dict[str, Reason]] = {reason.code: reason for reason in REASONS}
