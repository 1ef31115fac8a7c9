"""What a long-lived snapshot answers from its caches is what a fresh one computes, on clusters of a realistic size."""

import doctest
import random
from typing import Any

import pytest

import consumers.allocator.engine
from consumers.allocator.engine import Policy, Snapshot, Workload, decide, fit, shadow_prices, views
from consumers.allocator.engine.changes import ChangeLog
from schemas.cluster import Node, PodKind, Pool
from schemas.ledger import Allocation
from schemas.pod import GpuRequest

EXPECTED = Workload(
    (
        PodKind(cpu_milli=100, gpus=1, share_milli=300, pods=40),
        PodKind(cpu_milli=2000, gpus=1, share_milli=1000, pods=30),
        PodKind(cpu_milli=100, gpus=1, share_milli=100, models=("L4",), pods=20),
        PodKind(cpu_milli=4000, gpus=4, share_milli=1000, pods=9),
        PodKind(gpus=2, share_milli=300, models=("T4",), pods=8),
        PodKind(cpu_milli=2000, pods=7),
    )
)
POLICIES = [
    Policy(name="CompactFirst"),
    Policy(name="LowLoadFirst", parts=3, part=1),
    Policy(vram_weight=100),
    Policy(name="FragmentationGradient", workload=EXPECTED),
    Policy(name="PackingValue", workload=EXPECTED, prices=shadow_prices(EXPECTED)),
]
KINDS: list[dict[str, Any]] = [{}, {}, {"model": "T4"}, {"healthy": False}, {"vendor": "AMD"}, {"used_by": "plugin"}]


def ask(rng: random.Random) -> GpuRequest:
    count = rng.choice([0, 1, 1, 1, 2, 4, 9])
    return GpuRequest(
        pool=rng.choice("pppq"),
        count=count,
        compute_milli=rng.choice([0, 100, 300, 1000]) if count else 0,
        vram_bytes=rng.choice([0, 100, 400]) if count else 0,
        cpu_milli=rng.choice([0, 100, 2000]),
        models=rng.choice([(), (), ("L4",)]),
    )


class Churn:
    """A cluster of 120 nodes in two pools under random events, with the events that would rebuild it."""

    def __init__(self, cluster: Any, seed: int) -> None:
        self.cluster, self.rng, self.snapshot = cluster, random.Random(seed), cluster.snapshot
        self.snapshot.put_pool(Pool(name="q"))
        self.nodes: dict[str, Node] = {}
        self.inventories: dict[str, Any] = {}
        self.held: dict[str, str] = {}
        for number in range(120):
            self.put_node(f"n{number * 7 % 120:03d}")
            self.put_inventory(f"n{number:03d}")

    def put_node(self, name: str) -> None:
        rng = self.rng
        self.nodes[name] = Node(
            name=name,
            pool=rng.choice("pppppq"),
            cpu_milli=rng.choice([4000, 16_000]),
            memory_bytes=1,
            max_pods=rng.choice([3, 20]),
            ready=rng.random() > 0.05,
        )
        self.snapshot.put_node(self.nodes[name])

    def put_inventory(self, name: str) -> None:
        slots = self.rng.choice([1, 2, 4, 8, 8, 9, 12])
        gpus = [self.rng.choice(KINDS) if self.rng.random() < 0.3 else {} for _ in range(slots)]
        self.inventories[name] = self.cluster.inventory(name, gpus)
        self.snapshot.put_inventory(self.inventories[name])

    def step(self, number: int) -> None:
        rng, what = self.rng, self.rng.random()
        if what < 0.6:
            request = ask(rng)
            found = decide(self.snapshot, request, rng.choice(POLICIES))
            if found.node:
                held = Allocation(
                    pod_uid=f"u{number}", namespace="ns", name="pod", pool="p", gpus=found.gpus,
                    cpu_milli=request.cpu_milli,
                )  # fmt: skip
                self.snapshot.add(found.node, held)
                self.held[f"u{number}"] = found.node
        elif what < 0.85 and self.held:
            uid = rng.choice(sorted(self.held))
            self.snapshot.remove(self.held.pop(uid), uid)
        elif what < 0.92:
            self.put_node(rng.choice(sorted(self.nodes)))
        elif what < 0.97:
            self.put_inventory(rng.choice(sorted(self.inventories)))
        elif what < 0.985:
            name = rng.choice(sorted(self.nodes))
            del self.nodes[name]
            self.snapshot.remove_node(name)
        else:
            self.put_node(f"m{number}")
            self.put_inventory(f"m{number}")

    def fresh(self) -> Snapshot:
        again = Snapshot()
        for name, inventory in self.inventories.items():
            again.set_allocations(name, self.snapshot.allocations(name))
            again.put_inventory(inventory)
        for node in reversed(self.nodes.values()):
            again.put_node(node)
        for pool in self.snapshot.pools().values():
            again.put_pool(pool)
        return again


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cached_decisions_equal_fresh_ones_under_churn(cluster: Any, seed: int) -> None:
    churn = Churn(cluster, seed)
    asked = [ask(churn.rng) for _ in range(12)]
    for number in range(700):
        churn.step(number)
        if number % 25:
            continue
        fresh = churn.fresh()
        assert fresh.digest() == churn.snapshot.digest()
        # Part of the shapes are asked each time, so that the others fall behind by more than a few rows.
        for request in churn.rng.sample(asked, 5):
            for policy in POLICIES:
                assert decide(churn.snapshot, request, policy) == decide(fresh, request, policy)


