"""PackingValue, worked out by hand."""

from typing import Any

import pytest

from consumers.allocator.engine import Policy, Price, Workload, shadow_prices
from schemas.cluster import PodKind


def policy(*kinds: PodKind, **more: Any) -> Policy:
    workload = Workload(kinds)
    return Policy(name="PackingValue", workload=workload, prices=shadow_prices(workload), **more)


HALVES = PodKind(gpus=1, share_milli=500, pods=1)
WHOLE = PodKind(gpus=1, share_milli=1000, pods=1)


def test_node_that_loses_least_worth_is_taken(cluster: Any) -> None:
    # Halves are worth 500 each. Of an idle GPU a pod of 300 costs one half, of 700 free one half, of 400 free nothing.
    for name in ("a-idle", "b-700", "c-400"):
        cluster.node(name)
    cluster.fill("b-700", 0, tflops=30_000, vram=300)
    cluster.fill("c-400", 0, tflops=60_000, vram=600)
    found = cluster.decide(policy(HALVES), compute_milli=300, vram_milli=300)
    assert [(c.node, c.score, c.parts) for c in found.candidates] == [
        ("c-400", 0, {"value": 0, "idle": 0, "scarcity": 0}),
        ("b-700", -500, {"value": -500, "idle": 0, "scarcity": 0}),
        ("a-idle", -520, {"value": -500, "idle": -20, "scarcity": 0}),
    ]


def test_within_a_step_the_least_free_gpu_then_the_least_free_cpu_then_the_name_decides(cluster: Any) -> None:
    for name, gpus, cpu in (("a", 1, 9000), ("b", 1, 8000), ("c", 1, 8050), ("d", 2, 1000)):
        cluster.node(name, gpus, cpu_milli=cpu)
        cluster.fill(name, 0, tflops=50_000)
    cluster.fill("d", 1, tflops=100_000)
    cluster.fill("d", 0, tflops=1000)
    quarters = policy(PodKind(gpus=1, share_milli=250, pods=1))
    # "d" loses as much, but had 490 free to begin with; tenths of a core are as fine as CPU is looked at.
    assert [c.node for c in cluster.decide(quarters, compute_milli=240).candidates] == ["d", "b", "c"]
    assert [c.node for c in cluster.decide(quarters, compute_milli=500).candidates] == ["b", "c", "a"]


def test_gpu_in_use_is_preferred_unless_an_idle_one_loses_less(cluster: Any) -> None:
    cluster.node("n", 3)
    cluster.fill("n", 1, tflops=50_000, vram=500)
    # A half is all that 500 hold: that costs 500 of either. 600 fit the idle GPUs only.
    assert cluster.decide(policy(HALVES), compute_milli=500).gpus[0].index == 1
    assert cluster.decide(policy(HALVES), compute_milli=600).gpus[0].index == 0
    # What no pod wants is worth nothing: of 200 only that is lost. From 500 the half would be gone.
    cluster.fill("n", 0, tflops=20_000, vram=200)
    both = policy(HALVES, WHOLE)
    assert [grant.index for grant in cluster.decide(both, compute_milli=200).gpus] == [0]


def test_several_gpus_are_the_tightest_that_fit(cluster: Any) -> None:
    cluster.node("n", 4)
    cluster.fill("n", 1, tflops=10_000)
    assert [grant.index for grant in cluster.decide(policy(WHOLE), count=2, compute_milli=1000).gpus] == [0, 2]
    assert [grant.index for grant in cluster.decide(policy(WHOLE), count=2, compute_milli=500).gpus] == [0, 1]


def test_cpu_without_which_gpus_are_worth_nothing_is_spared(cluster: Any) -> None:
    cluster.node("a-idle")
    cluster.node("b-full")
    cluster.fill("b-full", 0, tflops=100_000, vram=1000)
    hungry = policy(PodKind(cpu_milli=8000, gpus=1, share_milli=1000, pods=1))
    found = cluster.decide(hungry, count=0, cpu_milli=4000)
    # Of 10 cores 6 are left: three quarters of a pod.
    assert [(c.node, c.parts["value"]) for c in found.candidates] == [("b-full", 0), ("a-idle", -250)]


def test_sets_of_idle_gpus_count_a_tenth(cluster: Any) -> None:
    cluster.node("a", 2)
    found = cluster.decide(policy(WHOLE, PodKind(gpus=2, share_milli=1000, pods=1)), compute_milli=1000)
    # A third of the demand is single, and two pods of three GPUs weigh as much as each other: the one kind loses one of two
    # GPUs, 333, the other its only pair, a tenth of that.
    assert found.candidates[0].parts == {"value": -367, "idle": -40, "scarcity": 0}


