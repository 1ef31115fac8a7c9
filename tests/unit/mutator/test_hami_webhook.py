"""What HAMi's users rely on at admission: the defaults that its webhook writes, its refusals, its check of quotas.

Expected values are HAMi's own (``pkg/scheduler/webhook_test.go``, ``pkg/device/quota_test.go``); a case's id comes first.
"""

import msgspec
import pytest

from consumers.mutator.mutate import Context, mutate
from consumers.mutator.quota import Bounds
from schemas.dialects import HamiConfig, RequestError, TensorFusionDefaults
from schemas.dialects.moved import MOVED
from schemas.kube.quotas import native_quota
from schemas.kube.resources import ResourceQuota
from schemas.quota import Usage

MIB = 2**20
FULL = {"limits.nvidia.com/gpumem": "2000", "limits.nvidia.com/gpucores": "400"}
HELD = Usage(workers=1, gpus=1, vram_bytes=1000 * MIB, compute_milli=2000)


def container(name="main", **limits):
    return {"name": name, "resources": {"limits": {f"nvidia.com/{key}": value for key, value in limits.items()}}}


def admit(containers, *, hard=None, held=HELD, **spec):
    quotas = []
    if hard is not None:
        written = {"metadata": {"name": "q", "namespace": "ml"}, "spec": {"hard": hard}}
        quotas = [native_quota(msgspec.convert(written, ResourceQuota))]
    context = Context(
        pools=frozenset({"shared"}),
        hami=HamiConfig(pool="shared"),
        defaults=lambda _namespace, _profile, _pool: TensorFusionDefaults(pool="shared"),
        bounds=lambda _namespace: Bounds(tuple(quotas), held),
    )
    pod = {"metadata": {"annotations": {}}, "spec": {"containers": containers, **spec}}
    return mutate(msgspec.json.encode(pod), "ml", "u", context)


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        pytest.param({"gpu": "1"}, "100", id="hook-01"),
        pytest.param({"gpu": "1", "gpumem": "8192"}, None, id="hook-02"),
        pytest.param({"gpu": "1", "gpumem-percentage": "50"}, None, id="hook-03"),
        pytest.param({"gpu": "1", "gpucores": "70"}, "70", id="hook-05"),
    ],
)
def test_cores_that_the_webhook_writes(limits, cores):
    found = admit([container(**limits)])
    written = {one.path: one.value for one in found.patch}[f"/metadata/annotations/{MOVED.replace('/', '~1')}"]
    assert msgspec.json.decode(written)["main"].get("nvidia.com/gpucores") == cores


def test_hook_07_a_percentage_above_100():
    with pytest.raises(RequestError, match="must be an integer between 0 and 100"):
        admit([container(**{"gpu": "1", "gpumem-percentage": "101"})])


def test_hook_08_a_privileged_container():
    with pytest.raises(RequestError, match="privileged"):
        admit([container(gpu="1") | {"securityContext": {"privileged": True}}])


def test_hook_10_a_pod_of_another_scheduler():
    found = admit([container(gpu="1")], schedulerName="other-scheduler")
    assert (found.request, found.patch) == (None, ())


@pytest.mark.parametrize(
    ("init", "app", "hard", "allowed"),
    [
        pytest.param([], [("1", "100")], FULL, True, id="quota-01"),
        pytest.param([], [("1", "1024")], FULL, False, id="quota-02"),
        pytest.param([], [("2", "400")], FULL, True, id="quota-03"),
        pytest.param([], [("1", "600"), ("1", "600")], FULL, False, id="the sum of two containers"),
        pytest.param([("1", "900")], [("1", "100")], FULL, True, id="the larger of both"),
        pytest.param([("1", "1500")], [("1", "100")], FULL, False, id="quota-06"),
        pytest.param([], [("1", "500")], {"limits.nvidia.com/gpumem": "0"}, False, id="quota-07"),
    ],
)
def test_quota(init, app, hard, allowed):
    before, containers = (
        [
            container(f"{kind}-{place}", gpu=count, gpumem=memory, gpucores="10")
            for place, (count, memory) in enumerate(rows)
        ]
        for kind, rows in (("init", init), ("app", app))
    )
    if allowed:
        assert admit(containers, initContainers=before, hard=hard).patch
    else:
        with pytest.raises(RequestError, match="quota ResourceQuota/q of namespace ml"):
            admit(containers, initContainers=before, hard=hard)


def test_a_share_of_a_gpu_counts_nothing_against_bytes_before_the_gpu_is_known():
    assert admit([container(gpu="1", **{"gpumem-percentage": "100"})], hard={"limits.nvidia.com/gpumem": "2000"}).patch


def test_what_stands_in_requests_counts_where_limits_say_nothing():
    main = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "100"}}}
    request = admit([main]).request
    assert (request.count, request.vram_bytes) == (2, 100 * MIB)
