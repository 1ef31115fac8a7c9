"""Work is shared out evenly, and what its parts find adds up to what one would find alone."""

import pytest

from deploy.replay.comparison import Difference
from deploy.replay.jobs import WORTH, Share, shared_out
from deploy.replay.verdict import Part, Verdict, together


@pytest.mark.parametrize(
    ("decisions", "jobs", "expected"),
    [
        ({}, 4, [set()]),
        ({"a": WORTH * 2}, 4, [{"a"}]),
        ({"a": WORTH, "b": WORTH - 1}, 2, [{"a", "b"}]),
        ({"a": WORTH * 3, "b": WORTH * 2, "c": WORTH}, 1, [{"a", "b", "c"}]),
        ({"a": WORTH * 3, "b": WORTH * 2, "c": WORTH}, 2, [{"b", "c"}, {"a"}]),
        ({"a": WORTH * 3, "b": WORTH * 2, "c": WORTH}, 9, [{"c"}, {"a"}, {"b"}]),
    ],
)
def test_every_allocator_is_in_one_share_and_the_first_checks_the_ledger(decisions, jobs, expected) -> None:
    shares = shared_out(decisions, jobs)
    assert shares == [Share(frozenset(names), place == 0) for place, names in enumerate(expected)]


def test_parts_add_up_with_the_oldest_differences_and_notes_first() -> None:
    def difference(at: int) -> Difference:
        return Difference("DECISION", at, ("node",), {}, {}, at)

    one = Part(
        Verdict(decisions=5, reproduced=3, different=8, differences=[difference(n) for n in range(0, 16, 2)]),
        [(7, "b")],
    )
    other = Part(
        Verdict(decisions=2, different=8, differences=[difference(n) for n in range(1, 17, 2)], gaps=1),
        [(3, "a"), (9, "c")],
    )
    for parts in ([one, other], [other, one]):
        found = together(parts)
        assert (found.decisions, found.reproduced, found.different, found.gaps) == (7, 3, 16, 1)
        assert [one.sequence for one in found.differences] == list(range(10))
        assert found.notes == ["a", "b", "c"]
