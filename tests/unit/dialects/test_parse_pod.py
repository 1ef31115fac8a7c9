"""Which dialect a pod speaks, what it takes beside GPUs, and that requests written before the dialects still read the same."""

import msgspec
import pytest

from schemas.dialects import (
    ContainerView,
    HamiConfig,
    PodSpecView,
    RequestError,
    TensorFusionDefaults,
    host_amounts,
    parse_pod,
)
from schemas.pod import GpuRequest

ENABLED = {"tensor-fusion.ai/enabled": "true"}
ASKING = {"tensor-fusion.ai/tflops-request": "10", "tensor-fusion.ai/vram-request": "1Gi"}


def parse(*, labels=None, annotations=None, **limits: str) -> GpuRequest | None:
    pod = PodSpecView(
        namespace="ns",
        name="p",
        labels=labels or {},
        annotations=annotations or {},
        containers=(ContainerView(name="main", limits={f"nvidia.com/{key}": value for key, value in limits.items()}),),
    )
    return parse_pod(pod, tensorfusion_defaults=TensorFusionDefaults(pool="tf"), hami_config=HamiConfig(pool="hami"))


@pytest.mark.parametrize(
    ("pod", "dialect"),
    [
        ({}, None),
        ({"gpu": "1"}, "hami"),
        ({"gpumem": "100"}, "hami"),
        ({"labels": ENABLED, "annotations": ASKING}, "tensorfusion"),
        ({"annotations": ASKING}, "tensorfusion"),
        ({"labels": ENABLED, "gpu": "1"}, "tensorfusion"),
        ({"annotations": ASKING, "gpu": "1"}, "tensorfusion"),
        ({"annotations": {"tensor-fusion.ai/gpupool": "x"}, "gpu": "1"}, "hami"),
        ({"labels": {"tensor-fusion.ai/enabled": "false"}, "annotations": ASKING, "gpu": "1"}, None),
        ({"labels": ENABLED, "annotations": {"tensor-fusion.ai/enabled-replicas": "0"}, "gpu": "1"}, None),
    ],
)
def test_picks_the_dialect(pod, dialect) -> None:
    request = parse(**pod)
    assert (request and request.dialect) == dialect


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        ({"labels": ENABLED, "gpu": "1", "gpumem": "100"}, "container main nvidia.com/gpumem"),
        ({"annotations": ASKING, "gpucores": "10"}, "container main nvidia.com/gpucores"),
        ({"annotations": {**ASKING, "nvidia.com/use-gpuuuid": "GPU-a"}}, "nvidia.com/use-gpuuuid"),
        ({"annotations": {**ASKING, "hami.io/gpu-scheduler-policy": "spread"}}, "hami.io/gpu-scheduler-policy"),
    ],
)
def test_a_pod_speaks_one_dialect(pod, field) -> None:
    with pytest.raises(RequestError, match="too") as refusal:
        parse(**pod)
    assert refusal.value.field == field


def takes(cpu: str, memory: str = "0", *, restarts: bool = False) -> ContainerView:
    return ContainerView(name="c", requests={"cpu": cpu, "memory": memory}, restarts=restarts)


@pytest.mark.parametrize(
    ("containers", "init", "expected"),
    [
        ((), (), (0, 0)),
        ((takes("500m", "1Gi"), takes("1", "1Gi")), (), (1500, 2 * 2**30)),
        ((takes("1"),), (takes("3"), takes("2")), (3000, 0)),
        ((takes("1"),), (takes("2", restarts=True), takes("3")), (5000, 0)),
        ((takes("4"),), (takes("3"), takes("2", restarts=True)), (6000, 0)),
        ((ContainerView(name="c", limits={"cpu": "2"}),), (), (2000, 0)),
        ((ContainerView(name="c", limits={"cpu": "2"}, requests={"cpu": "1"}),), (), (1000, 0)),
    ],
)
def test_cpu_and_memory(containers, init, expected) -> None:
    assert host_amounts(PodSpecView(containers=containers, init_containers=init)) == expected


def test_cpu_that_is_no_quantity() -> None:
    with pytest.raises(RequestError, match="container c cpu"):
        host_amounts(PodSpecView(containers=(takes("lots"),)))


OLD = (
    b'{"pool":"train","count":2,"tflops_milli":10000,"vram_bytes":1024,"cpu_milli":1,"memory_bytes":2,"models":["A100"],'
    b'"vendor":"NVIDIA","qos":"high","priority":3}'
)


def test_requests_from_before_keep_their_bytes() -> None:
    request = msgspec.json.decode(OLD, type=GpuRequest)
    assert msgspec.json.encode(request) == OLD
    assert msgspec.json.encode(GpuRequest(pool="train")) == b'{"pool":"train"}'


def test_a_full_request_survives_the_wire_and_is_a_key() -> None:
    request = parse(
        annotations={
            "hami.io/device-scoring-weights": "slot=1,core=2,memory=3",
            "nvidia.com/use-gputype": "A100",
            "nvidia.com/vgpu-mode": "mig",
        },
        gpu="2",
    )
    again = msgspec.json.decode(msgspec.json.encode(request), type=GpuRequest)
    assert again == request
    assert len({again, request}) == 1
