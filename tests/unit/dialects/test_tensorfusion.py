"""Pods in the TensorFusion dialect: every annotation with good and bad values, and the order of what overrides what."""

import pytest

from schemas.catalogue import names
from schemas.dialects import (
    ContainerView,
    GangProfile,
    GpuAmounts,
    GpuResources,
    PodSpecView,
    RequestError,
    TensorFusionDefaults,
    WorkloadProfile,
)
from schemas.dialects.tensorfusion import parse
from schemas.placement import Topology
from schemas.requirements import Gang

GIB = 2**30
KEY = "tensor-fusion.ai/"
ENABLED = {KEY + "enabled": "true"}
DEFAULTS = TensorFusionDefaults(pool="shared")
MAIN = (ContainerView(name="main"),)


def pod(*, labels=ENABLED, containers=MAIN, init=(), asks=True, fields=None, **annotations) -> PodSpecView:
    """A pod with the annotations, ``_`` for ``-``. ``asks`` adds 10 TFLOPS and 1 GiB where they state neither."""
    written = {KEY + key.replace("_", "-"): value for key, value in annotations.items()}
    if asks and not any("tflops" in key or "percent" in key for key in written):
        written[KEY + "tflops-request"] = "10"
    if asks and not any("vram" in key for key in written):
        written[KEY + "vram-request"] = "1Gi"
    return PodSpecView(
        namespace="ns",
        name="p",
        labels=labels,
        annotations=written,
        containers=containers,
        init_containers=init,
        **(fields or {}),
    )


def values(asked: PodSpecView, *fields: str, defaults: TensorFusionDefaults = DEFAULTS) -> tuple:
    request = parse(asked, defaults)
    assert request is not None
    return tuple(getattr(request, field) for field in fields)


AMOUNTS = (
    "tflops_milli",
    "compute_milli",
    "vram_bytes",
    "tflops_limit_milli",
    "compute_limit_milli",
    "vram_limit_bytes",
)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"tflops_request": "10", "vram_request": "1Gi"}, (10_000, 0, GIB, 0, 0, 0)),
        ({"tflops_request": "500m", "vram_request": "1G"}, (500, 0, 10**9, 0, 0, 0)),
        ({"tflops_limit": "20", "vram_limit": "2Gi"}, (20_000, 0, 2 * GIB, 20_000, 0, 2 * GIB)),
        ({"tflops_request": "10", "tflops_limit": "20", "vram_limit": "2Gi"}, (10_000, 0, 2 * GIB, 20_000, 0, 2 * GIB)),
        ({"compute_percent_request": "50", "vram_request": "1Gi"}, (0, 500, GIB, 0, 0, 0)),
        ({"compute_percent_request": "33.33", "vram_request": "1Gi"}, (0, 334, GIB, 0, 0, 0)),
        ({"compute_percent_limit": "100", "vram_request": "1Gi"}, (0, 1000, GIB, 0, 1000, 0)),
        ({"tflops_request": "10", "compute_percent_request": "0", "vram_request": "1Gi"}, (10_000, 0, GIB, 0, 0, 0)),
        ({"tflops_request": " 10\n", "vram_request": "1Gi"}, (10_000, 0, GIB, 0, 0, 0)),
        ({"tflops_request": "10", "vram_request": "0"}, (10_000, 0, 0, 0, 0, 0)),
        ({"tflops_request": "0", "vram_request": "1Gi"}, (0, 0, GIB, 0, 0, 0)),
    ],
)
def test_amounts(annotations, expected) -> None:
    assert values(pod(**annotations), *AMOUNTS) == expected


