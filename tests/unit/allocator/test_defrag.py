"""Emptying nodes: only what has a place elsewhere moves, nothing twice, and no fewer nodes than the plain way would empty."""

import random

import pytest

from consumers.allocator.defrag import ORDERS, _in_order, _Trial, plan_defrag
from consumers.allocator.engine import Policy, Snapshot, decide
from consumers.allocator.grants import allocation
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.event import utc
from schemas.pod import GpuRequest, Schedule

GIB = 2**30
POOL = Pool(name="p")


def cluster(nodes: int, gpus: int = 4) -> Snapshot:
    snapshot = Snapshot()
    snapshot.put_pool(POOL)
    for number in range(nodes):
        name = f"n{number:03}"
        snapshot.put_node(Node(name=name, pool="p", cpu_milli=64_000, memory_bytes=512 * GIB))
        devices = [
            GpuDevice(uuid=f"{name}-{n}", index=n, model="A100", tflops_milli=312_000, vram_bytes=80 * GIB)
            for n in range(gpus)
        ]
        snapshot.put_inventory(GpuInventory(node=name, gpus=devices, observed_at=utc(0)))
    return snapshot


def put(snapshot: Snapshot, uid: str, request: GpuRequest, node: str = "") -> bool:
    decision = decide(snapshot, request, Policy.of(POOL), node)
    if not decision.node:
        return False
    command = Schedule(namespace="ns", name=uid, uid=uid, request=request)
    snapshot.add(decision.node, allocation(command, decision, snapshot))
    return True


def fragmented(seed: int, nodes: int = 40) -> tuple[Snapshot, dict[str, GpuRequest]]:
    """A cluster that was full, and of which two pods of three have ended."""
    dice = random.Random(seed)
    snapshot, requests = cluster(nodes), {}
    for number in range(10_000):
        count = dice.choice([0, 0, 0, 1, 2, 4])
        share = dice.choice([125, 250, 500, 750]) if not count else 1000
        request = GpuRequest(pool="p", count=max(count, 1), compute_milli=share, vram_milli=share, cpu_milli=1000)
        if not put(snapshot, f"u{number}", request):
            break
        requests[f"u{number}"] = request
    for uid in list(requests):
        if dice.random() < 0.66:
            node = snapshot.node_of(uid)
            assert node is not None
            snapshot.remove(node, uid)
            del requests[uid]
    return snapshot, requests


@pytest.mark.parametrize("seed", range(4))
def test_at_least_as_many_nodes_as_the_plain_way_and_every_move_can_be_made(seed):
    snapshot, requests = fragmented(seed)
    before = snapshot.digest()
    plan = plan_defrag(snapshot, requests, "p", threshold=40, fixed={})
    assert snapshot.digest() == before
    policy = Policy.of(POOL)
    nodes = [name for name in snapshot.nodes("p") if snapshot.allocations(name) and ORDERS[0](snapshot, name)[0] <= 400]
    plain = _in_order(_Trial(snapshot, requests, policy, {}), nodes, ORDERS[0])
    assert len(plan.emptied) >= len(plain.emptied) > 0
    assert plan.candidates == len(nodes)
    # Carried out on a cluster of its own: every pod finds the place that was named, and the nodes are empty then.
    for node in plan.emptied:
        for move in (one for one in plan.moves if one.source == node):
            assert snapshot.node_of(move.pod_uid) == node
            snapshot.remove(node, move.pod_uid)
            assert put(snapshot, move.pod_uid, requests[move.pod_uid], move.target)
    assert not any(snapshot.allocations(node) for node in plan.emptied)
    assert len({move.pod_uid for move in plan.moves}) == len(plan.moves)


def test_a_pod_with_nowhere_to_go_or_that_must_stay_keeps_its_node_and_moves_nobody():
    snapshot = cluster(3)
    small = GpuRequest(pool="p", compute_milli=500, vram_milli=500)
    whole = GpuRequest(pool="p", count=3, compute_milli=1000, vram_milli=1000)
    requests = {"a": small, "b": whole, "c": whole, "d": small}
    for uid, node in (("a", "n000"), ("b", "n001"), ("c", "n002"), ("d", "n000")):
        assert put(snapshot, uid, requests[uid], node)
    plan = plan_defrag(snapshot, requests, "p", threshold=50, fixed={})
    assert (plan.emptied, {(move.pod_uid, move.target) for move in plan.moves}) == (
        ("n000",),
        {("a", plan.moves[0].target), ("d", plan.moves[0].target)},
    )
    for fixed, known, word in (
        ({"d": "its disruption budget allows none"}, requests, "its disruption budget allows none"),
        ({}, {uid: request for uid, request in requests.items() if uid != "a"}, "not known"),
    ):
        kept = plan_defrag(snapshot, known, "p", threshold=50, fixed=fixed)
        assert (kept.emptied, kept.moves) == ((), ())
        assert word in kept.kept[0].reason
    assert put(snapshot, "e", small, "n001")
    assert put(snapshot, "f", GpuRequest(pool="p", compute_milli=1000, vram_milli=1000), "n002")
    full = plan_defrag(snapshot, requests, "p", threshold=50, fixed={})
    assert full.moves == ()
    assert full.kept[0].node == "n000"
    assert "nodes fit" in full.kept[0].reason
