"""FragmentationGradient, worked out by hand."""

from typing import Any

from consumers.allocator.engine import Policy, Workload
from schemas.cluster import PodKind


def policy(*kinds: PodKind) -> Policy:
    return Policy(name="FragmentationGradient", workload=Workload(kinds))


def test_share_goes_where_it_leaves_nothing_behind(cluster: Any) -> None:
    # A pod of 300 leaves 700 of an idle GPU, of use to halves; of a GPU with 600 it leaves 300, of use to nobody.
    for name in ("a-used", "b-idle", "c-exact"):
        cluster.node(name)
    cluster.fill("a-used", 0, tflops=40_000, vram=400)
    cluster.fill("c-exact", 0, tflops=70_000, vram=700)
    found = cluster.decide(policy(PodKind(gpus=1, share_milli=500)), compute_milli=300, vram_milli=300)
    # D is 300 (all fragmented, then gone), 0, and -300: int(100 / (1 + exp(-D / 1000))).
    assert [(c.node, c.score, c.parts) for c in found.candidates] == [
        ("c-exact", 57, {"fragmented": 30, "fragmented_after": 0}),
        ("b-idle", 50, {"fragmented": 0, "fragmented_after": 0}),
        ("a-used", 42, {"fragmented": 0, "fragmented_after": 30}),
    ]


def test_best_gpu_of_a_node_is_taken_and_the_first_of_equals(cluster: Any) -> None:
    cluster.node("n", 4)
    cluster.fill("n", 0, tflops=40_000, vram=400)
    for slot in (2, 3):
        cluster.fill("n", slot, tflops=70_000, vram=700)
    halves = policy(PodKind(gpus=1, share_milli=500))
    assert cluster.decide(halves, compute_milli=300).gpus[0].index == 2
    assert cluster.decide(halves, compute_milli=301).gpus[0].index == 1


def test_small_differences_are_ties_by_name(cluster: Any) -> None:
    kinds = policy(PodKind(gpus=1, share_milli=1000, pods=99), PodKind(gpus=1, share_milli=500, pods=1))
    cluster.node("a")
    cluster.node("b", 2)
    # On both an idle GPU is broken, and fragmentation grows by 0.99 x 600: the second GPU of "b" does not matter.
    assert [c.score for c in cluster.decide(kinds, compute_milli=400).candidates] == [35, 35]
    assert cluster.decide(kinds, compute_milli=400).node == "a"


def test_whole_gpus_are_the_first_idle_ones(cluster: Any) -> None:
    cluster.node("n", 4)
    cluster.fill("n", 1, tflops=10_000)
    whole = policy(PodKind(gpus=2, share_milli=1000))
    assert [grant.index for grant in cluster.decide(whole, count=2, compute_milli=1000).gpus] == [0, 2]
    # Several smaller shares take the tightest GPUs.
    assert [grant.index for grant in cluster.decide(whole, count=2, compute_milli=500).gpus] == [0, 1]


def test_cpu_that_gpus_will_need_is_spared_by_pods_without_gpus(cluster: Any) -> None:
    kinds = policy(PodKind(cpu_milli=8000, gpus=1, share_milli=1000))
    cluster.node("a-idle")
    cluster.node("b-full")
    cluster.fill("b-full", 0, tflops=100_000, vram=1000)
    found = cluster.decide(kinds, count=0, cpu_milli=4000)
    assert [(c.node, c.score, c.parts) for c in found.candidates] == [
        ("b-full", 50, {"fragmented": 0, "fragmented_after": 0}),
        ("a-idle", 26, {"fragmented": 0, "fragmented_after": 100}),
    ]


def test_scarcer_of_compute_and_vram_is_what_is_free(cluster: Any) -> None:
    cluster.node("a")
    cluster.node("b")
    cluster.fill("a", 0, tflops=10_000, vram=600)
    cluster.fill("b", 0, tflops=60_000, vram=100)
    found = cluster.decide(policy(PodKind(gpus=1, share_milli=500)), compute_milli=100)
    # Of each 400 are free, too little for a half. On "a" VRAM is scarcer and stays so; on "b" 100 go.
    assert [(c.node, c.score) for c in found.candidates] == [("b", 52), ("a", 50)]


def test_gpus_out_of_reach_do_not_count(cluster: Any) -> None:
    cluster.node("n", [{"healthy": False}, {"used_by": "plugin"}, {}])
    found = cluster.decide(policy(PodKind(gpus=2, share_milli=500)), compute_milli=500)
    assert found.gpus[0].index == 2
    assert found.candidates[0].parts == {"fragmented": 33, "fragmented_after": 16}


def test_models_are_learned_as_they_come(cluster: Any) -> None:
    bound = policy(PodKind(gpus=1, share_milli=1000, models=("T4",), pods=1), PodKind(gpus=1, share_milli=600, pods=1))
    cluster.node("a", [{"model": "T4"}])
    assert cluster.decide(bound, compute_milli=400).candidates[0].score == 42  # half the pods lose 600
    cluster.node("b", [{"model": "L4"}])
    found = cluster.decide(bound, compute_milli=400)
    # To the half of the pods that want a T4 all of an L4 is fragmented, so 200 of that go.
    assert [(c.node, c.score) for c in found.candidates] == [("b", 54), ("a", 42)]
