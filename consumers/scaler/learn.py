"""One look at a workload: what was sampled since the last one is added, and advice follows. Pure.

The record says up to which instant samples are in it, and is replaced by compare-and-set: whoever dies in between, no sample
counts twice and none is left out.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from consumers.scaler.clock import active_rule
from consumers.scaler.histogram import add
from consumers.scaler.recommend import at_least, differs, recommend
from schemas.dialects.tf_defaults import GpuAmounts, GpuResources
from schemas.kube.autoscaling import AutoScaling
from schemas.pod import Qos
from schemas.scaling import Advice, AutoRequests, Unit, WorkloadUse

LAG: Final = timedelta(seconds=30)
"""How late a sample may reach the metrics store."""

WINDOW: Final = timedelta(minutes=10)
"""The longest stretch of samples that is read at once."""

GIVE_UP: Final = timedelta(hours=1)
"""How long a stretch without samples is waited for, in case nothing could be recorded: then there were none."""


FRESH: Final = 2 * WINDOW
"""How far behind now what is learnt may end: beyond it, nobody knows what is in use."""


_NOTHING: Final = GpuResources()


class Sample(NamedTuple):
    """One worker's use of one GPU at one instant; compute in the workload's unit."""

    at: datetime
    compute_milli: int
    vram_bytes: int


def window(use: WorkloadUse, now: datetime) -> tuple[datetime, datetime] | None:
    """Return the stretch of samples to read next, its beginning excluded; None when there is nothing new."""
    end = min(use.until + WINDOW, now - LAG)
    return (use.until, end) if end > use.until else None


def learnt(
    use: WorkloadUse, samples: Sequence[Sample], end: datetime, now: datetime, *, half_life_s: float
) -> WorkloadUse:
    """Return what is known with the samples up to ``end``."""
    if not samples:
        return msgspec.structs.replace(use, until=end) if end < now - GIVE_UP else use
    newest = max(sample.at for sample in samples) - timedelta(minutes=1)
    recent = [sample for sample in samples if sample.at >= newest]
    return msgspec.structs.replace(
        use,
        until=end,
        since=use.since or min(sample.at for sample in samples),
        samples=use.samples + len(samples),
        compute=add(use.compute, [(one.at, one.compute_milli) for one in samples], half_life_s=half_life_s),
        vram=add(use.vram, [(one.at, one.vram_bytes) for one in samples], half_life_s=half_life_s),
        held=_amounts(use.unit, max(one.compute_milli for one in recent), max(one.vram_bytes for one in recent)),
    )


def _amounts(unit: Unit, compute: int, vram: int) -> GpuAmounts:
    if unit == "tflops":
        return GpuAmounts(tflops_milli=compute, vram_bytes=vram)
    return GpuAmounts(compute_milli=min(compute, 1000), vram_bytes=vram)


def advise(scaling: AutoScaling, use: WorkloadUse, stated: GpuResources, qos: Qos, now: datetime) -> Advice:
    """Return what follows from what is known.

    A cron rule that is active decides alone. Of the external scaler and of what is measured the larger amounts count, so that
    neither takes away what the other asks for. What is measured replaces earlier advice only if it differs by more than the
    threshold (``updateThreshold``), and only once it has nearly reached now. As long as nobody knows what is in use, no advice
    that is carried out is below the VRAM that the workload states, or was advised before.
    """
    rule = active_rule(scaling.cron, now)
    measured = _measured(scaling.auto, use, stated, qos, now) if scaling.auto is not None else Advice()
    other = use.external if scaling.external is not None else None
    if rule is not None:
        found = Advice(source="cron", resources=rule.desired, rule=rule.name, reason=f"cron rule {rule.name} is active")
    elif other is None or not other.source:
        found = measured
    elif not measured.source:
        found = other
    else:
        found = Advice(
            source="external",
            resources=at_least(other.resources, measured.resources),
            reason=f"{other.reason}; {measured.reason}",
        )
    floor = _NOTHING
    if scaling.auto is not None and found.source != "percentile" and not is_fresh(use, now):
        floor = at_least(stated, use.advice.resources)
    return msgspec.structs.replace(found, resources=bounded(found.resources, use.held, floor))


def is_fresh(use: WorkloadUse, now: datetime) -> bool:
    """Return whether what workers use now is known."""
    return use.since is not None and now - use.until <= FRESH


def _measured(settings: AutoRequests, use: WorkloadUse, stated: GpuResources, qos: Qos, now: datetime) -> Advice:
    found = recommend(settings, use, stated, qos)
    if found.source and not is_fresh(use, now):
        if use.advice.source == "percentile":  # it was made of what was in use then, and stands
            return use.advice
        return Advice(reason=f"use is known up to {use.until:%Y-%m-%dT%H:%M:%SZ}, which is too long ago to advise by")
    in_force = use.advice.resources
    if found.source and use.advice.source and not differs(found.resources, in_force, settings.threshold):
        return msgspec.structs.replace(found, resources=in_force)
    return found


def bounded(advised: GpuResources, held: GpuAmounts, floor: GpuResources = _NOTHING) -> GpuResources:
    """Return advice that leaves workers the VRAM that they use, with no limit below its request, whoever it comes from.

    Args:
        advised: The advice; amounts of 0 are left as they are.
        held: The most that a worker uses.
        floor: VRAM that is not to be taken away, because it is not known what is in use.
    """
    requests, limits = advised.requests, advised.limits
    if requests.vram_bytes:
        vram = max(requests.vram_bytes, held.vram_bytes, floor.requests.vram_bytes)
        requests = msgspec.structs.replace(requests, vram_bytes=vram)
    fields = ("tflops_milli", "compute_milli", "vram_bytes")
    floors = {
        field: max(getattr(limits, field), getattr(requests, field)) for field in fields if getattr(limits, field)
    }
    if limits.vram_bytes:
        floors["vram_bytes"] = max(floors["vram_bytes"], held.vram_bytes, floor.limits.vram_bytes)
    return GpuResources(requests=requests, limits=msgspec.structs.replace(limits, **floors))
