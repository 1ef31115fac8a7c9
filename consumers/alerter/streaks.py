"""How an evaluation moves the streaks of a rule: what fires, what goes on, what is over. Pure.

An alert fires when as many evaluations in a row as the rule counts have found it, is told again with each evaluation while
it goes on, and is resolved once when an evaluation no longer finds it. An evaluation that fails says nothing about any
alert: no streak moves, and what fires is told again so that nobody takes our silence for its end. Neither does one say
anything that finds no row of a node whose agent is silent: such a streak is held as it is, for a stated time.

Labels, annotations and the fingerprint are those of TensorFusion, except that two rows with the same labels count once.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from consumers.alerter.rules import CompiledRule
from consumers.alerter.silence import noted, silence, with_node, without_row
from consumers.alerter.template import Scalar
from schemas.alert import Alert, AlertNotice, RuleState, Streak

JOB: Final = "tensor-fusion"
FAILING_ALERT: Final = "AlertRuleFailing"
FAILURES_UNTIL_ALERT: Final = 3
MOST_ALERTS: Final = 1000
"""Alerts of one rule at a time. All of them travel in one message, and nobody reads more."""

_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_LIFE_INTERVALS: Final = 4
_SHORTEST_LIFE: Final = timedelta(minutes=2)
_LONGEST_TEXT: Final = 500


class TooManyAlertsError(ValueError):
    """A query found more than one message can carry."""


def fingerprint(labels: Mapping[str, str]) -> str:
    """Return the FNV-64a hash of sorted names and values, in hexadecimal."""
    value = _FNV_OFFSET
    for byte in "".join(f"{name}{labels[name]}" for name in sorted(labels)).encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def evaluated(
    compiled: CompiledRule,
    before: RuleState,
    rows: Sequence[Mapping[str, Scalar]],
    *,
    slot: int,
    silent: Collection[str] = (),
    gone: Collection[str] = (),
) -> RuleState:
    """Return the state after a query that answered.

    Args:
        compiled: The rule.
        before: The state that the evaluation found.
        rows: What the query found; every row is an alert.
        slot: Time of the tick in nanoseconds since the epoch.
        silent: Of the nodes of streaks that are :func:`ending`, those that said nothing in the window.
        gone: Those of them that are no more.

    Raises:
        TemplateRunError: A text cannot be rendered for a row.
        TooManyAlertsError: More than :data:`MOST_ALERTS` different alerts were found.
    """
    rule, at = compiled.rule, instant(slot)
    known = _known(compiled, before)
    found: dict[str, Streak] = {}
    for row in rows:
        values = {**row, "Threshold": rule.threshold}
        labels = {
            "alertname": rule.name,
            "severity": rule.severity,
            "job": JOB,
            "instance": compiled.instance.render(values)[:_LONGEST_TEXT],
        }
        identity = fingerprint(labels)
        if identity in found:
            found[identity] = with_node(found[identity], row)
            continue
        if len(found) == MOST_ALERTS:
            raise TooManyAlertsError(f"the query found more than {MOST_ALERTS} alerts: group its rows by node or pool")
        known_streak = known.get(identity)
        if known_streak is None:
            annotations = {
                "summary": compiled.summary.render(values)[:_LONGEST_TEXT],
                "description": compiled.description.render(values)[:_LONGEST_TEXT],
                "runbook_url": rule.runbook_url,
            }
            streak = Streak(fingerprint=identity, labels=labels, annotations=annotations, count=1, since=at)
        else:
            streak = msgspec.structs.replace(known_streak, count=known_streak.count + 1, nodes=(), silent_since=None)
        streak = with_node(streak, row)
        found[identity] = msgspec.structs.replace(
            streak, firing=streak.firing or streak.count >= rule.consecutive_count
        )
    over = _hold(known, found, at, compiled, silent=silent, gone=gone)
    alerts = [_firing(streak, at, compiled) for streak in found.values() if streak.firing] + over
    if before.failures >= FAILURES_UNTIL_ALERT:
        alerts.append(_failing(compiled, before, at, resolved=True))
    return RuleState(
        rule=rule.name,
        digest=compiled.digest,
        slot=slot,
        streaks=tuple(sorted(found.values(), key=lambda streak: streak.fingerprint)),
        notice=_notice(rule.name, slot, alerts),
    )


def _hold(
    known: Mapping[str, Streak],
    found: dict[str, Streak],
    at: datetime,
    compiled: CompiledRule,
    *,
    silent: Collection[str],
    gone: Collection[str],
) -> list[Alert]:
    """Add to what was found the streaks that are held without a row; return what is to be told of those that are over."""
    over: list[Alert] = []
    for name, streak in known.items():
        if name in found:
            continue
        kept, why = without_row(streak, at, compiled.interval, silent, gone)
        if kept is not None:
            if len(found) == MOST_ALERTS:
                raise TooManyAlertsError(
                    f"more than {MOST_ALERTS} alerts, with those of silent nodes: see to their agents"
                )
            found[name] = kept
        elif streak.firing:
            over.append(_resolved(streak, at, why))
    return over


def ending(compiled: CompiledRule, before: RuleState, after: RuleState) -> set[str]:
    """Return the nodes of streaks that ``after`` ends: whether those are silent matters."""
    left = {streak.fingerprint for streak in after.streaks}
    return {node for name, streak in _known(compiled, before).items() if name not in left for node in streak.nodes}


def _known(compiled: CompiledRule, before: RuleState) -> dict[str, Streak]:
    """Return the streaks that go on: those of the rule as it is now, and whatever fires."""
    return {
        streak.fingerprint: streak for streak in before.streaks if streak.firing or before.digest == compiled.digest
    }


def failed(compiled: CompiledRule, before: RuleState, error: str, *, slot: int) -> RuleState:
    """Return the state after an evaluation that failed or came too late: no streak moves."""
    at = instant(slot)
    after = msgspec.structs.replace(
        before,
        rule=compiled.rule.name,
        slot=slot,
        failures=before.failures + 1,
        error=error[:_LONGEST_TEXT],
        failing_since=before.failing_since or at,
    )
    alerts = [_firing(streak, at, compiled) for streak in before.streaks if streak.firing]
    if after.failures >= FAILURES_UNTIL_ALERT:
        alerts.append(_failing(compiled, after, at, resolved=False))
    return msgspec.structs.replace(after, notice=_notice(compiled.rule.name, slot, alerts))


def retired(before: RuleState, *, slot: int) -> RuleState:
    """Return the state of a rule that is no more: whatever fires is over."""
    alerts = [_resolved(streak, instant(slot)) for streak in before.streaks if streak.firing]
    return RuleState(rule=before.rule, slot=slot, notice=_notice(before.rule, slot, alerts))


def instant(slot: int) -> datetime:
    """Return the time of a slot, to the millisecond."""
    return datetime.fromtimestamp(slot // 1_000_000 / 1000, UTC)


def _notice(rule: str, slot: int, alerts: Sequence[Alert]) -> AlertNotice | None:
    return AlertNotice(rule=rule, slot=slot, alerts=tuple(alerts)) if alerts else None


def _firing(streak: Streak, at: datetime, compiled: CompiledRule) -> Alert:
    return Alert(
        status="firing",
        fingerprint=streak.fingerprint,
        labels=streak.labels,
        annotations=noted(streak, silence(streak)),
        starts_at=streak.since,
        ends_at=at + life(compiled),
    )


def life(compiled: CompiledRule) -> timedelta:
    """Return how long an alert lives that is not told again: should we die, it ends by itself."""
    return max(_LIFE_INTERVALS * compiled.interval, _SHORTEST_LIFE)


def _resolved(streak: Streak, at: datetime, note: str = "") -> Alert:
    return Alert(
        status="resolved",
        fingerprint=streak.fingerprint,
        labels=streak.labels,
        annotations=noted(streak, note),
        starts_at=streak.since,
        ends_at=at,
    )


def _failing(compiled: CompiledRule, state: RuleState, at: datetime, *, resolved: bool) -> Alert:
    """Our own alert: a rule that cannot be evaluated watches nothing."""
    labels = {"alertname": FAILING_ALERT, "severity": "P1", "job": JOB, "instance": state.rule}
    annotations = {
        "summary": f"Alert rule {state.rule} cannot be evaluated",
        "description": f"{state.failures} evaluations in a row failed, the last one with: {state.error}",
        "runbook_url": "",
    }
    return Alert(
        status="resolved" if resolved else "firing",
        fingerprint=fingerprint(labels),
        labels=labels,
        annotations=annotations,
        starts_at=state.failing_since or at,
        ends_at=at if resolved else at + life(compiled),
    )
