"""The policy: its modes, its hash, and the one fixed order in which equals are taken."""

import hashlib
from typing import Any

import pytest

from consumers.allocator.engine import ENGINE_VERSION, Policy
from schemas.cluster import Pool

NAMES = ["n-a", "n-b", "n-c", "n-d", "n-e", "n-f"]


def test_policy_of_pool() -> None:
    pool = Pool(name="p", placement="LowLoadFirst", vram_weight=20, tflops_weight=80)
    assert Policy.of(pool, part=1, parts=2) == Policy(
        name="LowLoadFirst", vram_weight=20, tflops_weight=80, part=1, parts=2
    )


def test_unknown_mode_names_the_value_and_the_words() -> None:
    with pytest.raises(
        ValueError,
        match=r"'BestFit'.*NodeCompactGPULowLoad, CompactFirst, LowLoadFirst, FragmentationGradient, PackingValue",
    ):
        Policy(name="BestFit")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="vram_weight is 101"):
        Policy(vram_weight=101)
    with pytest.raises(ValueError, match="part is 2 of 2"):
        Policy(parts=2, part=2)


def test_hash_covers_everything_that_can_change_a_decision() -> None:
    policies = [
        Policy(), Policy(name="CompactFirst"), Policy(vram_weight=71), Policy(tflops_weight=31), Policy(parts=2),
        Policy(parts=2, part=1),
    ]  # fmt: skip
    assert len({policy.hash for policy in policies}) == len(policies)
    assert Policy().hash == Policy(vram_weight=70).hash
    # Pinned: hashes are in the log, and a replay compares them.
    assert Policy().hash == "17d732138a3e2def"


def test_decision_names_policy_and_engine(cluster: Any) -> None:
    cluster.node("n")
    policy = Policy(name="CompactFirst", parts=2)
    for found in (cluster.decide(policy), cluster.decide(policy, count=9), cluster.decide(policy, pool="typo")):
        assert (found.policy, found.policy_hash, found.engine) == ("CompactFirst", policy.hash, ENGINE_VERSION)


def test_equal_nodes_are_taken_by_name(cluster: Any) -> None:
    for name in reversed(NAMES):
        cluster.node(name)
    assert [c.node for c in cluster.decide().candidates] == NAMES[:3]


def test_an_allocator_packs_its_own_part_first_and_looks_elsewhere_when_nothing_fits_there(cluster: Any) -> None:
    for name in NAMES:
        cluster.node(name)

    def part(name: str) -> int:
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % 2

    for own in (0, 1):
        policy = Policy(parts=2, part=own)
        at_home = [name for name in NAMES if part(name) == own]
        expected = at_home + [name for name in reversed(NAMES) if part(name) != own]
        assert [c.node for c in cluster.decide(policy).candidates] == expected[:3]
    home = [name for name in NAMES if part(name) == 0]
    away = [name for name in NAMES if part(name) == 1]
    # A fuller node elsewhere does not tempt it, as long as there is one at home.
    cluster.fill(away[-1], 0, vram=50)
    assert cluster.decide(Policy(parts=2, part=0)).node == home[0]
    for name in home:
        cluster.fill(name, 0, vram=10**9)
    assert cluster.decide(Policy(parts=2, part=0), vram_bytes=1).node == away[-1]


def test_equal_gpus_are_taken_by_index_then_uuid(cluster: Any) -> None:
    from datetime import UTC, datetime

    from schemas.cluster import GpuInventory, Node

    gpus = [cluster.gpu("z", 1), cluster.gpu("y", 0), cluster.gpu("x", 1)]
    cluster.snapshot.put_node(Node(name="n", pool="p"))
    cluster.snapshot.put_inventory(GpuInventory(node="n", gpus=gpus, observed_at=datetime.now(UTC)))
    assert [grant.uuid for grant in cluster.decide().gpus] == ["y"]
    assert [grant.uuid for grant in cluster.decide(count=2).gpus] == ["y", "x"]
