"""Pods in the HAMi dialect: resources, webhook defaults, annotations, and what is refused where HAMi guesses.

Rows named after a conformance case hold that case's expected values. Cases of the node lock, the handshake and the device
annotation codec have no counterpart here: the ledger replaces all three.
"""

import re

import pytest

from schemas.dialects import ContainerView, HamiConfig, PodSpecView, RequestError
from schemas.dialects.hami import parse, weights
from schemas.placement import ScoringWeights
from schemas.pod import GpuRequest
from schemas.requirements import ContainerRequest

MIB = 2**20
CONFIG = HamiConfig(pool="main")
UNADMITTED = {"hami.io/webhook": "ignore"}
"""The label of a pod that HAMi's webhook leaves alone: the request parser's own rules, without admission's defaults."""


def container(name="main", *, requests=None, **limits) -> ContainerView:
    def named(amounts):
        return {"nvidia.com/" + key.replace("_", "-"): value for key, value in amounts.items()}

    return ContainerView(name=name, limits=named(limits), requests=named(requests or {}))


def pod(*containers, init=(), annotations=None, **fields) -> PodSpecView:
    return PodSpecView(
        namespace="ns", name="p", containers=containers, init_containers=init, annotations=annotations or {}, **fields
    )


def amounts(request: GpuRequest | None) -> tuple[int, int, int, int] | None:
    """GPUs, MiB, percent of memory and percent of compute, as HAMi states them; percent 0 stands for "not given"."""
    if request is None:
        return None
    return request.count, request.vram_bytes // MIB, request.vram_milli // 10, request.compute_milli // 10


@pytest.mark.parametrize(
    ("config", "asked", "expected"),
    [
        pytest.param({}, container(gpu="1"), (1, 0, 100, 0), id="req-01"),
        pytest.param({}, container(gpu="2", gpumem="4096"), (2, 4096, 0, 0), id="req-02"),
        pytest.param({}, container(gpu="1", gpumem_percentage="0"), (1, 0, 100, 0), id="req-04"),
        pytest.param({"default_memory_mib": 512}, container(gpu="1"), (1, 512, 0, 0), id="req-07"),
        pytest.param({}, container(requests={"gpu": "1"}), (1, 0, 100, 0), id="req-09"),
    ],
)
def test_reads_requests_without_the_webhooks_defaults(config, asked, expected) -> None:
    unadmitted = pod(asked, labels=UNADMITTED, scheduler_name="hami-scheduler")
    assert amounts(parse(unadmitted, HamiConfig(pool="main", **config))) == expected


@pytest.mark.parametrize(
    ("config", "asked", "expected"),
    [
        pytest.param({}, container(gpu="1"), (1, 0, 100, 100), id="hook-01"),
        pytest.param({}, container(gpu="1", gpumem="8192"), (1, 8192, 0, 0), id="hook-02"),
        pytest.param({}, container(gpu="1", gpumem_percentage="50"), (1, 0, 50, 0), id="hook-03"),
        pytest.param({}, container(gpu="1", gpucores="70"), (1, 0, 100, 70), id="hook-05"),
        pytest.param({}, container(gpu="1", gpumem_percentage="100"), (1, 0, 100, 100), id="all memory is exclusive"),
        pytest.param(
            {}, container(gpu="1", gpumem_percentage="0"), (1, 0, 100, 0), id="fit-21: percentage 0 is all memory"
        ),
        pytest.param({}, container(gpu="1", gpumem="0"), (1, 0, 100, 0), id="gpumem 0 is all memory"),
        pytest.param({}, container(gpu="1", gpucores="0"), (1, 0, 100, 0), id="stated cores 0 stay 0"),
        pytest.param({}, container(gpu="1", requests={"gpucores": "30"}), (1, 0, 100, 30), id="cores in requests"),
        pytest.param({}, container(gpumem="1000"), (1, 1000, 0, 0), id="memory alone gets defaultGPUNum"),
        pytest.param({"default_gpu_num": 2}, container(gpucores="10"), (2, 0, 100, 10), id="cores alone"),
        pytest.param({"default_cores_percent": 25}, container(gpu="1", gpumem="1"), (1, 1, 0, 25), id="defaultCores"),
        pytest.param(
            {"default_cores_percent": 25}, container(gpu="1"), (1, 0, 100, 100), id="exclusive beats defaultCores"
        ),
        pytest.param(
            {"default_memory_mib": 512}, container(gpu="1"), (1, 512, 0, 100), id="exclusive with defaultMemory"
        ),
        pytest.param({"memory_factor": 10}, container(gpu="1", gpumem="100"), (1, 1000, 0, 0), id="memoryFactor"),
        pytest.param({"memory_factor": 0}, container(gpu="1", gpumem="100"), (1, 100, 0, 0), id="memoryFactor below 1"),
        pytest.param({}, container(gpu="1", gpumem="4k"), (1, 4000, 0, 0), id="the API server's form of 4000"),
        pytest.param({}, container(gpu="1", gpumem="2147483647"), (1, 2147483647, 0, 0), id="largest gpumem"),
        pytest.param({}, container(gpu="0", gpumem="100"), None, id="no GPU"),
        pytest.param({}, container(cpu="1"), None, id="other resources"),
        pytest.param({}, container(), None, id="nothing"),
    ],
)
def test_admission_and_parsing_are_one(config, asked, expected) -> None:
    settings = HamiConfig(pool="main", **config)
    assert amounts(parse(pod(asked), settings)) == expected
    if expected and expected[3]:
        # What the webhook writes into the pod must not change what the pod means.
        mutated = ContainerView(
            name="main",
            limits={**asked.limits, "nvidia.com/gpucores": str(expected[3]), "nvidia.com/gpu": str(expected[0])},
        )
        assert amounts(parse(pod(mutated), settings)) == expected


