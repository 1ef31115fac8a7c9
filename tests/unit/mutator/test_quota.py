"""Quotas at admission: what can never run is refused at once; what has no room now only where the dialect says so."""

import msgspec
import pytest

from consumers.mutator.mutate import Context, mutate
from consumers.mutator.quota import Bounds
from schemas.dialects import HamiConfig, RequestError, TensorFusionDefaults
from schemas.quota import Budget, Quota, Single, Usage

GIB = 2**30
SINGLE = Quota(
    namespace="ml",
    name="GPUResourceQuota/q",
    single=Single(
        gpus=2, tflops_milli=100_000, vram_bytes=8 * GIB, tflops_limit_milli=200_000, vram_limit_bytes=8 * GIB
    ),
)
TOTAL = Quota(namespace="ml", name="ResourceQuota/q", total=Budget(gpus=4, compute_milli=1000, vram_bytes=16 * GIB))
FITS = {"tflops-request": "100", "tflops-limit": "200", "vram-request": "8Gi", "vram-limit": "8Gi", "gpu-count": "2"}


def decide(target, *quotas, held=None):
    context = Context(
        pools=frozenset({"shared"}),
        hami=HamiConfig(pool="shared"),
        defaults=lambda _namespace, _profile, _pool: TensorFusionDefaults(pool="shared"),
        bounds=lambda namespace: Bounds(quotas, held or Usage()) if namespace == "ml" else Bounds(),
    )
    return mutate(msgspec.json.encode(target), target["metadata"]["namespace"], "u", context)


def tensorfusion(namespace="ml", **annotations):
    written = {f"tensor-fusion.ai/{key}": value for key, value in annotations.items()}
    meta = {"namespace": namespace, "labels": {"tensor-fusion.ai/enabled": "true"}, "annotations": written}
    return {"metadata": meta, "spec": {"containers": [{"name": "main"}]}}


def hami(**limits):
    limits = {f"nvidia.com/{key}": value for key, value in limits.items()}
    return {
        "metadata": {"namespace": "ml"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


def test_what_keeps_within_the_limits_is_admitted():
    assert decide(tensorfusion(**FITS), SINGLE).patch
    assert decide(tensorfusion("other", **FITS | {"gpu-count": "9"}), SINGLE).patch


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("gpu-count", "3", "'GPUs=3' allows 2 per pod or GPU: ask for at most 2"),
        ("tflops-request", "101", "'requests.tflops=101' allows 100 "),
        ("tflops-limit", "201", "'limits.tflops=201' allows 200 "),
        ("vram-request", "9Gi", "'requests.vram=9Gi' allows 8Gi "),
        ("vram-limit", "9Gi", "'limits.vram=9Gi' allows 8Gi "),
    ],
)
def test_more_than_one_pod_may_ask_for_is_refused(key, value, says):
    asked = FITS | {key: value}
    if key == "vram-request":
        asked["vram-limit"] = value
    with pytest.raises(RequestError, match="quota GPUResourceQuota/q of namespace ml") as refused:
        decide(tensorfusion(**asked), SINGLE)
    assert says in str(refused.value)


def test_more_than_the_namespace_could_ever_hold_is_refused_in_both_dialects():
    with pytest.raises(RequestError, match="'GPUs=5' exceeds 4 in all"):
        decide(tensorfusion(**FITS | {"gpu-count": "5"}), TOTAL)
    with pytest.raises(RequestError, match=r"'gpucores=120' exceeds 100 in all.* ask for less"):
        decide(hami(gpu="2", gpumem="1024", gpucores="60"), TOTAL)


def test_without_room_just_now_hami_pods_are_refused_and_the_others_wait():
    held = Usage(workers=1, gpus=1, vram_bytes=12 * GIB)
    with pytest.raises(RequestError, match=r"requests.vram=8Gi' exceeds 16Gi in all, of which 12Gi is used"):
        decide(hami(gpu="1", gpumem="8192", gpucores="10"), TOTAL, held=held)
    assert decide(hami(gpu="1", gpumem="4096", gpucores="10"), TOTAL, held=held).patch
    assert decide(tensorfusion(**FITS | {"gpu-count": "1"}), TOTAL, held=held).patch
