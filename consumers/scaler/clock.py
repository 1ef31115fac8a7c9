"""Which cron rule is active. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from schemas.scaling import CronRequests
from schemas.windows import cron_matches

_MINUTE: Final = timedelta(minutes=1)


def active_rule(rules: Iterable[CronRequests], now: datetime) -> CronRequests | None:
    """Return the first rule that has started and has not ended, ``now`` included in what has happened."""
    return next((rule for rule in rules if _is_active(rule, now)), None)


def _is_active(rule: CronRequests, now: datetime) -> bool:
    started, ended = _last(rule.start, now), _last(rule.end, now)
    return started is not None and (ended is None or started > ended)


def _last(expression: str, now: datetime) -> datetime | None:
    minute = now.replace(second=0, microsecond=0) + _MINUTE
    found = _before(expression, minute)
    if found is None:
        return None
    # While an hour is there for the second time, what it matched the first time is not found by looking back from there.
    first = _before(expression, _repeated_since(minute, found.tzinfo))
    return max(one.astimezone(UTC) for one in (found, first) if one is not None)


def _before(expression: str, at: datetime) -> datetime | None:
    return next(cron_matches(expression, at, back=True), None)


def _repeated_since(at: datetime, zone: tzinfo | None) -> datetime:
    """Return the last second before the clocks of a zone were put back, if they show for the second time what they show now."""
    local = at.astimezone(zone)
    if not local.fold:
        return at
    offset = local.utcoffset()
    while at.astimezone(zone).utcoffset() == offset:
        at -= _MINUTE
    return at + timedelta(seconds=59)
