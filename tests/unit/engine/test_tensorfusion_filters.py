"""TensorFusion's own cases of what its filters leave, in its numbers: TFLOPS and GiB. Facts read from its unit tests.

``internal/scheduler/gpuresources`` (the three nodes), ``internal/gpuallocator/filter`` (single filters) and
``shared_allocation_unit_test`` (whole GPUs). Left out: index resources of the device plugin, which stand in for nothing here.
"""

from typing import Any

import pytest

from consumers.allocator.engine import Policy, fits_on
from schemas.cluster import Pool
from schemas.pod import GpuRequest

GIB = 1 << 30


def ask(tflops: int, gib: int, **more: Any) -> dict[str, Any]:
    return {"tflops_milli": 1000 * tflops, "vram_bytes": gib * GIB, "isolation": "soft"} | more


def gpu(tflops: int, gib: int, **more: Any) -> dict[str, Any]:
    return {"tflops_milli": 1000 * tflops, "vram_bytes": gib * GIB} | more


@pytest.fixture
def three_nodes(cluster: Any) -> Any:
    cluster.node("node-a", [gpu(1000, 20)])
    cluster.node("node-b", [gpu(1000, 20), gpu(2000, 40)])
    cluster.node("node-c", [gpu(2000, 40, used_by="nvidia-device-plugin")])
    cluster.fill("node-a", 0, tflops=100_000, vram=2 * GIB)
    return cluster


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        (ask(100, 10), {"node-a", "node-b"}),
        (ask(2000, 10), {"node-b"}),
        (ask(100, 10, count=2), {"node-b"}),
        (ask(100, 80), set()),
        (ask(100, 10, count=3), set()),
        (ask(950, 10), {"node-b"}),
        (ask(100, 19), {"node-b"}),
    ],
)
def test_nodes_that_are_left(three_nodes: Any, asked: dict[str, Any], nodes: set[str]) -> None:
    request = GpuRequest(pool="p", **asked)
    names = ("node-a", "node-b", "node-c")
    assert {name for name in names if fits_on(three_nodes.snapshot, request, name)} == nodes
    assert (three_nodes.decide(**asked).node in nodes) is bool(nodes)


def test_a_share_of_the_compute_is_of_each_gpu(three_nodes: Any) -> None:
    # 95 % of 1000 TFLOPS does not fit beside 100, on 2000 it takes 1900.
    found = three_nodes.decide(Policy(name="CompactFirst"), compute_milli=950, vram_bytes=GIB, isolation="soft")
    assert {one.node for one in found.candidates} == {"node-b"}
    assert found.gpus[0].tflops_milli in (950_000, 1_900_000)


def test_shared_takes_whole_idle_gpus_and_nothing_is_left_of_them(three_nodes: Any) -> None:
    first = three_nodes.place(count=1, isolation="shared", tflops_milli=1, vram_bytes=1)
    second = three_nodes.place(count=1, isolation="shared", tflops_milli=1, vram_bytes=1)
    assert {grant.uuid for grant in (*first.gpus, *second.gpus)} == {"node-b/0", "node-b/1"}
    assert three_nodes.decide(isolation="shared").reason == "GpuNotIdle"
    assert three_nodes.decide(**ask(1, 1)).node == "node-a"


def test_the_first_pod_sets_the_isolation_of_a_gpu_and_the_last_clears_it(cluster: Any) -> None:
    cluster.node("n", [gpu(100, 10)])
    pods = [cluster.place(**ask(1, 1, isolation="hard")) for _ in range(2)]
    assert [grant.isolation for found in pods for grant in found.gpus] == ["hard", "hard"]
    uids = [held.pod_uid for held in cluster.snapshot.allocations("n")]
    assert cluster.decide(**ask(1, 1)).reason == "IsolationConflict"
    cluster.snapshot.remove("n", uids[0])
    assert cluster.decide(**ask(1, 1)).reason == "IsolationConflict"
    cluster.snapshot.remove("n", uids[1])
    assert cluster.decide(**ask(1, 1)).node == "n"


def test_workers_per_node_drop_the_node_that_has_as_many(three_nodes: Any) -> None:
    three_nodes.snapshot.put_pool(Pool(name="p", max_workers_per_node=1))
    assert three_nodes.decide(**ask(100, 10)).node == "node-b"
    three_nodes.place(**ask(100, 10))
    assert three_nodes.decide(**ask(100, 10)).reason == "TooManyWorkers"


def test_indices_are_the_only_gpus_given(three_nodes: Any) -> None:
    assert [grant.index for grant in three_nodes.decide(**ask(1, 1, gpu_indices=(1,))).gpus] == [1]
    assert [grant.index for grant in three_nodes.decide(**ask(1, 1, gpu_indices=(0, 1), count=2)).gpus] == [0, 1]
    assert three_nodes.decide(**ask(1, 1, gpu_indices=(2,))).reason == "IndexMismatch"


def test_half_a_teraflops_is_counted_as_such(cluster: Any) -> None:
    cluster.node("n", [gpu(1, 10)])
    half = {"tflops_milli": 500, "vram_bytes": GIB}
    for _ in range(2):
        assert cluster.decide(**half).gpus[0].tflops_milli == 500
        cluster.fill("n", 0, tflops=500, vram=GIB)
    assert cluster.decide(**half).reason == "InsufficientCompute"
