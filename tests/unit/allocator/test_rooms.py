"""Room that is made for a pod: who goes for it, that nobody else gets it, and when it is given up."""

from datetime import timedelta

import msgspec
import pytest

from bus.capacity import Limits
from bus.errors import UndecodableError
from bus.invariants import LedgerChecker
from consumers.allocator.book import Keep
from consumers.allocator.rooms import KEPT_S
from consumers.allocator.waiting import AHEAD_S, WaitingPods
from schemas import reasons
from schemas.cluster import Pool, PreemptionScope
from schemas.decision import Decision, PodRef
from schemas.ledger import HOLD, Allocation, Change, Hold, NodeRecord
from schemas.pod import GpuRequest, Waiting
from schemas.preemption import DisruptionBudget
from tests.unit.allocator.harness import NOW, Allocator, command, encoded

LOW = GpuRequest(pool="p", compute_milli=1000, models=("big",))
HIGH = msgspec.structs.replace(LOW, priority=5)
HIGHER = msgspec.structs.replace(LOW, priority=9)


def allocator(scope: PreemptionScope = "cluster") -> Allocator:
    found = Allocator()
    found.now_s = 1000
    found.say("pool", "p", Pool(name="p", preemption=scope))
    return found


def leave(plane: Allocator, uid: str) -> None:
    plane.end(uid)
    plane.said()


def held(plane: Allocator, node: str = "big") -> set[str]:
    return {one.pod_uid for one in plane.core.snapshot.allocations(node)}


def outcomes(said) -> dict[str, tuple[str, str]]:
    return {one.decision.pod_uid: (one.decision.outcome, one.decision.reason) for one in said}


def test_a_pod_waits_for_the_pod_that_it_goes_before_and_gets_its_place() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    plane.core.schedule(command("high", HIGH), None)
    said = plane.said()
    assert outcomes(said) == {"low": ("evicted", "Preempted"), "high": ("unschedulable", "AwaitingEviction")}
    assert {one.decision.preemption.victims for one in said} == {(PodRef("ns", "low", "low"),)}
    (order,) = [one.evict for one in said if one.evict is not None]
    assert (order.preemption.node, order.since) == ("big", plane.ledger_seq)
    assert held(plane) == {"low", "hold/high"}
    assert plane.woken() == []
    plane.core.schedule(command("again", LOW), None)
    assert outcomes(plane.said()) == {"again": ("unschedulable", reasons.COMPUTE)}
    leave(plane, "low")
    assert plane.woken() == ["high"]  # nobody else, though "again" asks for the same
    assert plane.ask("high", HIGH).node == "big"
    assert held(plane) == {"high"}
    assert plane.core.rooms.first("high") is None
    assert not plane.core.tokens()


def test_the_record_that_adds_the_pod_drops_what_was_kept_for_it() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    plane.ask("high", HIGH)
    leave(plane, "low")
    plane.core.schedule(command("high", HIGH), None)
    (commit,) = plane.leave()
    record = commit.record()
    assert ([one.pod_uid for one in record.allocations], record.holds) == (["high"], ())
    assert [(change.op, change.pod_uid) for change in record.changes] == [("add", "high")]


@pytest.mark.parametrize(
    ("scope", "request_", "namespace", "goes"),
    [
        ("cluster", HIGH, "other", True),
        ("namespace", HIGH, "other", False),
        ("namespace", HIGH, "ns", True),
        ("never", HIGH, "ns", False),
        ("cluster", LOW, "ns", False),
        ("cluster", msgspec.structs.replace(HIGH, preempts=False), "ns", False),
        ("cluster", msgspec.structs.replace(HIGH, qos="low"), "ns", False),
    ],
)
def test_who_may_have_others_evicted(scope, request_: GpuRequest, namespace: str, *, goes: bool) -> None:
    plane = allocator(scope)
    plane.ask("low", LOW)
    found = plane.ask("high", request_, namespace)
    assert found.reason == (reasons.AWAITING_EVICTION if goes else reasons.COMPUTE)


def test_a_pod_is_protected_for_as_long_as_it_says_from_its_creation_on() -> None:
    plane = allocator()
    shielded = msgspec.structs.replace(LOW, eviction_protection_s=300)
    plane.core.schedule(command("low", shielded, created_s=900), None)
    plane.said()
    assert plane.ask("high", HIGH).reason == reasons.COMPUTE
    plane.now_s = 1201
    plane.say("pool", "p", Pool(name="p", preemption="cluster"))
    plane.core.sweep()
    assert [pod.uid for pod, _ in plane.core.take_effects().wakes] == ["high"]
    assert plane.ask("high", HIGH).reason == reasons.AWAITING_EVICTION


