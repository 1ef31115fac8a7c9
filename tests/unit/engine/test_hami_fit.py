"""HAMi's filters of single GPUs, and its containers. Cases named in capitals are facts about HAMi v2.10's own unit tests.

FIT-05 and FIT-21 are about reading quantities and tested with the dialect; which card FIT-01 takes is the policies' matter.
HAMi's reasons count cards. Ours name the filter after which too few are left, so FIT-08 and FIT-09 ask for one card here, not
for two of one.
"""

from typing import Any

import pytest

from consumers.allocator.engine import Policy, decide
from consumers.allocator.grants import allocation
from schemas.decision import Decision
from schemas.dialects import ContainerView, HamiConfig, PodSpecView
from schemas.dialects.hami import parse
from schemas.pod import GpuRequest, Schedule
from schemas.requirements import ContainerRequest

CARD = {"slots": 100, "vram_bytes": 1280, "tflops_milli": 100}


def ask(count: int, mem: int = 0, cores: int = 0, **more: Any) -> dict[str, Any]:
    stated = {
        "count": count,
        "vram_bytes": mem,
        "compute_milli": 10 * cores,
        "dedicated": cores == 100,
        "dialect": "hami",
    }
    return stated | more


CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any], str]] = {
    "FIT-01": ({"vram_bytes": 128}, None, ask(1, 64, 50), ""),
    "FIT-02": ({"vram_bytes": 128}, None, ask(1, 512, 50), "InsufficientVram"),
    "FIT-03": ({}, {"tflops": 100}, ask(1, 512, 50), "InsufficientCompute"),
    "FIT-06": ({}, {"tflops": 0}, ask(1, 512, 100), "GpuNotIdle"),
    "FIT-08": ({}, None, ask(1, 512, 50, uuids=("dev-0",)), "UuidMismatch"),
    "FIT-09": ({}, None, ask(1, 512, 50, excluded_uuids=("n/0",)), "UuidMismatch"),
    "FIT-10": ({}, None, ask(2, 512, 20), "TooFewGpus"),
    "FIT-12": ({"healthy": False}, None, ask(1, 0, 20, vram_milli=100), "GpuUnhealthy"),
    "no slot left": ({"slots": 1}, {"tflops": 1}, ask(1, 1, 1), "GpuSlotsUsedUp"),
    "no compute left": ({}, {"tflops": 100}, ask(1, 1), "InsufficientCompute"),
}


@pytest.mark.parametrize("case", CASES)
def test_fit(cluster: Any, case: str) -> None:
    card, used, asked, reason = CASES[case]
    cluster.node("n", [CARD | card])
    if used is not None:
        cluster.hold("n", 0, **used)
    found = cluster.decide(**asked)
    assert (found.reason, bool(found.node)) == (reason, not reason)


def containers(*rows: tuple[str, int, int]) -> tuple[ContainerRequest, ...]:
    """Return containers of kind, VRAM and percent of the compute."""
    return tuple(
        ContainerRequest(name=f"c{place}", vram_bytes=mem, compute_milli=10 * cores, init=kind == "init")
        for place, (kind, mem, cores) in enumerate(rows)
    )


def book(found: Decision) -> list[tuple[int, int, int, int]]:
    return [(grant.index, grant.vram_bytes, grant.tflops_milli, grant.slots) for grant in found.gpus]


@pytest.mark.parametrize(
    ("case", "rows", "expected"),
    [
        ("INIT-01", [("init", 500, 50), ("app", 100, 10)], (500, 50, 1)),
        ("INIT-03", [("init", 100, 10), ("init", 300, 30), ("init", 200, 20), ("app", 50, 5)], (300, 30, 1)),
        ("INIT-04", [("app", 100, 10)] * 3, (300, 30, 3)),
        ("the rest is more", [("init", 200, 10), ("app", 150, 5), ("app", 100, 40)], (250, 45, 2)),
        ("only before", [("init", 200, 10)], (200, 10, 1)),
    ],
)
def test_containers_on_one_gpu_collapse(cluster: Any, case: str, rows: Any, expected: tuple[int, int, int]) -> None:
    cluster.node("n", [CARD])
    found = cluster.decide(count=3, containers=containers(*rows), dialect="hami")
    assert book(found) == [(0, *expected)], case
    assert [(one.name, one.gpus[0].vram_bytes) for one in found.containers] == [
        (f"c{place}", mem) for place, (_, mem, _) in enumerate(rows)
    ]


