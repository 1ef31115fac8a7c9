"""What a share of a GPU is worth: the shadow prices of packing all shares of a workload into the fewest GPUs.

That is the cutting stock problem: GPUs are the stock, shares are the pieces, and a *pattern* says how many pieces of each
size are cut from one GPU. The dual price of a size is how many more GPUs one more such share would need. A share of 810, say,
has the price 1 where nothing that is left beside it is of use, and one of 160 the price 0 where there is room for it anyway.
The linear program is solved by column generation (Gilmore and Gomory, Operations Research, 1961), in plain Python: numpy's
products may round differently on another machine, Python's ``sum`` on another version, and two allocators must agree on a
policy: sums are taken by ``fsum``, which rounds once.

Prices jump between neighbouring workloads, and a workload is but a sample. So they are averaged over samples of 300 pods, few
enough to differ, drawn by a hash: the same ones always and everywhere. Then each is moved a little towards the share's size.
"""

from hashlib import shake_128
from math import fsum
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.workload import Workload
from schemas.pod import WHOLE

GRAIN: Final = 10
"""Sizes are rounded up to this many thousandths before they are packed."""

UNIT: Final = 1_000_000
"""Price of a whole GPU."""

REDRAWS: Final = 16

_STOCK: Final = WHOLE // GRAIN
_SIZE_PERCENT: Final = 15
_DRAWS: Final = 300
_EPSILON: Final = 1e-9
_TINY: Final = 1 / 64


class Price(msgspec.Struct, frozen=True):
    """What a share is worth, in millionths of a GPU."""

    share_milli: int
    micro: int


def shares_below_whole(workload: Workload) -> set[int]:
    """Return the shares that need a price: those of GPUs that are not taken whole."""
    return {kind.share_milli for kind in workload.valued.kinds if kind.gpus and 0 < kind.share_milli < WHOLE}


def shadow_prices(workload: Workload, *, redraws: int = REDRAWS, seed: int = 0) -> tuple[Price, ...]:
    """Return the prices of all shares below a whole GPU that a workload asks for, the smallest share first.

    Takes one or two milliseconds per redraw, so it is called when the workload changes and never within a decision.

    Args:
        workload: The pods that are expected. Of its kinds those count that are valued.
        redraws: Over how many samples of the workload the prices are averaged.
        seed: Which samples.
    """
    workload = workload.valued
    shares = sorted(shares_below_whole(workload))
    if not shares:
        return ()
    sizes = sorted({_grains(share) for share in shares})
    packer, totals = _Packer(sizes), [0.0] * len(sizes)
    for number in range(redraws):
        demand = dict.fromkeys(sizes, 0)
        for kind, pods in zip(workload.kinds, _redraw(workload, f"{seed}/{number}"), strict=True):
            size = _grains(kind.share_milli)
            if kind.gpus and size in demand and kind.share_milli < WHOLE:
                demand[size] += kind.gpus * pods
        totals = [total + price for total, price in zip(totals, packer.duals(list(demand.values())), strict=True)]
    mean = {size: UNIT * total / redraws for size, total in zip(sizes, totals, strict=True)}
    return tuple(Price(share, _tilted(mean[_grains(share)], share)) for share in shares)


def _grains(share: int) -> int:
    return -(-share // GRAIN)


def _tilted(micro: float, share: int) -> int:
    by_size = UNIT * share / WHOLE
    return round(((100 - _SIZE_PERCENT) * micro + _SIZE_PERCENT * by_size) / 100)


def _redraw(workload: Workload, seed: str) -> list[int]:
    """Return how many pods of each kind a sample with replacement has."""
    pods = [kind.pods for kind in workload.kinds]
    random: NDArray[np.uint64] = np.frombuffer(shake_128(seed.encode()).digest(8 * _DRAWS), dtype="<u8")
    picked = np.cumsum(pods).searchsorted((random % np.uint64(workload.pods)).astype(np.int64), side="right")
    counts: list[int] = np.bincount(picked, minlength=len(pods)).tolist()
    return counts


class _Packer:
    """The linear program for some sizes, for one demand after another. Patterns found once are tried first."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._patterns: list[list[int]] = []

    def duals(self, demand: list[int]) -> list[float]:
        """Return the dual price of each size, in GPUs."""
        count = len(self._sizes)
        # Start with GPUs that hold one size each. `inverse` is that of the basis, row i for the pattern i of it.
        fill = [_STOCK // size for size in self._sizes]
        inverse = [[1 / fill[i] if i == j else 0.0 for j in range(count)] for i in range(count)]
        # A trace of demand for every size keeps the program from stalling, and every price meaningful.
        amounts = [(wanted + _TINY) / fill[i] for i, wanted in enumerate(demand)]
        costs = [1.0] * count
        while True:
            prices = [fsum(costs[i] * inverse[i][j] for i in range(count) if costs[i]) for j in range(count)]
            column, cost = self._entering(prices)
            if column is None:
                return prices
            change = [fsum(a * b for a, b in zip(row, column, strict=True) if b) for row in inverse]
            leaving = min((i for i in range(count) if change[i] > _EPSILON), key=lambda i: (amounts[i] / change[i], i))
            pivot = inverse[leaving] = [part / change[leaving] for part in inverse[leaving]]
            step = amounts[leaving] = amounts[leaving] / change[leaving]
            costs[leaving] = cost
            for i, factor in enumerate(change):
                if i != leaving and factor:
                    inverse[i] = [part - factor * share for part, share in zip(inverse[i], pivot, strict=True)]
                    amounts[i] = max(0.0, amounts[i] - factor * step)

    def _entering(self, prices: list[float]) -> tuple[list[int] | None, float]:
        """Return a column that would pay, and what it costs; None when none would."""
        for index, price in enumerate(prices):
            if price < -_EPSILON:  # more of a size than is wanted: costs nothing
                return [-1 if i == index else 0 for i in range(len(prices))], 0.0
        best, worth = None, 1 + _EPSILON
        for pattern in self._patterns:
            value = fsum(pieces * price for pieces, price in zip(pattern, prices, strict=True) if pieces)
            if value > worth:
                best, worth = pattern, value
        if best is None:
            pattern, value = self._knapsack(prices)
            if value > worth:
                self._patterns.append(pattern)
                best = pattern
        return best, 1.0

    def _knapsack(self, prices: list[float]) -> tuple[list[int], float]:
        """Return the pattern of most worth, and its worth."""
        worth, last = [0.0] * (_STOCK + 1), [-1] * (_STOCK + 1)
        pieces = [
            (size, price, i) for i, (size, price) in enumerate(zip(self._sizes, prices, strict=True)) if price > 0
        ]
        for room in range(1, _STOCK + 1):
            best, chosen = worth[room - 1], -1
            for size, price, index in pieces:
                if size > room:
                    break
                value = worth[room - size] + price
                if value > best:
                    best, chosen = value, index
            worth[room], last[room] = best, chosen
        pattern, room = [0] * len(prices), _STOCK
        while room:
            if last[room] < 0:
                room -= 1
            else:
                pattern[last[room]] += 1
                room -= self._sizes[last[room]]
        return pattern, worth[_STOCK]
