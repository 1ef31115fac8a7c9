"""``FragmentationGradient``: the node on which fragmentation grows least, as Weng et al. have it (USENIX ATC 2023).

Each pod is placed in thought on every node that it fits on. D is by how much that lowers the node's fragmentation (see
:mod:`~consumers.allocator.engine.measure`), and the score is ``int(100 / (1 + exp(-D / 1000)))``, D in thousandths of a GPU.
That the score is truncated is part of the policy: a step is about 40 thousandths near zero, and what falls within a step goes
to the first node by name. Exact comparison places worse (94.3 % of the GPUs allocated instead of 95.2 % on the paper's trace).

A pod with one GPU is tried on each GPU that it fits on, and takes that with the largest D, the first of equals. A pod with
several takes those with the smallest free share, the first of equals: for whole GPUs these are the first idle ones.
"""

from bisect import bisect_right
from decimal import Context, Decimal
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.measure import SPAN, Measure
from consumers.allocator.engine.policy import Policy
from consumers.allocator.engine.ranking import ORDER_BITS, Keys, largest
from consumers.allocator.engine.supply import Ask, Supply
from consumers.allocator.engine.table import Table
from schemas.decision import Candidate
from schemas.pod import WHOLE, GpuRequest

Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
Flags = NDArray[np.bool_]

_NEVER: Final = -(1 << 62)
_SPREAD: Final = 0x9E3779B97F4A7C1 | 1
_MANY_ROWS: Final = 1000
"""From here on it pays to look for rows that are alike (measured)."""
_TOP: Final = 100
_DIGITS: Final = Context(prec=28)


class Terrain(Supply):
    """Every node of a pool with how much of its free GPU is of use to a workload now.

    Attributes:
        measure: The measure.
        useful: Per row what is of use, in thousandths of a GPU times pods of the workload.
        steps: The least drop of fragmentation, in the same unit, that scores 1, 2, ... 99.
    """

    def __init__(self, policy: Policy, table: Table) -> None:
        self.measure = Measure(policy.workload)
        scale = WHOLE * self.measure.pods
        # The sigmoid, inverted: whole numbers are compared, and no decision hangs on how a machine rounds `exp` or `log`.
        self.steps = [ceil(scale * (Decimal(score) / (_TOP - score)).ln(_DIGITS)) for score in range(1, _TOP)]
        super().__init__(policy, table)

    def _reset(self) -> None:
        super()._reset()
        self.useful: Ints = np.zeros(len(self.slots), dtype=np.int64)
        self._last: tuple[list[int], list[int], int] = ([], [], 0)
        self._last_useful = 0

    def _learn(self, model: str) -> None:
        self.measure.learn(model)

    def _measure(self, row: int, host: Host | None) -> None:
        state = (*self.slots[row], 0 if host is None else host.cpu_free)
        if state != self._last:  # neighbours are often alike when all rows are new
            self._last, self._last_useful = state, self.measure.useful(*state)
        self.useful[row] = self._last_useful