def test_an_init_container_finds_the_gpus_as_other_pods_left_them(cluster: Any) -> None:  # FILTER-05
    cards = {"slots": 10, "vram_bytes": 8000, "tflops_milli": 100}
    cluster.node("node1", [cards, cards])
    cluster.node("node2", [cards, cards])
    cluster.fill("node1", 0, tflops=25, vram=2000)
    cluster.fill("node2", 1, tflops=75, vram=6000)
    rows = containers(("init", 5000, 20), ("app", 4000, 20))
    found = cluster.decide(count=2, containers=rows, dialect="hami", node_policy="binpack", gpu_policies=("binpack",))
    assert (found.node, book(found)) == ("node2", [(0, 5000, 20, 1)])
    assert [one.gpus[0].index for one in found.containers] == [0, 0]


def test_containers_spread_or_share_as_the_policy_says_and_share_where_they_must(cluster: Any) -> None:
    cluster.node("n", [CARD, CARD])
    rows = containers(("app", 600, 30), ("app", 600, 30))
    assert [index for index, *_ in book(cluster.decide(count=2, containers=rows))] == [0, 1]
    assert book(cluster.decide(Policy(name="CompactFirst"), count=2, containers=rows)) == [(0, 1200, 60, 2)]
    cluster.fill("n", 0, vram=1000)
    assert book(cluster.decide(count=2, containers=rows)) == [(1, 1200, 60, 2)]
    cluster.fill("n", 1, vram=100)
    refused = cluster.decide(count=2, containers=rows)
    assert [(each.reason, each.nodes, each.gpus) for each in refused.filters] == [
        ("InsufficientVram", 0, 1),
        ("ContainersDoNotFit", 1, 1),
    ]


def test_a_dedicated_container_is_alone_among_those_that_run_with_it(cluster: Any) -> None:
    cluster.node("n", [CARD, CARD])
    alone = ContainerRequest(name="alone", compute_milli=1000, vram_milli=1000, dedicated=True)
    before = ContainerRequest(name="before", compute_milli=100, init=True)
    beside = ContainerRequest(name="beside", compute_milli=100)
    found = cluster.decide(count=2, containers=(before, alone, beside), dialect="hami")
    assert [(one.name, one.gpus[0].index) for one in found.containers] == [("before", 0), ("alone", 0), ("beside", 1)]
    assert [(grant.index, grant.exclusive) for grant in found.gpus] == [(0, True), (1, False)]
    cluster.hold("n", 1)
    assert cluster.decide(count=2, containers=(alone, beside), dialect="hami").node == "n"
    cluster.hold("n", 0)
    assert cluster.decide(count=2, containers=(alone, beside), dialect="hami").reason == "ContainersDoNotFit"


def test_the_allocation_says_which_container_holds_what(cluster: Any) -> None:
    cluster.node("n", [CARD, CARD])
    request = GpuRequest(pool="p", count=2, containers=containers(("app", 600, 30), ("app", 500, 20)), dialect="hami")
    found = cluster.decide(count=2, containers=request.containers, dialect="hami")
    held = allocation(Schedule(namespace="ns", name="pod", uid="u", request=request), found, cluster.snapshot)
    assert (held.gpus, held.containers) == (found.gpus, found.containers)
    assert held.compute_milli == 500


def test_a_container_that_asks_for_nothing_shifts_no_other(cluster: Any) -> None:  # BUG-01
    cluster.node("n", [CARD | {"vram_bytes": 15_000 << 20}] * 2)
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2500", "nvidia.com/gpucores": "25"}
    asking = tuple(ContainerView(name=name, limits=limits) for name in ("second", "third"))
    pod = PodSpecView(namespace="ns", name="p", init_containers=(ContainerView(name="first"),), containers=asking)
    request = parse(pod, HamiConfig(pool="p"))
    assert request is not None
    found = decide(cluster.snapshot, request, Policy())
    assert [(one.name, one.gpus[0].vram_bytes >> 20) for one in found.containers] == [("second", 2500), ("third", 2500)]