GOOD = [
    ("gpupool", "other", "pool", "other"),
    ("gpu_count", "8", "count", 8),
    ("gpu_count", "128", "count", 128),
    ("gpu_indices", "0, 2", "gpu_indices", (0, 2)),
    ("gpu_indices", "0,2", "count", 2),
    ("vendor", "NVIDIA", "vendor", "NVIDIA"),
    ("vendor", "nvidia", "vendor", "NVIDIA"),
    ("vendor", "MooreThreads", "vendor", "MooreThreads"),
    ("gpu_model", "A100_SXM_80G", "models", ("A100_SXM_80G", "A100-80G", "NVIDIA A100-SXM4-80GB")),
    ("gpu_model", "NVIDIA X9", "models", ("NVIDIA X9",)),
    ("qos", "critical", "qos", "critical"),
    ("is_local_gpu", "true", "remote", False),
    ("is_local_gpu", "false", "remote", True),
    ("sidecar_worker", "true", "remote", False),
    ("isolation", "hard", "isolation", "hard"),
    ("isolation", "shared", "dedicated", True),
    ("isolation", "partitioned", "isolation", "partitioned"),
    ("inject_container", "main", "container_names", ("main",)),
    ("enabled_replicas", "3", "count", 1),
    ("autoscale", "true", "count", 1),
    ("autoscale_target", "vram", "count", 1),
    ("disable_features", "gpu-opt, start-worker", "count", 1),
    ("eviction_protection", "1h30m", "eviction_protection_s", 5400),
    ("eviction_protection", "1500ms", "eviction_protection_s", 2),
    ("require_gpu_topology", "true", "topology", Topology(required=True)),
    ("require_gpu_topology", "false", "topology", Topology(required=False)),
    ("gpu_topology_max_tier", "0", "topology", Topology(max_tier=0)),
    ("gpu_topology_source", "numa", "topology", Topology(source="numa")),
]


@pytest.mark.parametrize(("key", "value", "field", "expected"), GOOD)
def test_good_annotations(key, value, field, expected) -> None:
    assert values(pod(**{key: value}), field) == (expected,)


BAD = [
    ("tflops_request", "ten", "such as 50"),
    ("tflops_request", "-1", "such as 50"),
    ("tflops_limit", "10 TFLOPS", "such as 50"),
    ("tflops_request", "9E", "such as 50"),
    ("vram_request", "16GB", "such as 16Gi"),
    ("vram_limit", "-1Gi", "such as 16Gi"),
    ("compute_percent_request", "101", "from 0 to 100"),
    ("compute_percent_request", "-1", "from 0 to 100"),
    ("compute_percent_request", "50%", "digits"),
    ("compute_percent_limit", "100.1", "from 0 to 100"),
    ("gpu_count", "0", "digits"),
    ("gpu_count", "129", "digits"),
    ("gpu_count", "1.5", "digits"),
    ("gpu_count", "two", "digits"),
    ("gpu_indices", "0,x", "digits"),
    ("gpu_indices", "-1", "digits"),
    ("gpu_indices", "0,,1", "digits"),
    ("gpu_indices", "1,1", "once"),
    ("gpu_indices", ",".join(map(str, range(129))), "at most 128"),
    ("vendor", "NVIDAI", "did you mean NVIDIA"),
    ("vendor", "Acme", "use one of NVIDIA"),
    ("vendor", "AMD", "shared, hard or partitioned"),
    ("qos", "highest", "low, medium, high, critical"),
    ("isolation", "Soft", "did you mean soft"),
    ("isolation", "none", "shared, soft, hard, partitioned"),
    ("partition_id", "1g.5gb", "partitioned"),
    ("is_local_gpu", "maybe", "true"),
    ("sidecar_worker", "yes", "true"),
    ("inject_container", "mian", "use main"),
    ("enabled_replicas", "-1", "digits"),
    ("enabled_replicas", "some", "digits"),
    ("dedicated_gpu", "true", "gpu-model"),
    ("dedicated_gpu", "yes", "true"),
    ("worker_pod_template", "spec: {}", "is-local-gpu"),
    ("autoscale", "on", "true"),
    ("autoscale_target", "memory", "compute, vram, all"),
    ("disable_features", "gpu-opt,limiter", "gpu-opt, gpu-limiter"),
    ("eviction_protection", "30", "such as 30s"),
    ("eviction_protection", "-30s", "such as 30s"),
    ("eviction_protection", "1d", "such as 30s"),
    ("eviction_protection", "9999999h", "2562047h"),
    ("gang_enabled", "maybe", "true"),
    ("gang_min_members", "0", "digits"),
    ("gang_min_members", "-2", "digits"),
    ("gang_min_members", "1", "digits"),
    ("gang_min_members", "3", "gang-enabled"),
    ("gang_timeout", "10m", "gang-enabled"),
    ("gang_timeout", "soon", "such as 30s"),
    ("require_gpu_topology", "near", "true"),
    ("gpu_topology_max_tier", "4", "digits"),
    ("gpu_topology_max_tier", "-1", "digits"),
    ("gpu_topology_source", "nvlink", "auto, numa, vendor"),
    ("workload_profile", "missing", "namespace ns"),
    ("partition", "1g.5gb", "did you mean tensor-fusion.ai/partition-id"),
    ("tflop_request", "10", "did you mean tensor-fusion.ai/tflops-request"),
    ("gpu_modle", "A100", "did you mean tensor-fusion.ai/gpu-model"),
]


