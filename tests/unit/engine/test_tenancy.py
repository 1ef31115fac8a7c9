"""Who may share a GPU with whom."""

from typing import Any

import pytest

from consumers.allocator.engine import Policy
from schemas.cluster import Pool
from schemas.decision import GpuGrant
from schemas.ledger import Allocation

GOES_WITH = {
    "": {"", "soft", "hard"},
    "soft": {"", "soft"},
    "hard": {"", "hard"},
    "partitioned": set(),
    "shared": set(),
}


def reasons(found: Any) -> list[tuple[str, int, int]]:
    return [(each.reason, each.nodes, each.gpus) for each in found.filters]


@pytest.mark.parametrize("there", ["", "soft", "hard", "partitioned", "shared"])
@pytest.mark.parametrize("comes", ["", "soft", "hard", "shared"])
def test_isolations_that_live_together(cluster: Any, there: Any, comes: Any) -> None:
    cluster.node("n")
    grant = GpuGrant(uuid="n/0", index=0, tflops_milli=1, vram_bytes=1, isolation=there, exclusive=there == "shared")
    for _ in range(2):  # once from scratch, once as a changed row
        cluster.snapshot.add("n", Allocation(pod_uid="u", namespace="ns", name="pod", pool="p", gpus=(grant,)))
        found = cluster.decide(tflops_milli=1, isolation=comes)
        if comes in GOES_WITH[there]:
            assert found.node == "n"
        else:
            code = (
                "GpuNotIdle"
                if comes == "shared"
                else "GpuHeldExclusively"
                if there == "shared"
                else "IsolationConflict"
            )
            assert (found.node, found.reason, reasons(found)) == ("", code, [(code, 1, 1)])
        cluster.snapshot.remove("n", "u")
        assert cluster.decide(tflops_milli=1, isolation=comes).node == "n"


@pytest.mark.parametrize("how", [{"dedicated": True}, {"isolation": "shared"}])
def test_a_dedicated_gpu_is_given_idle_and_nothing_joins_it_whatever_the_amounts(cluster: Any, how: Any) -> None:
    cluster.node("n", 3)
    cluster.fill("n", 0, tflops=1)
    found = cluster.place(count=2, **how)
    assert [(grant.index, grant.exclusive) for grant in found.gpus] == [(1, True), (2, True)]
    for _ in range(2):
        refused = cluster.decide(count=2)
        assert reasons(refused) == [("GpuHeldExclusively", 0, 2), ("TooFewGpusOnOneNode", 1, 1)]
        assert reasons(cluster.decide(**how)) == [("GpuNotIdle", 1, 3)]
        cluster.fill("n", 0, tflops=1)
    assert cluster.decide(count=1).gpus[0].index == 0
    assert cluster.decide(Policy(name="LowLoadFirst"), count=1).candidates[0].parts == {"vram": 33, "tflops": 33}
    cluster.snapshot.remove("n", "pod-2")
    assert cluster.decide(count=2, **how).node == "n"


def test_slots_are_used_up_by_containers_and_given_back(cluster: Any) -> None:
    cluster.node("n", [{"slots": 2}, {"slots": 0}])
    cluster.fill("n", 0, tflops=1)
    second = cluster.fill("n", 0, tflops=1)
    for _ in range(2):
        assert reasons(cluster.decide(count=2)) == [("GpuSlotsUsedUp", 0, 1), ("TooFewGpusOnOneNode", 1, 1)]
        cluster.fill("n", 1, tflops=1)
    cluster.snapshot.remove("n", second)
    assert cluster.decide(count=2).node == "n"


def test_workers_per_node_are_pods_with_gpus(cluster: Any) -> None:
    cluster.node("n", 2)
    cluster.fill("n", cpu_milli=1)
    cluster.fill("n", 0, tflops=1)
    cluster.snapshot.put_pool(Pool(name="p", max_workers_per_node=1))
    assert reasons(cluster.decide()) == [("TooManyWorkers", 1, 2)]
    assert cluster.decide(count=0).node == "n"
    cluster.snapshot.put_pool(Pool(name="p", max_workers_per_node=2))
    assert cluster.decide().node == "n"


def test_a_hami_pod_without_compute_needs_a_gpu_with_some_left(cluster: Any) -> None:
    cluster.node("n")
    cluster.fill("n", tflops=100_000)
    assert cluster.decide(vram_bytes=1).node == "n"
    assert cluster.decide(vram_bytes=1, dialect="hami").reason == "InsufficientCompute"
