"""The policy: its modes, its hash, and the one fixed order in which equals are taken."""

import hashlib
from typing import Any

import pytest

from consumers.allocator.engine import ENGINE_VERSION, Policy
from schemas.cluster import Pool

NAMES = ["n-a", "n-b", "n-c", "n-d", "n-e", "n-f"]


def test_policy_of_pool() -> None:
    pool = Pool(name="p", placement="LowLoadFirst", vram_weight=20, tflops_weight=80)
    assert Policy.of(pool, "s") == Policy(name="LowLoadFirst", vram_weight=20, tflops_weight=80, tie_salt="s")


def test_unknown_mode_names_the_value_and_the_words() -> None:
    with pytest.raises(ValueError, match=r"'BestFit'.*NodeCompactGPULowLoad, CompactFirst, LowLoadFirst"):
        Policy(name="BestFit")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="vram_weight is 101"):
        Policy(vram_weight=101)


def test_hash_covers_everything_that_can_change_a_decision() -> None:
    policies = [
        Policy(), Policy(name="CompactFirst"), Policy(vram_weight=71), Policy(tflops_weight=31), Policy(tie_salt="a"),
    ]  # fmt: skip
    assert len({policy.hash for policy in policies}) == len(policies)
    assert Policy().hash == Policy(vram_weight=70).hash
    # Pinned: hashes are in the log, and a replay compares them.
    assert Policy().hash == "38d0df2a581ad47b"


def test_decision_names_policy_and_engine(cluster: Any) -> None:
    cluster.node("n")
    policy = Policy(name="CompactFirst", tie_salt="x")
    for found in (cluster.decide(policy), cluster.decide(policy, count=9), cluster.decide(policy, pool="typo")):
        assert (found.policy, found.policy_hash, found.engine) == ("CompactFirst", policy.hash, ENGINE_VERSION)


def test_equal_nodes_are_taken_by_name(cluster: Any) -> None:
    for name in reversed(NAMES):
        cluster.node(name)
    assert [c.node for c in cluster.decide().candidates] == NAMES[:3]


def test_salt_gives_another_order_that_stays(cluster: Any) -> None:
    for name in NAMES:
        cluster.node(name)
    orders = []
    for salt in ("a", "b", "c"):
        expected = sorted(NAMES, key=lambda name: hashlib.blake2b((salt + name).encode(), digest_size=16).digest())
        found = cluster.decide(Policy(tie_salt=salt))
        assert [c.node for c in found.candidates] == expected[:3]
        orders.append(expected)
    assert len({tuple(order) for order in orders}) == 3
    # A node that comes later finds its place in the same order, and a higher score beats it.
    cluster.node("n-new")
    grown = sorted([*NAMES, "n-new"], key=lambda name: hashlib.blake2b(("a" + name).encode(), digest_size=16).digest())
    assert [c.node for c in cluster.decide(Policy(tie_salt="a")).candidates] == grown[:3]
    cluster.fill(grown[-1], 0, vram=100)
    assert cluster.decide(Policy(tie_salt="a")).node == grown[-1]


def test_equal_gpus_are_taken_by_index_then_uuid(cluster: Any) -> None:
    from datetime import UTC, datetime

    from schemas.cluster import GpuInventory, Node

    gpus = [cluster.gpu("z", 1), cluster.gpu("y", 0), cluster.gpu("x", 1)]
    cluster.snapshot.put_node(Node(name="n", pool="p"))
    cluster.snapshot.put_inventory(GpuInventory(node="n", gpus=gpus, observed_at=datetime.now(UTC)))
    assert [grant.uuid for grant in cluster.decide().gpus] == ["y"]
    assert [grant.uuid for grant in cluster.decide(count=2).gpus] == ["y", "x"]
