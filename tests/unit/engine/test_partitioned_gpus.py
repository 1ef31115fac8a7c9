"""Pods that take hardware partitions: which GPUs give them, which is cut first, and that nothing else is given beside them."""

from typing import Any

import pytest

from consumers.allocator.engine import Policy, Workload, fits_on, shadow_prices
from schemas import reasons
from schemas.cluster import PlacementMode, PodKind
from schemas.decision import Decision
from schemas.dialects import ContainerView, HamiConfig, PodSpecView
from schemas.dialects.hami import parse
from schemas.hardware import Partition, PartitionTemplate
from schemas.pod import GpuRequest

GIB = 1 << 30
SMALL = PartitionTemplate(id="1g.5gb", vram_bytes=5 * GIB, compute_milli=140, slots=1, starts=tuple(range(7)))
MIDDLE = PartitionTemplate(id="2g.10gb", vram_bytes=10 * GIB, compute_milli=280, slots=2, starts=(0, 2, 4))
LARGE = PartitionTemplate(id="3g.20gb", vram_bytes=20 * GIB, compute_milli=420, slots=4, starts=(0, 4))
WHOLE = PartitionTemplate(id="7g.40gb", vram_bytes=40 * GIB, compute_milli=1000, slots=8, starts=(0,))
A100 = {"model": "A100", "tflops_milli": 312_000, "vram_bytes": 40 * GIB, "mode": "mig"}
EXPECTED = Workload((PodKind(cpu_milli=1, gpus=1, share_milli=500, pods=1),))
PARTITIONED: dict[str, Any] = {"isolation": "partitioned"}


def a100s(cluster: Any, name: str = "n", gpus: int = 2, **more: Any) -> None:
    cluster.node(name, [A100 | more] * gpus, partitions=(SMALL, MIDDLE, LARGE, WHOLE))


def taken(found: Decision) -> list[tuple[int, str, int]]:
    return [(g.index, g.partition.template, g.partition.start) for g in found.gpus if g.partition]


def test_a_grant_is_the_templates_and_says_where_it_stands(cluster: Any) -> None:
    a100s(cluster)
    found = cluster.decide(**PARTITIONED, partition_template="2g.10gb")
    (grant,) = found.gpus
    assert (grant.tflops_milli, grant.vram_bytes) == (87_360, 10 * GIB)
    assert (grant.partition, grant.isolation) == (Partition(template="2g.10gb", start=0, slots=2), "partitioned")


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(name="CompactFirst"),
        Policy(name="LowLoadFirst"),
        Policy(name="FragmentationGradient", workload=EXPECTED),
        Policy(name="PackingValue", workload=EXPECTED, prices=shadow_prices(EXPECTED)),
        Policy(gpu_policies=("spread",)),
    ],
)
def test_a_gpu_that_is_cut_already_is_taken_first(cluster: Any, policy: Policy) -> None:
    a100s(cluster)
    found = [taken(cluster.place(policy, **PARTITIONED, vram_bytes=10 * GIB)) for _ in range(5)]
    first = found[0][0][0]
    assert [gpus[0][0] for gpus in found] == [first] * 3 + [1 - first] * 2


def test_several_gpus_give_one_partition_each(cluster: Any) -> None:
    a100s(cluster)
    assert taken(cluster.decide(**PARTITIONED, count=2, vram_bytes=GIB)) == [(0, "1g.5gb", 6), (1, "1g.5gb", 6)]
    assert cluster.decide(**PARTITIONED, count=3).reason == reasons.GPU_COUNT


def test_pods_without_partition_never_join_and_partitions_need_such_a_gpu(cluster: Any) -> None:
    a100s(cluster)
    assert cluster.decide(vram_bytes=GIB).reason == reasons.ISOLATION_UNAVAILABLE
    assert cluster.decide(isolation="shared").reason == reasons.ISOLATION_UNAVAILABLE
    cluster.node("plain", [A100 | {"mode": "hami-core"}], partitions=(SMALL,))
    assert cluster.decide(vram_bytes=GIB).node == "plain"
    assert cluster.decide(**PARTITIONED).node == "n"


