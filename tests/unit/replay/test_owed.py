"""What is not announced is excused where its author died over it, and by nothing else."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from consumers.allocator.replay import Said
from deploy.replay.envelope import Origin
from deploy.replay.owed import TAKEN_BACK, Heard, Owed
from schemas.decision import Basis, Decision
from schemas.event import Event

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def refusal(ordinal: int, allocator: str = "a") -> Decision:
    basis = Basis(state=ordinal, ledger=ordinal, ordinal=ordinal)
    return Decision(
        outcome="unschedulable", namespace="n", name="p", pod_uid="u", pool="p", allocator=allocator, basis=basis
    )


def landed(outcome: str = "allocated", reason: str = "") -> Said:
    basis = Basis(state=5, ledger=5, ordinal=5)
    return Said("a", basis, outcome, "n", "p", "u", "p", node="node", reason=reason)


def heard(allocator: str, ordinal: int, outcome: str = "unschedulable", way: str = "native") -> Heard:
    return Heard((allocator, ordinal), outcome, refusal(ordinal).basis, way, "gpubus.decision.n.p")


def open_after(last_turn: float, end: float) -> Owed:
    owed = Owed({"a": later(last_turn), "b": later(end)})
    owed.said(refusal(5), NOW)
    return owed


@pytest.mark.parametrize(
    ("last_turn", "end", "is_owed"),
    [(0.0, 10.0, False), (0.5, 29.0, False), (2.0, 2.0, True), (0.0, 31.0, True)],
    ids=["died", "died-soon", "lived", "nobody-took-over"],
)
def test_a_refusal_is_owed_by_who_lives_on_or_whoever_takes_over(last_turn: float, end: float, is_owed: bool) -> None:
    assert bool(open_after(last_turn, end).open()) is is_owed


@pytest.mark.parametrize(
    ("one", "excuses"),
    [
        (heard("a", 4), False),
        (heard("a", 6), True),
        (heard("b", 4), False),
        (heard("b", 9), True),
        (heard("a", 4, way="extender"), True),
    ],
)
def test_a_later_decision_about_the_pod_excuses_a_refusal(one: Heard, excuses: bool) -> None:
    owed = open_after(2.0, 40.0)
    (debt,) = owed.open()
    assert owed.unpaid(debt, [one]) is not excuses


@pytest.mark.parametrize("first", [True, False], ids=["announced-first", "ledger-first"])
def test_what_the_ledger_holds_is_announced_at_its_sequence(first: bool) -> None:
    event = Event(
        id="u:7", source="/gpubus/allocator/a", type="t", subject="n/p", time=later(1), data=msgspec.Raw(b"{}")
    )
    for seq in (7, 8):
        owed, wrong = Owed({"a": later(9)}), ""
        if first:
            wrong += owed.announced(event, landed(), Origin(7))
        wrong += owed.changed(seq, "add", landed(), NOW)
        if not first:
            assert len(owed.open()) == 1
            wrong += owed.announced(event, landed(), Origin(7))
        assert owed.open() == []
        assert bool(wrong) is (seq == 8)


def test_a_second_place_that_is_taken_back_is_announced_by_nobody_and_a_release_once() -> None:
    owed = Owed({"a": later(99)})
    owed.changed(7, "add", landed(), NOW)
    owed.changed(8, "remove", landed("released", TAKEN_BACK), NOW)
    assert owed.open() == []
    owed = Owed({"a": later(99)})
    owed.changed(7, "remove", landed("released"), NOW)
    (debt,) = owed.open()
    assert owed.unpaid(debt, [heard("b", 1)])
    assert not owed.unpaid(debt, [heard("b", 1, "released")])


def test_what_was_written_down_before_the_oldest_announcement_is_not_looked_at() -> None:
    owed = Owed({"a": later(99)}, since=later(1))
    owed.said(refusal(5), NOW)
    assert owed.open() == []
