"""Gangs: who waits for whom, that none leaves in part, who joins alone, and what the checker makes of the rest."""

import msgspec
import pytest

from bus import subjects
from bus.capacity import Limits
from bus.invariants import LedgerChecker
from schemas.ledger import Allocation, GangRecord, NodeRecord
from schemas.pod import GpuRequest
from schemas.quota import Budget, Quota
from schemas.reasons import GANG_UNFULFILLABLE, GANG_WAITING
from schemas.requirements import Gang
from tests.unit.allocator.harness import NOW, Allocator, command, encoded

WHOLE = GpuRequest(pool="p", compute_milli=1000)
BIG = GpuRequest(pool="p", compute_milli=100, models=("big",))


def member(size: int, request: GpuRequest = WHOLE, key: str = "ns/w") -> GpuRequest:
    return msgspec.structs.replace(request, gang=Gang(key=key, min_members=size))


def test_members_wait_until_enough_are_there_and_then_leave_together() -> None:
    allocator = Allocator()
    for uid, there in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        refused = allocator.ask(uid, member(5))
        assert (refused.reason, refused.message) == (
            GANG_WAITING, f"{there} of the 5 members that gang ns/w needs are there"
        )  # fmt: skip
    assert allocator.ask("e", member(5)).node
    assert allocator.ledger_seq == 3  # two nodes and the gang, one batch
    assert {a.pod_uid for node in ("big", "small") for a in allocator.core.snapshot.allocations(node)} == set("abcde")
    assert not allocator.core.tokens()


def test_a_gang_that_does_not_fit_as_a_whole_leaves_no_trace_and_each_member_hears_why() -> None:
    allocator = Allocator()
    empty = allocator.core.snapshot.digest()
    for number in range(5):
        allocator.ask(f"m{number}", member(6))
    refused = allocator.ask("m5", member(6))
    assert refused.reason == GANG_UNFULFILLABLE
    assert refused.message.startswith("5 of the 6 members that gang ns/w needs fit; m4: InsufficientCompute: ")
    assert allocator.core.snapshot.digest() == empty
    assert not allocator.leave()


def test_a_gang_is_woken_by_its_first_member_once_it_fits_as_a_whole() -> None:
    allocator = Allocator()
    for uid in ("x", "y"):
        assert allocator.ask(uid, WHOLE).node
    for uid in "abcd":
        allocator.ask(uid, member(4))
        assert not allocator.woken()
    allocator.end("x")
    allocator.said()
    assert allocator.woken() == ["a"]
    assert allocator.ask("a", member(4)).node
    assert allocator.core.pending == 0


def test_a_member_that_is_restarted_joins_alone_and_the_last_to_leave_ends_the_gang() -> None:
    allocator = Allocator()
    for uid in "abc":
        allocator.ask(uid, member(3))
    allocator.end("a")
    allocator.said()
    assert allocator.ask("d", member(3)).node
    for uid in "bcd":
        allocator.end(uid)
    allocator.said()
    assert allocator.ask("e", member(3)).reason == GANG_WAITING


def test_nobody_joins_a_gang_whose_members_are_all_leaving() -> None:
    allocator = Allocator()
    for uid in "ab":
        allocator.ask(uid, member(2))
    for uid in "ab":
        allocator.end(uid)
    assert allocator.ask("c", member(2)).reason == GANG_WAITING


def test_a_gang_does_not_leave_while_one_of_its_nodes_is_busy() -> None:
    allocator = Allocator()
    for uid in "ab":
        allocator.ask(uid, member(3))
    allocator.core.schedule(command("x", BIG), None)
    (single,) = allocator.leave()
    allocator.core.schedule(command("c", member(3, GpuRequest(pool="p", compute_milli=900, models=("big",)))), None)
    assert {item.decision.node for item in allocator.core.mind.pending.values()} == {"big", "small"}
    assert not allocator.leave()
    allocator.store(single)
    (bundle,) = allocator.leave()
    assert {commit.node for commit in bundle.commits} == {"big", "small"}


