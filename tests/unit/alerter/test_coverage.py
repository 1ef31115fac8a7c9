"""When a window counts as written: how far recorders are, and whether the bus was there."""

import msgspec
import pytest

from consumers.alerter.coverage import Coverage, behind, tolerance_s, unbroken
from consumers.alerter.rules import CompiledRule
from consumers.metrics.progress import Progress
from schemas.alert import AlertRule, RuleState

S = 1_000_000_000
NOW = 1_000_000 * S
RULE = AlertRule(name="r", query="SELECT uuid FROM TF_GPU_usage", threshold=0.0, evaluation_interval="16s")
HELD = Progress(at=NOW, usage=NOW, snapshot=NOW)


def rule(query: str = RULE.query, interval: str = "16s") -> CompiledRule:
    return CompiledRule(msgspec.structs.replace(RULE, query=query, evaluation_interval=interval))


def lag(**seconds: float | None) -> Progress:
    return msgspec.structs.replace(HELD, **{k: v if v is None else NOW - int(v * S) for k, v in seconds.items()})


@pytest.mark.parametrize(
    ("usage", "reason"), [(0, ""), (4.0, ""), (4.1, "the last 4 s is not recorded"), (None, "no recorder has ever run")]
)
def test_a_quarter_of_the_window_may_be_on_its_way(usage: float | None, reason: str) -> None:
    found = behind(rule(), lag(usage=usage, snapshot=1000))
    assert reason in found
    assert bool(found) == bool(reason)


@pytest.mark.parametrize(
    ("snapshot", "reason"), [(12, ""), (12.1, "for 12 s"), (NOW / S, "no snapshot of the cluster yet")]
)
def test_a_rule_over_snapshots_needs_one_in_its_window(snapshot: float, reason: str) -> None:
    found = behind(rule("SELECT node FROM tf_node_metrics"), lag(usage=1000, snapshot=snapshot))
    assert reason in found
    assert bool(found) == bool(reason)


def test_a_rule_that_reads_both_needs_both_and_one_that_reads_neither_needs_none() -> None:
    both = rule("SELECT node FROM tf_node_metrics WHERE node NOT IN (SELECT node FROM tf_worker_usage)")
    assert behind(both, HELD) == ""
    assert "is not recorded" in behind(both, lag(usage=60))
    assert "no snapshot" in behind(both, lag(snapshot=60))
    assert behind(rule("SELECT 1 AS uuid"), lag(usage=None, snapshot=NOW / S)) == ""


@pytest.mark.parametrize(("ago_s", "reason"), [(15, "refused usage 15 s ago"), (16, "")])
def test_a_window_in_which_usage_was_refused_is_not_whole(ago_s: float, reason: str) -> None:
    assert reason in behind(rule(), lag(refused=ago_s))
    assert bool(behind(rule(), lag(refused=ago_s))) == bool(reason)
    assert behind(rule("SELECT node FROM tf_node_metrics"), lag(refused=ago_s)) == ""


def test_what_may_be_missing_is_never_more_than_five_seconds_or_less_than_a_recorder_gathers() -> None:
    assert [tolerance_s(interval) for interval in (1.0, 2.0, 4.0, 30.0, 86_400.0)] == [0.5, 0.5, 1.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("since_s", "gap_s", "known"),
    [
        (100, 16, True),
        (12, 16, True),  # the slack of a tick that came with the connection
        (11, 16, False),  # we cannot know of the rest of the window
        (100, 18, True),
        (100, 19, False),  # a tick did not come: the stream may have been without its majority
    ],
)
def test_the_bus_was_there_while_our_connection_lasted_and_ticks_came(since_s: int, gap_s: int, known: bool) -> None:
    before = RuleState(rule="r", slot=NOW - gap_s * S)
    assert unbroken(rule(), before, NOW, since=NOW - since_s * S) is known


class Store:
    since = NOW / S


@pytest.mark.parametrize(("after_s", "says"), [(-1, "made anew 0 s ago"), (11, "made anew 11 s ago"), (12, "")])
async def test_a_store_that_was_made_within_the_window_tells_nothing(after_s: int, says: str) -> None:
    coverage = Coverage(None, Store())
    found = coverage.anew(rule(), NOW + after_s * S)
    assert says in found
    assert bool(found) == bool(says)
    assert coverage.anew(rule("SELECT 1 AS uuid"), NOW) == ""


def test_a_long_window_is_asked_about_its_last_five_minutes_only_and_a_first_tick_has_none_before_it() -> None:
    day, first = rule(interval="24h"), RuleState(rule="r")
    assert unbroken(day, first, NOW, since=NOW - 300 * S)
    assert not unbroken(day, first, NOW, since=NOW - 200 * S)
