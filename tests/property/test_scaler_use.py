"""Advice against a plain recomputation from every raw sample, however they were looked at and whoever died in between."""

import math
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from consumers.scaler.histogram import add, bucket, middle, percentile
from consumers.scaler.learn import LAG, Sample, advise, learnt, window
from consumers.scaler.recommend import recommend
from schemas.dialects.tf_defaults import GpuAmounts, GpuResources
from schemas.kube.autoscaling import AutoScaling, parse_autoscaling
from schemas.kube.workloads import AutoScalingConfig, AutoSetResources
from schemas.scaling import Histogram, WorkloadUse

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 1024**3
SETTINGS = parse_autoscaling(AutoScalingConfig(auto_set_resources=AutoSetResources(enable=True)))
STATED = GpuResources(
    requests=GpuAmounts(tflops_milli=50_000, vram_bytes=8 * GIB),
    limits=GpuAmounts(tflops_milli=100_000, vram_bytes=16 * GIB),
)

samples = st.lists(
    st.tuples(st.integers(0, 6 * 3600), st.integers(0, 400_000), st.integers(0, 80 * GIB)), min_size=1, max_size=80
).map(lambda found: [Sample(EPOCH + timedelta(seconds=s), milli, vram) for s, milli, vram in sorted(found)])
qos = st.sampled_from(["low", "medium", "high", "critical"])


def plain(amounts: list[tuple[datetime, int]], fraction: float, half_life_s: float) -> int:
    """The smallest amount that carries ``fraction`` of the weight, from the samples themselves."""
    newest = max(at for at, _ in amounts)
    weighed = sorted((amount, 2 ** -((newest - at).total_seconds() / half_life_s)) for at, amount in amounts)
    wanted, seen = fraction * math.fsum(weight for _, weight in weighed), 0.0
    for amount, weight in weighed:
        seen += weight
        if seen >= wanted * (1 - 1e-9):
            return amount
    return weighed[-1][0]


@given(st.integers(0, 2**50))
def test_a_bucket_stands_for_its_amounts(amount):
    assert abs(middle(bucket(amount)) - amount) <= 0.0051 * amount + 0.5


@given(samples, st.floats(0.01, 1), st.integers(60, 86_400))
def test_percentiles_are_those_of_the_samples(found, fraction, half_life_s):
    amounts = [(one.at, one.compute_milli) for one in found]
    wanted = plain(amounts, fraction, half_life_s)
    got = percentile(add(Histogram(), amounts, half_life_s=half_life_s), fraction)
    # A weight that ends exactly at the fraction may fall to either side of it: then the next sample is as right.
    near = [plain(amounts, min(max(fraction + nudge, 0), 1), half_life_s) for nudge in (-1e-4, 1e-4)]
    assert any(abs(got - one) <= max(0.01 * one, 1) for one in (wanted, *near))


@given(samples, st.lists(st.integers(0, 7 * 3600), max_size=12), st.data())
def test_neither_the_times_of_looks_nor_kills_change_what_is_learnt(found, looks, data):
    end = EPOCH + timedelta(hours=8)
    start = WorkloadUse(namespace="ns", workload="w", uid="u", until=EPOCH - timedelta(seconds=1))

    def look(use: WorkloadUse, now: datetime) -> WorkloadUse:
        while (stretch := window(use, now)) is not None:
            part = [one for one in found if stretch[0] < one.at <= stretch[1]]
            if (after := learnt(use, part, stretch[1], now, half_life_s=7200)) == use:
                return use
            use = after
        return use

    use = start
    for seconds in sorted(looks):
        after = look(use, EPOCH + timedelta(seconds=seconds))
        if not data.draw(st.booleans(), label="killed before it was written"):
            use = after
    often, once = look(use, end), look(start, end)
    assert (often.samples, often.since) == (len(found), found[0].at) == (once.samples, once.since)
    for fraction in (0.5, 0.95, 1):
        assert abs(percentile(often.vram, fraction) - percentile(once.vram, fraction)) <= 0.011 * max(
            percentile(once.vram, fraction), 100
        ) or _on_an_edge(found, fraction)
    assert often.until > end - LAG - timedelta(hours=2)


def _on_an_edge(found: list[Sample], fraction: float) -> bool:
    amounts = [(one.at, one.vram_bytes) for one in found]
    return len({plain(amounts, min(max(fraction + nudge, 0), 1), 7200) for nudge in (-1e-4, 0, 1e-4)}) > 1


@given(samples, qos)
def test_advice_keeps_its_bounds(found, service):
    use = WorkloadUse(namespace="ns", workload="w", uid="u", until=EPOCH - timedelta(seconds=1))
    end = found[-1].at + timedelta(hours=1)
    use = learnt(use, found, end, end, half_life_s=7200)
    advice = recommend(SETTINGS.auto, use, STATED, service)
    assert advice.source == "percentile"
    requests, limits = advice.resources.requests, advice.resources.limits
    assert 5_000 <= requests.tflops_milli <= 500_000
    assert requests.tflops_milli <= limits.tflops_milli
    assert limits.tflops_milli >= STATED.limits.tflops_milli
    assert GIB <= requests.vram_bytes <= limits.vram_bytes
    assert requests.vram_bytes >= use.held.vram_bytes
    assert advise(SETTINGS, use, STATED, service, end) == advice
    assert advise(AutoScaling(), use, STATED, service, end).source == ""
