"""Scores worked out by hand, which node they lead to, and which GPUs on it."""

from typing import Any

import pytest

from consumers.allocator.engine import Policy

COMPACT = Policy(name="CompactFirst")
SPREAD = Policy(name="LowLoadFirst")
MIXED = Policy(name="NodeCompactGPULowLoad")


def test_used_gpu_scores_its_used_share_and_an_idle_one_nothing(cluster: Any) -> None:
    cluster.node("idle")
    cluster.node("used")
    cluster.fill("used", 0, tflops=10_000, vram=100)
    found = cluster.decide(MIXED)
    assert [(c.node, c.score, c.parts) for c in found.candidates] == [
        ("used", 10, {"vram": 10, "tflops": 10}),
        ("idle", 0, {"vram": 0, "tflops": 0}),
    ]
    found = cluster.decide(SPREAD)
    assert [(c.node, c.score, c.parts) for c in found.candidates] == [
        ("idle", 100, {"vram": 100, "tflops": 100}),
        ("used", 90, {"vram": 90, "tflops": 90}),
    ]


@pytest.mark.parametrize(
    ("vram_weight", "tflops_weight", "score"),
    [(70, 30, 38), (30, 70, 32), (100, 0, 42), (0, 100, 28), (0, 0, 0), (100, 100, 70)],
)
def test_weights(cluster: Any, vram_weight: int, tflops_weight: int, score: int) -> None:
    cluster.node("n")
    cluster.fill("n", 0, tflops=28_000, vram=420)  # 42 x .7 + 28 x .3 = 37.8; 42 x .3 + 28 x .7 = 32.2
    policy = Policy(vram_weight=vram_weight, tflops_weight=tflops_weight)
    assert cluster.decide(policy).candidates[0].score == score


def test_gpu_scores_round_half_up_and_their_mean_rounds_down(cluster: Any) -> None:
    only_vram = Policy(name="CompactFirst", vram_weight=100, tflops_weight=0)
    cluster.node("n", 3)
    cluster.fill("n", 0, vram=105)  # 10.5 -> 11
    cluster.fill("n", 1, vram=104)  # 10.4 -> 10; (11 + 10 + 0) / 3 = 7
    assert cluster.decide(only_vram).candidates[0].score == 7
    cluster.fill("n", 2, vram=17)  # 1.7 -> 2; 23 / 3 = 7.67 -> 7; the parts: 22.6 / 3 = 7.53 -> 7
    assert cluster.decide(only_vram).candidates[0].score == 7
    assert cluster.decide(only_vram).candidates[0].parts == {"vram": 7, "tflops": 0}


def test_score_is_cut_to_a_hundred_and_overallocation_counts_as_full(cluster: Any) -> None:
    cluster.node("n", 2)
    cluster.fill("n", 0, tflops=500_000, vram=5000)
    assert cluster.decide(Policy(vram_weight=100, tflops_weight=100)).candidates[0].score == 50


def test_gpu_without_capacity_counts_as_unused(cluster: Any) -> None:
    cluster.node("n", [{"tflops_milli": 0}])
    cluster.fill("n", 0, vram=500)
    assert cluster.decide(MIXED, vram_bytes=1).candidates[0].score == 35


@pytest.mark.parametrize(
    ("policy", "node", "slot"), [(MIXED, "b-used", 1), (COMPACT, "b-used", 0), (SPREAD, "a-idle", 1)]
)
def test_each_mode_chooses_node_and_gpu(cluster: Any, policy: Policy, node: str, slot: int) -> None:
    cluster.node("a-idle", 2)
    cluster.fill("a-idle", 0, tflops=10_000)
    cluster.node("b-used", 2)
    cluster.fill("b-used", 0, tflops=30_000, vram=300)
    found = cluster.decide(policy, compute_milli=100)
    assert (found.node, found.gpus[0].index) == (node, slot)


def test_most_used_gpu_is_taken_among_those_that_fit(cluster: Any) -> None:
    cluster.node("n", 4)
    for slot, used in enumerate((100, 900, 500, 300)):
        cluster.fill("n", slot, vram=used)
    assert cluster.decide(COMPACT, vram_bytes=200).gpus[0].index == 2
    assert cluster.decide(COMPACT, vram_bytes=100).gpus[0].index == 1
    assert [grant.index for grant in cluster.decide(COMPACT, count=2, vram_bytes=200).gpus] == [2, 3]
    assert [grant.index for grant in cluster.decide(SPREAD, count=2, vram_bytes=200).gpus] == [0, 3]


def test_all_gpus_of_a_node_count_for_its_score(cluster: Any) -> None:
    cluster.node("n", [{}, {"healthy": False}])
    cluster.fill("n", 1, tflops=100_000, vram=1000)
    assert cluster.decide(COMPACT).candidates[0].score == 50


def test_pod_without_gpus_ranks_nodes_by_memory_and_cpu(cluster: Any) -> None:
    cluster.node("a", gpus=None)
    cluster.node("b", gpus=None)
    cluster.fill("b", cpu_milli=1000, memory_bytes=2000)
    found = cluster.decide(MIXED, count=0, cpu_milli=1)
    assert (found.node, found.gpus) == ("b", ())
    assert (found.candidates[0].score, found.candidates[0].parts) == (17, {"memory": 20, "cpu": 10})
    found = cluster.decide(SPREAD, count=0, cpu_milli=1)
    assert [(c.node, c.score) for c in found.candidates] == [("a", 100), ("b", 83)]


def test_at_most_three_candidates_best_first(cluster: Any) -> None:
    for number in range(5):
        cluster.node(f"n{number}")
        cluster.fill(f"n{number}", 0, vram=100 * number)
    found = cluster.decide(COMPACT)
    assert [c.node for c in found.candidates] == ["n4", "n3", "n2"]
    assert found.message == "5 of 5 nodes fit, n4 is the best: score 28"
    assert (found.outcome, found.reason, found.help, found.filters) == ("allocated", "", "", ())
