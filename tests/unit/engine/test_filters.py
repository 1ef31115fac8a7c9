"""Every filter, its place in the order, and how it is reported."""

from typing import Any

import pytest

from consumers.allocator.engine import Policy, decide, fits_on
from schemas.cluster import Node
from schemas.decision import FilterReport
from schemas.pod import GpuRequest
from schemas.reasons import CODES

GPU_CASES: list[tuple[str, Any, dict[str, Any]]] = [
    ("GpuUnhealthy", [{"healthy": False}], {}),
    ("GpuUsedByForeignAllocator", [{"used_by": "nvidia-device-plugin"}], {}),
    ("VendorMismatch", [{"vendor": "AMD"}], {"vendor": "NVIDIA"}),
    ("ModelMismatch", [{"model": "T4"}], {"models": ("L4", "A10")}),
    ("TooFewGpus", 1, {"count": 2}),
    ("InsufficientCompute", 1, {"tflops_milli": 100_001}),
    ("InsufficientVram", 1, {"vram_bytes": 1001}),
    ("InsufficientCpu", 1, {"cpu_milli": 10_001}),
    ("InsufficientMemory", 1, {"memory_bytes": 10_001}),
]


@pytest.mark.parametrize(("code", "gpus", "ask"), GPU_CASES)
def test_each_filter_refuses_under_its_own_code(cluster: Any, code: str, gpus: Any, ask: dict[str, Any]) -> None:
    cluster.node("n", gpus)
    found = cluster.decide(**ask)
    assert (found.outcome, found.node, found.reason) == ("unschedulable", "", code)
    assert found.message == f"0 of 1 nodes fit: 1 {code}"
    assert found.help == CODES[code].help
    assert found.filters == (FilterReport(reason=code, nodes=1, gpus=1, examples=("n",)),)
    assert not fits_on(cluster.snapshot, GpuRequest(pool="p", **ask), "n")


@pytest.mark.parametrize(
    ("code", "changes"),
    [("NodeNotReady", {"ready": False}), ("NodeNotReady", {"unschedulable": True}), ("TooManyPods", {"max_pods": 0})],
)
@pytest.mark.parametrize("count", [0, 1])
def test_filters_of_whole_nodes_take_the_gpus_with_them(cluster: Any, code: str, changes: Any, count: int) -> None:
    cluster.node("n", 4, **changes)
    assert cluster.decide(count=count).filters == (
        FilterReport(reason=code, nodes=1, gpus=4 if count else 0, examples=("n",)),
    )


def test_unknown_pool_and_empty_pool_are_told_apart(cluster: Any) -> None:
    assert cluster.decide(pool="typo").reason == "PoolUnknown"
    assert cluster.decide(pool="typo").message == "pool 'typo' is not known"
    assert cluster.decide().reason == "PoolEmpty"
    cluster.node("n")
    cluster.snapshot.remove_node("n")
    assert cluster.decide().reason == "PoolEmpty"
    cluster.node("elsewhere", pool="q")
    assert cluster.decide().reason == "PoolEmpty"
    assert cluster.decide(pool="q").reason == "PoolUnknown"


def test_missing_inventory_stops_gpu_pods_only(cluster: Any) -> None:
    cluster.node("n", gpus=None)
    assert cluster.decide().reason == "InventoryMissing"
    assert cluster.decide(count=0, cpu_milli=1).node == "n"
    assert fits_on(cluster.snapshot, GpuRequest(pool="p", count=0), "n")
    cluster.snapshot.put_inventory(cluster.inventory("n", 0))
    assert cluster.decide().reason == "TooFewGpus"


def test_gpu_filter_refuses_the_node_only_when_it_takes_the_count_below_what_is_asked(cluster: Any) -> None:
    cluster.node("n", [{"healthy": False}, {"vendor": "AMD"}, {}, {}])
    found = cluster.decide(count=2, vendor="NVIDIA")
    assert found.node == "n"
    assert [(each.reason, each.nodes, each.gpus) for each in found.filters] == [
        ("GpuUnhealthy", 0, 1),
        ("VendorMismatch", 0, 1),
    ]
    # Of three asked for, three are healthy but two are of the vendor: those two fall with their node.
    found = cluster.decide(count=3, vendor="NVIDIA")
    assert [(each.reason, each.nodes, each.gpus) for each in found.filters] == [
        ("GpuUnhealthy", 0, 1),
        ("VendorMismatch", 1, 3),
    ]
    # Five were never there, so repairing one would not help.
    assert cluster.decide(count=5, vendor="NVIDIA").reason == "TooFewGpus"


def test_too_few_gpus_on_one_node_differs_from_insufficient_compute(cluster: Any) -> None:
    cluster.node("n-empty", 2)
    cluster.node("n-full", 2)
    cluster.fill("n-empty", 0, tflops=1)
    for slot in (0, 1):
        cluster.fill("n-full", slot, tflops=60_000)
    found = cluster.decide(count=2, compute_milli=1000)
    assert [(each.reason, each.nodes, each.gpus, each.examples) for each in found.filters] == [
        ("InsufficientCompute", 1, 3, ("n-full",)),
        ("TooFewGpusOnOneNode", 1, 1, ("n-empty",)),
    ]
    assert found.reason == "TooFewGpusOnOneNode"


