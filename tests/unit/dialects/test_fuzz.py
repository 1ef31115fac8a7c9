"""Whatever a pod says, it is understood, left alone, or refused by name: no other error, and nothing that cannot be sent."""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.dialects import (
    ContainerView,
    GangProfile,
    HamiConfig,
    PodSpecView,
    RequestError,
    TensorFusionDefaults,
    WorkloadProfile,
    hami,
    parse_pod,
    text,
    tf_keys,
)
from schemas.pod import GpuRequest

WORDS = st.sampled_from(
    [
        "", "0", "1", "2", "3", "16", "50", "100", "101", "-1", "1.5", "4k", "16Gi", "1e3", "9E9", "1e999", "1E", "true",
        "false", "soft", "shared", "hard", "partitioned", "high", "NVIDIA", "AMD", "a,b", "0,2", "10m", "5.s", ".5h", "1h1",
        "slot=1,core=1,memory=3", "binpack,numa", "spread", "mig", "main", "side", "main,side", "all", "numa",
    ]
)  # fmt: skip
TEXT = WORDS | st.text(max_size=30)
KEYS = st.sampled_from([*tf_keys.ANNOTATIONS, *hami.ANNOTATIONS]) | st.text(max_size=12).map(
    "tensor-fusion.ai/".__add__
)
RESOURCES = st.sampled_from(
    [
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "amd.com/gpu",
        "cpu",
        "memory",
    ]
)
AMOUNTS = st.dictionaries(RESOURCES, TEXT, max_size=4)
CONTAINERS = st.builds(
    ContainerView,
    name=st.sampled_from(["main", "side"]),
    limits=AMOUNTS,
    requests=AMOUNTS,
    privileged=st.just(value=False),
    restarts=st.booleans(),
)
PODS = st.builds(
    PodSpecView,
    namespace=st.just("ns"),
    labels=st.dictionaries(
        st.sampled_from([tf_keys.ENABLED, "hami.io/webhook"]), st.sampled_from(["true", "false", "ignore"])
    ),
    annotations=st.dictionaries(KEYS, TEXT, max_size=8),
    containers=st.lists(CONTAINERS, max_size=3).map(tuple),
    init_containers=st.lists(CONTAINERS, max_size=2).map(tuple),
    owner=st.sampled_from(["", "job"]),
    owner_replicas=st.none() | st.integers(0, 5),
)
PROFILES = st.none() | st.builds(
    WorkloadProfile,
    count=st.integers(0, 128),
    indices=st.lists(st.integers(0, 7), max_size=3, unique=True).map(tuple),
    gang=st.none() | st.builds(GangProfile, min_members=st.integers(0, 3)),
)


def attempt(read: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What ``read`` returns, or the refusal it raises; any other error fails the test."""
    try:
        return read(*args, **options)
    except RequestError as refusal:
        return refusal


@given(pod=PODS, profile=PROFILES)
@settings(deadline=None, max_examples=300)
def test_any_pod_is_a_request_nothing_or_a_refusal(pod: PodSpecView, profile: WorkloadProfile | None) -> None:
    defaults, config = TensorFusionDefaults(pool="tf", profile=profile), HamiConfig(pool="hami")
    result = attempt(parse_pod, pod, tensorfusion_defaults=defaults, hami_config=config)
    if isinstance(result, RequestError):
        assert result.field
        assert result.fix
        shown = result.value if len(result.value) <= 60 else result.value[:60] + "…"
        assert repr(shown) in str(result)
    elif result is not None:
        assert 1 <= result.count <= 128
        assert not result.container_counts or sum(result.container_counts) == result.count
        assert not result.gpu_indices or len(result.gpu_indices) == result.count
        assert msgspec.json.decode(msgspec.json.encode(result), type=GpuRequest) == result
        assert hash(result)


@given(TEXT)
@example("1.5.5s")
@example("5.s")
@example("\u0661s")
@settings(deadline=None)
def test_any_text_is_read_or_refused(written: str) -> None:
    for read in (text.milli, text.size, text.share, text.seconds, text.boolean):
        result = attempt(read, written, field="f")
        if isinstance(result, RequestError):
            assert (result.field, result.value) == ("f", written)
        else:
            assert result >= 0
    attempt(text.exact, written, field="f")
    attempt(hami.weights, written)
