"""Which cron rule is active. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from schemas.scaling import CronRequests
from schemas.windows import cron_matches


def active_rule(rules: Iterable[CronRequests], now: datetime) -> CronRequests | None:
    """Return the first rule that has started and has not ended, ``now`` included in what has happened."""
    return next((rule for rule in rules if _is_active(rule, now)), None)


def _is_active(rule: CronRequests, now: datetime) -> bool:
    started, ended = _last(rule.start, now), _last(rule.end, now)
    return started is not None and (ended is None or started > ended)


def _last(expression: str, now: datetime) -> datetime | None:
    minute = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    found = next(cron_matches(expression, minute, back=True), None)
    return found.astimezone(UTC) if found is not None else None