@pytest.mark.parametrize(("key", "value", "fix"), BAD)
def test_bad_annotations(key, value, fix) -> None:
    with pytest.raises(RequestError) as refusal:
        parse(pod(**{key: value}), DEFAULTS)
    assert fix in refusal.value.fix
    assert refusal.value.value in f"{value} soft", "the part at fault, or the isolation that does not suit the vendor"
    assert refusal.value.fix in str(refusal.value)


def test_every_annotation_is_tried() -> None:
    from schemas.dialects.tf_keys import ANNOTATIONS

    tried = {KEY + row[0].replace("_", "-") for row in (*GOOD, *BAD)}
    assert set(ANNOTATIONS) <= tried


@pytest.mark.parametrize(
    "annotations",
    [
        {"tflops_request": "10", "compute_percent_request": "10"},
        {"tflops_limit": "10", "compute_percent_request": "10"},
        {"tflops_request": "10", "compute_percent_limit": "10"},
    ],
)
def test_compute_is_stated_once(annotations) -> None:
    with pytest.raises(RequestError, match="a second time") as refusal:
        parse(pod(**annotations), DEFAULTS)
    assert refusal.value.field.startswith(KEY + "compute-percent")


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"tflops_request": "30", "tflops_limit": "20"}, "'30' exceeds the limit of 20"),
        ({"vram_request": "2Gi", "vram_limit": "1Gi"}, "'2Gi' exceeds the limit of 1Gi"),
        ({"compute_percent_request": "20", "compute_percent_limit": "12.5"}, "'20' exceeds the limit of 12.5"),
    ],
)
def test_a_request_stays_within_its_limit(annotations, message) -> None:
    with pytest.raises(RequestError, match=message):
        parse(pod(**annotations), DEFAULTS)


def test_something_must_be_asked_for() -> None:
    for annotations in ({}, {"gpu_count": "2"}, {"isolation": "partitioned"}, {"tflops_request": "0"}):
        with pytest.raises(RequestError, match="states no amount"):
            parse(pod(asks=False, **annotations), DEFAULTS)
    shared = values(pod(asks=False, isolation="shared"), "compute_milli", "vram_milli", "dedicated")
    assert shared == (1000, 1000, True)
    pinned = values(
        pod(asks=False, isolation="partitioned", partition_id="1g.5gb"), "compute_milli", "partition_template"
    )
    assert pinned == (0, "1g.5gb")


def test_which_pods_are_ours() -> None:
    assert parse(pod(asks=False, labels={}), DEFAULTS) is None
    assert parse(pod(labels={}), DEFAULTS) is not None, "an annotation that asks is enough"
    for off in ("false", "0"):
        assert parse(pod(labels={KEY + "enabled": off}, gpu_count="none"), DEFAULTS) is None
    assert parse(pod(enabled_replicas="0", gpu_count="none"), DEFAULTS) is None, (
        "never injected, so nothing else matters"
    )
    assert parse(pod(asks=False, labels={}, qos="high", gpupool="x"), DEFAULTS) is None
    with pytest.raises(RequestError, match="neither enables nor disables"):
        parse(pod(labels={KEY + "enabled": "True"}), DEFAULTS)
    with pytest.raises(RequestError, match=r"did you mean tensor-fusion\.ai/enabled"):
        parse(pod(asks=False, labels={KEY + "enable": "true"}), DEFAULTS)


def test_keys_of_the_system_and_of_others_are_ignored() -> None:
    others = {
        "gpu_ids": "g1",
        "gang_group_key": "a/b",
        "pod_template_hash": "1",
        "my_team": "x",
        "container_gpus": "{}",
    }
    assert values(pod(**others), "count") == (1,)


