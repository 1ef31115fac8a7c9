"""Requests that follow use: the contract's rules, one by one, and every way to write them wrong."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import subjects
from bus.codec import encode
from bus.follower import Record
from consumers.scaler.applied import applied, written
from consumers.scaler.clock import active_rule
from consumers.scaler.histogram import add
from consumers.scaler.learn import FRESH, GIVE_UP, LAG, WINDOW, advise, is_fresh, learnt, window
from consumers.scaler.recommend import at_least, differs, recommend
from consumers.scaler.workloads import Workloads
from schemas.dialects import ContainerView, HamiConfig, PodSpecView, TensorFusionDefaults, parse_pod
from schemas.dialects.text import RequestError
from schemas.dialects.tf_defaults import GpuAmounts, GpuResources
from schemas.event import Event
from schemas.kube.autoscaling import parse_autoscaling
from schemas.kube.resources import CustomResource
from schemas.kube.workloads import AutoScalingConfig
from schemas.pod import GpuRequest
from schemas.registry import TYPE_NAMES
from schemas.scaling import Advice, CronRequests, Histogram, WorkloadUse

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
GIB = 1024**3
STATED = GpuResources(
    requests=GpuAmounts(tflops_milli=50_000, vram_bytes=8 * GIB),
    limits=GpuAmounts(tflops_milli=60_000, vram_bytes=10 * GIB),
)


def scaling(**config):
    return parse_autoscaling(msgspec.convert(config, AutoScalingConfig))


AUTO = scaling(autoSetResources={"enable": True, "marginFraction": "0"}).auto


def use(tflops=(), vram_gib=(), hours: float = 1, **more) -> WorkloadUse:
    def histogram(amounts, unit):
        return add(Histogram(), [(NOW, int(amount * unit)) for amount in amounts], half_life_s=7200)

    return WorkloadUse(
        namespace="ns", workload="w", uid="u", until=NOW, since=NOW - timedelta(hours=hours), samples=len(tflops),
        compute=histogram(tflops, 1000), vram=histogram(vram_gib, GIB), **more,
    )  # fmt: skip


SPREAD = use(tflops=range(1, 101), vram_gib=[2, 4, 6, 8])


def near(amount: float, wanted: float) -> bool:
    return abs(amount - wanted) <= 0.01 * wanted


@pytest.mark.parametrize(
    ("service", "request_tflops", "request_gib"),
    [("low", 50, 4), ("medium", 50, 4), ("high", 95, 8), ("critical", 99, 8)],
)
def test_the_request_is_what_the_quality_of_service_asks_for_and_the_limit_the_upper_bound(
    service, request_tflops, request_gib
):
    resources = recommend(AUTO, SPREAD, STATED, service).resources
    assert near(resources.requests.tflops_milli, request_tflops * 1000)
    assert near(resources.limits.tflops_milli, 99_000)
    assert near(resources.requests.vram_bytes, request_gib * GIB)
    assert near(resources.limits.vram_bytes, 8 * GIB)


def test_advice_stays_within_multiples_of_what_is_stated_and_over_the_floors():
    much = recommend(AUTO, use(tflops=[9000], vram_gib=[80]), STATED, "high").resources
    assert (much.requests.tflops_milli, much.limits.tflops_milli) == (500_000, 600_000)
    assert (much.requests.vram_bytes, much.limits.vram_bytes) == (40 * GIB, 50 * GIB)
    little = recommend(AUTO, use(tflops=[0], vram_gib=[0]), STATED, "high").resources
    assert (little.requests.tflops_milli, little.limits.tflops_milli) == (5_000, 60_000)
    assert (little.requests.vram_bytes, little.limits.vram_bytes) == (
        1639 * 1024**2,
        2 * GIB,
    )


def test_vram_in_use_is_never_given_away():
    held = GpuAmounts(vram_bytes=7 * GIB)
    resources = recommend(AUTO, use(tflops=[1], vram_gib=[2], held=held), STATED, "low").resources
    assert resources.requests.vram_bytes == 7 * GIB == resources.limits.vram_bytes


def test_what_is_not_stated_or_not_to_follow_is_left_alone():
    vram_only = scaling(autoSetResources={"targetResource": "vram"}).auto
    assert not vram_only.apply
    resources = recommend(vram_only, SPREAD, STATED, "high").resources
    assert resources.requests.tflops_milli == 0 < resources.requests.vram_bytes
    assert recommend(AUTO, SPREAD, GpuResources(), "high") == Advice(
        reason="the workload states nothing that is to follow use"
    )


def test_percent_of_a_gpu_is_advised_in_percent():
    stated = GpuResources(requests=GpuAmounts(compute_milli=300), limits=GpuAmounts(compute_milli=500))
    known = use(tflops=[0.9], unit="percent")
    resources = recommend(AUTO, known, stated, "high").resources
    assert near(resources.requests.compute_milli, 900)
    assert resources.limits.compute_milli <= 1000


def test_nothing_is_advised_before_a_workload_has_been_seen_long_enough():
    assert recommend(AUTO, use(tflops=[1], hours=0.4), STATED, "high").reason == (
        "seen for 1440 s; advice begins after 1800 s"
    )
    nothing = WorkloadUse(namespace="ns", workload="w", uid="u", until=NOW)
    assert recommend(AUTO, nothing, STATED, "high").reason == "no use has been recorded yet"


def test_small_differences_change_nothing():
    near_it = GpuResources(requests=GpuAmounts(tflops_milli=54_000, vram_bytes=8 * GIB))
    assert not differs(near_it, STATED, 0.1)
    assert differs(near_it, STATED, 0.05)
    assert not differs(GpuResources(), STATED, 0.1)


def test_advice_in_force_stands_until_what_is_measured_differs_by_more_than_the_threshold():
    auto = scaling(autoSetResources={"enable": True, "marginFraction": "0"})
    first = advise(auto, SPREAD, STATED, "high", NOW)
    for factor, stands in ((1.05, True), (1.5, False)):
        moved = msgspec.structs.replace(
            use(tflops=[factor * n for n in range(1, 101)], vram_gib=[2, 4, 6, 8]), advice=first
        )
        assert (advise(auto, moved, STATED, "high", NOW).resources == first.resources) == stands


def test_a_stretch_without_samples_is_waited_for_and_then_passed():
    known = WorkloadUse(namespace="ns", workload="w", uid="u", until=NOW)
    assert window(known, NOW + LAG) is None
    assert window(known, NOW + timedelta(days=1)) == (NOW, NOW + WINDOW)
    assert learnt(known, [], NOW + WINDOW, NOW + WINDOW, half_life_s=1) == known
    late = NOW + WINDOW + GIVE_UP + timedelta(seconds=1)
    assert learnt(known, [], NOW + WINDOW, late, half_life_s=1).until == NOW + WINDOW


# --- by the clock ---

OFFICE = CronRequests(
    name="office", start="CRON_TZ=Europe/Berlin 0 9 * * MON-FRI", end="CRON_TZ=Europe/Berlin 0 17 * * MON-FRI",
    desired=GpuResources(requests=GpuAmounts(tflops_milli=99_000)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("at", "active"),
    [
        ("2026-03-02T07:59:59+00:00", False),
        ("2026-03-02T08:00:00+00:00", True),
        ("2026-03-02T15:59:59+00:00", True),
        ("2026-03-02T16:00:00+00:00", False),
        ("2026-03-07T12:00:00+00:00", False),  # Saturday
        ("2026-03-30T07:00:00+00:00", True),  # the clocks went forward the day before
    ],
)
def test_a_cron_rule_is_active_from_its_start_to_its_end(at, active):
    assert (active_rule([OFFICE], datetime.fromisoformat(at)) is not None) == active


@pytest.mark.parametrize(
    ("at", "active"),
    [
        ("2026-10-25T00:29:00+00:00", False),
        ("2026-10-25T00:30:00+00:00", True),  # half past two, summer time
        ("2026-10-25T01:05:00+00:00", True),  # five past two for the second time
        ("2026-10-25T01:30:00+00:00", True),
        ("2026-10-25T08:00:00+00:00", False),
    ],
)
def test_a_cron_rule_that_starts_in_an_hour_that_comes_twice_stays_active(at, active):
    night = msgspec.structs.replace(
        OFFICE, start="CRON_TZ=Europe/Berlin 30 2 * * *", end="CRON_TZ=Europe/Berlin 0 9 * * *"
    )
    assert (active_rule([night], datetime.fromisoformat(at)) is not None) == active


def test_a_cron_rule_decides_alone_and_the_larger_of_two_opinions_counts():
    both = scaling(
        autoSetResources={"enable": True, "marginFraction": "0"}, externalScaler={"enable": True, "url": "http://a/b"}
    )
    other = Advice(source="external", resources=GpuResources(requests=GpuAmounts(tflops_milli=400_000)), reason="busy")
    known = msgspec.structs.replace(SPREAD, external=other)
    advice = advise(both, known, STATED, "high", NOW)
    assert advice.source == "external"
    assert advice.resources.requests.tflops_milli == 400_000
    assert near(advice.resources.requests.vram_bytes, 8 * GIB)
    timed = msgspec.structs.replace(both, cron=(OFFICE,))
    assert advise(timed, known, STATED, "high", NOW) == Advice(
        source="cron", resources=OFFICE.desired, rule="office", reason="cron rule office is active"
    )
    assert at_least(other.resources, other.resources) == other.resources


# --- what cannot be followed ---


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"autoSetResources": {"targetVramPercentile": "1.5"}}, None),
        ({"autoSetResources": {"targetVRAMPercentile": "1.5"}}, "targetVRAMPercentile: '1.5' is more than 1"),
        (
            {"autoSetResources": {"targetComputePercentile": "0.4"}},
            "targetComputePercentile: '0.4' is not between the lower bound 0.5 and the upper bound 0.99: order",
        ),
        (
            {"autoSetResources": {"minVRAMResourcesRatio": "6"}},
            "minVRAMResourcesRatio: '6' is above maxVRAMResourcesRatio, 5: swap the two",
        ),
        ({"autoSetResources": {"interval": "1s"}}, "interval: '1s' is not from 15s to 720h"),
        ({"autoSetResources": {"historyDataPeriod": "1s"}}, "historyDataPeriod: '1s' is not from 60s to 720h"),
        (
            {"cronScalingRules": [{"name": "a", "enable": True, "start": "0 9 * *", "end": "0 9 * * *"}]},
            "cronScalingRules[0].start: '0 9 * *' is no cron expression of five fields",
        ),
        (
            {"cronScalingRules": [{"name": "a", "enable": True, "start": "0 9 * * *", "end": "TZ=Mars/Base 0 9 * * *"}]},
            "cronScalingRules[0].end: 'TZ=Mars/Base 0 9 * * *'",
        ),
        (
            {"cronScalingRules": [{"name": "a", "enable": True, "start": "0 9 * * *", "end": "00  9 * * *"}]},
            "cronScalingRules[0].end: '00  9 * * *' is when the rule starts, so it would never be active",
        ),
        (
            {"cronScalingRules": [{"name": "a", "enable": True, "start": "TZ=localtime 0 9 * * *", "end": "0 9 * * *"}]},
            "cronScalingRules[0].start: 'TZ=localtime 0 9 * * *' names an unknown time zone",
        ),
        ({"autoSetResources": {"interval": "5000000000s"}}, "is not from 15s to 720h"),
        ({"externalScaler": {"enable": True, "url": "http://[x"}}, "externalScaler.url: 'http://[x' is no HTTP URL"),
        ({"externalScaler": {"enable": True, "url": "ftp://x"}}, "externalScaler.url: 'ftp://x' is no HTTP URL"),
        (
            {"cronScalingRules": [{"name": "a", "enable": True, "start": "0 9 * * *", "end": "0  9 * * *"}]},
            "cronScalingRules[0].end: '0  9 * * *' is when the rule starts",
        ),
        (
            {"cronScalingRules": [{"name": "a", "enable": True, "start": "0 9 * * *", "end": "0 17 * * *",
                                   "desiredResources": {"requests": {"vram": "lots"}}}]},
            "desiredResources requests.vram: 'lots' is not a size",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_with_field_value_and_fix(config, words):
    if words is None:
        assert scaling(**config).auto.vram.target == 0.98  # an unknown key: the API server prunes it
        return
    with pytest.raises(RequestError) as refused:
        scaling(**config)
    assert words in str(refused.value)


def test_what_is_switched_off_is_not_read():
    off = scaling(cronScalingRules=[{"name": "a", "start": "nonsense"}], externalScaler={"url": "nonsense"})
    assert off == scaling()
    assert off.interval_s == 0


def test_a_workload_that_says_nothing_follows_the_first_rule_of_its_pool_that_matches_it():
    workloads = Workloads(lambda: None)

    def put(plural: str, name: str, spec: dict, namespace: str = "", **labels: str) -> None:
        resource = CustomResource(
            plural=plural, namespace=namespace, name=name, uid=name, labels=labels, annotations={}, spec=spec
        )
        event = Event(id=name, source="/t", type=TYPE_NAMES[CustomResource], subject=name, time=NOW, data=resource)
        where = subjects.state("config", plural, namespace, name)
        workloads.on_state(Record(subject=where, seq=1, payload=encode(event)))

    def rule(name: str, threshold: str, **labels: str) -> dict:
        auto = {"autoSetResources": {"enable": True, "updateThreshold": threshold}}
        return {"name": name, "selector": {"matchLabels": labels}, "autoScaling": auto}

    rules = [rule("web", "0.2", tier="web"), rule("rest", "0.3")]
    put("schedulingconfigtemplates", "t", {"verticalScalingRules": rules})
    put("gpupools", "p", {"nodeManagerConfig": {}, "schedulingConfigTemplate": "t"})
    own = {"poolName": "p", "autoScalingConfig": {"autoSetResources": {"enable": False, "updateThreshold": "0.4"}}}
    put("tensorfusionworkloads", "a", {"poolName": "p"}, "ns", tier="web")
    put("tensorfusionworkloads", "b", {"poolName": "p"}, "ns", tier="batch")
    put("tensorfusionworkloads", "c", own, "ns", tier="web")
    put("tensorfusionworkloads", "d", {"poolName": "other"}, "ns", tier="web")
    found = {name: workloads.asked(("ns", name)).scaling.auto for name in "abcd"}
    assert {name: auto and (auto.threshold, auto.apply) for name, auto in found.items()} == {
        "a": (0.2, True), "b": (0.3, True), "c": (0.4, False), "d": None,
    }  # fmt: skip


@given(
    st.builds(GpuAmounts, tflops_milli=st.integers(0, 500_000), vram_bytes=st.integers(0, 80 * GIB)),
    st.builds(GpuAmounts, tflops_milli=st.integers(0, 500_000), vram_bytes=st.integers(0, 80 * GIB)),
    st.integers(1, 300_000), st.integers(0, 300_000),
)  # fmt: skip
def test_a_worker_asks_for_what_is_advised_and_no_limit_is_below_its_request(asks, most, tflops, limit):
    request = GpuRequest(pool="p", tflops_milli=tflops, vram_bytes=GIB, tflops_limit_milli=limit and tflops + limit)
    found = applied(request, GpuResources(requests=asks, limits=most))
    assert found.tflops_milli == (asks.tflops_milli or tflops)
    assert found.vram_bytes == (asks.vram_bytes or GIB)
    assert not 0 < found.tflops_limit_milli < found.tflops_milli
    assert not 0 < found.vram_limit_bytes < found.vram_bytes
    assert applied(found, GpuResources()) == found
    says = {key: text for key, text in written(found, "percentile").items() if text is not None}
    pod = PodSpecView(namespace="ns", name="w", labels={"tensor-fusion.ai/enabled": "true"}, annotations=says,
                      containers=(ContainerView(name="main"),))  # fmt: skip
    again = parse_pod(pod, tensorfusion_defaults=TensorFusionDefaults(pool="p"), hami_config=HamiConfig(pool="p"))
    fields = ("tflops_milli", "vram_bytes", "tflops_limit_milli", "vram_limit_bytes")
    assert [getattr(again, field) for field in fields] == [getattr(found, field) for field in fields]


# --- as long as nobody knows what is in use ---

NIGHT = CronRequests(
    name="night", start="0 0 * * *", end="59 23 * * *",
    desired=GpuResources(requests=GpuAmounts(vram_bytes=GIB), limits=GpuAmounts(vram_bytes=GIB)),
)  # fmt: skip


def test_advice_from_use_begins_when_what_is_learnt_has_nearly_reached_now():
    auto = scaling(autoSetResources={"enable": True, "marginFraction": "0"})
    now = NOW + FRESH
    assert advise(auto, SPREAD, STATED, "high", now).source == "percentile"
    late = now + timedelta(seconds=1)
    assert not is_fresh(SPREAD, late)
    assert advise(auto, SPREAD, STATED, "high", late) == Advice(
        reason="use is known up to 2026-03-02T12:00:00Z, which is too long ago to advise by"
    )
    # What was advised when use was known stands, also after a scaler has been down for hours.
    first = advise(auto, SPREAD, STATED, "high", NOW)
    much = use(tflops=range(1, 10), vram_gib=[30], advice=first)
    assert advise(auto, much, STATED, "high", NOW + timedelta(hours=9)) == first
    assert (
        advise(auto, much, STATED, "high", NOW).resources.requests.vram_bytes > 2 * first.resources.requests.vram_bytes
    )


def test_whoever_advises_takes_no_vram_away_while_it_is_not_known_what_is_in_use():
    both = msgspec.structs.replace(scaling(autoSetResources={"enable": True}), cron=(NIGHT,))
    unknown = WorkloadUse(namespace="ns", workload="w", uid="u", until=NOW)
    for known, now in ((unknown, NOW), (SPREAD, NOW + timedelta(hours=3))):
        advice = advise(both, known, STATED, "medium", now)
        assert (advice.rule, advice.resources.requests.vram_bytes) == ("night", 8 * GIB)
        assert advice.resources.limits.vram_bytes == 10 * GIB
    more = Advice(source="cron", resources=GpuResources(requests=GpuAmounts(vram_bytes=12 * GIB)))
    known = msgspec.structs.replace(unknown, advice=more)
    assert advise(both, known, STATED, "medium", NOW).resources.requests.vram_bytes == 12 * GIB
    assert advise(both, SPREAD, STATED, "medium", NOW).resources.requests.vram_bytes == GIB


def test_a_worker_keeps_its_vram_where_nothing_may_be_taken_away():
    request = GpuRequest(pool="p", tflops_milli=50_000, vram_bytes=8 * GIB, vram_limit_bytes=10 * GIB)
    kept = applied(request, NIGHT.desired, shrinks=False)
    assert (kept.vram_bytes, kept.vram_limit_bytes) == (8 * GIB, 10 * GIB)
    unlimited = applied(msgspec.structs.replace(request, vram_limit_bytes=0), NIGHT.desired, shrinks=False)
    assert unlimited.vram_limit_bytes == 0
    share = applied(msgspec.structs.replace(request, vram_bytes=0, vram_milli=500), NIGHT.desired, shrinks=False)
    assert (share.vram_bytes, share.vram_milli) == (0, 500)
    grown = GpuResources(requests=GpuAmounts(vram_bytes=16 * GIB), limits=GpuAmounts(vram_bytes=20 * GIB))
    found = applied(request, grown, shrinks=False)
    assert (found.vram_bytes, found.vram_limit_bytes) == (16 * GIB, 20 * GIB)
    assert applied(request, NIGHT.desired).vram_bytes == GIB


# --- units ---

TFLOPS = GpuRequest(pool="p", tflops_milli=50_000, tflops_limit_milli=60_000, vram_bytes=GIB)
SHARE = GpuRequest(pool="p", compute_milli=100, compute_limit_milli=200, vram_bytes=GIB)


@pytest.mark.parametrize(
    ("request_", "asks", "most", "wanted"),
    [
        (TFLOPS, {"compute_milli": 500}, {}, (0, 500, 0, 500)),
        (TFLOPS, {"compute_milli": 500}, {"compute_milli": 700}, (0, 500, 0, 700)),
        (TFLOPS, {}, {"compute_milli": 700}, (50_000, 0, 60_000, 0)),
        (SHARE, {"tflops_milli": 80_000}, {}, (80_000, 0, 80_000, 0)),
        (SHARE, {"tflops_milli": 80_000}, {"tflops_milli": 90_000}, (80_000, 0, 90_000, 0)),
        (SHARE, {}, {"tflops_milli": 90_000}, (0, 100, 0, 200)),
        (SHARE, {}, {"compute_milli": 50}, (0, 100, 0, 100)),
        (msgspec.structs.replace(TFLOPS, tflops_limit_milli=0), {"compute_milli": 500}, {}, (0, 500, 0, 0)),
    ],
)
def test_a_limit_of_compute_follows_its_request_into_the_other_unit(request_, asks, most, wanted):
    found = applied(request_, GpuResources(requests=GpuAmounts(**asks), limits=GpuAmounts(**most)))
    assert (
        found.tflops_milli, found.compute_milli, found.tflops_limit_milli, found.compute_limit_milli,
    ) == wanted  # fmt: skip
