"""What the free GPUs of a node are worth to a workload, given the prices of shares: tables for ``PackingValue``.

The worth of a GPU with r free is the most that shares which fit together in r cost; that of a node's GPUs is the sum U. But
pods need CPU too. A kind with the price u that asks c CPU can use min(U, C * u / c) of a node with C free, so the node's value
is the mean of that over the kinds of one GPU, each weighed by its pods times its price. With the kinds in order of CPU per
price this is U * A[j] + C * B[j], where the first j kinds find enough CPU. Kinds of several GPUs add a tenth of a GPU, weighed
alike, for each whole set of idle GPUs that they could use: they come seldom.

Values are whole numbers of :data:`GRAIN`, and every kind's slope is rounded down to such a number before slopes are added. So
no value depends on the order of additions, on the length of a machine's floats or on the version of Python. Only which kinds
find enough CPU is looked up by a quotient of floats, and that is exact: of two different quotients CPU / worth and c / u, the
CPU below ``_MOST_CPU`` and u at most :data:`UNIT`, one is larger by more than 2 ** -51 of it, which no float of 53 bits loses.

Of the workload's kinds those count that are :attr:`~.Workload.valued`. Only kinds that accept the node's model do, so the tables
exist once per set of accepting kinds. The model of a node is that of its first GPU: a node that mixes models is valued as if it
had one.
"""

from bisect import bisect_right
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.prices import UNIT, Price
from consumers.allocator.engine.workload import Workload
from schemas.cluster import PodKind
from schemas.pod import WHOLE

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

MOST_IDLE: Final = 16
"""More idle GPUs on a node count as this many."""

GRAIN_BITS: Final = 36
"""A thousandth of a GPU has so many binary places."""

GRAIN: Final = 1 << GRAIN_BITS
"""Grains in a thousandth of a GPU."""

HALF: Final = GRAIN // 2

_MICRO: Final = 1000
_SETS: Final = 10
_MOST_CPU: Final = 1 << 30


def table_of_worth(prices: tuple[Price, ...]) -> list[int]:
    """Return the worth of a GPU by its free share, in millionths."""
    pieces = [(price.share_milli, price.micro) for price in prices if price.micro]
    worth = [0]
    for room in range(1, WHOLE):
        worth.append(max([worth[-1], *(worth[room - size] + micro for size, micro in pieces if size <= room)]))
    return [*worth, UNIT]


