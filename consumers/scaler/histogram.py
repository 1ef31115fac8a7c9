"""Decaying histograms: percentiles of everything that was ever sampled, in a few kilobytes. Pure.

Buckets grow by one percent, and a bucket stands for its geometric middle, so a percentile is off by half a percent at most. A
sample's weight halves with every ``half_life_s`` of age, as in Kubernetes' vertical autoscaler.
"""

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from schemas.scaling import Histogram

GROWTH: Final = 1.01
_LOG: Final = math.log(GROWTH)
_NOTHING: Final = 1e-6
"""Buckets with less than this part of the whole weight are dropped: they move no percentile."""


def bucket(amount: int) -> int:
    """Return the bucket of an amount: 0 for nothing, else the ``n`` of ``GROWTH ** (n - 1) <= amount < GROWTH ** n``."""
    return 1 + math.floor(math.log(amount) / _LOG) if amount > 0 else 0


def middle(number: int) -> int:
    """Return the amount that a bucket stands for."""
    return round(GROWTH ** (number - 0.5)) if number > 0 else 0


def add(before: Histogram, samples: Iterable[tuple[datetime, int]], *, half_life_s: float) -> Histogram:
    """Return the histogram with more samples, in any order: instants, and amounts of at least 0."""
    samples = list(samples)
    if not samples:
        return before
    newest = max(at for at, _ in samples)
    at = newest if before.at is None else max(newest, before.at)
    faded = _weight(before.at, at, half_life_s) if before.at is not None else 0.0
    weights = {number: weight * faded for number, weight in before.weights.items()}
    for sampled, amount in samples:
        number = bucket(amount)
        weights[number] = weights.get(number, 0.0) + _weight(sampled, at, half_life_s)
    least = sum(weights.values()) * _NOTHING
    return Histogram({number: weights[number] for number in sorted(weights) if weights[number] >= least}, at)


def _weight(sampled: datetime, at: datetime, half_life_s: float) -> float:
    return float(2.0 ** -((at - sampled).total_seconds() / half_life_s))


def percentile(histogram: Histogram, fraction: float) -> int:
    """Return the smallest amount that at least ``fraction`` of the weight does not exceed; 0 for an empty histogram."""
    wanted = fraction * math.fsum(histogram.weights.values()) * (1 - 1e-12)
    seen = 0.0
    for number, weight in sorted(histogram.weights.items()):
        seen += weight
        if seen >= wanted:
            return middle(number)
    return 0
