"""What operators have set reads the same from the API server and from the bus."""

import msgspec

from bus import codec
from schemas.kube.defaults import Settings
from schemas.kube.quotas import native_quota, tensorfusion_quota
from schemas.kube.resources import (
    CustomResource,
    GPUPool,
    GPUResourceQuota,
    ProviderConfig,
    ResourceQuota,
    WorkloadProfile,
)
from schemas.quota import Budget, Single

POOL = b"""{"metadata": {"name": "a", "resourceVersion": "7", "annotations": {"tensor-fusion.ai/is-default-pool": "true"}},
    "spec": {"nodeManagerConfig": {"nodeSelector": {"nodeSelectorTerms":
    [{"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["3"]}]}]}},
    "qosConfig": {"defaultQoS": "high"}, "capacityConfig": {"oversubscription": {"tflopsOversellRatio": 200}}}}"""
PROFILE = b"""{"metadata": {"name": "p", "namespace": "ns", "resourceVersion": "8"}, "spec": {"poolName": "a",
    "gpuCount": 2, "resources": {"requests": {"tflops": 10, "vram": "4Gi"}, "limits": {"compute": "50"}}}}"""


def no_news(plural: str, namespace: str, name: str) -> None:
    del plural, namespace, name


def filled() -> Settings:
    settings = Settings(no_news)
    settings.pools.put(msgspec.json.decode(POOL, type=GPUPool))
    settings.profiles.put(msgspec.json.decode(PROFILE, type=WorkloadProfile))
    return settings


def test_a_pod_without_words_of_its_own_gets_those_of_profile_and_pool() -> None:
    defaults = filled().defaults("ns", "p", "")
    assert (defaults.pool, defaults.qos) == ("a", "high")
    profile = defaults.profile
    assert profile is not None
    assert (profile.pool, profile.count) == ("a", 2)
    assert profile.resources.requests.tflops_milli == 10_000
    assert profile.resources.requests.vram_bytes == 4 << 30
    assert profile.resources.limits.compute_milli == 500
    assert filled().defaults("other", "p", "").profile is None


def test_what_is_said_on_the_bus_gives_the_same_settings() -> None:
    there, here = filled(), Settings(no_news)
    for plural, key in (("gpupools", ("", "a")), ("workloadprofiles", ("ns", "p"))):
        said = codec.encode(there.resource(plural, *key))
        here.apply(plural, *key, msgspec.json.decode(said, type=CustomResource))
    assert here.defaults("ns", "p", "") == there.defaults("ns", "p", "")
    assert here.pool("a") == there.pool("a")
    here.apply("gpupools", "", "a", None)
    assert here.pool("a") is None
    assert here.default_pool() == ""


def test_nodes_go_to_the_first_pool_that_selects_them() -> None:
    settings = filled()
    assert settings.pool_of({"size": "4"}, "node") == "a"
    assert settings.pool_of({"size": "3"}, "node") == ""
    assert settings.pool_of({"size": "many"}, "node") == ""
    assert settings.pool_of({}, "node") == ""


def test_quotas_of_both_kinds() -> None:
    ours = b"""{"metadata": {"name": "q", "namespace": "ns"}, "spec": {"total": {"requests": {"tflops": "0"}, "maxWorkers": 3},
        "single": {"maxGPUCount": 2, "maxLimits": {"vram": "1Gi"}}}}"""
    quota = tensorfusion_quota(msgspec.json.decode(ours, type=GPUResourceQuota))
    assert quota.total == Budget(workers=3, tflops_milli=0)
    assert quota.single == Single(gpus=2, vram_limit_bytes=1 << 30)
    native = b"""{"metadata": {"name": "q", "namespace": "ns"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "1k", "limits.nvidia.com/gpucores": "150", "pods": "4"}}}"""
    found = native_quota(msgspec.json.decode(native, type=ResourceQuota))
    assert found is not None
    assert found.total == Budget(compute_milli=1500, vram_bytes=1000 << 20)
    assert native_quota(msgspec.json.decode(b'{"metadata": {"name": "q"}}', type=ResourceQuota)) is None


def provider(vendor: str, *names: str) -> ProviderConfig:
    spec = {"vendor": vendor, "images": {"middleware": "m"}, "inUseResourceNames": names}
    return msgspec.convert({"metadata": {"name": vendor.lower()}, "spec": spec}, ProviderConfig)


def test_native_resources_are_those_that_providers_name_and_known_ones_where_none_does() -> None:
    settings = filled()
    settings.providers.put(provider("NVIDIA"))
    assert settings.defaults("ns", "", "").native_resources == (("nvidia.com/gpu", "NVIDIA"), ("amd.com/gpu", "AMD"))
    settings.providers.put(provider("NVIDIA", "nvidia.com/gpu", "nvidia.com/gpu.shared"))
    settings.providers.put(provider("Ascend", "huawei.com/Ascend910"))
    assert dict(settings.defaults("ns", "", "").native_resources) == {
        "nvidia.com/gpu": "NVIDIA",
        "nvidia.com/gpu.shared": "NVIDIA",
        "huawei.com/Ascend910": "Ascend",
    }
