"""HAMi's policy words. Cases named in capitals are facts about HAMi v2.10's own unit tests, in numbers of MiB and percent.

Left out, as they would mean nothing here:

* FIT-18 as a cluster: pair scores come from links and are never negative. The choice itself is tested on the bare numbers.
* FIT-19 with a score of 1 between GPUs without link: such a pair scores 0 here. The same choice follows, and is tested.
"""

from typing import Any

import pytest

from consumers.allocator.engine import Policy, fits_on
from consumers.allocator.engine.layout import Matrix, twins_of
from consumers.allocator.engine.near import best_connected
from consumers.allocator.engine.words import gpu_score, node_usage, points
from schemas import reasons
from schemas.cluster import Pool
from schemas.decision import Decision
from schemas.dialects.hami import weights
from schemas.dialects.text import RequestError
from schemas.hardware import GpuLink
from schemas.placement import GpuPolicy, NodePolicy, ScoringWeights
from schemas.pod import GpuRequest

TWO_NODES = {
    "node1": [{"used": 1, "usedmem": 2000, "usedcores": 25}, {}],
    "node2": [{}, {"used": 1, "usedmem": 6000, "usedcores": 75}],
}


def cards(cluster: Any, node: str, facts: list[dict[str, Any]], links: tuple[GpuLink, ...] = ()) -> None:
    """Add a node with cards as HAMi's tests state them: slots 10, mem 8000 and cores 100 where a card says nothing."""
    gpus = [
        {
            "slots": fact.get("slots", 10),
            "vram_bytes": fact.get("mem", 8000),
            "tflops_milli": fact.get("cores", 100),
            "numa_node": fact.get("numa", 0),
        }
        for fact in facts
    ]
    cluster.node(node, gpus, links=links)
    for slot, fact in enumerate(facts):
        for number in range(fact.get("used", 0)):
            first = number == 0
            cluster.hold(node, slot, tflops=fact.get("usedcores", 0) * first, vram=fact.get("usedmem", 0) * first)


def chosen(found: Decision) -> list[int]:
    return [grant.index for grant in found.gpus]


def ask(cores: int = 0, mem: int = 0, **more: Any) -> dict[str, Any]:
    return {"tflops_milli": cores, "vram_bytes": mem} | more


@pytest.mark.parametrize(
    ("case", "node", "gpus", "expected"),
    [
        ("FILTER-01", "binpack", ("binpack",), ("node2", [1])),
        ("FILTER-02", "binpack", ("spread",), ("node2", [0])),
        ("the other way round", "spread", ("spread",), ("node1", [1])),
        ("and packed", "spread", ("binpack",), ("node1", [0])),
    ],
)
def test_two_nodes(
    cluster: Any, case: str, node: NodePolicy, gpus: tuple[GpuPolicy, ...], expected: tuple[str, list[int]]
) -> None:
    for name, facts in TWO_NODES.items():
        cards(cluster, name, facts)
    asked = ask(20, 1000, node_policy=node, gpu_policies=gpus)
    found = cluster.decide(**asked)
    assert (found.node, chosen(found)) == expected, case
    # The scores of the nodes before the pod: 10 x (1/20 + 25/200 + 2000/16000) = 3 and 10 x (1/20 + 75/200 + 6000/16000) = 8.
    assert {c.node: c.score for c in found.candidates} == {"node1": 3000, "node2": 8000}
    assert found.candidates[0].parts in (
        {"slots": 500, "cores": 3750, "memory": 3750},
        {"slots": 500, "cores": 1250, "memory": 1250},
    )
    # A pool may say it for pods that do not.
    cluster.snapshot.put_pool(Pool(name="p", node_policy=node, gpu_policies=gpus))
    policy = Policy.of(cluster.snapshot.pools()["p"])
    assert cluster.decide(policy, **ask(20, 1000)).gpus == found.gpus
    assert policy.hash != Policy().hash


def test_init_container_that_fits_beside_nobody_decides_the_gpu(cluster: Any) -> None:
    # FILTER-05 asks 5000 MiB for an init container and 4000 after it: what is booked for a GPU that both get is the larger.
    for name, facts in TWO_NODES.items():
        cards(cluster, name, facts)
    found = cluster.decide(**ask(20, 5000, node_policy="binpack", gpu_policies=("binpack",)))
    assert (found.node, chosen(found)) == ("node2", [0])


