"""The nodes of one pool as arrays: what the filters compare, one row per node and one column per GPU slot.

Rows stand in name order, so "the first three by name" and "ties by name" are plain row order. A node that goes leaves its
row behind empty; nodes that come wait until :meth:`Table.settle` gives all rows their place at once, since a growing
cluster announces its nodes in a burst.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.changes import ChangeLog
from consumers.allocator.engine.host import Host
from consumers.allocator.engine.rules import ABSENT, MAX_AMOUNT

Ints = NDArray[np.int64]

# Columns of `limits`: three counts that the fit fills in per request, then what the node has left of its own.
ENOUGH_COMPUTE: Final = 0
ENOUGH_VRAM: Final = 1
ENOUGH_GPUS: Final = 2
WORKERS_FREE: Final = 3
POD_SLOTS: Final = 4
CPU_FREE: Final = 5
MEMORY_FREE: Final = 6
LIMITS: Final = 8
"""One more than there are limits: the last is always short, so "first short limit" has an answer when nothing is short."""

_LANE: Final = 8
"""Slots come in eights: eight comparison results are one 64-bit word, counted by one population count."""

_GPU_AMOUNTS: Final = ("tflops_free", "tflops_share", "vram_free", "vram_share")
_COLUMNS: Final = (*_GPU_AMOUNTS, "marks", "kinds", "limits", "stages")


def _cut(amount: int) -> int:
    """Return the amount within what a column holds; everything below zero is alike, it never fits."""
    return -1 if amount < 0 else min(amount, MAX_AMOUNT)


class Table:
    """Columns over the nodes of one pool.

    Attributes:
        names: The node name of each row.
        hosts: The node of each row; None where it has gone.
        live: How many rows have a node, those waiting for a row included.
        epoch: Changes when rows move: whoever holds arrays by row must build them anew.
        changes: Rows in which anything changed.
        structure: Rows in which something other than what is free changed.
        tflops_free: Schedulable compute left per GPU, -1 if less than nothing; no meaning where there is no GPU.
        tflops_share: Largest share of the GPU's physical compute that still fits, otherwise as ``tflops_free``.
        vram_free: As ``tflops_free``, for VRAM.
        vram_share: As ``tflops_share``, for VRAM.
        marks: Who is on each GPU, as bits; see :mod:`~consumers.allocator.engine.tenancy`.
        marked: Bits that some GPU has or had.
        tainted: Whether some node has or had a taint.
        kinds: Kind of GPU as numbered by the snapshot; 0 where there is none.
        limits: What the node has left of worker and pod slots, CPU and memory.
        stages: The filter of whole nodes that refuses the row whatever the request, or 0.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.hosts: list[Host | None] = []
        self.live = 0
        self.epoch = 0
        self.marked = 0
        self.tainted = False
        self.changes = self.structure = ChangeLog(0)
        self._joining: dict[str, Host] = {}
        self._left: dict[str, int] = {}
        self._allocate(0, _LANE)

    def _allocate(self, rows: int, width: int) -> None:
        self.width = width
        self.tflops_free: Ints = np.full((rows, width), -1, dtype=np.int64)
        self.tflops_share: Ints = np.full((rows, width), -1, dtype=np.int64)
        self.vram_free: Ints = np.full((rows, width), -1, dtype=np.int64)
        self.vram_share: Ints = np.full((rows, width), -1, dtype=np.int64)
        self.marks: NDArray[np.uint8] = np.zeros((rows, width), dtype=np.uint8)
        self.kinds: Ints = np.zeros((rows, width), dtype=np.int64)
        self.limits: Ints = np.full((rows, LIMITS), -1, dtype=np.int64)
        self.stages: Ints = np.full(rows, ABSENT, dtype=np.int64)
        # What is cached by row is rebuilt with the rows, so no cursor outlives its log.
        self.changes, self.structure = ChangeLog(rows), ChangeLog(rows)
        self.epoch += 1

    def members(self) -> Iterable[Host]:
        """Return the pool's nodes, in no particular order."""
        yield from (host for host in self.hosts if host is not None)
        yield from self._joining.values()

    def join(self, host: Host) -> None:
        """Take a node in."""
        self.live += 1
        row = self._left.pop(host.name, -1)
        if row < 0:
            self._joining[host.name] = host
            return
        host.row = row
        self.hosts[row] = host
        self.write(host)

    def leave(self, host: Host) -> None:
        """Let a node go."""
        self.live -= 1
        if self._joining.pop(host.name, None) is not None:
            return
        self._left[host.name] = host.row
        self.hosts[host.row] = None
        self.stages[host.row] = ABSENT
        self.changes.add(host.row)
        self.structure.add(host.row)
        host.row = -1

    def settle(self) -> None:
        """Give the nodes that came since a row, and drop the rows of those that went. Nothing to do in most calls."""
        if not self._joining:
            return
        hosts = sorted(self.members(), key=lambda host: host.name)
        rows = np.array([host.row for host in hosts], dtype=np.intp)
        old: dict[str, Any] = {name: getattr(self, name) for name in _COLUMNS}
        width = max(self.width, *(_slots(host) for host in hosts))
        self._allocate(len(hosts), width)
        kept = (rows >= 0).nonzero()[0]
        for name, column in old.items():
            target = getattr(self, name)
            if column.ndim == 1:
                target[kept] = column[rows[kept]]
            else:
                target[kept, : column.shape[1]] = column[rows[kept]]
        self.names = [host.name for host in hosts]
        self.hosts = list(hosts)
        for row, host in enumerate(hosts):
            host.row = row
        for host in self._joining.values():
            self._write_row(host)
        self._joining.clear()
        self._left.clear()

    def write(self, host: Host) -> None:
        """Bring a node's row up to date after anything about it may have changed."""
        if host.row < 0:
            return  # `settle` writes it
        if _slots(host) > self.width:
            self._widen(_slots(host))
        self._write_row(host)
        self.changes.add(host.row)
        self.structure.add(host.row)

    def write_free(self, host: Host, slots: Iterable[int]) -> None:
        """Bring a node's row up to date after a pod came or went; ``slots`` are the GPUs it holds."""
        row = host.row
        if row < 0:
            return
        for slot in slots:
            self.tflops_free[row, slot] = _cut(host.tflops_free[slot])
            self.tflops_share[row, slot] = host.tflops_share[slot]
            self.vram_free[row, slot] = _cut(host.vram_free[slot])
            self.vram_share[row, slot] = host.vram_share[slot]
            self.marks[row, slot] = host.marks[slot]
        self.marked |= host.marked
        self._write_limits(host)
        self.changes.add(row)

    def _write_limits(self, host: Host) -> None:
        limits, row = self.limits, host.row
        limits[row, WORKERS_FREE] = _cut(host.workers_free)
        limits[row, POD_SLOTS] = _cut(host.pods_free)
        limits[row, CPU_FREE] = _cut(host.cpu_free)
        limits[row, MEMORY_FREE] = _cut(host.memory_free)

    def _write_row(self, host: Host) -> None:
        row, count = host.row, len(host.kinds)
        self.tflops_free[row, :count] = [a if 0 <= a <= MAX_AMOUNT else _cut(a) for a in host.tflops_free]
        self.vram_free[row, :count] = [a if 0 <= a <= MAX_AMOUNT else _cut(a) for a in host.vram_free]
        self.tflops_share[row, :count] = host.tflops_share
        self.vram_share[row, :count] = host.vram_share
        self.marks[row] = 0
        self.marks[row, :count] = host.marks
        self.marked |= host.marked
        self.kinds[row] = 0
        self.kinds[row, :count] = host.kinds
        self.stages[row] = host.stage
        self.tainted = self.tainted or (host.node is not None and bool(host.node.taints))
        self._write_limits(host)

    def _widen(self, width: int) -> None:
        old: dict[str, Any] = {name: getattr(self, name) for name in _COLUMNS}
        self._allocate(len(self.hosts), width)
        for name, column in old.items():
            getattr(self, name)[..., : column.shape[-1]] = column


def _slots(host: Host) -> int:
    return -(-len(host.kinds) // _LANE) * _LANE
