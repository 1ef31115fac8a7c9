"""Streaks: what fires when, told as sequences of evaluations."""

from functools import cache

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.alerter.rules import CompiledRule
from consumers.alerter.silence import NOTE
from consumers.alerter.streaks import (
    FAILING_ALERT,
    MOST_ALERTS,
    TooManyAlertsError,
    ending,
    evaluated,
    failed,
    fingerprint,
    instant,
    retired,
)
from schemas.alert import AlertRule, RuleState

SLOT = 30_000_000_000


@cache
def rule(count: int = 3, **changes) -> CompiledRule:
    return CompiledRule(
        AlertRule(
            **{
                "name": "Hot",
                "query": "SELECT uuid, t FROM tf_gpu_usage WHERE {{ .Conditions }}",
                "threshold": 80.0,
                "evaluation_interval": "30s",
                "consecutive_count": count,
                "severity": "P1",
                "summary": "{{ .uuid }} at {{ .t }}",
                "alert_target_instance": "{{ .uuid }}",
                **changes,
            }
        )
    )


def play(compiled: CompiledRule, rounds) -> list[list[tuple[str, str]]]:
    """Evaluate; a round is the instances found, or None for a query that fails. Return what each round told."""
    state, told = RuleState(rule="Hot", digest=compiled.digest), []
    for number, found in enumerate(rounds, 1):
        if found is None:
            state = failed(compiled, state, "down", slot=number * SLOT)
        else:
            state = evaluated(compiled, state, [{"uuid": x, "t": number} for x in found], slot=number * SLOT)
        alerts = state.notice.alerts if state.notice is not None else ()
        told.append([(a.labels["instance"], a.status) for a in alerts if a.labels["alertname"] == "Hot"])
        assert msgspec.json.decode(msgspec.json.encode(state), type=RuleState) == state
    return told


def test_it_fires_at_its_count_goes_on_and_is_resolved_once() -> None:
    assert play(rule(), ["a", "a", "a", "a", "", "", "a"]) == [
        [], [], [("a", "firing")], [("a", "firing")], [("a", "resolved")], [], []
    ]  # fmt: skip


def test_a_gap_before_the_count_starts_anew_and_tells_nothing() -> None:
    assert play(rule(), ["a", "a", "", "a", "a"]) == [[]] * 5


def test_rows_with_one_instance_count_once() -> None:
    assert play(rule(2), ["aaa", "aa"])[0] == []


def test_a_failed_evaluation_moves_no_streak_and_keeps_what_fires_firing() -> None:
    assert play(rule(), ["a", None, "a", None, "a", None, ""]) == [
        [], [], [], [], [("a", "firing")], [("a", "firing")], [("a", "resolved")]
    ]  # fmt: skip


def test_three_failures_in_a_row_raise_an_alert_of_our_own_which_the_next_success_resolves() -> None:
    compiled = rule()
    state = RuleState(rule="Hot", digest=compiled.digest)
    for number in (1, 2):
        state = failed(compiled, state, "no answer", slot=number * SLOT)
        assert state.notice is None
    state = failed(compiled, state, "no answer", slot=3 * SLOT)
    assert state.notice is not None
    (alert,) = state.notice.alerts
    assert (alert.labels["alertname"], alert.labels["instance"], alert.status) == (FAILING_ALERT, "Hot", "firing")
    assert "no answer" in alert.annotations["description"]
    assert alert.starts_at.timestamp() == 30
    state = evaluated(compiled, state, [], slot=4 * SLOT)
    assert state.notice is not None
    assert [alert.status for alert in state.notice.alerts] == ["resolved"]
    assert evaluated(compiled, state, [], slot=5 * SLOT).notice is None


def test_the_first_rendered_text_stays_and_the_alert_ends_by_itself_if_nobody_tells_it_again() -> None:
    compiled = rule(1)
    state = evaluated(compiled, RuleState(rule="Hot"), [{"uuid": "a", "t": 81.5}], slot=SLOT)
    state = evaluated(compiled, state, [{"uuid": "a", "t": 99.0}], slot=2 * SLOT)
    assert state.notice is not None
    (alert,) = state.notice.alerts
    assert alert.annotations["summary"] == "a at 81.5"
    assert (alert.starts_at.timestamp(), alert.ends_at.timestamp()) == (30, 60 + 120)


def test_a_changed_rule_starts_its_streaks_anew_but_forgets_nothing_that_fires() -> None:
    before, after = rule(2), rule(2, threshold=85.0)
    state = RuleState(rule="Hot", digest=before.digest)
    state = evaluated(before, state, [{"uuid": "a"}], slot=1 * SLOT)
    state = evaluated(before, state, [{"uuid": "a"}, {"uuid": "b"}], slot=2 * SLOT)
    state = evaluated(after, state, [{"uuid": "b"}], slot=3 * SLOT)
    assert state.notice is not None
    assert [(a.labels["instance"], a.status) for a in state.notice.alerts] == [("a", "resolved")]
    assert [streak.count for streak in state.streaks] == [1]


def test_a_rule_that_is_removed_resolves_what_fires() -> None:
    state = evaluated(rule(1), RuleState(rule="Hot"), [{"uuid": "a"}], slot=SLOT)
    notice = retired(state, slot=2 * SLOT).notice
    assert notice is not None
    assert [alert.status for alert in notice.alerts] == ["resolved"]