@pytest.mark.parametrize(
    ("case", "card", "asked", "expected"),
    [
        ("SCORE-01", {"slots": 10, "used": 1, "mem": 8192, "usedmem": 2048, "cores": 4, "usedcores": 1}, ask(), 7.0),
        (
            "SCORE-02",
            {"slots": 10, "used": 2, "mem": 8192, "usedmem": 2048, "cores": 4, "usedcores": 1},
            ask(1, 1024),
            11.75,
        ),
        ("SCORE-03", {"slots": 0, "mem": 0, "cores": 0}, ask(), 0),
    ],
)
def test_score_of_a_gpu(cluster: Any, case: str, card: dict[str, Any], asked: dict[str, Any], expected: float) -> None:
    # SCORE-01 scores two pods on a card without a third. Here the pod to come always takes a slot, so one is there before.
    cards(cluster, "n", [card])
    request = GpuRequest(pool="p", **asked)
    even = ScoringWeights(slot=1, core=1, memory=1)
    assert gpu_score(cluster.snapshot.host("n"), 0, request, even) == expected, case


def test_score_of_a_node(cluster: Any) -> None:  # SCORE-05: 10 x (125/250 + 300/300 + 300/300)
    full = {"slots": 100, "used": 50, "mem": 100, "usedmem": 100, "cores": 100, "usedcores": 100}
    cards(cluster, "n", [full, {name: amount * 2 for name, amount in full.items()} | {"slots": 150, "used": 75}])
    assert points(node_usage(cluster.snapshot.host("n")).values()) == 25


def test_weights_count_and_bad_ones_are_refused(cluster: Any) -> None:
    cards(cluster, "n", [{"used": 5, "usedmem": 1000}, {"used": 1, "usedmem": 6000}])
    by_slots, by_memory = ScoringWeights(slot=1, core=0, memory=0), ScoringWeights(slot=0, core=0, memory=1)
    assert chosen(cluster.decide(**ask(mem=1, gpu_policies=("binpack",), scoring_weights=by_slots))) == [0]
    assert chosen(cluster.decide(**ask(mem=1, gpu_policies=("binpack",), scoring_weights=by_memory))) == [1]
    with pytest.raises(RequestError, match='"core" weight must not be negative'):  # ORDER-03
        weights("slot=1,core=-1,memory=3")


def test_score_beats_numa_node(cluster: Any) -> None:  # ORDER-01: scores 1, 8 and 5 on NUMA nodes 0, 1 and 1
    cards(
        cluster,
        "n",
        [{"usedmem": 800, "used": 1}, {"numa": 1, "usedmem": 6400, "used": 1}, {"numa": 1, "usedmem": 4000, "used": 1}],
    )
    assert chosen(cluster.decide(**ask(gpu_policies=("spread",)))) == [0]
    assert chosen(cluster.decide(**ask(gpu_policies=("binpack",)))) == [1]
    assert chosen(cluster.decide(**ask(gpu_policies=("numa",)))) == [2]
    assert chosen(cluster.decide(**ask(gpu_policies=("numa", "binpack")))) == [1]


@pytest.mark.parametrize(
    ("words", "bind", "expected"),
    [
        (("binpack",), False, [0, 1]),
        (("spread",), False, [4, 5]),
        (("topology-aware",), False, [4, 5]),  # walks like spread; no links, so any two are alike
        (("mutex",), False, [4, 5]),
        (("numa",), False, [4, 5]),
        (("spread", "numa"), False, [4, 5]),
        (("binpack", "numa"), False, [0, 1]),
        (("binpack",), True, [0, 1]),
        (("spread",), True, [4, 5]),
        (
            ("binpack", "mutex"),
            False,
            [4, 5],
        ),  # mutex leaves only the idle ones, binpack walks from the end among equals
        (("mutex", "topology-aware"), False, [4, 5]),
    ],
)
def test_order_of_gpus(cluster: Any, words: tuple[GpuPolicy, ...], bind: bool, expected: list[int]) -> None:
    cards(
        cluster, "n",
        [
            {"used": 2, "usedmem": 4000}, {"used": 1, "usedmem": 2000}, {},
            {"numa": 1, "used": 1, "usedmem": 1000}, {"numa": 1}, {"numa": 1},
        ],
    )  # fmt: skip
    assert chosen(cluster.decide(**ask(mem=1, count=2, gpu_policies=words, numa_bind=bind))) == expected


def test_numa_binding(cluster: Any) -> None:  # FIT-13
    cards(cluster, "n", [{"numa": 1}, {"numa": 1}, {"numa": 0}])
    bound = ask(10, 100, count=2, numa_bind=True)
    assert chosen(cluster.decide(**bound)) == [0, 1]
    assert chosen(cluster.decide(**bound, gpu_policies=("binpack",))) == [0, 1]
    refused = cluster.decide(**bound | {"count": 3})
    assert (refused.node, refused.reason) == ("", reasons.NUMA)
    assert refused.filters[-1].gpus == 3


