"""Campaigns: when they begin, what they do next, and every surprise that ends them."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from consumers.scaler.campaign import (
    LATE,
    LEAVES_WITHIN,
    SETTLES_IN,
    chosen,
    due,
    emptying,
    ended,
    out_of_time,
    reopens,
    schedule_of,
    skipped,
)
from schemas.defrag import Campaign, Defrag, Move
from schemas.dialects.text import RequestError
from schemas.kube.pools import Defrag as Settings

SLOT = datetime(2026, 3, 2, 2, 0, tzinfo=UTC)  # three o'clock in Berlin
SETTINGS = Settings(enabled=True, timezone="Europe/Berlin")
SCHEDULE = schedule_of(SETTINGS)
RUNNING = Campaign(pool="p", slot=SLOT)
AT_WORK = Campaign(pool="p", slot=SLOT, node="n", since=SLOT, evicting={"u": "ns/a"})
PLAN = Defrag(
    candidates=2,
    emptied=("n", "m"),
    moves=(
        Move(namespace="ns", name="a", pod_uid="u", source="n", target="x"),
        Move(namespace="ns", name="b", pod_uid="v", source="m", target="x"),
    ),
)


@pytest.mark.parametrize(
    ("before", "now", "begins"),
    [
        (None, SLOT, True),
        (None, SLOT - timedelta(seconds=1), False),
        (None, SLOT + LATE, True),
        (None, SLOT + LATE + timedelta(seconds=1), False),
        (RUNNING, SLOT + timedelta(days=1), False),
        (ended(RUNNING, "Done", "", SLOT), SLOT, False),
        (ended(RUNNING, "Done", "", SLOT), SLOT + timedelta(days=1), True),
    ],
)
def test_a_campaign_begins_at_its_time_and_not_beside_another(before, now, begins):
    assert (due(SCHEDULE, before, now) is not None) == begins


def test_what_is_switched_off_has_no_schedule_and_what_cannot_be_followed_is_refused():
    assert schedule_of(None) is None
    assert schedule_of(Settings(timezone="UTC")) is None
    for wrong, word in (
        (Settings(enabled=True, timezone="Mars/Base"), "Mars/Base"),
        (Settings(enabled=True, timezone="UTC", schedule="0 0 31 2 *"), "no cron expression"),
    ):
        with pytest.raises(RequestError, match=word):
            schedule_of(wrong)
    assert SCHEDULE is not None
    assert (SCHEDULE.lasts, SCHEDULE.threshold) == (timedelta(hours=2), 40)


def test_it_takes_one_node_after_the_other_and_ends_when_none_is_left():
    first = chosen(RUNNING, PLAN, SLOT)
    assert (first.node, first.evicting, first.since) == ("n", {"u": "ns/a"}, SLOT)
    assert emptying(first, {"u": "ns/a"}, (), "", SLOT) == first
    assert emptying(first, {}, ("ns/a-2",), "", SLOT) == first  # its successor is about to be placed
    assert emptying(first, {}, (), "", SLOT) == first  # its successor is not even made
    done = emptying(first, {}, (), "", SLOT + SETTLES_IN)
    assert (done.node, done.emptied, done.closed) == ("", ("n",), ("n",))
    over = chosen(done, Defrag(candidates=1), SLOT)
    assert (over.end, over.message) == ("Done", "1 nodes are empty, and no other can be emptied")
    left = skipped(chosen(RUNNING, PLAN, SLOT), "it has a bare pod")
    assert (left.node, left.skipped, left.closed) == ("", {"n": "it has a bare pod"}, ())


LATER = SLOT + LEAVES_WITHIN + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("held", "waiting", "blocked", "now", "message"),
    [
        ({"u": "ns/a"}, (), "budget b forbids", SLOT, "node n: budget b forbids"),
        ({"w": "ns/c"}, (), "", SLOT, "node n has a pod that it did not have: ns/c"),
        ({"u": "ns/a"}, (), "", LATER, "node n: ns/a has not left it"),
        ({}, ("ns/a-2",), "", LATER, "ns/a-2 finds no place since node n was emptied"),
    ],
)
def test_it_ends_at_the_first_surprise(held, waiting, blocked, now, message):
    over = emptying(AT_WORK, held, waiting, blocked, now)
    assert (over.end, over.message, over.closed) == ("Surprised", message, ("n",))


def test_it_ends_when_its_time_is_over_or_the_pool_wants_none_any_more():
    assert out_of_time(AT_WORK, SCHEDULE, SLOT + timedelta(hours=2)) is None
    assert out_of_time(AT_WORK, SCHEDULE, SLOT + timedelta(hours=2, seconds=1)).end == "OutOfTime"
    assert out_of_time(AT_WORK, None, SLOT).end == "Surprised"
    assert msgspec.json.decode(msgspec.json.encode(AT_WORK), type=Campaign) == AT_WORK


def test_what_a_campaign_emptied_stays_closed_for_a_while_unless_pods_wait_or_another_begins():
    over = SLOT + timedelta(minutes=5)
    done = ended(RUNNING, "Done", "", over)
    assert not reopens(done, SCHEDULE, (), over + timedelta(minutes=29))
    assert reopens(done, SCHEDULE, (), over + timedelta(minutes=30))
    assert reopens(done, SCHEDULE, ("ns/waits",), over)
    assert reopens(done, None, (), over)
    assert reopens(ended(RUNNING, "Surprised", "", over), SCHEDULE, (), over)
    never = schedule_of(msgspec.structs.replace(SETTINGS, source_node_marker_ttl="never"))
    assert not reopens(done, never, (), SLOT + timedelta(hours=23))
    assert reopens(done, never, (), SLOT + timedelta(days=1))