@pytest.mark.parametrize(
    ("config", "asked", "field", "value", "fix"),
    [
        pytest.param({}, {"gpu": "1", "gpumem": "16Gi"}, "gpumem", "16Gi", "such as 16384", id="req-06"),
        pytest.param({}, {"gpu": "1", "gpumem": "1Gi"}, "gpumem", "1Gi", "such as 1024", id="a size in bytes"),
        pytest.param({}, {"gpu": "1", "gpumem": "16.0Gi"}, "gpumem", "16.0Gi", "such as 16384", id="a broken size"),
        pytest.param({}, {"gpu": "1", "gpumem": "16G"}, "gpumem", "16G", "such as 15259", id="a decimal size"),
        pytest.param({}, {"gpu": "1", "gpumem": "500m"}, "gpumem", "500m", "whole number of MiB", id="half a MiB"),
        pytest.param({}, {"gpu": "1", "gpumem": "2147483648"}, "gpumem", "2147483648", "2147483647", id="past int32"),
        pytest.param(
            {"memory_factor": 2},
            {"gpu": "1", "gpumem": "1073741824"},
            "gpumem",
            "1073741824",
            "1073741823",
            id="factor",
        ),
        pytest.param({}, {"gpu": "1", "gpumem": "-1"}, "gpumem", "-1", "whole number", id="negative memory"),
        pytest.param({}, {"gpu": "1", "gpumem": ""}, "gpumem", "", "digits", id="empty"),
        pytest.param({}, {"gpu": "1", "gpumem": "much"}, "gpumem", "much", "digits", id="no number"),
        pytest.param({}, {"gpu": "1", "gpumem-percentage": "101"}, "percentage", "101", "from 0 to 100", id="hook-07"),
        pytest.param({}, {"gpu": "1", "gpumem-percentage": "-1"}, "percentage", "-1", "from 0 to 100", id="below 0"),
        pytest.param({}, {"gpu": "1", "gpumem-percentage": "99.1"}, "percentage", "99.1", "whole", id="a fraction"),
        pytest.param({}, {"gpu": "1", "gpucores": "120"}, "gpucores", "120", "from 0 to 100", id="fit-05: no clamp"),
        pytest.param({}, {"gpu": "1.5"}, "gpu", "1.5", "whole number", id="part of a GPU"),
        pytest.param({}, {"gpu": "500m"}, "gpu", "500m", "whole number", id="half a GPU"),
        pytest.param({}, {"gpu": "-1"}, "gpu", "-1", "whole number", id="negative count"),
        pytest.param({}, {"gpu": "129"}, "gpu", "129", "128", id="too many"),
        pytest.param(
            {}, {"gpu": "1", "gpumem": "10", "gpumem-percentage": "10"}, "percentage", "10", "keep one", id="twice"
        ),
        pytest.param(
            {"default_gpu_num": 0}, {"gpumem": "10"}, "gpumem", "10", "add nvidia.com/gpu", id="memory of no GPU"
        ),
    ],
)
def test_refuses_resources_that_hami_would_guess(config, asked, field, value, fix) -> None:
    limits = {"nvidia.com/" + key: text for key, text in asked.items()}
    with pytest.raises(RequestError, match=r"container main nvidia\.com/") as refusal:
        parse(pod(ContainerView(name="main", limits=limits)), HamiConfig(pool="main", **config))
    assert refusal.value.field.endswith(field)
    assert refusal.value.value == value
    assert fix in refusal.value.fix