def test_a_gpu_of_unknown_numa_node_is_bound_to_none(cluster: Any) -> None:
    cards(cluster, "n", [{"numa": -1}, {"numa": -1}])
    assert cluster.decide(**ask(count=2, numa_bind=True)).reason == reasons.NUMA
    assert cluster.decide(**ask(count=1, numa_bind=True)).node == "n"


def test_mutex_takes_no_gpu_in_use(cluster: Any) -> None:  # FIT-15
    cards(cluster, "n", [{"used": 1}, {}])
    refused = cluster.decide(**ask(10, 100, count=2, gpu_policies=("mutex",)))
    assert [(f.reason, f.gpus) for f in refused.filters] == [(reasons.GPU_NOT_IDLE, 1), (reasons.SAME_NODE, 1)]
    assert chosen(cluster.decide(**ask(10, 100, gpu_policies=("mutex",)))) == [1]
    assert chosen(cluster.decide(**ask(10, 100, gpu_policies=("binpack", "mutex")))) == [1]


def test_a_pools_mutex_holds_for_the_pods_that_wait_too(cluster: Any) -> None:
    cards(cluster, "n", [{"used": 1}])
    request = GpuRequest(pool="p")
    assert fits_on(cluster.snapshot, request, "n")
    cluster.snapshot.put_pool(Pool(name="p", gpu_policies=("mutex",)))
    assert not fits_on(cluster.snapshot, request, "n")
    assert fits_on(cluster.snapshot, request, "n", Policy())


AWARE: tuple[GpuPolicy, ...] = ("topology-aware",)


def test_least_connected_gpu_for_one(cluster: Any) -> None:  # FIT-16: pair scores 100, 200 and 150
    links = (GpuLink(0, 1, "", 1), GpuLink(0, 2, "", 2), GpuLink(1, 2, "single", 1))
    cards(cluster, "n", [{}, {}, {}], links)
    assert chosen(cluster.decide(**ask(10, 100, gpu_policies=AWARE))) == [1]


def test_best_connected_gpus_for_several(cluster: Any) -> None:  # FIT-19: f-a and f-c score 100, the rest alike
    used = {"slots": 4, "used": 1, "usedmem": 2048, "usedcores": 1}
    cards(
        cluster,
        "n",
        [used | {"numa": numa} for numa in (0, 0, 1, 1, 1, 1)],
        (GpuLink(0, 5, "", 1), GpuLink(2, 5, "", 1)),
    )
    assert chosen(cluster.decide(**ask(20, 1024, count=3, gpu_policies=AWARE))) == [0, 2, 5]


def test_negative_pair_scores() -> None:  # FIT-18
    scores: Matrix = ((0, -5, -3), (-5, 0, -1), (-3, -1, 0))
    assert best_connected(scores, [2, 1, 0], 2, twins_of(scores)) == (2, 1)


def test_first_of_equals_in_hamis_order_is_taken(cluster: Any) -> None:
    switch = tuple(GpuLink(a, b, "node", 12) for a in range(8) for b in range(a + 1, 8))
    cards(cluster, "n", [{"used": 1, "usedmem": 100 * slot} for slot in range(8)], switch)
    assert chosen(cluster.decide(**ask(count=4, gpu_policies=AWARE))) == [0, 1, 2, 3]


def test_words_for_one_half_leave_the_other_to_the_mode(cluster: Any) -> None:
    for name, facts in TWO_NODES.items():
        cards(cluster, name, facts)
    for mode, node, slot in (
        ("NodeCompactGPULowLoad", "node2", 0),
        ("CompactFirst", "node2", 1),
        ("LowLoadFirst", "node1", 1),
    ):
        policy = Policy(name=mode)
        mixed = cluster.decide(policy, **ask(20, 1000, scoring_weights=ScoringWeights(slot=1, core=1, memory=1)))
        assert (mixed.node, chosen(mixed)) == (node, [slot])
        assert cluster.decide(policy, **ask(20, 1000, node_policy="spread")).node == "node1"
        assert cluster.decide(policy, **ask(20, 1000, gpu_policies=("binpack",))).node == node


def test_equal_scores_made_of_different_parts_are_equal(cluster: Any) -> None:
    cards(cluster, "b", [{"mem": 3, "usedmem": 1, "used": 1, "cores": 7, "slots": 0}])
    cards(cluster, "a", [{"mem": 7, "cores": 3, "usedcores": 1, "used": 1, "slots": 0}])
    for node_policy in ("binpack", "spread"):
        found = cluster.decide(**ask(node_policy=node_policy))
        assert [(c.node, c.score) for c in found.candidates] == [("a", 3333), ("b", 3333)]
