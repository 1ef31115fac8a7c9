"""Topology by TensorFusion's rules: tiers from links and NUMA nodes, near GPUs preferred or required, groups left whole."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.allocator.engine import Policy, fits_on
from consumers.allocator.engine.layout import Layout, Matrix, twins_of
from consumers.allocator.engine.near import best_set, least_tier, nearest
from schemas import reasons
from schemas.cluster import PlacementMode, Pool
from schemas.decision import Decision
from schemas.hardware import GpuLink
from schemas.placement import Topology, TopologyRules, TopologySource
from schemas.pod import GpuRequest

SOFT, HARD = TopologyRules(), TopologyRules(mode="hard")


def chosen(found: Decision) -> list[int]:
    return [grant.index for grant in found.gpus]


def joined(*groups: tuple[int, ...], nvlinks: int = 12) -> tuple[GpuLink, ...]:
    """Return links that join the GPUs of each group by NVLink."""
    return tuple(GpuLink(a, b, "node", nvlinks) for group in groups for a, b in combinations(group, 2))


def apart(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[GpuLink, ...]:
    return tuple(GpuLink(a, b, "system") for a in one for b in other)


@pytest.mark.parametrize(
    ("link", "numa", "source", "tier"),
    [
        (GpuLink(0, 1, "system", 4), (0, 1), "auto", 0),
        (GpuLink(0, 1, "internal"), (-1, -1), "vendor", 0),
        (GpuLink(0, 1, "single"), (0, 1), "auto", 1),
        (GpuLink(0, 1, "node"), (0, 0), "auto", 1),
        (GpuLink(0, 1, "system"), (0, 0), "auto", 2),
        (GpuLink(0, 1, "system", 4), (0, 0), "numa", 1),
        (GpuLink(0, 1, "system", 4), (0, 1), "numa", 2),
        (GpuLink(0, 1, "system", 4), (0, -1), "numa", 3),
        (GpuLink(0, 1), (0, 0), "vendor", 1),
        (GpuLink(0, 1), (0, 1), "auto", 2),
        (GpuLink(0, 1), (-1, 1), "auto", 3),
    ],
)
def test_tier(link: GpuLink, numa: tuple[int, int], source: TopologySource, tier: int) -> None:
    layout = Layout(numa, (link,))
    assert layout.tiers(source)[0][1] == layout.tiers(source)[1][0] == tier
    assert least_tier(layout, [0, 1], 2, source) == tier


def test_pair_scores_are_hamis() -> None:
    words = ("", "system", "node", "hostbridge", "multiple", "single", "internal")
    links = tuple(GpuLink(0, other, path) for other, path in enumerate(words, 1))
    assert Layout((0,) * 8, links).scores[0] == (0, 0, 10, 20, 30, 40, 50, 60)
    assert Layout((0, 0), (GpuLink(0, 1, "node", 18),)).scores[1][0] == 1820


@pytest.mark.parametrize(
    ("count", "max_tier", "expected"),
    [(2, 0, [2, 3]), (3, 0, None), (3, 1, None), (3, 2, [1, 2, 3]), (4, 2, [0, 1, 2, 3]), (1, 0, [2])],
)
def test_two_interconnects(cluster: Any, count: int, max_tier: int, expected: list[int] | None) -> None:
    cluster.node(
        "n", [{"numa_node": 0}] * 2 + [{"numa_node": 1}] * 2, links=joined((0, 1), (2, 3)) + apart((0, 1), (2, 3))
    )
    cluster.fill("n", 0, vram=100)
    cluster.fill("n", 1, vram=50)
    found = cluster.decide(count=count, vram_bytes=1, topology=Topology(required=True, max_tier=max_tier))
    if expected is None:
        assert (found.node, found.reason) == ("", reasons.TOPOLOGY)
        request = GpuRequest(pool="p", count=count, topology=Topology(required=True, max_tier=max_tier))
        assert not fits_on(cluster.snapshot, request, "n")
        soft = cluster.decide(count=count, topology=Topology(max_tier=max_tier))
        assert len(soft.gpus) == count
    else:
        assert chosen(found) == expected


def test_free_gpus_alone_decide_what_is_near(cluster: Any) -> None:
    cluster.node("n", [{"numa_node": 0}] * 2 + [{"numa_node": 1}] * 2)
    required = {"count": 2, "vram_bytes": 600, "topology": Topology(required=True, max_tier=1)}
    cluster.fill("n", 0, vram=500)
    assert chosen(cluster.decide(**required)) == [2, 3]
    cluster.fill("n", 3, vram=500)
    refused = cluster.decide(**required)
    assert refused.reason == reasons.TOPOLOGY
    assert [(f.reason, f.nodes, f.gpus) for f in refused.filters] == [(reasons.VRAM, 0, 2), (reasons.TOPOLOGY, 1, 2)]
    assert chosen(cluster.decide(**required | {"topology": Topology()})) == [1, 2]


@pytest.mark.parametrize(
    ("rules", "max_tier", "fits"),
    [
        (HARD, 3, True),
        (HARD, 2, False),
        (TopologyRules(mode="hard", unknown_topology="reject"), 3, False),
        (TopologyRules(unknown_topology="reject"), 3, True),
        (SOFT, 0, True),
    ],
)
def test_unknown_topology(cluster: Any, rules: TopologyRules, max_tier: int, fits: bool) -> None:
    cluster.node("n", 2)
    policy = Policy(topology=rules)
    found = cluster.decide(policy, count=2, topology=Topology(max_tier=max_tier))
    assert bool(found.node) is fits
    assert (
        fits_on(cluster.snapshot, GpuRequest(pool="p", count=2, topology=Topology(max_tier=max_tier)), "n", policy)
        is fits
    )
    assert cluster.decide(policy).node == "n"  # one GPU is near itself, whatever is known


def test_a_pod_overrides_its_pool_word_by_word(cluster: Any) -> None:
    cluster.node("n", [{"numa_node": 0}, {"numa_node": 1}], links=joined((0, 1)))
    hard_numa = Policy.of(Pool(name="p", topology=TopologyRules(mode="hard", source="numa")))
    assert cluster.decide(hard_numa, count=2).reason == reasons.TOPOLOGY
    assert cluster.decide(hard_numa, count=2, topology=Topology(source="auto")).node == "n"
    assert cluster.decide(hard_numa, count=2, topology=Topology(max_tier=2)).node == "n"
    assert cluster.decide(hard_numa, count=2, topology=Topology(required=False)).node == "n"
    assert cluster.decide(hard_numa, count=2, topology=Topology(required=True)).reason == reasons.TOPOLOGY


@pytest.mark.parametrize(
    ("mode", "expected"), [("CompactFirst", [0, 1]), ("NodeCompactGPULowLoad", [2, 3]), ("LowLoadFirst", [2, 3])]
)
@pytest.mark.parametrize("links", [(), joined((0, 1, 2, 3))])
def test_placement_mode_decides_among_equally_near_gpus(
    cluster: Any, mode: PlacementMode, expected: list[int], links: tuple[GpuLink, ...]
) -> None:
    cluster.node("n", [{"numa_node": 0}] * 4, links=links)
    for slot, used in enumerate((90, 70, 0, 20)):
        cluster.fill("n", slot, tflops=used * 1000, vram=used * 10)
    assert chosen(cluster.decide(Policy(name=mode), count=2, topology=Topology())) == expected


def test_nearness_comes_before_the_placement_mode(cluster: Any) -> None:
    cluster.node("n", [{"numa_node": 0}, {"numa_node": 1}, {"numa_node": 2}, {"numa_node": 2}])
    for slot in (0, 1):
        cluster.fill("n", slot, vram=900)
    packed = Policy(name="CompactFirst")
    assert chosen(cluster.decide(packed, count=2)) == [0, 1]
    assert chosen(cluster.decide(packed, count=2, topology=Topology())) == [2, 3]


def test_topology_leaves_the_order_of_nodes_to_the_mode(cluster: Any) -> None:
    cluster.node("far", [{"numa_node": 0}, {"numa_node": 1}])
    cluster.node("near", [{"numa_node": 0}, {"numa_node": 0}])
    cluster.fill("far", 0, vram=100)
    assert cluster.decide(count=2, topology=Topology()).node == "far"


@pytest.mark.parametrize(("least_damage", "expected"), [(True, [3]), (False, [0])])
def test_single_gpu_leaves_interconnects_whole(cluster: Any, least_damage: bool, expected: list[int]) -> None:
    cluster.node("n", [{"numa_node": 0}] * 3 + [{"numa_node": 1}], links=joined((0, 1, 2)))
    policy = Policy(topology=TopologyRules(prefer_least_damage=least_damage))
    assert chosen(cluster.decide(policy)) == expected


def test_several_gpus_take_the_interconnect_that_they_fill(cluster: Any) -> None:
    cluster.node("n", 5, links=joined((0, 1, 2), (3, 4)))
    assert chosen(cluster.decide(count=2, topology=Topology())) == [3, 4]
    careless = Policy(topology=TopologyRules(prefer_least_damage=False))
    assert chosen(cluster.decide(careless, count=2)) == [0, 1]


def test_more_links_decide_between_equal_groups() -> None:
    links = (GpuLink(0, 1, "node", 1), GpuLink(2, 3, "node", 2))
    assert nearest(Layout((0, 0, 0, 0), links), [0, 1, 2, 3], 2, SOFT) == (2, 3)


def test_sixteen_gpus_in_four_groups_are_chosen_from_at_once() -> None:
    groups = [tuple(range(start, start + 4)) for start in (0, 4, 8, 12)]
    layout = Layout(tuple(slot // 4 for slot in range(16)), joined(*groups))
    assert nearest(layout, list(range(16)), 8, SOFT) == (0, 1, 2, 3, 4, 5, 6, 7)


matrices = st.integers(2, 6).flatmap(
    lambda size: st.lists(st.integers(0, 2), min_size=size * size, max_size=size * size).map(
        lambda flat: tuple(tuple(flat[min(a, b) * size + max(a, b)] for b in range(size)) for a in range(size))
    )
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(matrix=matrices, data=st.data())
def test_leaving_out_twins_changes_no_choice(matrix: Matrix, data: st.DataObject) -> None:
    preferred = data.draw(st.permutations(range(len(matrix))))
    count = data.draw(st.integers(1, len(matrix)))

    def cost(slots: tuple[int, ...]) -> tuple[int, int]:
        pairs = [matrix[a][b] for a, b in combinations(slots, 2)]
        return max(pairs, default=0), -sum(pairs)

    assert best_set(preferred, count, twins_of(matrix), cost) == min(combinations(preferred, count), key=cost)