def test_a_privileged_container_is_refused_beside_any_gpu() -> None:
    """Case hook-08."""
    helper = ContainerView(name="helper", privileged=True)
    with pytest.raises(RequestError, match="container helper privileged"):
        parse(pod(container(gpu="1"), helper), CONFIG)
    assert parse(pod(container(), helper), CONFIG) is None


@pytest.mark.parametrize(
    ("scheduler", "labels", "force", "ours"),
    [
        pytest.param("other-scheduler", {}, True, False, id="hook-10"),
        ("", {}, True, True),
        ("hami-scheduler", {}, True, True),
        ("default-scheduler", {}, True, True),
        ("default-scheduler", {}, False, False),
        ("hami-scheduler", UNADMITTED, True, True),
        ("default-scheduler", UNADMITTED, True, False),
        ("", UNADMITTED, True, False),
    ],
)
def test_pods_of_other_schedulers_are_left_alone(scheduler, labels, force, ours) -> None:
    config = HamiConfig(pool="main", force_overwrite_default_scheduler=force)
    asked = pod(container(gpu="1"), scheduler_name=scheduler, labels=labels)
    assert (parse(asked, config) is not None) == ours


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("hami.io/node-scheduler-policy", "spread", "node_policy", "spread"),
        ("hami.io/node-scheduler-policy", "", "node_policy", ""),
        ("hami.io/gpu-scheduler-policy", "topology-aware", "gpu_policies", ("topology-aware",)),
        ("hami.io/gpu-scheduler-policy", "binpack, numa", "gpu_policies", ("binpack", "numa")),
        ("hami.io/gpu-scheduler-policy", "mutex", "gpu_policies", ("mutex",)),
        ("hami.io/device-scoring-weights", "slot=1,core=1,memory=3", "scoring_weights", (1, 1, 3)),
        ("nvidia.com/use-gputype", "A100, ,h100", "model_words", ("a100", "h100")),
        ("nvidia.com/use-gputype", "", "model_words", ()),
        ("nvidia.com/nouse-gputype", "T4", "excluded_model_words", ("t4",)),
        ("nvidia.com/use-gpuuuid", "GPU-a,GPU-b,GPU-a", "uuids", ("GPU-a", "GPU-b")),
        ("nvidia.com/nouse-gpuuuid", "GPU-a", "excluded_uuids", ("GPU-a",)),
        ("nvidia.com/numa-bind", "true", "numa_bind", True),
        ("nvidia.com/numa-bind", "T", "numa_bind", True),
        ("nvidia.com/numa-bind", "0", "numa_bind", False),
        ("nvidia.com/vgpu-mode", "mig", "vgpu_mode", ("mig",)),
        ("nvidia.com/vgpu-mode", "hami-core,mps", "vgpu_mode", ("hami-core", "mps")),
        ("tensor-fusion.ai/gpupool", "other", "pool", "other"),
        ("hami.io/vgpu-node", "n1", "uuids", ()),
        ("example.com/anything", "x", "uuids", ()),
    ],
)
def test_reads_annotations(key, value, field, expected) -> None:
    request = parse(pod(container(gpu="1"), annotations={key: value}), CONFIG)
    found = getattr(request, field)
    assert found == (ScoringWeights(slot=1, core=1, memory=3) if field == "scoring_weights" else expected)


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"hami.io/node-scheduler-policy": "pack"}, "use one of binpack, spread"),
        ({"hami.io/node-scheduler-policy": "mutex"}, "use one of binpack, spread"),
        ({"hami.io/gpu-scheduler-policy": "pack"}, "use one of binpack, spread, topology-aware, mutex, numa"),
        ({"hami.io/gpu-scheduler-policy": "binpak"}, "did you mean binpack"),
        ({"nvidia.com/numa-bind": "yes"}, "true or false"),
        ({"nvidia.com/vgpu-mode": "sriov"}, "use one of hami-core, mig, mps"),
        ({"nvidia.com/use-gpuuuid": "GPU-a,GPU-b", "nvidia.com/nouse-gpuuuid": "GPU-b"}, "drop GPU-b"),
        ({"nvidia.com/use-gputype": "A100", "nvidia.com/nouse-gputype": "a100"}, "drop a100"),
        ({"nvidia.com/use-gpuuid": "GPU-a"}, "did you mean nvidia.com/use-gpuuuid"),
        ({"hami.io/gpu-scheduler-policies": "spread"}, "did you mean hami.io/gpu-scheduler-policy"),
    ],
)
def test_refuses_annotations_that_hami_would_guess(annotations, message) -> None:
    with pytest.raises(RequestError) as refusal:
        parse(pod(container(gpu="1"), annotations=annotations), CONFIG)
    assert message.replace("true or false", 'write "true" or "false"') in str(refusal.value)
    assert parse(pod(container(), annotations=annotations), CONFIG) is None, "no GPU, nobody's business"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        pytest.param("slot=1,core=-1,memory=3", '"core" weight must not be negative', id="order-03"),
        ("slot=1,core=1", "lacks a key"),
        ("slot=0,core=0,memory=0", "only zeros"),
        ("slot=1,slot=1,core=1,memory=1", "repeated"),
        ("slot=1,core=1,memory=1,power=1", '"power"'),
        ("slot=1,core=1,memory=x", "whole number"),
        ("slot=1,core=1,memory=1.5", "whole number"),
        ("1,2,3", "unknown"),
    ],
)
def test_refuses_weights(written, message) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        weights(written)


