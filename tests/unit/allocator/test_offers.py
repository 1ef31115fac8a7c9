"""What an allocator offers a kube-scheduler, keeps free meanwhile, and reserves when one is chosen."""

import msgspec
import pytest

from schemas import reasons
from schemas.pod import GpuRequest, Release
from tests.unit.allocator.harness import Allocator, command

BOTH = ("big", "small")
WHOLE = GpuRequest(pool="p", compute_milli=1000)
HALF_BIG = GpuRequest(pool="p", compute_milli=500, models=("big",))
BIG = GpuRequest(pool="p", compute_milli=1000, models=("big",))


@pytest.fixture
def allocator() -> Allocator:
    return Allocator()


def asked(uid: str, request: GpuRequest):
    return msgspec.structs.replace(command(uid, request), way="extender")


def test_nodes_are_refused_by_reason_and_the_others_ranked(allocator: Allocator) -> None:
    offer = allocator.core.offer(asked("a", BIG), (*BOTH, "stranger"), 0.0)
    assert offer.best == ("big",)
    assert offer.refused == {reasons.MODEL_MISMATCH: ("small",), reasons.NOT_IN_POOL: ("stranger",)}
    assert not allocator.said()


def test_what_is_offered_to_one_pod_is_not_offered_to_the_next_until_it_is_given_up(allocator: Allocator) -> None:
    allocator.core.offer(asked("a", BIG), BOTH, 0.0)
    refused = allocator.core.offer(asked("b", BIG), BOTH, 1.0)
    assert not refused.best
    assert [said.decision.pod_uid for said in allocator.said()] == ["b"]
    allocator.core.offers.expire(20.0)
    assert allocator.core.offer(asked("b", BIG), BOTH, 21.0).best == ("big",)


def test_the_reservation_is_a_ledger_record_and_carries_the_decision(allocator: Allocator) -> None:
    allocator.core.offer(asked("a", BIG), BOTH, 0.0)
    assert allocator.core.reserve("a", "big", None) == ""
    (said,) = allocator.said()
    assert (said.decision.outcome, said.decision.node, said.decision.way) == ("allocated", "big", "extender")
    assert "kube-scheduler's choice" in said.decision.message
    again = allocator.core.offer(asked("a", BIG), BOTH, 1.0)
    assert again.best == ("big",)


def test_another_node_than_the_best_may_be_chosen(allocator: Allocator) -> None:
    best = allocator.core.offer(asked("a", WHOLE), BOTH, 0.0).best
    assert set(best) == set(BOTH)
    assert allocator.core.reserve("a", best[1], None) == ""
    (said,) = allocator.said()
    assert said.decision.node == best[1]
    assert len(allocator.core.offers) == 0


def test_of_two_pods_that_were_given_one_last_place_the_second_is_refused(allocator: Allocator) -> None:
    for uid in "ab":
        allocator.core.offers.remember(asked(uid, BIG), ("big",))
        assert allocator.core.reserve(uid, "big", None) == ""
    outcomes = {said.decision.pod_uid: said.decision.outcome for said in allocator.said()}
    assert outcomes == {"a": "allocated", "b": "unschedulable"}
    assert not allocator.core.cluster.waiting.all()


def test_a_pod_that_nobody_asked_about_is_not_reserved_for(allocator: Allocator) -> None:
    assert "filter comes first" in allocator.core.reserve("a", "big", None)


def test_a_pod_that_ends_is_kept_nothing_free_for(allocator: Allocator) -> None:
    allocator.core.offer(asked("a", BIG), BOTH, 0.0)
    allocator.core.release(Release(namespace="ns", name="a", uid="a", pool="p"), None)
    assert allocator.core.offer(asked("b", BIG), BOTH, 1.0).best == ("big",)


def test_it_is_told_when_only_nodes_that_are_not_offered_would_fit(allocator: Allocator) -> None:
    allocator.core.offer(asked("a", BIG), ("small",), 0.0)
    (said,) = allocator.said()
    assert said.decision.reason == reasons.NOT_OFFERED
    assert "big would fit" in said.decision.message