@pytest.mark.parametrize(
    ("annotations", "pool_default", "expected"),
    [
        ({"tflops_limit": "10", "vram_limit": "1Gi"}, "low", "high"),
        ({"tflops_request": "10", "tflops_limit": "10", "vram_request": "1Gi", "vram_limit": "1Gi"}, "low", "high"),
        ({"tflops_request": "10", "tflops_limit": "20", "vram_limit": "1Gi"}, "low", "low"),
        ({"tflops_limit": "10", "vram_request": "0"}, "medium", "medium"),
        ({"compute_percent_limit": "50", "vram_limit": "1Gi"}, "medium", "medium"),
        ({"tflops_limit": "10", "vram_limit": "1Gi", "qos": "low"}, "medium", "low"),
    ],
)
def test_quality_of_service(annotations, pool_default, expected) -> None:
    assert values(pod(**annotations), "qos", defaults=TensorFusionDefaults(pool="p", qos=pool_default)) == (expected,)


@pytest.mark.parametrize(
    ("qos", "fields", "expected"),
    [
        ("critical", {}, 100_000),
        ("high", {"priority": 0}, 10_000),
        ("medium", {"priority": 7}, 7),
        ("low", {}, 0),
        ("critical", {"priority": 5, "priority_class_name": "mine"}, 5),
    ],
)
def test_priority(qos, fields, expected) -> None:
    assert values(pod(qos=qos, fields=fields), "priority") == (expected,)


def test_dedicated_takes_whole_gpus_of_a_model() -> None:
    dedicated = {"dedicated_gpu": "true", "gpu_model": "H100"}
    fields = ("dedicated", "compute_milli", "vram_milli", "tflops_milli", "vram_bytes", "qos")
    assert values(pod(**dedicated), *fields) == (True, 1000, 1000, 0, 0, "high")
    assert values(pod(dedicated_gpu="false"), "dedicated") == (False,)
    listed = TensorFusionDefaults(pool="p", models=(("X9_SXM", "NVIDIA X9 SXM7"), ("X8",)))
    with pytest.raises(RequestError, match="use one of X9_SXM, X8"):
        parse(pod(dedicated_gpu="true", gpu_model="X7"), listed)
    found = parse(pod(dedicated_gpu="true", gpu_model="X9-SXM"), listed)
    assert found is not None
    assert found.models == ("X9-SXM", "X9_SXM", "NVIDIA X9 SXM7")  # as the operator lists them
    with pytest.raises(RequestError, match="isolation is partitioned"):
        parse(pod(isolation="partitioned", **dedicated), DEFAULTS)


def test_a_worker_pod_takes_what_it_says() -> None:
    worker = pod(labels={**ENABLED, KEY + "component": "worker"}, is_local_gpu="false")
    assert values(worker, "remote") == (False,)
    remote = TensorFusionDefaults(pool="p", local=False)
    assert values(pod(), "remote", defaults=remote) == (True,)
    assert values(pod(worker_pod_template="spec: {}"), "remote", defaults=remote) == (True,)
    with pytest.raises(RequestError, match="used locally"):
        parse(pod(worker_pod_template="spec: {}", sidecar_worker="true"), remote)


PROFILE = WorkloadProfile(
    pool="batch",
    resources=GpuResources(
        requests=GpuAmounts(tflops_milli=5000, vram_bytes=GIB),
        limits=GpuAmounts(tflops_milli=50_000, vram_bytes=4 * GIB),
    ),
    qos="low",
    is_local=False,
    isolation="partitioned",
    partition_template="2g",
    model="A100",
    vendor="NVIDIA",
    count=2,
)
WITH_PROFILE = TensorFusionDefaults(pool="shared", profile=PROFILE)


