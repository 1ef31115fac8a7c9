"""Gangs and evictions: none is torn for another pod's sake, and none has anybody evicted while it is not whole."""

import msgspec
import pytest

from schemas import reasons
from schemas.cluster import Pool
from schemas.ledger import Allocation, GangRecord, NodeRecord
from schemas.pod import GpuRequest
from schemas.preemption import DisruptionBudget
from tests.unit.allocator.harness import Allocator, command
from tests.unit.allocator.test_gangs import member
from tests.unit.allocator.test_rooms import HIGH, LOW, held, outcomes

SMALL = msgspec.structs.replace(LOW, models=("small",))
SMALL_HIGH = msgspec.structs.replace(SMALL, priority=5)
WAITS = ("unschedulable", reasons.AWAITING_EVICTION)


def allocator() -> Allocator:
    found = Allocator()
    found.now_s = 1000
    found.say("pool", "p", Pool(name="p", preemption="cluster"))
    return found


def gang(plane: Allocator, size: int, *requests: GpuRequest) -> list[str]:
    """Place a gang that takes so many members, and return them."""
    uids = [f"m{number}" for number in range(len(requests))]
    for uid, request in zip(uids, requests, strict=True):
        plane.ask(uid, member(size, request))
    assert all(plane.core.cluster.snapshot.node_of(uid) for uid in uids)
    return uids


def after(plane: Allocator, uid: str = "high", request: GpuRequest = HIGH) -> dict[str, tuple[str, str]]:
    plane.core.schedule(command(uid, request), None)
    return outcomes(plane.said())


def test_a_gang_that_can_spare_nobody_goes_as_a_whole_from_all_its_nodes() -> None:
    plane = allocator()
    gang(plane, 3, LOW, SMALL, SMALL)
    plane.core.schedule(command("high", HIGH), None)
    said = plane.said()
    assert outcomes(said) == dict.fromkeys(("m0", "m1", "m2"), ("evicted", "Preempted")) | {"high": WAITS}
    (order,) = [one.evict for one in said if one.evict is not None]
    assert order.preemption.node == "big"
    assert {victim.uid for victim in order.preemption.victims} == {"m0", "m1", "m2"}
    told = {one.decision.pod_uid: one.decision for one in said}
    assert {uid: told[uid].node for uid in ("m0", "m1", "m2")} == {"m0": "big", "m1": "small", "m2": "small"}
    assert "its gang ns/w cannot do without those that go" in told["m1"].message
    assert "gang" not in told["m0"].message
    assert held(plane) == {"m0", "hold/high"}


def test_members_beyond_those_that_a_gang_takes_go_alone() -> None:
    plane = allocator()
    gang(plane, 2, LOW, SMALL, SMALL)
    assert after(plane) == {"m0": ("evicted", "Preempted"), "high": WAITS}


def test_a_gang_spares_no_more_than_it_can_to_several_pods() -> None:
    plane = allocator()
    gang(plane, 3, SMALL, SMALL, SMALL, SMALL)
    first = after(plane, "one", SMALL_HIGH)
    (spared,) = [uid for uid, (outcome, _) in first.items() if outcome == "evicted"]
    second = after(plane, "two", SMALL_HIGH)
    assert {uid for uid, (outcome, _) in second.items() if outcome == "evicted"} >= {"m0", "m1", "m2", "m3"} - {spared}


def test_who_has_fewer_pods_to_go_elsewhere_leaves_a_gang_alone() -> None:
    plane = allocator()
    gang(plane, 2, SMALL, SMALL)
    plane.ask("alone", SMALL)
    plane.ask("other", SMALL)
    told = after(plane, request=SMALL_HIGH)
    assert told.keys() & {"m0", "m1"} == set()
    assert [outcome for outcome, _ in told.values()].count("evicted") == 1


@pytest.mark.parametrize(
    "stays",
    [
        pytest.param({"priority": 5}, id="rank"),
        pytest.param({"eviction_protection_s": 600}, id="protected"),
    ],
)
def test_a_gang_stays_if_one_of_its_members_on_another_node_may_not_go(stays) -> None:
    plane = allocator()
    gang(plane, 2, LOW, msgspec.structs.replace(SMALL, **stays))
    assert after(plane) == {"high": ("unschedulable", reasons.COMPUTE)}


def test_a_budget_that_covers_members_on_other_nodes_is_kept() -> None:
    plane = allocator()
    gang(plane, 2, LOW, SMALL)
    plane.say("disruption", "ns", "b", DisruptionBudget(namespace="ns", name="b", allowed=1, pods=("m0", "m1")))
    assert after(plane) == {"high": ("unschedulable", reasons.COMPUTE)}
    plane.say("disruption", "ns", "b", DisruptionBudget(namespace="ns", name="b", allowed=2, pods=("m0", "m1")))
    plane.core.rooms._vain.clear()
    assert after(plane)["m1"] == ("evicted", "Preempted")


def test_a_gang_of_which_nobody_has_said_how_many_it_takes_can_spare_nobody() -> None:
    plane = allocator()
    members = []
    for node, uid in (("big", "a"), ("small", "b"), ("small", "c")):
        gpus = plane.core.decider.place(command(uid, LOW if node == "big" else SMALL))[0].gpus
        allocation = Allocation(pod_uid=uid, namespace="ns", name=uid, pool="p", gpus=gpus, gang="ns/g", qos="low")
        members.append((node, allocation))
        plane.core.snapshot.add(node, allocation)
    for node in ("big", "small"):
        plane.ledger_seq += 1
        here = tuple(allocation for at, allocation in members if at == node)
        plane.hear_node(node, NodeRecord(node=node, txn="b:1", allocations=here, changes=()))
    assert after(plane)["b"] == ("evicted", "Preempted")


def test_what_a_gang_takes_is_remembered_when_one_of_its_members_leaves() -> None:
    plane = allocator()
    gang(plane, 2, LOW, SMALL, SMALL)
    plane.end("m2")
    (bundle,) = plane.leave()
    (seal,) = bundle.seals
    assert seal.record == GangRecord(key="ns/w", txn=bundle.txn, min_members=2, members=("m0", "m1"))
    plane.store(bundle)
    assert after(plane)["m1"] == ("evicted", "Preempted")


def test_a_gang_has_nobody_evicted_and_neither_has_a_member_that_comes_later() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    for uid in ("a", "b"):
        decision = plane.ask(uid, member(2, HIGH if uid == "a" else SMALL_HIGH))
        assert decision.outcome == "unschedulable"
        assert not plane.core.rooms.sought
    assert decision.reason == reasons.GANG_UNFULFILLABLE
    assert held(plane) == {"low"}
    plane.ask("c", member(2, SMALL_HIGH))
    assert plane.core.cluster.gangs.standing("ns/w")
    assert plane.ask("d", member(2, HIGH)).reason == reasons.COMPUTE
    assert held(plane) == {"low"}