class Gradient:
    """Order of nodes for one shape of request."""

    __slots__ = ("_ask", "_count", "_cpu", "_drops", "_slots", "_steps", "_terrain", "dtype")

    def __init__(self, request: GpuRequest, terrain: Terrain) -> None:
        self.dtype: type[np.signedinteger[Any]] = np.int32
        self._terrain = terrain
        self._ask = Ask(request, terrain)
        self._count = request.count
        self._cpu = request.cpu_milli
        self._steps: Ints = np.array(terrain.steps)
        # Per row, as its key was computed: the drop of fragmentation, and for a pod with one GPU the slot that it takes.
        self._drops: Ints = np.zeros(0, dtype=np.int64)
        self._slots: NDArray[np.int16] = np.zeros(0, dtype=np.int16)

    def refresh(self) -> None:
        """Apply what changed in the table since the last call."""
        self._terrain.refresh()
        if len(self._drops) != len(self._terrain.useful):
            self._drops = np.zeros(len(self._terrain.useful), dtype=np.int64)
            self._slots = np.zeros(len(self._terrain.useful), dtype=np.int16)

    def best(self, keys: Keys, count: int) -> list[int]:
        """Return the rows of the best score, the first by name among equals."""
        return largest(keys, count)

    def candidate(self, row: int) -> Candidate:
        """Return a row with its score and its fragmentation before and after, in percent of all its GPU."""
        terrain = self._terrain
        pods, shares = terrain.measure.pods, terrain.slots[row][0]
        drop = self._drops.item(row)
        before = pods * sum(shares) - terrain.useful.item(row)
        unit = max(1, pods * len(shares) * WHOLE // _TOP)
        parts = {"fragmented": before // unit, "fragmented_after": (before - drop) // unit}
        return Candidate(node=terrain.table.names[row], score=bisect_right(terrain.steps, drop), parts=parts)

    def key(self, row: int, host: Host, fitting: list[int]) -> int:
        """Return the key of a row."""
        drop, slot = self._drop_of_one(row, host, fitting) if self._count == 1 else self._drop(row, host, fitting)
        self._drops[row], self._slots[row] = drop, slot
        return (bisect_right(self._terrain.steps, drop) << ORDER_BITS) | self._terrain.ties.item(row)

    def choose(self, row: int, _host: Host, fitting: list[int], count: int) -> list[int]:
        """Return the slots to take."""
        if count == 1:
            return [self._slots.item(row)]
        shares = self._terrain.slots[row][0]
        return sorted(sorted(fitting, key=shares.__getitem__)[:count])

    def prefer(self, row: int, _host: Host, fitting: list[int], count: int) -> list[int]:
        """Return the slots in the order in which a pod with several GPUs takes them; that of a pod with one comes first."""
        shares, first = self._terrain.slots[row][0], self._slots.item(row) if count == 1 else -1
        return sorted(fitting, key=lambda slot: (slot != first, shares[slot]))

    def _drop(self, row: int, host: Host, fitting: list[int]) -> tuple[int, int]:
        terrain, measure, left = self._terrain, self._terrain.measure, self._ask.left
        shares, sorts = terrain.slots[row]
        after = shares.copy()
        for slot in self.choose(row, host, fitting, self._count):
            after[slot] = left(host, slot, sorts[slot])
        useful = measure.useful(after, sorts, host.cpu_free - self._cpu)
        return measure.pods * (sum(shares) - sum(after)) + useful - terrain.useful.item(row), -1

    def _drop_of_one(self, row: int, host: Host, fitting: list[int]) -> tuple[int, int]:
        terrain, measure, left = self._terrain, self._terrain.measure, self._ask.left
        shares, sorts = terrain.slots[row]
        tflops, vram = host.tflops_share, host.vram_share
        item, starts, pods = measure.table.item, measure.starts, measure.pods
        level = measure.level(host.cpu_free - self._cpu)
        base = level * SPAN
        best, best_slot = 0, -1
        last = (-1, -1, -1)
        for slot in fitting:
            sort = sorts[slot]
            gpu = (tflops[slot], vram[slot], sort)
            if gpu == last:  # as its neighbour, which is the first of equals
                continue
            last = gpu
            share, then, start = shares[slot], left(host, slot, sort), starts[sort] + base
            drop = pods * (share - then) + item(start + then) - item(start + share)
            for wide in measure.wide:
                drop += wide.change(shares, sorts, level, slot, then)
            if best_slot < 0 or drop > best:
                best, best_slot = drop, slot
        rest = measure.useful_at(shares, sorts, level) - terrain.useful.item(row)
        return best + rest, best_slot

    def keys(self, rows: Rows, fitting: Flags) -> Keys:
        """Return the keys of several rows: :meth:`key` as array operations, once for all rows that are alike."""
        drops_of = self._drops_of_one if self._count == 1 else self._drops_of_several
        if len(rows) < _MANY_ROWS:
            drops = drops_of(rows, fitting)
        else:
            first, alike = self._sorted_out(rows, fitting)
            ones = rows.take(first)
            drops = drops_of(ones, fitting.take(first, axis=0)).take(alike)
            self._slots[rows] = self._slots.take(ones).take(alike)
        self._drops[rows] = drops
        scores = self._steps.searchsorted(drops, side="right")
        return (scores << ORDER_BITS) | self._terrain.ties.take(rows)

    def _sorted_out(self, rows: Rows, fitting: Flags) -> tuple[Rows, Rows]:
        """Return the first of each of the distinct states among some rows, and per row which of these is its own.

        A state is all that a drop depends on. Most nodes of a large pool are alike: idle, or full in the same way.
        """
        terrain, table = self._terrain, self._terrain.table
        columns = (table.tflops_share, table.vram_share, terrain.sorts)
        states = np.column_stack(
            [column.take(rows, axis=0) for column in columns] + [fitting.view(np.int64), terrain.cpu_free(rows)]
        )
        # Sums of products wrap around. Different states of one sum are told apart below, and then no row stands for another.
        sums = states @ (np.arange(1, states.shape[1] + 1) * _SPREAD)
        _, first, alike = np.unique(sums, return_index=True, return_inverse=True)
        if np.array_equal(states, states.take(first.take(alike), axis=0)):
            return first, alike
        every = np.arange(len(rows))
        return every, every

    def _drops_of_one(self, rows: Rows, fitting: Flags) -> Ints:
        terrain, measure = self._terrain, self._terrain.measure
        shares, levels = terrain.shares.take(rows, axis=0), measure.levels(terrain.cpu_free(rows) - self._cpu)
        places = measure.places(levels, shares, terrain.sorts, rows)
        before = measure.table.take(places)
        after = self._ask.left_on(rows)
        change = after - shares
        places += change
        drops: Ints = measure.table.take(places)
        drops -= before
        change *= measure.pods
        drops -= change
        for wide in measure.wide:
            wide.add_changed(drops, levels, shares, after, fitting=fitting, allowed=wide.flags(terrain.sorts, rows))
        drops[~fitting] = _NEVER
        slots = drops.argmax(axis=1)
        self._slots[rows] = slots
        slots += np.arange(0, drops.size, drops.shape[1])
        best: Ints = drops.take(slots)
        best += before.sum(axis=1)
        best -= terrain.useful.take(rows)
        return best

    def _drops_of_several(self, rows: Rows, fitting: Flags) -> Ints:
        terrain, measure = self._terrain, self._terrain.measure
        shares, levels = terrain.shares.take(rows, axis=0), measure.levels(terrain.cpu_free(rows) - self._cpu)
        taken = np.zeros_like(fitting)
        order = np.where(fitting, shares, SPAN).argsort(axis=1, kind="stable")[:, : self._count]
        np.put_along_axis(taken, order, self._count > 0, axis=1)
        after = np.where(taken, self._ask.left_on(rows), shares)
        drops: Ints = measure.table.take(measure.places(levels, after, terrain.sorts, rows)).sum(axis=1)
        drops += (shares - after).sum(axis=1) * measure.pods
        for wide in measure.wide:
            drops += wide.useful_on(levels, after, wide.flags(terrain.sorts, rows))
        return drops - terrain.useful.take(rows)
