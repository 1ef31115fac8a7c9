"""Every node of a pool with what its free GPU is worth to a workload, and what the whole pool has left: for ``PackingValue``.

*Scarcity* of a model: pods that are bound to some models can use no others, so GPU of those models is dear when little of it
is free. It is the sum over the groups of pods bound to the same models, that one among them, of the group's share of the
workload's GPU demand times the pool's free GPU over the free GPU of those models, at most 3.

*Guard*: a *wide* node is fully idle and has as many GPUs as the widest kinds ask for. For each amount of CPU that one of these
asks for, r pods are expected: as many as fit into the share of the free GPU that goes to kinds which are as wide and want that
much or more. As long as there are fewer than r + 3 * sqrt(r) wide nodes with that much free, other pods take such a node only
where nothing else fits: narrower ones, and those that want less CPU. Pods that come by chance, r of them in the mean, deviate by
sqrt(r) from it: a node is kept for each up to three deviations more, which are much of few pods and little of many.

Both count only nodes that pods can get at present. A node's model is that of its first GPU.
"""

from bisect import bisect_right
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.keys import place_bits, tail_bits
from consumers.allocator.engine.policy import Policy
from consumers.allocator.engine.supply import NO_GPU, Supply
from consumers.allocator.engine.table import Table
from consumers.allocator.engine.value import Value
from consumers.allocator.engine.workload import demand_of
from schemas.pod import WHOLE

Ints = NDArray[np.int64]
Rows = NDArray[np.intp]

_SCARCEST: Final = 3 * WHOLE
_DEVIATIONS: Final = 3


class Standing(NamedTuple):
    """What one node has.

    Attributes:
        worth: Worth of its GPUs in sum, in millionths of a GPU.
        idle: How many of them are wholly free.
        free: Their free shares in sum, as far as pods can get them at present.
        sort: Number of the sort of the first GPU that a pod can get.
        value: Its value, in grains.
        reach: For how many of the guard's amounts of CPU it is a wide node with that much free.
        tail: All of its sort keys but the score: what decides between equal scores.
    """

    worth: int = 0
    idle: int = 0
    free: int = 0
    sort: int = NO_GPU
    value: int = 0
    reach: int = 0
    tail: int = 0


_NOTHING: Final = Standing()


class Yard(Supply):
    """Standing of every node, by row and as columns, and the counters that scarcity and guard come from.

    Attributes:
        value: The tables.
        rows: Standing of each row; the columns are ``worth``, ``idle``, ``first`` (the sort), ``values``, ``reach``, ``tails``.
        width: Most GPUs that a kind asks for; 0 where none asks for several.
        scarce: Whether any kind of pod is bound to models.
    """

    def __init__(self, policy: Policy, table: Table) -> None:
        workload = policy.workload
        self.value = Value(workload, policy.prices)
        self._demand = max(1, sum(map(demand_of, workload.kinds)))
        widest = max((kind.gpus for kind in workload.kinds), default=0)
        self.width = widest if widest > 1 else 0
        wide = [kind for kind in workload.kinds if kind.gpus == self.width]
        self._amounts = sorted({kind.cpu_milli for kind in wide})
        self._wide_demands = [sum(demand_of(kind) for kind in wide if kind.cpu_milli >= cpu) for cpu in self._amounts]
        self._bound: dict[tuple[str, ...], int] = {}
        for kind in workload.kinds:
            if kind.models and kind.gpus:
                self._bound[kind.models] = self._bound.get(kind.models, 0) + demand_of(kind)
        self.scarce = bool(self._bound)
        super().__init__(policy, table)

    def guard(self, count: int, cpu_milli: int) -> int:
        """Return the least reach of the nodes that a pod leaves alone; 0 where it leaves none."""
        if count > self.width:
            return 0
        start = 0 if count < self.width else bisect_right(self._amounts, cpu_milli)
        # With both sides times this, expected pods are a whole number, and no root is taken.
        scale = self.width * WHOLE * self._demand
        for place in range(start, len(self._amounts)):
            expected = self._wide_demands[place] * self._free
            more = self._reaching[place] * scale - expected
            if more < 0 or more * more < _DEVIATIONS * _DEVIATIONS * expected * scale:
                return place + 1
        return 0

    def blocks(self, rows: Rows) -> Rows | int:
        """Return the number of the tables that hold for some rows, one number where all are the same."""
        if self.value.uniform:
            return 0
        return np.array(self.value.accepting).take(self.first.take(rows))

    def scarcity(self) -> list[int]:
        """Return the scarcity of each sort's model, in thousandths."""
        free: dict[str, int] = {}
        for (model, _, _), amount in zip(self.known, self._free_of_sort, strict=True):
            free[model] = free.get(model, 0) + amount
        of_group = [
            (
                models,
                WHOLE * demand * self._free // (self._demand * max(1, sum(free.get(model, 0) for model in models))),
            )
            for models, demand in self._bound.items()
        ]
        return [min(_SCARCEST, sum(part for models, part in of_group if model in models)) for model, _, _ in self.known]

    def _reset(self) -> None:
        super()._reset()
        count = len(self.slots)
        self.rows = [_NOTHING] * count
        self.worth, self.idle, self.first, self.tails, self.values = (np.zeros(count, dtype=np.int64) for _ in range(5))
        self.reach: NDArray[np.int16] = np.zeros(count, dtype=np.int16)
        self._free = 0
        self._reaching = [0] * len(self._amounts)
        self._free_of_sort = [0] * len(self.known)
        self._places = place_bits(self.ties)

    def _learn(self, model: str) -> None:
        self.value.learn(model)
        self._free_of_sort.append(0)

    def _measure(self, row: int, host: Host | None) -> None:
        shares, sorts = self.slots[row]
        before = self.rows[row]
        worth = idle = free = first = usable = 0
        of_share = self.value.worth
        for share, sort in zip(shares, sorts, strict=True):
            if sort:
                usable += 1
                first = first or sort
                if share:
                    free += share
                    worth += of_share[share]
                    idle += share == WHOLE
        cpu = 0 if host is None else host.cpu_free
        value = self.value.of(worth, idle, cpu, self.value.accepting[first])
        tail = tail_bits(self._places[row], free, cpu)
        if host is None or host.stage:
            free = usable = 0
        reach = bisect_right(self._amounts, cpu) if 0 < self.width <= usable == idle else 0
        self.rows[row] = Standing(worth, idle, free, first, value, reach, tail)
        self.worth[row], self.idle[row], self.values[row], self.tails[row] = worth, idle, value, tail
        self._free += free - before.free
        self._free_of_sort[before.sort] -= before.free
        self._free_of_sort[first] += free
        self.first[row] = first
        if reach != before.reach:
            self.reach[row] = reach
            for place in range(before.reach, reach):
                self._reaching[place] += 1
            for place in range(reach, before.reach):
                self._reaching[place] -= 1
