"""A pod that was placed twice, as its command came twice, keeps its first place, and the later one is taken back."""

import msgspec

from bus.invariants import LedgerChecker
from schemas.ledger import Allocation, Change, NodeRecord
from schemas.pod import GpuRequest
from tests.unit.allocator.harness import Allocator, command

REQUEST = GpuRequest(pool="p", count=1, compute_milli=100)


def test_a_later_place_is_taken_back_even_if_the_commit_that_was_to_do_so_is_given_up() -> None:
    allocator = Allocator()
    allocator.core.schedule(command("x", REQUEST), None)
    (ours,) = allocator.leave()
    first = "small" if ours.node == "big" else "big"
    elsewhere = Allocation(pod_uid="x", namespace="ns", name="x", pool="p")
    allocator.ledger_seq += 1
    allocator.hear_node(first, NodeRecord(node=first, txn="b:1", allocations=(elsewhere,), changes=()))
    allocator.store(ours)
    (undoing,) = allocator.leave()
    assert (undoing.node, list(undoing.held)) == (ours.node, [])
    allocator.core.given_up(undoing)
    (again,) = allocator.leave()
    assert (again.node, list(again.held), [item.uid for item in again.items]) == (ours.node, [], ["x"])
    allocator.store(again)
    assert allocator.leave() == []


def test_a_second_place_is_a_violation_until_it_is_taken_back() -> None:
    checker = LedgerChecker(None)
    pod = Allocation(pod_uid="x", namespace="ns", name="x", pool="p")

    def record(seq: int, node: str, *held: Allocation, op: str = "") -> None:
        decision = msgspec.Raw(b'{"gpus":[]}')
        changes = (Change(op=op, pod_uid="x", decision=decision),) if op else ()
        checker.check(seq, node, NodeRecord(node=node, txn=str(seq), allocations=held, changes=changes))

    record(1, "a", pod, op="add")
    record(2, "b", pod, op="add")
    record(3, "b", pod)
    assert [(found.seq, found.node, found.rule) for found in checker.violations] == [(2, "b", "PodOnTwoNodes")]
    record(4, "a", op="remove")  # the place that counted is gone: what is left is still one too many
    assert (len(checker.violations), checker.taken_back) == (1, [])
    record(5, "b", op="remove")
    assert (checker.violations, [found.seq for found in checker.taken_back]) == ([], [2])
    assert checker.double_allocations == 1, "that it did not last does not undo it"