def test_a_ledger_that_mixes_keeps_the_gpu_closed(cluster: Any) -> None:
    a100s(cluster, gpus=1)
    cluster.fill("n", 0, vram=1)
    assert cluster.decide(**PARTITIONED).reason == reasons.ISOLATION_CONFLICT


def test_no_room_and_room_again(cluster: Any) -> None:
    a100s(cluster, gpus=1)
    uids = []
    for _ in range(2):
        found = cluster.decide(**PARTITIONED, partition_template="3g.20gb")
        held = cluster.held(found)
        cluster.snapshot.add("n", held)
        uids.append(held.pod_uid)
    request = GpuRequest(pool="p", **PARTITIONED)
    refused = cluster.decide(**PARTITIONED)
    assert (refused.node, refused.reason) == ("", reasons.PARTITION)
    assert [(f.reason, f.nodes, f.gpus) for f in refused.filters] == [(reasons.PARTITION, 1, 1)]
    assert not fits_on(cluster.snapshot, request, "n")
    cluster.snapshot.remove("n", uids[0])
    assert taken(cluster.decide(**PARTITIONED)) == [(0, "1g.5gb", 6)]
    assert taken(cluster.decide(**PARTITIONED, partition_template="3g.20gb")) == [(0, "3g.20gb", 4)]
    assert fits_on(cluster.snapshot, request, "n")


def test_too_few_gpus_with_room_are_told_apart_from_none(cluster: Any) -> None:
    a100s(cluster)
    cluster.place(**PARTITIONED, partition_template="7g.40gb")
    assert cluster.decide(**PARTITIONED, count=2).reason == reasons.SAME_NODE


def test_templates_of_another_model_do_not_count(cluster: Any) -> None:
    cluster.node("n", [A100], partitions=(PartitionTemplate(**{**_fields(SMALL), "model": "H100"}),))
    assert cluster.decide(**PARTITIONED).reason == reasons.PARTITION


def _fields(template: PartitionTemplate) -> dict[str, Any]:
    return {name: getattr(template, name) for name in template.__struct_fields__}


def test_compute_of_partitions_is_never_more_than_the_gpus(cluster: Any) -> None:
    greedy = PartitionTemplate(id="1g", vram_bytes=1, compute_milli=400, slots=1, starts=(0, 1, 2))
    cluster.node("n", [A100], partitions=(greedy,))
    assert [bool(cluster.place(**PARTITIONED).node) for _ in range(2)] == [True, True]
    assert cluster.decide(**PARTITIONED).reason == reasons.PARTITION


@pytest.mark.parametrize(
    ("resources", "expected"),
    [({"nvidia.com/gpumem": "10000"}, "2g.10gb"), ({}, "7g.40gb"), ({"nvidia.com/gpumem-percentage": "50"}, "3g.20gb")],
)
def test_hami_pods_take_partitions_in_mode_mig(cluster: Any, resources: dict[str, str], expected: str) -> None:
    a100s(cluster)
    container = ContainerView(name="c", limits={"nvidia.com/gpu": "1"} | resources)
    pod = PodSpecView(namespace="ns", name="pod", containers=(container,), annotations={"nvidia.com/vgpu-mode": "mig"})
    request = parse(pod, HamiConfig(pool="p"))
    assert request is not None
    found = cluster.decide(**{name: getattr(request, name) for name in request.__struct_fields__})
    assert [gpu[1] for gpu in taken(found)] == [expected]


@pytest.mark.parametrize("mode", ["FragmentationGradient", "PackingValue"])
def test_modes_that_look_ahead_do_not_count_on_partitions_for_shares(cluster: Any, mode: PlacementMode) -> None:
    a100s(cluster, "cut", gpus=4)
    cluster.node("plain", 2)
    cluster.fill("plain", 0, tflops=50_000, vram=500)
    prices = shadow_prices(EXPECTED) if mode == "PackingValue" else ()
    found = cluster.decide(Policy(name=mode, workload=EXPECTED, prices=prices), compute_milli=500, vram_milli=500)
    assert (found.node, found.gpus[0].index) == ("plain", 0)
