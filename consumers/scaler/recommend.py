"""What a worker should ask for, from what workers of its workload use. Pure.

The rules are the contract's (tensorfusion.md §9): the request is the lower percentile, the target for QoS ``high`` and the
upper one for ``critical``; the limit is the upper one; a margin is added; both stay within multiples of what the workload
states, and the limit of compute never falls below the stated one. Beyond it: VRAM never falls below what is in use, and no
limit below its request.
"""

import math
from typing import Final

from consumers.scaler.histogram import percentile
from schemas.cluster import Amount
from schemas.dialects.tf_defaults import GpuAmounts, GpuResources
from schemas.pod import Qos
from schemas.scaling import Advice, AutoRequests, Histogram, Percentiles, Ratios, Unit, WorkloadUse

LEAST_MILLI: Final = {"tflops": 1000, "percent": 10}
"""Floor of compute: one TFLOPS, or one percent of a GPU."""

LEAST_BYTES: Final = 1024**3
STEP_MILLI: Final = 10
STEP_BYTES: Final = 1024**2
"""Advice is rounded up to whole steps, so that it reads well and does not move with every sample."""

WHOLE_MILLI: Final = 1000


def recommend(settings: AutoRequests, use: WorkloadUse, stated: GpuResources, qos: Qos) -> Advice:
    """Return what a workload that states ``stated`` is advised to ask for; nothing before it has been seen long enough.

    A resource that the workload does not state, or that is not to follow use, is left as it is: 0 in the advice.
    """
    if use.since is None:
        return Advice(reason="no use has been recorded yet")
    seen_s = (use.until - use.since).total_seconds()
    if seen_s < settings.delay_s:
        return Advice(reason=f"seen for {seen_s:.0f} s; advice begins after {settings.delay_s} s")
    compute = _compute(settings, use, stated, qos)
    vram = _vram(settings, use, stated, qos)
    advised = GpuResources(
        requests=_amounts(use.unit, compute[0], vram[0]), limits=_amounts(use.unit, compute[1], vram[1])
    )
    if advised == GpuResources():
        return Advice(reason="the workload states nothing that is to follow use")
    return Advice(source="percentile", resources=advised, reason=f"from {use.samples} samples of {seen_s:.0f} s")


def _compute(settings: AutoRequests, use: WorkloadUse, stated: GpuResources, qos: Qos) -> tuple[int, int]:
    request, limit = compute_of(stated.requests, use.unit), compute_of(stated.limits, use.unit)
    if settings.compute is None or not request:
        return 0, 0
    wanted, upper = _percentiles(settings.compute, use.compute, qos, settings.margin)
    least = LEAST_MILLI[use.unit]
    asked = _bounded(wanted, request, settings.compute_ratios, least, STEP_MILLI)
    most = _bounded(upper, limit or request, settings.compute_ratios, least, STEP_MILLI)
    most = max(most, limit, asked)
    return (min(asked, WHOLE_MILLI), min(most, WHOLE_MILLI)) if use.unit == "percent" else (asked, most)


def _vram(settings: AutoRequests, use: WorkloadUse, stated: GpuResources, qos: Qos) -> tuple[int, int]:
    request, limit = stated.requests.vram_bytes, stated.limits.vram_bytes
    if settings.vram is None or not request:
        return 0, 0
    wanted, upper = _percentiles(settings.vram, use.vram, qos, settings.margin)
    asked = max(
        _bounded(wanted, request, settings.vram_ratios, LEAST_BYTES, STEP_BYTES),
        _up(use.held.vram_bytes, STEP_BYTES),
    )
    return asked, max(_bounded(upper, limit or request, settings.vram_ratios, LEAST_BYTES, STEP_BYTES), asked)


def _percentiles(wanted: Percentiles, used: Histogram, qos: Qos, margin: float) -> tuple[float, float]:
    """Return what to ask for and what to allow at most."""
    fraction = {"high": wanted.target, "critical": wanted.upper}.get(qos, wanted.lower)
    return percentile(used, fraction) * (1 + margin), percentile(used, wanted.upper) * (1 + margin)


def _bounded(amount: float, stated: int, ratios: Ratios, least: int, step: int) -> int:
    bounded = min(max(amount, stated * ratios.least), stated * ratios.most)
    return max(_up(bounded, step), least)


def _up(amount: float, step: int) -> int:
    return math.ceil(round(amount / step, 6)) * step


def compute_of(amounts: GpuAmounts, unit: Unit) -> Amount:
    """Return the compute that is stated in a unit."""
    return amounts.tflops_milli if unit == "tflops" else amounts.compute_milli


def _amounts(unit: Unit, compute: int, vram: int) -> GpuAmounts:
    return GpuAmounts(
        tflops_milli=compute if unit == "tflops" else 0,
        compute_milli=compute if unit == "percent" else 0,
        vram_bytes=vram,
    )


def differs(advised: GpuResources, now: GpuResources, threshold: float) -> bool:
    """Return whether advice differs from what is in force by more than a fraction of it, in any amount it names."""
    pairs = [
        (getattr(wanted, field), getattr(present, field))
        for wanted, present in ((advised.requests, now.requests), (advised.limits, now.limits))
        for field in ("tflops_milli", "compute_milli", "vram_bytes")
    ]
    return any(wanted and abs(wanted - present) > threshold * present for wanted, present in pairs)


def at_least(first: GpuResources, second: GpuResources) -> GpuResources:
    """Return the larger of two recommendations, amount by amount."""

    def larger(one: GpuAmounts, other: GpuAmounts) -> GpuAmounts:
        fields = ("tflops_milli", "compute_milli", "vram_bytes")
        return GpuAmounts(**{field: max(getattr(one, field), getattr(other, field)) for field in fields})

    return GpuResources(requests=larger(first.requests, second.requests), limits=larger(first.limits, second.limits))
