"""The engine's rules in the order they run, and the numbers it keeps them under.

Every node of the request's pool ends at exactly one *stage*: the first filter that refuses it, or ``FITS``. Filters run in
the order of :data:`schemas.reasons.REASONS`. Let *standing* be the GPUs of a node that no filter has refused so far:

* ``NodeNotReady``, ``LedgerFrozen`` and ``InventoryMissing`` refuse whole nodes; the last only for pods that ask for GPUs.
* ``GpuUnhealthy``, ``GpuUsedByForeignAllocator``, ``VendorMismatch`` and ``ModelMismatch`` refuse single GPUs. Such a filter
  refuses the node when at least ``count`` GPUs stood before it and fewer than ``count`` stand after it.
* ``TooFewGpus`` refuses a node that has fewer than ``count`` GPUs altogether, whatever their state.
* ``InsufficientCompute`` and ``InsufficientVram`` refuse single GPUs, and the node when none is left standing.
* ``TooFewGpusOnOneNode`` refuses a node on which some GPUs stand, but fewer than ``count``: it could take a pod of fewer
  GPUs, so more nodes of the same kind would not help while a less fragmented one would.
* ``GpuNotIdle``, ``NumaNodeTooSmall`` and ``GpusTooFarApart`` look at all GPUs that are left on a node at once and refuse the
  node; they run for pods, or in pools, that ask for it (:mod:`.together`).
* ``TooManyPods``, ``InsufficientCpu`` and ``InsufficientMemory`` refuse whole nodes. A pod that asks for no CPU (or memory)
  is never refused for lack of it, as in Kubernetes.

A GPU counts against the filter that refused it. When a filter refuses the node, the GPUs still standing there fall with it
and count against that filter too. Pods without GPUs meet only the filters of whole nodes, and no GPU counts for them.
Capacity below zero (a pool's oversubscription was lowered, or a ledger written under other rules) refuses every pod.
"""

from typing import Final

from schemas import reasons

ENGINE_VERSION: Final = "1"
"""Changes whenever the same inputs could give another decision."""

ABSENT: Final = 19
NOT_READY: Final = 17
FROZEN: Final = 16
NO_INVENTORY: Final = 15
UNHEALTHY: Final = 14
FOREIGN: Final = 13
VENDOR: Final = 12
MODEL: Final = 11
GPU_COUNT: Final = 10
COMPUTE: Final = 9
VRAM: Final = 8
SAME_NODE: Final = 7
IN_USE: Final = 6
NUMA: Final = 5
TOPOLOGY: Final = 4
PODS: Final = 3
CPU: Final = 2
MEMORY: Final = 1
FITS: Final = 0
"""Stages count down in filter order, so of two refusals the earlier is the larger; a row without a node is ``ABSENT``."""

STAGES: Final = 20

STAGE_CODES: Final[dict[int, str]] = {
    NOT_READY: reasons.NODE_NOT_READY,
    FROZEN: reasons.LEDGER_FROZEN,
    NO_INVENTORY: reasons.INVENTORY_MISSING,
    UNHEALTHY: reasons.GPU_UNHEALTHY,
    FOREIGN: reasons.GPU_FOREIGN,
    VENDOR: reasons.VENDOR_MISMATCH,
    MODEL: reasons.MODEL_MISMATCH,
    GPU_COUNT: reasons.GPU_COUNT,
    COMPUTE: reasons.COMPUTE,
    VRAM: reasons.VRAM,
    SAME_NODE: reasons.SAME_NODE,
    IN_USE: reasons.IN_USE,
    NUMA: reasons.NUMA,
    TOPOLOGY: reasons.TOPOLOGY,
    PODS: reasons.PODS,
    CPU: reasons.CPU,
    MEMORY: reasons.MEMORY,
}
"""Reason code of each refusing stage, in filter order."""

GPU_FILTERS: Final = (UNHEALTHY, FOREIGN, VENDOR, MODEL)
"""The filters of single GPUs that depend on what a GPU is, not on what is free."""

# One verdict is one int: the stage, how many GPUs have enough compute, and how many of those have enough VRAM too. Counts are
# kept packed the same way, rows in place of the stage, and a float holds them exactly (53 bits), so one weighted bincount
# counts everything. Room for 262,143 GPUs and 131,071 nodes in a pool.
COMPUTE_SHIFT: Final = 18
STAGE_SHIFT: Final = 36
COUNT_MASK: Final = (1 << COMPUTE_SHIFT) - 1
COUNTS_MASK: Final = (1 << STAGE_SHIFT) - 1

MAX_GPUS_PER_NODE: Final = 255
MAX_AMOUNT: Final = 1 << 62
"""Amounts are cut to this in int64 columns. No real quantity comes near it (4.6 EB, 4.6e15 TFLOPS)."""

ALL_BP: Final = 10_000
"""One whole in hundredths of a percent."""