def test_who_does_not_say_when_a_protected_pod_was_created_protects_it() -> None:
    plane = allocator()
    plane.ask("low", msgspec.structs.replace(LOW, eviction_protection_s=1))
    assert plane.ask("high", HIGH).reason == reasons.COMPUTE


def test_a_disruption_budget_is_kept() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    plane.say("disruption", "ns", "b", DisruptionBudget(namespace="ns", name="b", allowed=0, pods=("low",)))
    assert plane.ask("high", HIGH).reason == reasons.COMPUTE
    plane.say("disruption", "ns", "b", DisruptionBudget(namespace="ns", name="b", allowed=1, pods=("low",)))
    plane.core.rooms._vain.clear()
    assert plane.ask("high", HIGH).reason == reasons.AWAITING_EVICTION


def test_a_disruption_budget_that_cannot_be_read_lets_nobody_go() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    with pytest.raises(UndecodableError):
        plane.say("disruption", "ns", "b", b"{")
    assert plane.ask("high", HIGH).reason == reasons.COMPUTE


def test_what_is_kept_is_given_up_when_its_pod_ends() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    plane.ask("high", HIGH)
    plane.end("high")
    said = plane.said()
    assert outcomes(said) == {"high": ("released", "Deleted")}
    assert held(plane) == {"low"}
    assert plane.core.rooms.first("high") is None


def test_what_is_kept_is_given_up_in_time_and_the_pod_is_told_for_whom_it_waited() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    plane.ask("high", HIGH)
    plane.now_s += KEPT_S + 1
    plane.say("pool", "p", Pool(name="p", preemption="cluster"))
    plane.core.sweep()
    (told,) = [one.decision for one in plane.said() if one.waits]
    assert told.reason == reasons.EVICTION_OVERDUE
    assert "ns/low have not left big" in told.message
    assert held(plane) == {"low"}


def test_a_pod_of_still_higher_rank_takes_the_room_and_the_other_goes_on_waiting() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    plane.ask("high", HIGH)
    assert plane.ask("higher", HIGHER).reason == reasons.AWAITING_EVICTION
    assert held(plane) == {"low", "hold/higher"}
    leave(plane, "low")
    assert plane.woken() == ["higher"]
    assert plane.ask("higher", HIGHER).node == "big"
    assert plane.ask("high", HIGH).reason == reasons.COMPUTE


def test_a_pod_that_is_tried_again_says_for_whom_it_waits_and_has_them_told_again() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    plane.ask("high", HIGH)
    since = plane.ledger_seq
    plane.core.schedule(command("high", HIGH), None)
    plane.core.flush()
    effects = plane.core.take_effects()
    assert [(one.seq, one.room) for one in effects.recoveries] == [(since, True)]
    assert effects.announcements[0].decision.message == "ns/low have still to leave big"


def test_a_record_that_comes_first_has_the_room_sought_anew() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    record = NodeRecord(node="big", txn="b:1", allocations=(), changes=())
    plane.core.schedule(command("high", HIGH), None)
    (flight,) = plane.leave()
    assert isinstance(flight.items[0], Keep)
    plane.ledger_seq += 1
    plane.hear_node("big", record)  # the other one has gone meanwhile
    plane.said()
    assert held(plane) == {"high"}


# The checker


GPU = Limits(cpu_milli=100, memory_bytes=100, gpus={"g": (10, 10)})


def grant(tflops: int) -> tuple:
    from schemas.decision import GpuGrant

    return (GpuGrant(uuid="g", index=0, tflops_milli=tflops, vram_bytes=1),)


def one(uid: str, tflops: int) -> Allocation:
    return Allocation(pod_uid=uid, namespace="ns", name=uid, pool="p", gpus=grant(tflops))


def record(allocations, changes=(), holds=()) -> NodeRecord:
    raw = msgspec.Raw
    return NodeRecord(
        node="n",
        txn="t",
        allocations=tuple(allocations),
        holds=tuple(holds),
        changes=tuple(Change(op=op, pod_uid=uid, decision=raw(msgspec.json.encode(said))) for op, uid, said in changes),
    )


