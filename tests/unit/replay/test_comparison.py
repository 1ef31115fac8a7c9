"""Decisions are matched with their records in whatever order and however late they come."""

from itertools import permutations

import msgspec
import pytest

from bus import codec
from deploy.replay.comparison import Comparison
from schemas.decision import Attempt, Basis, Decision


def decision(ordinal: int, **fields) -> Decision:
    given = {"outcome": "allocated", "node": "n", "namespace": "ns", "name": "p", "pool": "p"} | fields
    basis = Basis(state=1, ledger=ordinal, ordinal=ordinal)
    return Decision(pod_uid=f"u{ordinal}", allocator=given.pop("allocator", "a"), basis=basis, **given)


def on_record(made: Decision, **fields) -> bytes:
    return codec.encode(msgspec.structs.replace(made, duration_us=7, way="extender", **fields))


RELEASED = {"name": "p", "namespace": "ns", "pool": "p", "reason": "PodEnded", "message": "PodEnded: gave back"}
"""What a replay cannot know of a release."""


@pytest.mark.parametrize("whole", [0, 1, 100])
def test_what_was_made_matches_its_records_and_what_was_not_does_not(whole: int) -> None:
    for late in (0, 3, 20):
        found = Comparison({"a"}, whole=whole)
        made = [
            decision(n) if n % 3 else decision(n, outcome="released", **dict.fromkeys(RELEASED, ""))
            for n in range(1, 41)
        ]
        records = [on_record(one, **({} if one.outcome == "allocated" else RELEASED)) for one in made]
        records[9] = records[9].replace(b'"node":"n"', b'"node":"m"')
        records[29] = records[29].replace(b'"node":"n"', b'"node": "n"')  # not even another meaning
        for number, one in enumerate(made):
            found.computed(one)
            if number >= late:
                found.recorded("LEDGER", number - late, records[number - late])
        for number in range(len(made) - late, len(made)):
            found.recorded("LEDGER", number, records[number])
        assert (found.reproduced, found.wrong, found.different, found.unheard) == (38, 2, 2, 0)
        assert [one.sequence for one in found.differences] == [9, 29]
        for number, raw in enumerate(records):
            found.recorded("DECISION", number, raw)
        assert (found.reproduced, found.wrong, found.unexplained) == (38, 2, 0)
        assert 2 <= found.different <= 4
        before = found.different
        found.recorded("DECISION", 99, records[3].replace(b'"node":"n"', b'"node":"m"'))
        assert found.different == before + 1


def test_the_order_of_both_sides_does_not_matter() -> None:
    made = decision(1)
    for order in permutations(("made", "ledger", "announced")):
        found = Comparison({"a"})
        for what in order:
            found.computed(made) if what == "made" else found.recorded(what, 1, on_record(made))
        assert (found.reproduced, found.wrong, found.unexplained, found.unheard) == (1, 0, 0, 0)


def test_an_overtaken_attempt_is_looked_at() -> None:
    for node, holds in (("n", True), ("m", False)):
        found = Comparison({"a"})
        found.computed(decision(1))
        found.computed(decision(2))
        attempt = Attempt(node=node, gpus=(), decided=1, dropped=2)
        found.recorded("LEDGER", 1, on_record(decision(2), attempts=(attempt,)))
        assert (found.attempts, found.reproduced, found.wrong) == (1, int(holds), int(not holds))


def test_an_overtaken_attempt_is_found_whichever_record_comes_first_and_is_wrong() -> None:
    attempt = Attempt(node="n", gpus=(), decided=1, dropped=2)
    good = on_record(decision(2), attempts=(attempt,))
    bad = good.replace(b'"name":"p"', b'"name":"q"', 1)
    for first, second in ((good, bad), (bad, good)):
        found = Comparison({"a"})
        found.computed(decision(1))
        found.computed(decision(2))
        found.recorded("LEDGER", 1, first, 10)
        found.recorded("DECISION", 1, second, 20)
        assert (found.attempts, found.unheard, found.reproduced, found.wrong, found.different) == (1, 0, 0, 1, 1)


def test_decisions_without_a_journal_are_counted_once_and_not_kept() -> None:
    found = Comparison({"a", "b"})
    for allocator in ("stranger", "older", "b"):
        for n in (1, 2, 2, 10**18):
            found.recorded("LEDGER", n, on_record(decision(n, allocator=allocator)), excused=allocator == "older")
    found.leave("b")
    found.recorded("LEDGER", 9, on_record(decision(3, allocator="b")))
    assert (found.unexplained, len(found._recorded)) == (3 + 3 + 4, 0)
    assert found.unfounded == 3
    found.recorded("DECISION", 9, on_record(decision(7)))  # its journal is there, and knows no such decision
    found.recorded("LEDGER", 9, on_record(decision(0, allocator="rebuild")))
    assert (found.unexplained, found.unfounded) == (12, 4)
    found.recorded("LEDGER", 9, b'{"allocator": 3}')
    assert found.undecodable == 1


def test_whichever_record_of_a_decision_is_wrong_it_has_not_come_out() -> None:
    made = decision(1)
    good, bad = on_record(made), on_record(made).replace(b'"node":"n"', b'"node":"m"')
    for first, second in ((good, bad), (bad, good), (bad, bad)):
        found = Comparison({"a"})
        found.computed(made)
        found.recorded("LEDGER", 1, first, 10)
        found.recorded("DECISION", 1, second, 20)
        found.recorded("DECISION", 2, second, 30)
        assert (found.reproduced, found.wrong) == (0, 1)
        assert found.different == sum(raw is bad for raw in (first, second, second))


def test_the_oldest_differences_are_shown_whenever_they_are_found() -> None:
    found = Comparison({"a"})
    for n in reversed(range(1, 31)):
        found.recorded("DECISION", n, on_record(decision(n)).replace(b'"node":"n"', b'"node":"m"'), n)
    for n in range(1, 31):
        found.computed(decision(n))
    assert [one.sequence for one in found.differences] == list(range(1, 11))


def test_what_others_compare_is_left_to_them() -> None:
    found = Comparison({"a", "b"}, mine={"a"}, strangers=False)
    for allocator in ("a", "b", "stranger"):
        found.recorded("DECISION", 1, on_record(decision(1, allocator=allocator)))
    found.recorded("DECISION", 1, b"nonsense")
    found.computed(decision(1))
    assert (found.reproduced, found.unexplained, found.undecodable, found.unfounded) == (1, 0, 0, 0)
