"""How far a pool might have been oversold: what its pods asked for against what they used. Pure.

One point is one GPU in one minute: what its pods used, over what they asked for. Had the GPU been sold ``ratio`` times, to pods
that use as much of what they ask for, it would have been asked for ``ratio`` times that part of its capacity. So the ratio that a
minute would have borne is one over its part, and the advice is what all but ``risk`` of the minutes would have borne.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from consumers.scaler.histogram import GROWTH
from schemas.units import Amount

MOST_PERCENT: Final = 100_000
"""The largest ratio that a pool can state."""

LEAST_POINTS: Final = 1000
"""Points below which there is no advice: a quantile of fewer says little."""

PARTS: Final = 1_000_000
"""Points are counted in millionths."""


Worker = tuple[str, str]
"""Namespace and name of a pod."""


class Oversell(msgspec.Struct, frozen=True, kw_only=True):
    """What a history would have borne.

    Attributes:
        points: Minutes of GPUs with pods.
        tflops_ratio: ``tflopsOversellRatio``, in percent; 100 sells what there is.
        vram_ratio: The same for VRAM. Memory that is not there ends a pod, so take it for what hosts must hold.
        used_percent: What the busiest of the minutes that count used of what was asked for, for compute.
    """

    points: Amount
    tflops_ratio: int
    vram_ratio: int
    used_percent: float


class Counts:
    """Points of one resource by bucket, so that a week of many GPUs needs no memory to speak of."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.points = 0

    def add(self, used: float, asked: float) -> None:
        """Add a point; one where nothing was asked for says nothing."""
        if asked <= 0:
            return
        part = used / asked
        number = math.ceil(math.log(part * PARTS) / math.log(GROWTH)) if part * PARTS > 1 else 0
        self._counts[number] = self._counts.get(number, 0) + 1
        self.points += 1

    def part(self, risk: float) -> float:
        """Return the part that all but ``risk`` of the points do not exceed, rounded up by at most one percent."""
        left = self.points - math.floor(self.points * risk)
        for number, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return GROWTH**number / PARTS
        return 0.0


def advise(compute: Counts, vram: Counts, risk: float) -> Oversell | None:
    """Return what the points would have borne at a risk from 0 to 1; None where there are too few."""
    if compute.points < LEAST_POINTS or vram.points < LEAST_POINTS:
        return None
    return Oversell(
        points=compute.points,
        tflops_ratio=_ratio(compute.part(risk)),
        vram_ratio=_ratio(vram.part(risk)),
        used_percent=round(100 * compute.part(risk), 1),
    )


def _ratio(part: float) -> int:
    """Return one over a part in percent, rounded down; who asked for less than they used are sold what there is."""
    return max(min(math.floor(100 / part) if part else MOST_PERCENT, MOST_PERCENT), 100)


class Used(NamedTuple):
    """What a worker used of one GPU in one minute: TFLOPS on average, and the most bytes of VRAM."""

    gpu: str
    minute: str
    worker: Worker
    tflops: float
    vram: float


def count(used: Iterable[Used], asked: Mapping[Worker, tuple[float, float]], compute: Counts, vram: Counts) -> None:
    """Add what workers used; ``asked`` has the TFLOPS and bytes of VRAM that each asks for per GPU."""
    sums: dict[tuple[str, str], list[float]] = {}
    for one in used:
        stated = asked.get(one.worker)
        if stated is None:
            continue
        total = sums.setdefault((one.gpu, one.minute), [0.0, 0.0, 0.0, 0.0])
        for place, value in enumerate((one.tflops, stated[0], one.vram, stated[1])):
            total[place] += value
    for used_tflops, asked_tflops, used_vram, asked_vram in sums.values():
        compute.add(used_tflops, asked_tflops)
        vram.add(used_vram, asked_vram)