def kept(tflops: int, victims=("v",)) -> Hold:
    refs = tuple(PodRef("ns", uid, uid) for uid in victims)
    return Hold(allocation=one("u", tflops), victims=refs, until_s=1)


def rules(*records: NodeRecord) -> list[str]:
    checker = LedgerChecker({"n": GPU})
    for seq, data in enumerate(records, 1):
        checker.apply(seq, "gpubus.ledger.node.n", encoded(data))
    return [found.rule for found in checker.violations]


def added(uid: str, tflops: int) -> tuple:
    return ("add", uid, {"gpus": msgspec.to_builtins(grant(tflops))})


def keeps(tflops: int) -> tuple:
    return ("add", HOLD + "u", {"preemption": {"gpus": msgspec.to_builtins(grant(tflops))}})


START = record([one("v", 8), one("w", 2)], [added("v", 8), added("w", 2)])


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([START, record(START.allocations, [keeps(8)], [kept(8)])], []),
        ([START, record(START.allocations, [keeps(9)], [kept(9)])], ["HoldGpuOverCapacity"]),
        ([START, record(START.allocations, [keeps(8)], [kept(8, ())])], ["HoldGpuOverCapacity"]),
        ([START, record(START.allocations, [keeps(7)], [kept(8)])], ["HoldNotDecided"]),
        ([START, record(START.allocations, (), [kept(8)])], ["ChangesDoNotAddUp"]),
        (
            [START, record(START.allocations, [keeps(8)], [kept(8)]), record(START.allocations)],
            ["ChangesDoNotAddUp"],
        ),
        (
            [
                START,
                record(START.allocations, [keeps(8)], [kept(8)]),
                record([one("w", 2), one("u", 8)], [("remove", "v", {}), added("u", 8)]),
            ],
            [],
        ),
        (
            [
                START,
                record(START.allocations, [keeps(8)], [kept(8)]),
                record([one("w", 2), one("x", 1)], [("remove", "v", {}), added("x", 1)], [kept(8)]),
            ],
            ["HoldGpuOverCapacity"],
        ),
    ],
)
def test_the_checker_counts_what_is_kept(records: list[NodeRecord], found: list[str]) -> None:
    assert rules(*records) == found


# Whose turn it is


def waits(uid: str, priority: int, minutes: float) -> Waiting:
    request = msgspec.structs.replace(LOW, priority=priority)
    since = NOW + timedelta(minutes=minutes)
    return Waiting(
        namespace="ns", name=uid, uid=uid, request=request, reason="r", state_seq=0, ledger_seq=0, since=since
    )


def turns(*pods: Waiting) -> list[str]:
    queue = WaitingPods()
    for pod in pods:
        queue.put(f"s.{pod.uid}", pod, 1)
    return [pod.uid for pod, _ in queue.in_order()]


def test_who_has_waited_long_enough_goes_before_those_of_higher_rank() -> None:
    step = AHEAD_S / 60
    assert turns(waits("low", 0, 0), waits("high", 5, step - 1)) == ["high", "low"]
    assert turns(waits("low", 0, 0), waits("high", 5, step + 1)) == ["low", "high"]
    # A rank counts by its place among those that wait, not by its number.
    assert turns(waits("low", 0, 0), waits("high", 100_000, step + 1)) == ["low", "high"]
    three = [waits("low", 0, 0), waits("mid", 5, 0), waits("high", 9, 2 * step - 1)]
    assert turns(*three) == ["mid", "high", "low"]


def test_ranks_are_forgotten_with_their_last_pod() -> None:
    queue = WaitingPods()
    for pod in (waits("low", 0, 0), waits("mid", 5, 30), waits("high", 9, 15)):
        queue.put(f"s.{pod.uid}", pod, 1)
    assert [pod.uid for pod, _ in queue.in_order()] == ["high", "low", "mid"]
    queue.drop("s.mid")
    queue.put("s.high", waits("high", 9, 11), 2)
    assert [pod.uid for pod, _ in queue.in_order()] == ["low", "high"]


def test_decisions_about_evictions_can_be_read_back() -> None:
    plane = allocator()
    plane.ask("low", LOW)
    plane.core.schedule(command("high", HIGH), None)
    for announced in plane.said():
        assert msgspec.json.decode(announced.encoded, type=Decision) == announced.decision
