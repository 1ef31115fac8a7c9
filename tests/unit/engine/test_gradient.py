"""FragmentationGradient, worked out by hand."""

import random
from typing import Any

import pytest

from consumers.allocator.engine import Policy, Workload, gradient
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


@pytest.mark.parametrize("spread", [gradient._SPREAD, 0])
def test_rows_that_are_alike_get_what_each_would_get_by_itself(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, spread: int
) -> None:
    """Without spread all sums are equal, as those of different states may be by chance: no row stands for another then."""
    rng = random.Random(7)
    for number in range(60):
        cluster.node(f"n{number:02}", [{"model": rng.choice(["T4", "L4"])} for _ in range(rng.choice([1, 2, 9]))])
    for number in rng.sample(range(60), 20):
        cluster.fill(f"n{number:02}", 0, tflops=rng.choice([20_000, 50_000]), vram=rng.choice([100, 500]))
    monkeypatch.setattr(gradient, "_SPREAD", spread)
    for number in range(12):
        kinds = (PodKind(gpus=1, share_milli=500, models=("T4",)), PodKind(gpus=2, share_milli=1000, pods=2 + number))
        asked = {"count": number % 3, "compute_milli": 400 * (number % 3 > 0), "vram_milli": 300 * (number % 3 > 0)}
        monkeypatch.setattr(gradient, "_MANY_ROWS", 1000)
        alone = cluster.decide(policy(*kinds), **asked)
        monkeypatch.setattr(gradient, "_MANY_ROWS", 2)
        # Another shape and so looked at anew, which fits alike.
        together = cluster.decide(policy(*kinds), **asked, cpu_milli=1)
        assert (together.node, together.gpus, together.candidates) == (alone.node, alone.gpus, alone.candidates)