def test_vram_is_asked_only_of_gpus_with_enough_compute(cluster: Any) -> None:
    cluster.node("n", 2)
    cluster.fill("n", 0, tflops=60_000)
    cluster.fill("n", 1, vram=600)
    found = cluster.decide(compute_milli=500, vram_milli=500)
    assert [(each.reason, each.nodes, each.gpus) for each in found.filters] == [
        ("InsufficientCompute", 0, 1),
        ("InsufficientVram", 1, 1),
    ]


def test_dominant_reason_is_the_last_filter_that_refused_a_node(cluster: Any) -> None:
    for number in range(5):
        cluster.node(f"down-{number}", ready=False)
    cluster.node("busy", cpu_milli=1)
    found = cluster.decide(cpu_milli=2)
    assert found.reason == "InsufficientCpu"
    assert found.message == "0 of 6 nodes fit: 5 NodeNotReady, 1 InsufficientCpu"
    assert found.filters[0].examples == ("down-0", "down-1", "down-2")


def test_examples_are_the_first_by_name_and_follow_changes(cluster: Any) -> None:
    for name in ("d", "b", "e", "a", "c"):
        cluster.node(name, cpu_milli=5)
    assert cluster.decide(cpu_milli=9).filters[0].examples == ("a", "b", "c")
    cluster.node("b", cpu_milli=10)
    assert cluster.decide(cpu_milli=9).filters[0].examples == ("a", "c", "d")
    cluster.node("aa", cpu_milli=5)
    assert cluster.decide(cpu_milli=9).filters[0].examples == ("a", "aa", "c")
    cluster.snapshot.remove_node("a")
    assert cluster.decide(cpu_milli=9).filters[0].examples == ("aa", "c", "d")


def test_nodes_of_other_pools_do_not_count(cluster: Any) -> None:
    cluster.node("mine", cpu_milli=1)
    cluster.node("theirs", pool="q")
    found = cluster.decide(cpu_milli=2)
    assert found.message == "0 of 1 nodes fit: 1 InsufficientCpu"
    cluster.snapshot.put_node(Node(name="theirs", pool="p", cpu_milli=10))
    assert cluster.decide(cpu_milli=2).node == "theirs"


def test_shares_are_of_the_physical_gpu_rounded_down(cluster: Any) -> None:
    cluster.node("n", [{"tflops_milli": 7, "vram_bytes": 7}])
    first = cluster.place(compute_milli=500, vram_milli=500)
    assert (first.gpus[0].tflops_milli, first.gpus[0].vram_bytes) == (3, 3)
    second = cluster.place(compute_milli=571, vram_milli=571)  # 3.997 rounds down to 3
    assert (second.gpus[0].tflops_milli, second.gpus[0].vram_bytes) == (3, 3)
    assert cluster.decide(compute_milli=286).reason == "InsufficientCompute"  # 2.002 is 2, and 1 is left
    assert cluster.decide(compute_milli=285).node == "n"


def test_request_without_gpu_amounts_still_takes_distinct_gpus(cluster: Any) -> None:
    cluster.node("n", 2)
    found = cluster.decide(count=2)
    assert [(grant.uuid, grant.tflops_milli, grant.vram_bytes) for grant in found.gpus] == [
        ("n/0", 0, 0),
        ("n/1", 0, 0),
    ]
    assert cluster.decide(count=3).reason == "TooFewGpus"


def test_overallocated_gpu_never_fits(cluster: Any) -> None:
    cluster.node("n", 1)
    cluster.fill("n", 0, tflops=100_001)
    assert cluster.decide(vram_bytes=1).reason == "InsufficientCompute"
    assert cluster.decide(count=1).reason == "InsufficientCompute"
    assert cluster.decide(count=0).node == "n"


def test_pod_that_asks_for_no_cpu_fits_where_cpu_is_overcommitted(cluster: Any) -> None:
    cluster.node("n", cpu_milli=1)
    cluster.node("other", ready=False)
    cluster.fill("n", cpu_milli=5)
    for _ in range(2):  # once from scratch, once as a changed row
        assert cluster.decide().node == "n"
        assert cluster.decide(cpu_milli=1).filters[1].reason == "InsufficientCpu"
        assert fits_on(cluster.snapshot, GpuRequest(pool="p"), "n")
        assert not fits_on(cluster.snapshot, GpuRequest(pool="p", cpu_milli=1), "n")
        cluster.fill("n", cpu_milli=5)


def test_absurd_amounts_are_refused_and_do_not_overflow(cluster: Any) -> None:
    cluster.node("n", [{"tflops_milli": 10**30, "vram_bytes": 10**30}], memory_bytes=10**30)
    assert cluster.decide(vram_bytes=10**40).reason == "InsufficientVram"
    assert cluster.decide(vram_milli=1000, memory_bytes=5).node == "n"