class _Slope(NamedTuple):
    """What a kind of one GPU adds to a node's value, in grains.

    Attributes:
        ratio: CPU (thousandths of a core) per millionth of a GPU that it is worth.
        by_worth: Per millionth of a GPU, where there is CPU for all that the GPUs are worth.
        by_cpu: Per thousandth of a core, where there is not.
        kind: The kind.
    """

    ratio: float
    by_worth: int
    by_cpu: int
    kind: PodKind

    @classmethod
    def of(cls, kind: PodKind, price: int, total: int) -> Self:
        weight, cpu = kind.pods * price * GRAIN, kind.cpu_milli
        by_cpu = weight * price // (total * cpu * _MICRO) if cpu else 0
        return cls(cpu / price, weight // (total * _MICRO), by_cpu, kind)


class Value:
    """Value of a node by the worth of its GPUs, its idle GPUs and its CPU, in grains (see :data:`GRAIN`).

    Attributes:
        worth: Worth of a GPU by its free share, in millionths of a GPU.
        accepting: Number of the tables by number of sort of the node's first GPU.
        uniform: All sorts have the same tables.
    """

    def __init__(self, workload: Workload, prices: tuple[Price, ...]) -> None:
        self.worth = table_of_worth(prices)
        self.worth_column: Ints = np.array(self.worth, dtype=np.int64)
        micro = {price.share_milli: price.micro for price in prices}
        priced = [
            (kind, micro.get(kind.share_milli, UNIT))
            for kind in workload.valued.kinds
            if kind.gpus and kind.share_milli
        ]
        priced = [(kind, price) for kind, price in priced if price]
        total = sum(kind.pods * kind.gpus * price for kind, price in priced) or 1
        # Kinds with what they add: those of one GPU in order of CPU per worth, and those of several.
        single = [_Slope.of(kind, price, total) for kind, price in priced if kind.gpus == 1]
        self._single = sorted(single, key=lambda slope: slope.ratio)
        self._sets = [
            (kind.pods * price * _MICRO * GRAIN // (_SETS * total), kind) for kind, price in priced if kind.gpus > 1
        ]
        self._ratios = [slope.ratio for slope in self._single]
        amounts = {kind.cpu_milli * sets for _, kind in self._sets for sets in range(1, MOST_IDLE // kind.gpus + 1)}
        self._steps = sorted(amounts)
        self._ratio_column: Floats = np.array(self._ratios, dtype=np.float64)
        self._step_column: Ints = np.array(self._steps, dtype=np.int64)
        self._blocks: dict[tuple[PodKind, ...], int] = {}
        self._by_worth: list[int] = []
        self._by_cpu: list[int] = []
        self._whole: list[int] = []
        # The first tables are those of kinds which accept any model, the only ones where all do.
        self.accepting: list[int] = []
        self.learn("")
        self.uniform = True

    def learn(self, model: str) -> None:
        """Take in the next sort of GPU."""
        kinds = [slope.kind for slope in self._single] + [kind for _, kind in self._sets]
        accepting = tuple(kind for kind in kinds if not kind.models or model in kind.models)
        number = self._blocks.get(accepting)
        if number is None:
            number = self._blocks[accepting] = len(self._blocks)
            self._add_block(set(accepting))
        self.accepting.append(number)
        self.uniform = not any(self.accepting)

    def _add_block(self, accepting: set[PodKind]) -> None:
        count = [slope.kind in accepting for slope in self._single]
        for place in range(len(count) + 1):
            pairs = list(zip(self._single, count, strict=True))
            self._by_worth.append(sum(slope.by_worth for slope, counts in pairs[:place] if counts))
            self._by_cpu.append(sum(slope.by_cpu for slope, counts in pairs[place:] if counts))
        for idle in range(MOST_IDLE + 1):
            for cpu in (0, *self._steps):
                value = 0
                for grains, kind in self._sets:
                    sets = idle // kind.gpus
                    if kind in accepting:
                        value += grains * (min(sets, cpu // kind.cpu_milli) if kind.cpu_milli else sets)
                self._whole.append(value)
        self._by_worth_column: Ints = np.array(self._by_worth, dtype=np.int64)
        self._by_cpu_column: Ints = np.array(self._by_cpu, dtype=np.int64)
        self._whole_column: Ints = np.array(self._whole, dtype=np.int64)

    def of(self, worth: int, idle: int, cpu_milli: int, block: int) -> int:
        """Return the value of a node.

        Args:
            worth: Sum of the worth of its GPUs.
            idle: How many of them are wholly free.
            cpu_milli: Free CPU.
            block: Number of the tables.
        """
        cpu = min(max(cpu_milli, 0), _MOST_CPU)
        place = block * (len(self._ratios) + 1) + bisect_right(self._ratios, cpu / worth if worth else cpu)
        value = worth * self._by_worth[place] + cpu * self._by_cpu[place]
        if self._sets:
            width = len(self._steps) + 1
            start = (block * (MOST_IDLE + 1) + min(idle, MOST_IDLE)) * width
            value += self._whole[start + bisect_right(self._steps, cpu)]
        return value

    def of_many(self, worth: Ints, idle: Ints, cpu_milli: Ints, blocks: Ints | int) -> Ints:
        """Return :meth:`of` for several nodes."""
        cpu = np.minimum(np.maximum(cpu_milli, 0), _MOST_CPU)
        places = blocks * (len(self._ratios) + 1) + self._ratio_column.searchsorted(cpu / np.maximum(worth, 1), "right")
        value: Ints = self._by_worth_column.take(places)
        value *= worth
        value += self._by_cpu_column.take(places) * cpu
        if self._sets:
            width = len(self._steps) + 1
            starts = (blocks * (MOST_IDLE + 1) + np.minimum(idle, MOST_IDLE)) * width
            value += self._whole_column.take(starts + self._step_column.searchsorted(cpu, "right"))
        return value
