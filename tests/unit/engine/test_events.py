"""Events in any order, and what the snapshot says about itself."""

from itertools import permutations
from typing import Any

import pytest

from consumers.allocator.engine import Capacity, Policy, Snapshot
from schemas.cluster import GpuInventory, Node, Oversubscription, Pool
from schemas.ledger import Allocation


def allocation(uid: str, **more: Any) -> Allocation:
    return Allocation(pod_uid=uid, namespace="ns", name="pod", pool="p", **more)


def test_events_count_in_whatever_order_they_come(cluster: Any) -> None:
    over = Oversubscription(tflops_ratio=200, host_memory=10)
    held = allocation("u", gpus=(cluster.grant("n", 0, 150_000, 1100),), cpu_milli=1)
    steps = [
        ("put_pool", Pool(name="p", oversubscription=over)),
        ("put_node", Node(name="n", pool="p", cpu_milli=10, memory_bytes=1000)),
        ("put_inventory", cluster.inventory("n", 1)),
        ("add", "n", held),
    ]
    digests = set()
    for order in permutations(steps):
        cluster.snapshot = Snapshot()
        for name, *arguments in order:
            getattr(cluster.snapshot, name)(*arguments)
            cluster.decide(tflops_milli=1)
        digests.add(cluster.snapshot.digest())
        assert cluster.decide(tflops_milli=50_000).node == "n"
        assert cluster.decide(tflops_milli=50_001).reason == "InsufficientCompute"
        assert cluster.decide(vram_bytes=1).reason == "InsufficientVram"  # 1000 + 10 % of 1000, and 1100 is held
        assert cluster.decide(cpu_milli=10).reason == "InsufficientCpu"
    assert len(digests) == 1


def test_oversubscription_widens_schedulable_capacity_but_not_shares(cluster: Any) -> None:
    over = Oversubscription(tflops_ratio=250, host_memory=50, host_disk=70)
    cluster.snapshot.put_pool(Pool(name="p", oversubscription=over))
    cluster.node("n", 2, memory_bytes=999, disk_bytes=101)
    # (999 x 50 // 100 + 101 x 70 // 100) // 2 = (499 + 70) // 2 = 284
    assert cluster.decide(vram_bytes=1284).node == "n"
    assert cluster.decide(vram_bytes=1285).reason == "InsufficientVram"
    assert cluster.decide(tflops_milli=250_000).node == "n"
    assert cluster.decide(tflops_milli=250_001).reason == "InsufficientCompute"
    assert cluster.decide(compute_milli=500).gpus[0].tflops_milli == 50_000
    placed = [cluster.place(compute_milli=500).gpus[0].index for _ in range(10)]
    assert sorted(placed) == [0] * 5 + [1] * 5
    assert cluster.decide(compute_milli=500).reason == "InsufficientCompute"
    assert cluster.snapshot.capacity("n") == Capacity(
        nodes=1,
        gpus=2,
        pods=10,
        physical_tflops_milli=200_000,
        physical_vram_bytes=2000,
        schedulable_tflops_milli=500_000,
        schedulable_vram_bytes=2568,
        granted_tflops_milli=500_000,
    )
    cluster.snapshot.remove_pool("p")
    cluster.snapshot.put_pool(Pool(name="p"))
    assert cluster.decide(count=1).reason == "InsufficientCompute"


def test_grants_on_unlisted_gpus_wait_for_the_inventory(cluster: Any) -> None:
    cluster.node("n", 1)
    cluster.snapshot.set_allocations("n", [allocation("u", gpus=(cluster.grant("n", 1, 1, 999),), cpu_milli=9_999)])
    assert cluster.decide(vram_milli=1000).node == "n"
    assert cluster.decide(cpu_milli=2).reason == "InsufficientCpu"
    assert cluster.snapshot.total().granted_vram_bytes == 999
    cluster.snapshot.put_inventory(cluster.inventory("n", 2))
    assert [grant.index for grant in cluster.decide(vram_bytes=2).gpus] == [0]
    assert cluster.decide(count=2, vram_bytes=2).reason == "TooFewGpusOnOneNode"


def test_frozen_node_refuses_everything_until_a_good_record_comes(cluster: Any) -> None:
    cluster.node("n", 1)
    uid = cluster.fill("n", 0, vram=600)
    cluster.snapshot.freeze("n")
    for count in (0, 1):
        assert cluster.decide(count=count).reason == "LedgerFrozen"
    cluster.snapshot.add("n", allocation("late", gpus=(cluster.grant("n", 0, 0, 100),)))
    assert cluster.decide().reason == "LedgerFrozen"
    assert cluster.snapshot.node_of(uid) == "n"
    cluster.snapshot.set_allocations("n", cluster.snapshot.allocations("n"))
    assert cluster.decide(vram_bytes=300).node == "n"
    assert cluster.decide(vram_bytes=301).reason == "InsufficientVram"


def test_frozen_before_the_node_is_known(cluster: Any) -> None:
    cluster.snapshot.freeze("n")
    cluster.node("n")
    assert cluster.decide().reason == "LedgerFrozen"