def test_forgotten_shapes_are_computed_again(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "CACHED_SHAPES", 3)
    for number in range(6):
        cluster.node(f"n{number}", 1)
    first = [cluster.decide(vram_bytes=size) for size in range(1, 9)]
    uid = cluster.fill("n0", 0, vram=1000)
    assert [cluster.decide(vram_bytes=size).node for size in range(1, 9)] == ["n1"] * 8
    cluster.snapshot.remove("n0", uid)
    assert [cluster.decide(vram_bytes=size) for size in range(1, 9)] == first


def test_what_a_node_remembers_for_one_request_holds_for_another_of_its_kin_until_its_gpus_change(cluster: Any) -> None:
    for name in "ab":
        cluster.node(name, 2, cpu_milli=1000)
    small, large = {"vram_bytes": 600, "cpu_milli": 10}, {"vram_bytes": 600, "cpu_milli": 500}
    assert [cluster.decide(**ask).node for ask in (small, large)] == ["a", "a"]
    uid = cluster.fill("a", 0, vram=500)
    for ask in (small, large):
        assert [grant.index for grant in cluster.decide(**ask).gpus] == [1]
    cluster.fill("a", None, cpu_milli=600)  # leaves the GPUs as they were
    assert [cluster.decide(**ask).node for ask in (small, large)] == ["a", "b"]
    cluster.snapshot.remove("a", uid)
    assert [grant.index for grant in cluster.decide(**small).gpus] == [0]


def test_a_node_remembers_the_last_few_kinds_of_request_only(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "KIN_PER_NODE", 2)
    cluster.node("a", 1)
    for round_ in range(3):
        for size in range(1, 9):
            cluster.decide(vram_bytes=size)
            assert len(cluster.snapshot.host("a").judged) <= 2
        cluster.fill("a", 0, vram=1 + round_)


def test_shape_left_alone_for_many_changes_catches_up(cluster: Any) -> None:
    cluster.node("a", 1)
    cluster.node("b", 1)
    assert cluster.decide(vram_bytes=1).node == "a"
    for _ in range(1000):
        cluster.snapshot.remove("a", cluster.fill("a", 0, vram=1000))
    cluster.fill("a", 0, vram=1000)
    assert cluster.decide(vram_bytes=1).node == "b"


def test_node_with_more_gpus_than_any_before_widens_the_table(cluster: Any) -> None:
    cluster.node("a", 1)
    cluster.decide()
    cluster.snapshot.put_inventory(cluster.inventory("a", 30))
    found = cluster.decide(count=20, compute_milli=1)
    assert [grant.index for grant in found.gpus] == list(range(20))
    assert cluster.decide(count=31).reason == "TooFewGpus"


def test_change_log_forgets_and_says_so() -> None:
    log = ChangeLog(keep=64)
    for row in range(128):
        log.add(row % 5)
    assert log.since(125) == {0, 1, 2}
    assert log.since(0) == {0, 1, 2, 3, 4}
    log.add(9)
    assert log.since(0) is None
    assert log.since(log.end) == set()
    assert log.since(128) == {9}


def test_example_in_the_package_docstring() -> None:
    result = doctest.testmod(consumers.allocator.engine)
    assert (result.attempted, result.failed) == (17, 0)