def test_models_that_others_are_bound_to_are_spared_as_they_get_scarce(cluster: Any) -> None:
    bound = policy(WHOLE, PodKind(gpus=1, share_milli=1000, models=("T4",), pods=1))
    cluster.node("a", [{"model": "T4"}])
    cluster.node("b", [{"model": "L4"}] * 3)
    found = cluster.decide(bound, compute_milli=1000)
    # Half the demand is bound to T4, of which a quarter is: 1/2 x 4 = 2.
    assert {c.node: c.parts["scarcity"] for c in found.candidates} == {"a": -2000, "b": 0}
    assert found.node == "b"
    # At most 3, and a pod that may have nothing else takes it all the same.
    for number in range(5):
        cluster.node(f"c{number}", [{"model": "L4"}])
    found = cluster.decide(bound, compute_milli=1000, models=("T4",))
    assert [(c.node, c.parts["scarcity"]) for c in found.candidates] == [("a", -3000)]
    # Nodes that are not ready have nothing free.
    cluster.node("b", [{"model": "L4"}] * 3, ready=False)
    for number in range(5):
        cluster.node(f"c{number}", [{"model": "L4"}], unschedulable=True)
    assert cluster.decide(bound, compute_milli=1000).candidates[0].parts["scarcity"] == -500


def test_wide_idle_nodes_are_guarded_while_they_are_few(cluster: Any) -> None:
    wide = policy(WHOLE, PodKind(gpus=2, share_milli=1000, pods=9))
    cluster.node("a-pair", 2)
    for number in range(2):
        cluster.node(f"b{number}", 3)
        cluster.fill(f"b{number}", 0, tflops=100_000, vram=1000)
    # 18/19 of the demand comes in pairs, a third of what is free is left of them: hands off for one GPU, not for two.
    assert cluster.decide(wide, count=0).candidates[0].node == "b0"
    assert [c.node for c in cluster.decide(wide, compute_milli=1000).candidates] == ["b0", "b1", "a-pair"]
    assert "a-pair" in [c.node for c in cluster.decide(wide, count=2, compute_milli=1000).candidates][:2]
    # When nothing else fits it is taken.
    for number in range(2):
        for slot in (1, 2):
            cluster.fill(f"b{number}", slot, tflops=100_000, vram=1000)
    assert cluster.decide(wide, compute_milli=1000).node == "a-pair"


def test_home_comes_before_score_and_guard(cluster: Any) -> None:
    for name in ("n-a", "n-b", "n-c", "n-d"):
        cluster.node(name)
    for part in (0, 1):
        found = cluster.decide(policy(WHOLE, parts=2, part=part), compute_milli=1000)
        home = policy(WHOLE, parts=2, part=part).at_home
        order = [c.node for c in found.candidates]
        names = ["n-a", "n-b", "n-c", "n-d"]
        assert order == [*filter(home, names), *(name for name in reversed(names) if not home(name))][:3]


def test_halves_of_a_thousandth_are_rounded_up_however_the_score_is_computed(cluster: Any) -> None:
    # All that 500 are worth is lost: between two whole thousandths, for all nodes at once and for one that has changed.
    for name in ("a", "b"):
        cluster.node(name)
        cluster.fill(name, 0, tflops=50_000, vram=500)
    for micro, lost in ((500_500, -500), (501_500, -501)):
        half = Policy(name="PackingValue", workload=Workload((HALVES,)), prices=(Price(500, micro),))
        together = cluster.decide(half, compute_milli=500, vram_milli=500).candidates
        cluster.node("b", cpu_milli=9_000 + lost)
        alone = cluster.decide(half, compute_milli=500, vram_milli=500).candidates
        assert {c.parts["value"] for c in (*together, *alone)} == {lost}


def test_wide_nodes_with_much_cpu_are_guarded_for_the_wide_pods_that_need_it(cluster: Any) -> None:
    def pair(cpu: int, pods: int) -> PodKind:
        return PodKind(cpu_milli=cpu, gpus=2, share_milli=1000, pods=pods)

    wide = policy(pair(2_000, 7), pair(8_000, 3))
    cluster.node("a-much", 2, cpu_milli=10_000)
    for number in range(3):
        cluster.node(f"b{number}", 2, cpu_milli=4_000)
    # Three tenths of the demand want 8 cores, a quarter of what is free has them. All the rest is enough for the others.
    little, much = ({"count": 2, "compute_milli": 1000, "cpu_milli": cpu} for cpu in (2_000, 8_000))
    assert "a-much" not in [c.node for c in cluster.decide(wide, **little).candidates]
    assert cluster.decide(wide, **much).node == "a-much"
    assert "a-much" not in [c.node for c in cluster.decide(wide, compute_milli=1000).candidates]
    # Where nothing else fits it is taken.
    for number in range(3):
        for slot in (0, 1):
            cluster.fill(f"b{number}", slot, tflops=100_000, vram=1000)
    assert cluster.decide(wide, **little).node == "a-much"


@pytest.mark.parametrize(("pairs", "kept"), [(9, True), (10, False)])
def test_nodes_are_kept_for_wide_pods_up_to_three_deviations_of_their_number(
    cluster: Any, pairs: int, *, kept: bool
) -> None:
    # 24 GPUs are free and a third of the demand is for two: 4 such pods are expected, so 4 + 3 * sqrt(4) nodes are enough.
    for number in range(pairs):
        cluster.node(f"a{number}", 2)
    for number in range(12 - pairs):
        cluster.node(f"b{number}", 3)
        cluster.fill(f"b{number}", 0, tflops=100_000, vram=1000)
    wide = policy(PodKind(gpus=1, share_milli=1000, pods=4), PodKind(gpus=2, share_milli=1000, pods=1))
    assert cluster.decide(wide, compute_milli=1000).node == ("b0" if kept else "a0")
    assert cluster.decide(wide, count=2, compute_milli=1000).node == "a0"