def test_pod_on_two_nodes_is_named_and_both_count(cluster: Any) -> None:
    for name in ("b", "a", "c"):
        cluster.node(name)
    for name in ("b", "a"):
        cluster.snapshot.add(name, allocation("twice", gpus=(cluster.grant(name, 0, 0, 1000),), cpu_milli=len(name)))
    assert cluster.snapshot.node_of("twice") == "a"
    assert cluster.snapshot.duplicates() == {"twice": ("a", "b")}
    held = cluster.snapshot.allocation("twice")
    assert held is not None
    assert held.gpus[0].uuid == "a/0"
    assert cluster.decide(vram_bytes=1).candidates[0].node == "c"
    cluster.snapshot.remove("a", "twice")
    assert (cluster.snapshot.node_of("twice"), cluster.snapshot.duplicates()) == ("b", {})
    cluster.snapshot.set_allocations("b", [])
    assert cluster.snapshot.node_of("twice") is None
    assert cluster.snapshot.allocation("twice") is None


def test_release_of_what_is_not_held_and_repeated_events_change_nothing(cluster: Any) -> None:
    cluster.node("n", 2)
    cluster.fill("n", 0, vram=10)
    before = cluster.snapshot.digest()
    cluster.snapshot.remove("n", "nobody")
    cluster.snapshot.remove("nowhere", "nobody")
    cluster.snapshot.remove_node("nowhere")
    cluster.snapshot.remove_inventory("nowhere")
    cluster.snapshot.set_allocations("nowhere", [])
    cluster.snapshot.set_allocations("n", cluster.snapshot.allocations("n"))
    cluster.snapshot.add("n", cluster.snapshot.allocations("n")[0])
    cluster.node("n", 2)
    assert cluster.snapshot.digest() == before


def test_heartbeat_time_is_not_content(cluster: Any) -> None:
    from datetime import timedelta

    cluster.node("n", 2)
    before, beat = cluster.snapshot.digest(), cluster.inventory("n", 2)
    later = GpuInventory(node="n", gpus=beat.gpus[::-1], observed_at=beat.observed_at + timedelta(seconds=9))
    cluster.snapshot.put_inventory(later)
    assert cluster.snapshot.digest() == before


def test_replaced_allocation_counts_once(cluster: Any) -> None:
    cluster.node("n", 1)
    for vram in (400, 700):
        cluster.snapshot.add("n", allocation("u", gpus=(cluster.grant("n", 0, 0, vram),)))
    assert cluster.decide(vram_bytes=300).node == "n"
    assert cluster.decide(vram_bytes=301).reason == "InsufficientVram"


def test_ledger_record_replaces_what_was_there(cluster: Any) -> None:
    cluster.node("n", 1)
    old, new = (allocation(uid, gpus=(cluster.grant("n", 0, 0, vram),)) for uid, vram in (("old", 900), ("new", 200)))
    cluster.snapshot.set_allocations("n", [old])
    assert cluster.decide(vram_bytes=800).reason == "InsufficientVram"
    cluster.snapshot.set_allocations("n", [new])
    assert cluster.decide(vram_bytes=800).node == "n"
    assert (cluster.snapshot.node_of("old"), cluster.snapshot.node_of("new")) == (None, "n")


def test_node_and_inventory_may_go_and_come_back(cluster: Any) -> None:
    cluster.node("n", 1)
    cluster.fill("n", 0, vram=600)
    cluster.decide()
    before = cluster.snapshot.digest()
    cluster.snapshot.remove_node("n")
    cluster.snapshot.remove_inventory("n")
    assert cluster.decide().reason == "PoolEmpty"
    cluster.node("n", 1)
    assert cluster.snapshot.digest() == before
    assert cluster.decide(vram_bytes=401).reason == "InsufficientVram"


def test_everything_gone_leaves_nothing(cluster: Any) -> None:
    before = cluster.snapshot.digest()
    cluster.node("n", 1)
    uid = cluster.fill("n", 0, vram=600)
    cluster.snapshot.remove_node("n")
    cluster.snapshot.remove_inventory("n")
    cluster.snapshot.remove("n", uid)
    assert cluster.snapshot.digest() == before


def test_bad_inventory_is_refused_whole(cluster: Any) -> None:
    cluster.node("n", 1)
    before, good = cluster.snapshot.digest(), cluster.inventory("n", 300)
    with pytest.raises(ValueError, match="node n lists 300 GPUs"):
        cluster.snapshot.put_inventory(good)
    with pytest.raises(ValueError, match="node n lists a GPU UUID twice"):
        cluster.snapshot.put_inventory(GpuInventory(node="n", gpus=good.gpus[:1] * 2, observed_at=good.observed_at))
    assert cluster.snapshot.digest() == before


def test_totals_by_pool(cluster: Any) -> None:
    cluster.snapshot.put_pool(Pool(name="q"))
    cluster.node("a", 2)
    cluster.node("b", 3, pool="q")
    cluster.fill("b", 1, tflops=5, vram=7)
    assert cluster.snapshot.nodes() == ["a", "b"]
    assert cluster.snapshot.nodes("q") == ["b"]
    assert set(cluster.snapshot.pools()) == {"p", "q"}
    everything = cluster.snapshot.total()
    assert (everything.nodes, everything.gpus, everything.pods) == (2, 5, 1)
    assert (everything.granted_tflops_milli, everything.granted_vram_bytes) == (5, 7)
    assert cluster.snapshot.total("p") == cluster.snapshot.capacity("a")
    assert cluster.snapshot.capacity("nowhere") is None


def test_decision_does_not_change_the_snapshot(cluster: Any) -> None:
    cluster.node("n", 1)
    before = cluster.snapshot.digest()
    assert cluster.decide(compute_milli=500) == cluster.decide(compute_milli=500)
    assert cluster.decide(Policy(name="CompactFirst"), count=4).outcome == "unschedulable"
    assert cluster.snapshot.digest() == before
