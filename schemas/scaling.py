"""Requests that follow use: what may change a workload's requests, and what is known and advised of it."""

from typing import Annotated, Literal

import msgspec

from schemas.dialects.tf_defaults import GpuAmounts, GpuResources
from schemas.event import Timestamp
from schemas.ledger import Allocation
from schemas.units import Amount

Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Unit = Literal["tflops", "percent"]
"""What a workload states compute in: thousandths of a TFLOPS, or thousandths of a whole GPU."""

Source = Literal["", "cron", "external", "percentile"]


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the time a request is to be enough for, per quality of service; see ``consumers.scaler.recommend``."""

    lower: Fraction
    target: Fraction
    upper: Fraction


class Ratios(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of advice, as multiples of what the workload states."""

    least: float
    most: float


class AutoRequests(msgspec.Struct, frozen=True, kw_only=True):
    """``autoSetResources``, understood.

    Attributes:
        apply: Whether advice is carried out, and not only shown.
        compute: Percentiles of compute; None leaves compute as it is.
        vram: Percentiles of VRAM; None leaves VRAM as it is.
        margin: What is added to every percentile, as a fraction of it.
        threshold: Advice that differs by no more than this fraction changes nothing.
        history_s: Age at which a sample counts for half of a new one.
        delay_s: How long a workload must have been seen before anything is advised.
        interval_s: How often it is looked at.
    """

    apply: bool
    compute: Percentiles | None
    vram: Percentiles | None
    margin: float
    threshold: float
    history_s: Annotated[int, msgspec.Meta(ge=1)]
    compute_ratios: Ratios
    vram_ratios: Ratios
    delay_s: Amount
    interval_s: Annotated[int, msgspec.Meta(ge=1)]


class CronRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests by the clock: from every match of ``start`` to the next match of ``end``, both cron expressions."""

    name: str
    start: str
    end: str
    desired: GpuResources


class Histogram(msgspec.Struct, frozen=True, omit_defaults=True):
    """Weights of samples by bucket; see :mod:`consumers.scaler.histogram`.

    Attributes:
        at: The instant at which a new sample weighs 1; None while there is none.
    """

    weights: dict[int, float] = {}
    at: Timestamp | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a workload's workers are advised to ask for, per GPU.

    Attributes:
        source: Who advises; empty for nobody, and then ``reason`` says why.
        resources: The advice; amounts of 0 are left as they are.
        rule: Name of the cron rule that is active.
        reason: One sentence for people.
    """

    source: Source = ""
    resources: GpuResources = GpuResources()
    rule: str = ""
    reason: str = ""


class WorkloadUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is remembered of a workload's use, and what follows from it.

    Attributes:
        until: Samples up to this instant are in the histograms.
        since: The first of them; None while there is none.
        samples: How many there were.
        unit: What compute is counted in.
        held: The most that one worker used in the newest samples; no advice goes below its VRAM.
        external_at: When the external scaler was asked for the last time.
        external: What it answered.
        applied: Workers that hold what is advised, where advice is carried out.
        problem: Why a worker does not.
    """

    namespace: str
    workload: str
    uid: str
    until: Timestamp
    since: Timestamp | None = None
    samples: Amount = 0
    unit: Unit = "tflops"
    compute: Histogram = Histogram()
    vram: Histogram = Histogram()
    held: GpuAmounts = GpuAmounts()
    external_at: Timestamp | None = None
    external: Advice | None = None
    advice: Advice = Advice()
    applied: Amount = 0
    problem: str = ""


class Resized(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to who wants a pod that stands to hold other amounts: what it holds, or why it does not hold that."""

    allocation: Allocation | None = None
    error: str = ""
