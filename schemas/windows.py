"""Maintenance windows: minutes of the wall clock that a cron expression matches.

``CRON_TZ=Europe/Berlin * 2-4 * * SAT`` is open from two to five on Saturdays, by the clocks of Berlin (without a zone, of
UTC). When clocks change it follows them: an hour that is skipped is not there, one that comes twice is open twice.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from schemas.dialects.text import RequestError

_MINUTE: Final = timedelta(minutes=1)
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_SAMPLE: Final = 61
"""Matches to look at for two minutes that follow each other: more than an hour has."""
_ZONE: Final = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)", re.DOTALL)


@lru_cache(maxsize=256)
def _parsed(expression: str) -> tuple[str, ZoneInfo]:
    zoned = _ZONE.fullmatch(expression.strip())
    zone, cron = zoned.groups() if zoned else ("UTC", expression)
    return cron, ZoneInfo(zone)


def cron_matches(expression: str, at: datetime, *, back: bool = False) -> CronSim:
    """Iterate over the minutes that a cron expression matches, forward from behind ``at`` or ``back`` from before it.

    As cron runs jobs: what an hour that is skipped would have matched is moved out of it.

    Raises:
        CronSimError: It is no cron expression of five fields.
        KeyError, ValueError, OSError: Its time zone is unknown.
    """
    cron, zone = _parsed(expression)
    if len(cron.split()) != 5:  # noqa: PLR2004  as cron has it
        raise CronSimError("not five fields")
    return CronSim(cron, at.astimezone(zone), reverse=back)


def check_cron(expression: str, *, field: str) -> str:
    """Return a cron expression of five fields that matches some minute.

    Raises:
        RequestError: It is none, or its time zone is unknown.
    """
    try:
        next(cron_matches(expression, _EPOCH))
    except (CronSimError, StopIteration, KeyError, ValueError, OSError):
        raise RequestError(
            field,
            expression,
            "is no cron expression of five fields that ever matches",
            "write minute, hour, day, month and weekday, such as 'CRON_TZ=Europe/Berlin 0 9 * * MON-FRI'",
        ) from None
    return expression


def _matches(expression: str, after: datetime) -> CronSim:
    """Iterate over the minutes behind ``after``."""
    cron, zone = _parsed(expression)
    # Seconds are stated because five fields would mean jobs, which cron moves out of hours that are skipped, and runs once.
    return CronSim(f"0 {cron}", after.astimezone(zone))


def check_window(expression: str, *, field: str) -> str:
    """Return the expression if it is a window.

    Raises:
        RequestError: Its zone is unknown, it is no cron expression of five fields, it never matches, or it matches single
            minutes, in which no batch can be carried out.
    """
    try:
        cron, _ = _parsed(expression)
    except (KeyError, ValueError, OSError):
        raise RequestError(
            field, expression, "names an unknown time zone", "write one such as CRON_TZ=Europe/Berlin, or none for UTC"
        ) from None
    fix = "write minute, hour, day, month and weekday, such as '* 2-4 * * SAT'"
    if len(cron.split()) != 5:  # noqa: PLR2004  as cron has it
        raise RequestError(field, expression, "does not have five fields", fix)
    try:
        matches = list(islice(_matches(expression, _EPOCH), _SAMPLE))
    except CronSimError as error:
        raise RequestError(field, expression, f"is no cron expression ({str(error).lower()})", fix) from None
    if not matches:
        raise RequestError(field, expression, "never matches", fix)
    if all(after - before > _MINUTE for before, after in pairwise(matches)):
        raise RequestError(
            field,
            expression,
            "is open for a single minute",
            "write every minute it covers, such as '* 3-5 * * *' for three hours",
        )
    return expression


def is_open(windows: Iterable[str], now: datetime) -> bool:
    """Return whether one of the windows is open at ``now``; without any it always is."""
    minute = now.astimezone(UTC).replace(second=0, microsecond=0)
    windows = tuple(windows)
    return not windows or _next(windows, minute - _MINUTE) == minute


def next_opening(windows: Iterable[str], now: datetime) -> datetime:
    """Return when the first of the windows opens, in UTC; ``now`` if one is open or there is none."""
    windows = tuple(windows)
    return now if is_open(windows, now) else _next(windows, now)


def _next(windows: Iterable[str], after: datetime) -> datetime:
    # In UTC, as Python finds an instant of an hour that comes twice equal to none of another zone.
    return min(next(_matches(window, after)).astimezone(UTC) for window in windows)