def test_fits_on_looks_at_one_node(cluster: Any) -> None:
    cluster.node("n", 2)
    cluster.node("other", 2, pool="q")
    request = GpuRequest(pool="p", count=2, compute_milli=500)
    assert fits_on(cluster.snapshot, request, "n")
    assert not fits_on(cluster.snapshot, request, "other")
    assert not fits_on(cluster.snapshot, request, "nowhere")
    uid = cluster.fill("n", 0, tflops=50_001)
    assert not fits_on(cluster.snapshot, request, "n")
    cluster.snapshot.remove("n", uid)
    assert fits_on(cluster.snapshot, request, "n")
    assert decide(cluster.snapshot, request, Policy()).node == "n"


NAMED_CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("GpuCordoned", {"cordoned_gpus": ("n/1",)}, {}),
    ("GpuCordoned", {"cordoned_gpus": ("*",)}, {}),
    ("GpuClaimedOutsideLedger", {"claimed_gpus": ("n/1",)}, {}),
    ("ModelWordMismatch", {}, {"model_words": ("a100", "h100")}),
    ("ModelWordMismatch", {}, {"excluded_model_words": ("l",)}),
    ("VgpuModeMismatch", {}, {"vgpu_mode": ("mig", "mps")}),
    ("UuidMismatch", {}, {"uuids": ("n/0", "n/7")}),
    ("UuidMismatch", {}, {"excluded_uuids": ("n/1",)}),
    ("IndexMismatch", {}, {"gpu_indices": (0, 2)}),
    ("IsolationUnavailable", {}, {"isolation": "hard"}),
]


@pytest.mark.parametrize(("code", "node", "ask"), NAMED_CASES)
def test_each_filter_of_single_gpus_has_a_code_of_its_own(cluster: Any, code: str, node: Any, ask: Any) -> None:
    cluster.node("n", [{"isolations": ("soft",)}] * 2, **node)
    found = cluster.decide(count=2, **ask)
    assert (found.node, found.reason, found.help) == ("", code, CODES[code].help)
    assert not fits_on(cluster.snapshot, GpuRequest(pool="p", count=2, **ask), "n")
    cluster.node("n", 2)
    cluster.snapshot.put_node(Node(name="n", pool="p"))
    assert cluster.decide(count=2).node == "n"


def test_words_of_a_model_are_parts_of_its_name_in_any_case(cluster: Any) -> None:
    cluster.node("n", [{"model": "NVIDIA A100-SXM4-80GB"}, {"model": "Tesla T4"}])
    assert [grant.index for grant in cluster.decide(model_words=("a100",)).gpus] == [0]
    assert [grant.index for grant in cluster.decide(excluded_model_words=("a100",)).gpus] == [1]
    assert cluster.decide(model_words=("t4", "a100"), excluded_model_words=("80gb",)).gpus[0].index == 1


def test_a_gpu_operated_in_partitions_gives_nothing_else(cluster: Any) -> None:
    cluster.node("n", [{"mode": "mig"}])
    assert cluster.decide().reason == "IsolationUnavailable"
    assert cluster.decide(dedicated=True).reason == "IsolationUnavailable"


def test_a_silent_agent_keeps_gpus_from_new_pods_and_lets_the_others_be(cluster: Any) -> None:
    cluster.node("n")
    uid = cluster.fill("n", tflops=1, vram=1)
    before = cluster.snapshot.digest()
    cluster.snapshot.set_silent("n", silent=True)
    assert cluster.decide().reason == "AgentSilent"
    assert cluster.decide(count=0).node == "n"
    assert cluster.snapshot.allocation(uid) is not None
    cluster.snapshot.set_silent("n", silent=False)
    assert cluster.decide().node == "n"
    assert cluster.snapshot.digest() == before


def test_what_pods_outside_the_ledger_take_is_not_free(cluster: Any) -> None:
    taken = {"taken_cpu_milli": 9_000, "taken_memory_bytes": 9_000, "taken_pods": 109}
    cluster.node("n", **taken)
    assert cluster.decide(cpu_milli=1_001).reason == "InsufficientCpu"
    assert cluster.decide(memory_bytes=1_001).reason == "InsufficientMemory"
    assert cluster.place(cpu_milli=1_000, memory_bytes=1_000).node == "n"
    assert cluster.decide().reason == "TooManyPods"


def test_a_gpu_that_goes_while_it_is_held_comes_back_as_full_as_it_was(cluster: Any) -> None:
    cluster.node("n", 2)
    cluster.fill("n", 1, tflops=60_000, vram=600)
    cluster.snapshot.put_inventory(cluster.inventory("n", 1))
    assert cluster.decide(count=2).reason == "TooFewGpus"
    assert [grant.index for grant in cluster.decide(compute_milli=500).gpus] == [0]
    cluster.snapshot.put_inventory(cluster.inventory("n", 2))
    assert cluster.decide(count=2, compute_milli=500).filters[0].reason == "InsufficientCompute"
    assert cluster.decide(count=2, compute_milli=400).node == "n"