def test_one_container_is_the_pod() -> None:
    request = parse(pod(container("side"), container("main", gpu="2", gpumem="1024", gpucores="100")), CONFIG)
    assert request is not None
    assert (request.container_names, request.containers, request.dedicated) == (("main",), (), True)
    assert (request.vendor, request.dialect, request.pool, request.qos) == ("NVIDIA", "hami", "main", "medium")


def test_several_containers_keep_their_own_amounts() -> None:
    request = parse(
        pod(
            container("a", gpu="2", gpumem="1000", gpucores="10"), container("b", gpu="1", gpumem="3000", gpucores="30")
        ),
        CONFIG,
    )
    assert request is not None
    assert request.containers == (
        ContainerRequest(name="a", count=2, compute_milli=100, vram_bytes=1000 * MIB),
        ContainerRequest(name="b", count=1, compute_milli=300, vram_bytes=3000 * MIB),
    )
    assert amounts(request) == (3, 3000, 0, 30), "every container on GPUs of its own"
    assert hash(request) == hash(parse(pod(*reversed_pod()), CONFIG))


def reversed_pod() -> tuple[ContainerView, ...]:
    return container("a", gpucores="10", gpumem="1000", gpu="2"), container("b", gpucores="30", gpumem="3000", gpu="1")


def test_bytes_and_shares_together_are_bounded_by_whole_gpus() -> None:
    request = parse(
        pod(container("a", gpu="1", gpumem="1000"), container("b", gpu="1", gpumem_percentage="10")), CONFIG
    )
    assert amounts(request) == (2, 0, 100, 0)


def test_init_containers_come_first_and_end() -> None:
    request = parse(
        pod(container("app", gpu="1", gpumem="4000"), init=(container("load", gpu="3", gpumem="5000"),)), CONFIG
    )
    assert request is not None
    assert [(asked.name, asked.init) for asked in request.containers] == [("load", True), ("app", False)]
    assert amounts(request) == (3, 5000, 0, 0)


def test_an_init_container_alone_is_told_apart() -> None:
    request = parse(pod(container("app"), init=(container("load", gpu="1", gpumem="10"),)), CONFIG)
    assert request is not None
    assert [asked.init for asked in request.containers] == [True]


def test_a_native_sidecar_runs_on() -> None:
    sidecar = ContainerView(name="proxy", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10"}, restarts=True)
    request = parse(pod(container("app", gpu="1", gpumem="10"), init=(sidecar,)), CONFIG)
    assert request is not None
    assert [asked.init for asked in request.containers] == [False, False]
    assert request.count == 2


def test_too_many_gpus_in_all() -> None:
    with pytest.raises(RequestError, match="'200'"):
        parse(pod(container("a", gpu="100"), container("b", gpu="100")), CONFIG)


def test_a_pool_is_needed() -> None:
    with pytest.raises(RequestError, match="no default"):
        parse(pod(container(gpu="1")), HamiConfig())