def test_a_gang_whose_node_is_overtaken_is_decided_anew_as_a_whole() -> None:
    allocator = Allocator()
    for uid in "abc":
        allocator.ask(uid, member(4))
    last = member(4, GpuRequest(pool="p", compute_milli=900, models=("big",)))
    allocator.core.schedule(command("d", last), None)
    (bundle,) = allocator.leave()
    foreign = Allocation(pod_uid="f", namespace="o", name="f", pool="p", cpu_milli=1)
    allocator.ledger_seq += 1
    allocator.hear_node("big", NodeRecord(node="big", txn="z:1", allocations=(foreign,), changes=()))
    assert not allocator.core.is_flying(bundle)
    (again,) = allocator.leave()
    assert {a.pod_uid for commit in again.commits for a in commit.held.values()} == set("abcdf")


def test_a_member_that_ends_before_its_gang_has_left_leaves_the_others_waiting() -> None:
    allocator = Allocator()
    for uid in "ab":
        allocator.ask(uid, member(3))
    allocator.core.schedule(command("c", member(3)), None)
    allocator.end("b")
    said = [(announced.decision.pod_uid, announced.decision.outcome) for announced in allocator.said()]
    assert ("b", "released") in said
    assert allocator.ledger_seq == 0
    assert allocator.ask("d", member(3)).node


def test_a_gang_is_held_to_its_namespaces_quota_as_a_whole() -> None:
    allocator = Allocator(Quota(namespace="ns", name="q", total=Budget(workers=3)))
    for uid in "abc":
        allocator.ask(uid, member(4))
    refused = allocator.ask("d", member(4))
    assert refused.reason == GANG_UNFULFILLABLE
    assert (
        "QuotaExceeded: quota q of namespace ns: workers 0 of 3 used, 3 more being placed, 1 asked" in refused.message
    )
    allocator.allow(Quota(namespace="ns", name="q", total=Budget(workers=4)))
    assert allocator.woken() == ["a"]


def held(uid: str) -> Allocation:
    return Allocation(pod_uid=uid, namespace="ns", name=uid, pool="p", gang="ns/w")


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ([("n1", "ab", "1"), ("n2", "c", "1"), ("w", "abc", "1")], []),
        ([("n1", "ab", "1"), ("w", "ab", "1")], ["PartialGang"]),
        ([("n1", "ab", "1"), ("n2", "c", "2"), ("w", "abc", "2")], ["PartialGang"]),
        ([("n1", "abc", "1"), ("w", "ab", "1")], ["GangMembers"]),
        ([("n1", "abc", "1"), ("w", "abc", "1"), ("n1", "a", "2"), ("w", "a", "2"), ("n1", "ad", "3"), ("w", "ad", "3")], []),
        ([("n1", "abc", "1"), ("w", "abc", "1"), ("n1", "", "2"), ("w", "", "2"), ("n1", "d", "3"), ("w", "d", "3")],
         ["PartialGang"]),
    ],
)  # fmt: skip
def test_the_checker_finds_every_part_of_a_gang(batches, found) -> None:
    node = Limits(cpu_milli=9, memory_bytes=9, gpus={})
    checker = LedgerChecker({"n1": node, "n2": node})
    for seq, (where, uids, txn) in enumerate(batches, 1):
        if where == "w":
            record = GangRecord(key="ns/w", txn=txn, min_members=3, members=tuple(uids))
            checker.apply(seq, subjects.ledger_gang("ns/w"), encoded(record))
        else:
            record = NodeRecord(node=where, txn=txn, allocations=tuple(map(held, uids)), changes=())
            checker.apply(seq, subjects.ledger_node(where), encoded(record))
    rules = [violation.rule for violation in checker.violations if violation.rule != "ChangesDoNotAddUp"]
    assert rules == found


def test_a_sweep_sets_the_timer_of_a_gang_again_as_whoever_was_to_set_it_may_have_died() -> None:
    allocator = Allocator()
    request = msgspec.structs.replace(WHOLE, gang=Gang(key="ns/w", min_members=2, timeout_s=60))
    allocator.wait("a", request, GANG_WAITING)
    allocator.core.sweep()
    assert [(gang.key, since) for gang, since in allocator.core.take_effects().timers] == [("ns/w", NOW)]