def test_a_profile_stands_behind_the_annotations() -> None:
    bare = pod(asks=False, workload_profile="big")
    assert values(bare, *AMOUNTS, defaults=WITH_PROFILE) == (5000, 0, GIB, 50_000, 0, 4 * GIB)
    fields = (
        "pool",
        "qos",
        "remote",
        "isolation",
        "partition_template",
        "models",
        "vendor",
        "count",
        "workload_profile",
    )
    expected = ("batch", "low", True, "partitioned", "2g", names("A100"), "NVIDIA", 2, "big")
    assert values(bare, *fields, defaults=WITH_PROFILE) == expected
    over = pod(
        asks=False, workload_profile="big", gpupool="x", qos="high", is_local_gpu="true", isolation="hard", gpu_model="H100",
        gpu_count="3",
    )  # fmt: skip
    expected = ("x", "high", False, "hard", "", names("H100"), "NVIDIA", 3, "big")
    assert values(over, *fields, defaults=WITH_PROFILE) == expected
    assert values(pod(), "workload_profile", "qos", defaults=WITH_PROFILE) == ("", "medium"), (
        "only the pod that names it"
    )


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"tflops_request": "6"}, (6000, 0, GIB, 50_000, 0, 4 * GIB)),
        ({"vram_limit": "8Gi"}, (5000, 0, GIB, 50_000, 0, 8 * GIB)),
        ({"compute_percent_request": "10"}, (0, 100, GIB, 0, 0, 4 * GIB)),
    ],
)
def test_annotations_override_a_profile_field_by_field(annotations, expected) -> None:
    asked = pod(asks=False, workload_profile="big", **annotations)
    assert values(asked, *AMOUNTS, defaults=WITH_PROFILE) == expected


def test_profile_indices() -> None:
    defaults = TensorFusionDefaults(pool="p", profile=WorkloadProfile(indices=(1, 3)))
    assert values(pod(workload_profile="x"), "count", "gpu_indices", defaults=defaults) == (2, (1, 3))
    assert values(pod(workload_profile="x", gpu_count="3"), "count", "gpu_indices", defaults=defaults) == (3, ())
    with pytest.raises(RequestError, match="gpu-count"):
        parse(pod(gpu_count="3", gpu_indices="0,1"), DEFAULTS)
    assert values(pod(gpu_count="2", gpu_indices="0,1"), "count") == (2,)


def test_the_quota_fills_what_nobody_states() -> None:
    quota = GpuResources(requests=GpuAmounts(tflops_milli=1000, vram_bytes=GIB), limits=GpuAmounts(vram_bytes=2 * GIB))
    defaults = TensorFusionDefaults(pool="p", quota=quota)
    assert values(pod(asks=False), *AMOUNTS, defaults=defaults) == (1000, 0, GIB, 0, 0, 2 * GIB)
    assert values(pod(compute_percent_limit="10", asks=False), *AMOUNTS, defaults=defaults) == (
        0,
        100,
        GIB,
        0,
        100,
        2 * GIB,
    )


@pytest.mark.parametrize(
    ("annotations", "fields", "expected"),
    [
        ({}, {"owner_replicas": 4}, Gang(key="ns/job", min_members=4, desired=4)),
        ({"gang_min_members": "2"}, {"owner_replicas": 4}, Gang(key="ns/job", min_members=2, desired=4)),
        ({"gang_min_members": "2"}, {}, Gang(key="ns/job", min_members=2)),
        ({"gang_timeout": "10m"}, {"owner_replicas": 2}, Gang(key="ns/job", min_members=2, desired=2, timeout_s=600)),
        ({"gang_timeout": "0"}, {"owner_replicas": 2}, Gang(key="ns/job", min_members=2, desired=2)),
        ({"enabled_replicas": "3"}, {"owner_replicas": 9}, Gang(key="ns/job", min_members=3, desired=3)),
        ({"gang_enabled": "false", "gang_min_members": "2"}, {"owner_replicas": 4}, None),
    ],
)
def test_gangs(annotations, fields, expected) -> None:
    asked = pod(**{"gang_enabled": "true", **annotations}, fields={"owner": "job", **fields})
    assert values(asked, "gang") == (expected,)


@pytest.mark.parametrize(
    ("annotations", "fields", "message"),
    [
        ({"gang_min_members": "5"}, {"owner": "job", "owner_replicas": 4}, "more than the 4 members"),
        ({}, {"owner": "job"}, "unknown size"),
        ({}, {"owner": "job", "owner_replicas": 1}, "size 1"),
        ({}, {"owner": "job", "owner_replicas": 0}, "size 0"),
        ({}, {"owner_replicas": 4}, "without a controller"),
    ],
)
def test_impossible_gangs(annotations, fields, message) -> None:
    with pytest.raises(RequestError, match=message):
        parse(pod(gang_enabled="true", fields=fields, **annotations), DEFAULTS)