def test_more_alerts_than_a_message_can_carry_fail_the_evaluation() -> None:
    rows = [{"uuid": str(n)} for n in range(MOST_ALERTS + 1)]
    with pytest.raises(TooManyAlertsError, match="more than 1000 alerts"):
        evaluated(rule(1), RuleState(rule="Hot"), rows, slot=SLOT)
    full = evaluated(rule(1), RuleState(rule="Hot"), rows[:-1] * 2, slot=SLOT)
    assert len(msgspec.json.encode(full)) < 1_000_000  # the most that a message may be


def test_fingerprints_are_fnv_64a_over_sorted_names_and_values() -> None:
    assert fingerprint({}) == "cbf29ce484222325"
    assert fingerprint({"a": ""}) == "af63dc4c8601ec8c"
    assert fingerprint({"b": "2", "a": "1"}) == fingerprint({"a": "1", "b": "2"})


@given(
    count=st.integers(1, 4),
    rounds=st.lists(st.one_of(st.none(), st.frozensets(st.sampled_from("abc"))), max_size=25),
)
def test_every_alert_fires_and_ends_as_counting_by_hand_says(count: int, rounds) -> None:
    told = play(rule(count), rounds)
    for instance in "abc":
        in_a_row, firing = 0, False
        for found, said in zip(rounds, told, strict=True):
            expected = []
            if found is None:
                expected = ["firing"] if firing else []
            elif instance in found:
                in_a_row += 1
                firing = in_a_row >= count
                expected = ["firing"] if firing else []
            else:
                expected, in_a_row, firing = (["resolved"] if firing else []), 0, False
            assert [status for name, status in said if name == instance] == expected


def test_an_alert_of_a_silent_node_is_held_as_it_is_and_goes_on_when_the_node_speaks_again() -> None:
    compiled, row = rule(2), {"uuid": "a", "t": 1, "node": "n"}
    state = RuleState(rule="Hot", digest=compiled.digest)
    for slot in (1, 2):
        state = evaluated(compiled, state, [row], slot=slot * SLOT)
    firing = state
    assert ending(compiled, firing, evaluated(compiled, firing, [], slot=3 * SLOT)) == {"n"}
    assert ending(compiled, firing, evaluated(compiled, firing, [row], slot=3 * SLOT)) == set()
    for slot in (3, 4):
        state = evaluated(compiled, state, [], slot=slot * SLOT, silent={"n"})
        assert (state.streaks[0].count, state.streaks[0].silent_since) == (2, instant(3 * SLOT))
        (alert,) = state.notice.alerts
        assert (alert.status, alert.starts_at) == ("firing", firing.streaks[0].since)
        assert "node n has been silent since" in alert.annotations[NOTE]
    again = evaluated(compiled, state, [row], slot=5 * SLOT)
    assert (again.streaks[0].count, again.streaks[0].silent_since) == (3, None)
    assert NOTE not in again.notice.alerts[0].annotations
    over = evaluated(compiled, state, [], slot=5 * SLOT)  # it speaks, and is well
    assert [(alert.status, NOTE in alert.annotations) for alert in over.notice.alerts] == [("resolved", False)]


def test_an_alert_of_a_silent_node_ends_with_its_reason_once_the_node_is_gone_or_fifteen_minutes_have_passed() -> None:
    compiled, state = rule(1), RuleState(rule="Hot", digest=rule(1).digest)
    state = evaluated(compiled, state, [{"uuid": "a", "node": "n"}, {"uuid": "a", "node": "m"}], slot=SLOT)
    assert state.streaks[0].nodes == ("n", "m")
    gone = evaluated(compiled, state, [], slot=2 * SLOT, gone={"m"})
    assert [(a.status, a.annotations[NOTE]) for a in gone.notice.alerts] == [
        ("resolved", "over because node m is gone")
    ]
    for slot in range(2, 32):
        state = evaluated(compiled, state, [], slot=slot * SLOT, silent={"m"}, gone={"n"})
        assert state.streaks[0].firing
    over = evaluated(compiled, state, [], slot=32 * SLOT, silent={"m"}, gone={"n"})
    assert over.streaks == ()
    (alert,) = over.notice.alerts
    assert alert.status == "resolved"
    assert "nothing was heard of node m since 1970-01-01 00:01:00" in alert.annotations[NOTE]


def test_a_streak_that_only_counts_is_held_too_and_one_without_a_node_is_not() -> None:
    compiled = rule(3)
    state = evaluated(compiled, RuleState(rule="Hot"), [{"uuid": "a", "node": "n"}, {"uuid": "b"}], slot=SLOT)
    state = evaluated(compiled, state, [], slot=2 * SLOT, silent={"n"})
    assert [(streak.labels["instance"], streak.count) for streak in state.streaks] == [("a", 1)]
    assert state.notice is None


def test_held_alerts_never_make_more_than_one_message_carries() -> None:
    compiled = rule(1)
    state = evaluated(compiled, RuleState(rule="Hot"), [{"uuid": "held", "node": "n"}], slot=SLOT)
    rows = [{"uuid": f"{number}"} for number in range(MOST_ALERTS)]
    with pytest.raises(TooManyAlertsError, match="silent nodes"):
        evaluated(compiled, state, rows, slot=2 * SLOT, silent={"n"})
