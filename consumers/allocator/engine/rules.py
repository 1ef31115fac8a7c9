"""The engine's rules in the order they run, and the numbers it keeps them under.

Every node of the request's pool ends at exactly one *stage*: the first filter that refuses it, or ``FITS``. Filters run in
the order of :data:`schemas.reasons.REASONS`. Let *standing* be the GPUs of a node that no filter has refused so far:

* ``NodeSelectorMismatch``, ``NodeAffinityMismatch``, ``NodeNotReady``, ``LedgerFrozen`` and ``TaintNotTolerated`` refuse whole
  nodes, and so do ``InventoryMissing`` and ``AgentSilent``, but only for pods that ask for GPUs. What the pod says of nodes
  comes first: of nodes that it may not have, no other reason is told.
* ``GpuUnhealthy`` to ``IsolationUnavailable`` refuse single GPUs for what they are, whatever is free. Such a filter refuses the
  node when at least ``count`` GPUs stood before it and fewer than ``count`` stand after it.
* ``TooFewGpus`` refuses a node that has fewer than ``count`` GPUs altogether, whatever their state.
* ``IsolationConflict``, ``GpuNotIdle``, ``GpuHeldExclusively`` and ``GpuSlotsUsedUp`` refuse single GPUs for who is on them (see
  :mod:`~consumers.allocator.engine.tenancy`), ``InsufficientCompute`` and ``InsufficientVram`` for what is free, or
  ``NoPartition`` in place of both for pods that take partitions; and the node when none is left standing.
* ``TooFewGpusOnOneNode`` refuses a node on which some GPUs stand, but fewer than ``count``: it could take a pod of fewer
  GPUs, so more nodes of the same kind would not help while a less fragmented one would.
* ``ContainersDoNotFit`` refuses a node for pods whose containers ask for GPUs of their own (:mod:`.crew`). Until then a GPU
  stands if the least of them could be given it, and ``count`` is that of the container with most GPUs.
* ``NumaNodeTooSmall`` and ``GpusTooFarApart`` look at all GPUs that are left on a node at once and refuse the node; they run for
  pods, or in pools, that ask for it (:mod:`.together`).
* ``TooManyWorkers``, ``TooManyPods``, ``InsufficientCpu`` and ``InsufficientMemory`` refuse whole nodes. A pod that asks for no
  CPU (or memory) is never refused for lack of it, as in Kubernetes; one without GPUs is no worker.

A GPU counts against the filter that refused it. When a filter refuses the node, the GPUs still standing there fall with it
and count against that filter too. Pods without GPUs meet only the filters of whole nodes, and no GPU counts for them.
Capacity below zero (a pool's oversubscription was lowered, or a ledger written under other rules) refuses every pod.
"""

from typing import Final

from schemas import reasons

ENGINE_VERSION: Final = "4"
"""Changes whenever the same inputs could give another decision."""

ABSENT: Final = 40
SELECTOR: Final = 39
AFFINITY: Final = 38
NOT_READY: Final = 37
FROZEN: Final = 36
TAINT: Final = 35
NO_INVENTORY: Final = 34
SILENT: Final = 33
UNHEALTHY: Final = 32
CORDONED: Final = 31
FOREIGN: Final = 30
CLAIMED: Final = 29
VENDOR: Final = 28
MODEL: Final = 27
MODEL_WORD: Final = 26
VGPU_MODE: Final = 25
UUID: Final = 24
INDEX: Final = 23
ISOLATION: Final = 22
GPU_COUNT: Final = 20
CONFLICT: Final = 19
NOT_IDLE: Final = 18
EXCLUSIVE: Final = 17
SLOTS: Final = 16
PARTITION: Final = 15
COMPUTE: Final = 14
VRAM: Final = 13
SAME_NODE: Final = 12
CONTAINERS: Final = 11
NUMA: Final = 10
TOPOLOGY: Final = 9
WORKERS: Final = 8
PODS: Final = 7
CPU: Final = 6
MEMORY: Final = 5
FITS: Final = 0
"""Stages count down in filter order, so of two refusals the earlier is the larger; a row without a node is ``ABSENT``."""

STAGES: Final = 41

STAGE_CODES: Final[dict[int, str]] = {
    SELECTOR: reasons.NODE_SELECTOR,
    AFFINITY: reasons.NODE_AFFINITY,
    NOT_READY: reasons.NODE_NOT_READY,
    FROZEN: reasons.LEDGER_FROZEN,
    TAINT: reasons.TAINT,
    NO_INVENTORY: reasons.INVENTORY_MISSING,
    SILENT: reasons.AGENT_SILENT,
    UNHEALTHY: reasons.GPU_UNHEALTHY,
    CORDONED: reasons.GPU_CORDONED,
    FOREIGN: reasons.GPU_FOREIGN,
    CLAIMED: reasons.GPU_CLAIMED,
    VENDOR: reasons.VENDOR_MISMATCH,
    MODEL: reasons.MODEL_MISMATCH,
    MODEL_WORD: reasons.MODEL_WORD,
    VGPU_MODE: reasons.VGPU_MODE,
    UUID: reasons.UUID_MISMATCH,
    INDEX: reasons.INDEX_MISMATCH,
    ISOLATION: reasons.ISOLATION_UNAVAILABLE,
    GPU_COUNT: reasons.GPU_COUNT,
    CONFLICT: reasons.ISOLATION_CONFLICT,
    NOT_IDLE: reasons.GPU_NOT_IDLE,
    EXCLUSIVE: reasons.GPU_EXCLUSIVE,
    SLOTS: reasons.SLOTS,
    PARTITION: reasons.PARTITION,
    COMPUTE: reasons.COMPUTE,
    VRAM: reasons.VRAM,
    SAME_NODE: reasons.SAME_NODE,
    CONTAINERS: reasons.CONTAINERS,
    NUMA: reasons.NUMA,
    TOPOLOGY: reasons.TOPOLOGY,
    WORKERS: reasons.WORKERS,
    PODS: reasons.PODS,
    CPU: reasons.CPU,
    MEMORY: reasons.MEMORY,
}
"""Reason code of each refusing stage, in filter order."""

GPU_FILTERS: Final = (
    UNHEALTHY, CORDONED, FOREIGN, CLAIMED, VENDOR, MODEL, MODEL_WORD, VGPU_MODE, UUID, INDEX, ISOLATION,
)  # fmt: skip
"""The filters of single GPUs that depend on what a GPU is, not on what is free."""

TOGETHER: Final = (CONTAINERS, NUMA, TOPOLOGY)
"""The filters that look at all GPUs of a node at once."""

# One verdict is one int: the stage, how many GPUs have enough compute, and how many of those have enough VRAM too. Counts are
# kept packed the same way, rows in place of the stage, and a float holds them exactly (53 bits), so one weighted bincount
# counts everything. Room for 262,143 GPUs and 131,071 nodes in a pool.
COMPUTE_SHIFT: Final = 18
STAGE_SHIFT: Final = 36
COUNT_MASK: Final = (1 << COMPUTE_SHIFT) - 1
COUNTS_MASK: Final = (1 << STAGE_SHIFT) - 1
REFUSAL: Final = 1 << STAGE_SHIFT
"""The least verdict that refuses."""

MAX_GPUS_PER_NODE: Final = 255
MAX_AMOUNT: Final = 1 << 62
"""Amounts are cut to this in int64 columns. No real quantity comes near it (4.6 EB, 4.6e15 TFLOPS)."""

ALL_BP: Final = 10_000
"""One whole in hundredths of a percent."""
