"""Room that is kept for a pod: no other pod takes it, by whatever way it comes, neither on the node nor in the quota."""

import msgspec
import pytest

from schemas import reasons
from schemas.ledger import NodeRecord
from schemas.pod import Release
from schemas.quota import Budget, Quota
from tests.unit.allocator.harness import BIG, MIB, Allocator, command
from tests.unit.allocator.test_gangs import member
from tests.unit.allocator.test_rooms import HIGH, LOW, allocator, held, outcomes

SMALL = msgspec.structs.replace(LOW, models=("small",))
OTHER = msgspec.structs.replace(LOW, cpu_milli=1)
WAITS = ("unschedulable", reasons.AWAITING_EVICTION)


def leave(plane: Allocator, uid: str) -> None:
    plane.core.release(Release(namespace="other", name=uid, uid=uid, pool="p"), None)
    plane.said()


def kept(plane: Allocator) -> Allocator:
    """Have room kept on the big GPU, which the pod that was there has left."""
    plane.ask("low", LOW, "other")
    assert plane.ask("high", HIGH).reason == reasons.AWAITING_EVICTION
    leave(plane, "low")
    assert held(plane) == {"hold/high"}
    return plane


@pytest.fixture
def plane() -> Allocator:
    return kept(allocator())


def extender(uid: str, request=OTHER):
    return msgspec.structs.replace(command(uid, request), way="extender")


# By whatever way


def test_a_command_that_names_the_node_does_not_take_it(plane: Allocator) -> None:
    plane.core.schedule(msgspec.structs.replace(command("late", OTHER), node="big"), None)
    assert outcomes(plane.said())["late"][0] == "unschedulable"
    assert held(plane) == {"hold/high"}


def test_kube_scheduler_is_not_offered_it(plane: Allocator) -> None:
    offer = plane.core.offer(extender("late"), ("big", "small"), 0.0)
    assert not offer.best
    assert "big" in {node for nodes in offer.refused.values() for node in nodes}


def test_what_another_allocator_has_offered_is_not_reserved_there(plane: Allocator) -> None:
    plane.core.offers.remember(extender("late"), ("big",))
    assert plane.core.reserve("late", "big", None) == ""
    assert outcomes(plane.said())["late"][0] == "unschedulable"
    assert held(plane) == {"hold/high"}


def test_what_was_offered_before_is_not_reserved_once_the_room_is_kept() -> None:
    """Another allocator has made room for a pod on the node that this one has offered to somebody else."""
    plane = allocator()
    ours = kept(allocator())
    assert plane.core.offer(extender("late", LOW), ("big",), 0.0).best == ("big",)
    plane.ledger_seq = ours.ledger_seq
    holds = tuple(ours.core.mind.shelf.book("big").holds.values())
    plane.hear_node("big", NodeRecord(node="big", txn="b:9", allocations=(), changes=(), holds=holds))
    assert plane.core.reserve("late", "big", None) == ""
    assert outcomes(plane.said())["late"][0] == "unschedulable"
    assert held(plane) == {"hold/high"}


def test_a_gang_and_a_larger_pod_do_not_take_it(plane: Allocator) -> None:
    plane.ask("a", member(2, OTHER))
    assert plane.ask("b", member(2, SMALL)).reason == reasons.GANG_UNFULFILLABLE
    plane.ask("stands", msgspec.structs.replace(SMALL, compute_milli=100))
    assert held(plane) == {"hold/high"}


def test_the_pod_itself_gets_it(plane: Allocator) -> None:
    assert plane.ask("high", HIGH).node == "big"
    assert held(plane) == {"high"}


def test_nobody_is_evicted_for_a_place_that_is_only_offered() -> None:
    plane = allocator()
    assert plane.core.offer(extender("offered", LOW), ("big",), 0.0).best == ("big",)
    assert plane.ask("high", HIGH).reason == reasons.COMPUTE
    assert held(plane) == {"offered"}
    plane.core.offers.expire(20.0)
    assert plane.ask("high", HIGH).node == "big"


# In the quota


@pytest.mark.parametrize(
    ("total", "late"),
    [
        pytest.param(Budget(gpus=1), SMALL, id="gpus"),
        pytest.param(Budget(workers=1), msgspec.structs.replace(SMALL, compute_milli=10), id="workers"),
        pytest.param(
            Budget(vram_bytes=BIG * MIB),
            msgspec.structs.replace(SMALL, compute_milli=10, vram_bytes=MIB),
            id="vram",
        ),
    ],
)
def test_what_is_kept_is_kept_in_the_quota_until_it_is_given_up(total: Budget, late) -> None:
    plane = allocator()
    plane.allow(Quota(namespace="ns", name="q", total=total))
    low = msgspec.structs.replace(LOW, vram_milli=1000)
    high = msgspec.structs.replace(low, priority=5)
    plane.ask("low", low, "other")
    assert plane.ask("high", high).reason == reasons.AWAITING_EVICTION
    assert plane.ask("late", late).reason == reasons.QUOTA
    offer = plane.core.offer(extender("asked", late), ("big", "small"), 0.0)
    assert not offer.best
    assert not plane.woken()
    leave(plane, "low")
    assert plane.woken() == ["high"]
    plane.end("high")
    plane.said()
    assert plane.woken() == ["late"]
    assert plane.ask("late", late).node == "small"


def test_the_pod_itself_has_what_is_kept_in_the_quota() -> None:
    plane = allocator()
    plane.allow(Quota(namespace="ns", name="q", total=Budget(gpus=1)))
    kept(plane)
    assert plane.ask("high", HIGH).node == "big"
    counted = plane.core.quotas.counted("ns")
    assert counted is not None
    assert (counted[0].gpus, counted[1].gpus) == (1, 0)


def test_what_the_quota_counted_is_written_down_with_the_decision() -> None:
    plane = allocator()
    plane.allow(Quota(namespace="ns", name="q", total=Budget(gpus=2)))
    kept(plane)
    plane.core.journal.take()
    plane.ask("late", SMALL)
    (turn,) = plane.core.journal.take()
    (count,) = [step for step in turn.steps if type(step).__name__ == "Count"]
    assert (count.held.gpus, count.promised.gpus) == (0, 1)