def test_a_profile_makes_a_gang() -> None:
    def gang(size: int, **annotations):
        profile = WorkloadProfile(gang=GangProfile(min_members=size, timeout_s=5), replicas=6)
        asked = pod(workload_profile="x", fields={"owner": "job", "owner_replicas": 3}, **annotations)
        return values(asked, "gang", defaults=TensorFusionDefaults(pool="p", profile=profile))[0]

    assert gang(0) == Gang(key="ns/job", min_members=6, desired=6, timeout_s=5)
    assert gang(2, gang_timeout="0s") == Gang(key="ns/job", min_members=2, desired=6)
    assert gang(2, gang_enabled="false") is None
    with pytest.raises(RequestError, match="no gang"):
        gang(1)


def native(name="main", **limits) -> ContainerView:
    return ContainerView(name=name, limits={key.replace("_", ".com/"): value for key, value in limits.items()})


def test_native_limits_are_taken_over() -> None:
    fields = ("count", "compute_milli", "compute_limit_milli", "vram_milli", "vram_bytes", "vendor", "container_names")
    whole = pod(asks=False, containers=(native(nvidia_gpu="2"),))
    assert values(whole, *fields) == (2, 1000, 1000, 1000, 0, "NVIDIA", ("main",))
    partly = pod(asks=False, containers=(native(nvidia_gpu="1"),), vram_limit="4Gi")
    assert values(partly, *fields) == (1, 1000, 1000, 0, 4 * GIB, "NVIDIA", ("main",))
    sized = pod(containers=(native(nvidia_gpu="2"),), tflops_limit="10", vram_limit="4Gi")
    assert values(sized, *AMOUNTS, "count") == (10_000, 0, 4 * GIB, 10_000, 0, 4 * GIB, 2)
    counted = pod(containers=(native(nvidia_gpu="2"),), gpu_count="1")
    assert values(counted, "count", "compute_milli", "vendor") == (1, 0, "")
    sliced = pod(asks=False, containers=(native(nvidia_gpu="2"),), isolation="partitioned", partition_id="1g")
    assert values(sliced, "count", "compute_milli", "vram_milli") == (2, 0, 0)


def test_native_limits_of_several_containers() -> None:
    two = (native("a", nvidia_gpu="2"), native("side"), native("b", nvidia_gpu="1"))
    fields = ("count", "container_names", "container_counts")
    assert values(pod(asks=False, containers=two), *fields) == (3, ("a", "b"), (2, 1))
    assert values(pod(asks=False, containers=two, inject_container="b,a"), *fields) == (3, ("b", "a"), (1, 2))


@pytest.mark.parametrize(
    ("containers", "init", "annotations", "message"),
    [
        ((native(nvidia_gpu="0.5"),), (), {}, "is not a number of GPUs"),
        ((native(nvidia_gpu="200"),), (), {}, "is not a number of GPUs"),
        ((native("a", nvidia_gpu="100"), native("b", nvidia_gpu="100")), (), {}, "more GPUs than a pod may have"),
        ((native(nvidia_gpu="1", amd_gpu="1"),), (), {"isolation": "shared"}, "beside GPUs of NVIDIA"),
        ((native(amd_gpu="1"),), (), {}, "no limiter for AMD"),
        ((native(nvidia_gpu="1"),), (), {"vendor": "Ascend"}, "contradicts native GPU limits"),
        ((native(nvidia_gpu="1"),), (native("load", nvidia_gpu="1"),), {}, "init container"),
        ((native("a", nvidia_gpu="1"), native("b")), (), {"inject_container": "b"}, "name a, or drop"),
        ((native("a"), native("b")), (), {}, "is needed for a pod of 2 containers"),
        ((native(nvidia_gpu="2"),), (), {"gpu_indices": "0"}, "the 2 GPUs of the native limits"),
    ],
)
def test_impossible_native_limits(containers, init, annotations, message) -> None:
    with pytest.raises(RequestError, match=message):
        parse(pod(containers=containers, init=init, **annotations), DEFAULTS)


def test_a_pool_is_needed() -> None:
    with pytest.raises(RequestError, match="no default"):
        parse(pod(), TensorFusionDefaults())
