"""The quick look at whose leaving could help, against a look at every node, while nodes and pods come and go between searches."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumers.allocator.engine import Policy, Snapshot, decide, preemption
from consumers.allocator.engine import victims as search
from consumers.allocator.engine.need import Need
from consumers.allocator.engine.preemption import Standing, Terms, select
from consumers.allocator.engine.ranks import Rank
from consumers.allocator.engine.reclaim import Reclaim
from consumers.allocator.engine.screen import Screen
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.decision import GpuGrant
from schemas.ledger import HOLD, Allocation
from schemas.pod import GpuRequest, Qos

AT = datetime(2026, 1, 1, tzinfo=UTC)
QOS: tuple[Qos, ...] = ("low", "medium", "high", "critical")


class Cluster:
    """Nodes with pods of all ranks, drawn at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.gpus = rng.choice([1, 2, 4])
        self.pool = Pool(
            name="p",
            preemption=rng.choice(["cluster", "cluster", "namespace"]),
            max_workers_per_node=rng.choice([0, 0, 4]),
        )
        self.snapshot = Snapshot()
        self.snapshot.put_pool(self.pool)
        self.names = [f"n{number:02}" for number in range(rng.choice([1, 3, 10, 30]))]
        for name in self.names:
            self.put(name)

    def put(self, name: str) -> None:
        rng, snapshot = self.rng, self.snapshot
        gpus = [
            GpuDevice(
                uuid=f"{name}-{index}",
                index=index,
                model=rng.choice(["m1", "m2"]),
                tflops_milli=100,
                vram_bytes=100,
                slots=rng.choice([0, 0, 3]),
            )
            for index in range(self.gpus)
        ]
        snapshot.put_inventory(GpuInventory(node=name, gpus=gpus, observed_at=AT))
        ready, most = rng.random() < 0.95, rng.choice([110, 5])
        snapshot.put_node(Node(name=name, pool="p", cpu_milli=100, memory_bytes=50, ready=ready, max_pods=most))
        self.fill(name)

    def fill(self, name: str) -> None:
        self.snapshot.set_allocations(name, [self.pod(name, number) for number in range(self.rng.randrange(7))])

    def pod(self, name: str, number: int) -> Allocation:
        rng = self.rng
        slots = rng.sample(range(self.gpus), rng.choice([0, 1, 1, 1, self.gpus]))
        kept = rng.random() < 0.05
        return Allocation(
            pod_uid=f"{HOLD if kept else ''}{name}-{number}",
            namespace=rng.choice(["a", "b"]),
            name=f"{name}-{number}",
            pool="p",
            gpus=tuple(
                GpuGrant(
                    uuid=f"{name}-{slot}",
                    index=slot,
                    tflops_milli=rng.choice([0, 20, 50, 100]),
                    vram_bytes=rng.choice([10, 20, 40, 60, 100]),
                    exclusive=rng.random() < 0.1,
                    isolation=rng.choice(["", "", "soft", "hard"]),
                )
                for slot in slots
            ),
            cpu_milli=rng.choice([0, 5, 20]),
            memory_bytes=rng.choice([0, 5]),
            qos=rng.choice(QOS),
            priority=rng.choice([0, 0, 0, 5]),
            gang="a/g" if not kept and rng.random() < 0.1 else "",
            protected_until_s=rng.choice([0, 0, 0, 2000]),
            since=rng.randrange(50),
        )

    def change(self) -> None:
        """Let something happen."""
        name = self.rng.choice(self.names)
        match self.rng.randrange(4):
            case 0:
                self.put(name)
            case 1:
                self.snapshot.remove_node(name)
            case 2:
                self.names.append(f"z{self.rng.randrange(50):02}")
                self.put(self.names[-1])
            case _:
                self.fill(name)

    def request(self) -> GpuRequest:
        rng = self.rng
        count = rng.choice([0, 1, 1, 1, self.gpus])
        amounts = rng.choice(
            [
                {"vram_bytes": rng.choice([30, 60, 100]), "tflops_milli": rng.choice([0, 50, 100])},
                {"vram_milli": rng.choice([0, 300, 1000]), "compute_milli": rng.choice([0, 500, 1000])},
            ]
        )
        return GpuRequest(
            pool="p",
            count=count,
            qos=rng.choice(QOS),
            priority=rng.choice([0, 5]),
            isolation=rng.choice(["", "", "soft", "shared"]) if count else "",
            cpu_milli=rng.choice([0, 0, 30]),
            memory_bytes=rng.choice([0, 10]),
            models=rng.choice([(), (), (), ("m1",)]),
            numa_bind=count > 1 and rng.random() < 0.1,
            **(amounts if count else {}),
        )

    def terms(self) -> Terms:
        rng, uids, members = self.rng, [], []
        for name in sorted(set(self.names)):
            for one in self.snapshot.allocations(name):
                uids.append(one.pod_uid)
                members += [one.pod_uid] * bool(one.gang)
        covering = {uid: tuple(sorted(rng.sample(["x", "y"], rng.randrange(3)))) for uid in uids}
        budgets = search.Budgets({"x": rng.randrange(3), "y": rng.randrange(3)}, rng.choice([{}, covering]))
        gangs = {"a/g": Standing(rng.randrange(3), frozenset(members))}
        return Terms("a", 1000, budgets, rng.choice([None, gangs]))


def every(_reclaim: Reclaim, _request: GpuRequest, _need: Need, screen: Screen) -> Iterator[tuple[Rank, int]]:
    """Yield all nodes that no filter refuses whatever is free on them."""
    for row in (screen.stages == 0).nonzero()[0].tolist():
        yield Rank(-search.NOT_YET, 0), row


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
@example(seed=4046517)
def test_no_node_is_left_out_that_a_look_at_all_of_them_finds(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster(rng)
    policy = Policy.of(cluster.pool)
    with pytest.MonkeyPatch.context() as patch:
        looked_at, searched = rng.choice([(256, 16), (5, 2), (3, 1)])
        patch.setattr(preemption, "LOOKED_AT", looked_at)
        patch.setattr(preemption, "SEARCHED", searched)
        for _ in range(4):
            for _ in range(rng.randrange(4)):
                cluster.change()
            request, terms = cluster.request(), cluster.terms()
            if decide(cluster.snapshot, request, policy).node:
                continue
            before = cluster.snapshot.digest()
            found = select(cluster.snapshot, request, policy, terms)
            assert cluster.snapshot.digest() == before
            with pytest.MonkeyPatch.context() as everywhere:
                everywhere.setattr(Reclaim, "rows", every)
                assert select(cluster.snapshot, request, policy, terms) == found


def test_a_large_pool_is_looked_at_in_parts() -> None:
    cluster = Cluster(random.Random(3))
    for number in range(40):
        cluster.put(f"m{number:02}")
    table = cluster.snapshot.table("p")
    assert table is not None
    reclaim = cluster.snapshot.reclaim(table, "p")
    turns = 1
    while not reclaim.advance(16):
        turns += 1
    assert turns == -(-len(table.hosts) // 16)
    assert reclaim.advance(16)
    cluster.fill("m07")
    assert not reclaim.advance(0)
    assert reclaim.advance(1)


@pytest.mark.parametrize("kinds", [0, 2])
def test_more_ranks_than_are_told_apart_leave_nobody_out(kinds: int, monkeypatch) -> None:
    monkeypatch.setattr("consumers.allocator.engine.reclaim.MOST_KINDS", kinds)
    test_no_node_is_left_out_that_a_look_at_all_of_them_finds()
