"""What the free GPUs of a node are worth to a workload, given the prices of shares: tables for ``PackingValue``.

The worth of a GPU with r free is the most that shares which fit together in r cost; that of a node's GPUs is the sum U. But
pods need CPU too. A kind with the price u that asks c CPU can use min(U, C * u / c) of a node with C free, so the node's value
is the mean of that over the kinds of one GPU, each weighed by its pods times its price. With the kinds in order of CPU per
price this is U * A[j] + C * B[j], where the first j kinds find enough CPU. Kinds of several GPUs add a tenth of a GPU, weighed
alike, for each whole set of idle GPUs that they could use: they come seldom.

Only kinds that accept the node's model count, so the tables exist once per set of accepting kinds. The model of a node is that
of its first GPU: a node that mixes models is valued as if it had one.
"""

from bisect import bisect_right
from typing import Final

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

_SETS_WEIGHT: Final = 0.1
_MOST_CPU: Final = 1 << 40


def table_of_worth(prices: tuple[Price, ...]) -> list[int]:
    """Return the worth of a GPU by its free share, in millionths."""
    pieces = [(price.share_milli, price.micro) for price in prices if price.micro]
    worth = [0]
    for room in range(1, WHOLE):
        worth.append(max([worth[-1], *(worth[room - size] + micro for size, micro in pieces if size <= room)]))
    return [*worth, UNIT]


class Value:
    """Value of a node by the worth of its GPUs, its idle GPUs and its CPU, in millionths of a GPU.

    Attributes:
        worth: Worth of a GPU by its free share.
        accepting: Number of the tables by number of sort of the node's first GPU.
        uniform: All sorts have the same tables.
    """

    def __init__(self, workload: Workload, prices: tuple[Price, ...]) -> None:
        self.worth = table_of_worth(prices)
        self.worth_column: Ints = np.array(self.worth, dtype=np.int64)
        micro = {price.share_milli: price.micro for price in prices}
        priced = [
            (kind, micro.get(kind.share_milli, UNIT)) for kind in workload.kinds if kind.gpus and kind.share_milli
        ]
        priced = [(kind, price) for kind, price in priced if price]
        total = sum(kind.pods * kind.gpus * price for kind, price in priced) or 1
        # Kinds with their weights: those of one GPU in order of CPU per worth, and those of several.
        single = [(kind.cpu_milli / price, kind.pods * price / total, kind) for kind, price in priced if kind.gpus == 1]
        self._single = sorted(single, key=lambda entry: entry[:2])
        self._sets = [(_SETS_WEIGHT * kind.pods * price / total, kind) for kind, price in priced if kind.gpus > 1]
        self._ratios = [ratio for ratio, _, _ in self._single]
        amounts = {kind.cpu_milli * sets for _, kind in self._sets for sets in range(1, MOST_IDLE // kind.gpus + 1)}
        self._steps = sorted(amounts)
        self._ratio_column: Floats = np.array(self._ratios, dtype=np.float64)
        self._step_column: Ints = np.array(self._steps, dtype=np.int64)
        self._blocks: dict[tuple[PodKind, ...], int] = {}
        self._slopes: list[float] = []
        self._shares: list[float] = []
        self._whole: list[float] = []
        # The first tables are those of kinds which accept any model, the only ones where all do.
        self.accepting: list[int] = []
        self.learn("")
        self.uniform = True

    def learn(self, model: str) -> None:
        """Take in the next sort of GPU."""
        kinds = [kind for _, _, kind in self._single] + [kind for _, kind in self._sets]
        accepting = tuple(kind for kind in kinds if not kind.models or model in kind.models)
        number = self._blocks.get(accepting)
        if number is None:
            number = self._blocks[accepting] = len(self._blocks)
            self._add_block(set(accepting))
        self.accepting.append(number)
        self.uniform = not any(self.accepting)

    def _add_block(self, accepting: set[PodKind]) -> None:
        single = [(ratio, weight if kind in accepting else 0.0) for ratio, weight, kind in self._single]
        for place in range(len(single) + 1):
            self._slopes.append(sum(weight for _, weight in single[:place]))
            self._shares.append(sum(weight / ratio for ratio, weight in single[place:] if ratio))
        for idle in range(MOST_IDLE + 1):
            for cpu in (0, *self._steps):
                value = 0.0
                for weight, kind in self._sets:
                    sets = idle // kind.gpus
                    if kind in accepting:
                        value += weight * (min(sets, cpu // kind.cpu_milli) if kind.cpu_milli else sets)
                self._whole.append(value * UNIT)
        self._slope_column: Floats = np.array(self._slopes, dtype=np.float64)
        self._share_column: Floats = np.array(self._shares, dtype=np.float64)
        self._whole_column: Floats = np.array(self._whole, dtype=np.float64)

    def of(self, worth: int, idle: int, cpu_milli: int, block: int) -> float:
        """Return the value of a node.

        Args:
            worth: Sum of the worth of its GPUs.
            idle: How many of them are wholly free.
            cpu_milli: Free CPU.
            block: Number of the tables.
        """
        cpu = min(max(cpu_milli, 0), _MOST_CPU)
        place = block * (len(self._ratios) + 1) + bisect_right(self._ratios, cpu / worth if worth else cpu)
        value = worth * self._slopes[place] + cpu * self._shares[place]
        if self._sets:
            width = len(self._steps) + 1
            start = (block * (MOST_IDLE + 1) + min(idle, MOST_IDLE)) * width
            value += self._whole[start + bisect_right(self._steps, cpu)]
        return value

    def of_many(self, worth: Ints, idle: Ints, cpu_milli: Ints, blocks: Ints | int) -> Floats:
        """Return :meth:`of` for several nodes, bit for bit: the same operations in the same order."""
        cpu = np.minimum(np.maximum(cpu_milli, 0), _MOST_CPU)
        places = blocks * (len(self._ratios) + 1) + self._ratio_column.searchsorted(cpu / np.maximum(worth, 1), "right")
        value: Floats = self._slope_column.take(places)
        value *= worth
        value += self._share_column.take(places) * cpu
        if self._sets:
            width = len(self._steps) + 1
            starts = (blocks * (MOST_IDLE + 1) + np.minimum(idle, MOST_IDLE)) * width
            value += self._whole_column.take(starts + self._step_column.searchsorted(cpu, "right"))
        return value
