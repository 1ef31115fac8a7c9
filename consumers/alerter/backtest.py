"""A rule over stored metrics: when would it have fired?"""

from datetime import UTC, datetime
from typing import Final

import msgspec

from consumers.alerter.rules import CompiledRule
from consumers.alerter.streaks import TooManyAlertsError, evaluated, failed
from consumers.alerter.template import TemplateRunError
from consumers.metrics.store import MetricsStore, StoreError
from schemas.alert import AlertRule, RuleState
from schemas.event import Timestamp

SERVICE: Final = "alerts.backtest"
MOST_EVALUATIONS: Final = 100_000
MOST_ASKED: Final = 10_000
"""Evaluations that an alerter makes for somebody who asks: its own come first."""

MOST_EPISODES: Final = 1000
QUERY_TIMEOUT_S: Final = 30.0
_NS: Final = 1_000_000_000


class BacktestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask an alerter, which has the metrics, to evaluate a rule from ``begin`` to ``end``, seconds since the epoch."""

    rule: AlertRule
    begin: float
    end: float


class Episode(msgspec.Struct, kw_only=True):
    """One alert from the evaluation at which it would have fired to the one at which it would have been over."""

    instance: str
    summary: str
    fired: Timestamp
    ended: Timestamp | None = None


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule would have done."""

    rule: str
    evaluations: int
    failures: int
    error: str
    episodes: tuple[Episode, ...]


def evaluations(compiled: CompiledRule, *, begin: float, end: float, most: int) -> int:
    """Return how many evaluations there are from ``begin`` to ``end``.

    Raises:
        ValueError: There would be none, or more than ``most``.
    """
    if end < begin:
        raise ValueError("the last evaluation would be before the first: begin earlier, or end later")
    count = int((end - begin) // compiled.interval.total_seconds()) + 1
    if count > most:
        raise ValueError(
            f"{count} evaluations from begin to end: choose a span of at most {most} intervals of the rule"
        )
    return count


async def answer(store: MetricsStore, request: BacktestRequest) -> Backtest:
    """Answer a request; its last episodes are left out when there are too many for a message.

    Raises:
        RulesError, ValueError: The rule is not good, or the span too long.
    """
    found = await backtest(CompiledRule(request.rule), store, begin=request.begin, end=request.end, most=MOST_ASKED)
    return msgspec.structs.replace(found, episodes=found.episodes[:MOST_EPISODES])


async def backtest(
    compiled: CompiledRule, store: MetricsStore, *, begin: float, end: float, most: int = MOST_EVALUATIONS
) -> Backtest:
    """Evaluate a rule at every interval from ``begin`` to ``end``, seconds since the epoch.

    ``now()`` in its query is the instant of the evaluation.

    Raises:
        ValueError: There would be no evaluation, or too many.
    """
    interval = compiled.interval.total_seconds()
    count = evaluations(compiled, begin=begin, end=end, most=most)
    state = RuleState(rule=compiled.rule.name, digest=compiled.digest)
    episodes: list[Episode] = []
    open_ones: dict[str, Episode] = {}
    failures, error = 0, ""
    for number in range(count):
        at = datetime.fromtimestamp(begin + number * interval, UTC)
        slot = int(at.timestamp() * 1000) * 1_000_000
        try:
            sql = compiled.sql(now=at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3])
            result = await store.query(sql, timeout=QUERY_TIMEOUT_S)
            state = evaluated(compiled, state, result.named(), slot=slot)
        except (StoreError, TemplateRunError, TooManyAlertsError) as problem:
            failures, error = failures + 1, str(problem)
            state = failed(compiled, state, error, slot=slot)
            continue
        firing = {streak.fingerprint: streak for streak in state.streaks if streak.firing}
        for fingerprint in open_ones.keys() - firing.keys():
            open_ones.pop(fingerprint).ended = at
        for fingerprint, streak in firing.items():
            if fingerprint not in open_ones:
                episode = Episode(instance=streak.labels["instance"], summary=streak.annotations["summary"], fired=at)
                open_ones[fingerprint] = episode
                episodes.append(episode)
    return Backtest(
        rule=compiled.rule.name, evaluations=count, failures=failures, error=error, episodes=tuple(episodes)
    )
