"""Maintenance windows: minutes of the wall clock that a cron expression matches.

``CRON_TZ=Europe/Berlin * 2-4 * * SAT`` is open from two to five on Saturdays, by the clocks of Berlin (without a zone, of
UTC). When clocks change it follows them, by an hour or by half of one: what is skipped is not there, what comes twice is open
twice.

Time zones are those of the IANA database by name, whatever the machine has; ``localtime`` and other names that mean another zone
on another machine are unknown.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib.resources import files
from itertools import islice, pairwise
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from schemas.dialects.text import RequestError

_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_SAMPLE: Final = 61
"""Matches to look at for two minutes that follow each other: more than an hour has."""
_ZONE: Final = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)", re.DOTALL)


@cache
def _known_zones() -> frozenset[str]:
    """The names of the IANA database; its ``Factory`` stands for a zone that nobody has chosen yet."""
    return frozenset(files("tzdata").joinpath("zones").read_text("ascii").split()) - {"Factory"}


@lru_cache(maxsize=256)
def _parsed(expression: str) -> tuple[str, ZoneInfo]:
    zoned = _ZONE.fullmatch(expression.strip())
    zone, cron = zoned.groups() if zoned else ("UTC", expression)
    if zone not in _known_zones():
        raise KeyError(zone)
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
    _check_zone(expression, field)
    try:
        next(cron_matches(expression, _EPOCH))
    except (CronSimError, StopIteration):
        raise RequestError(
            field,
            expression,
            "is no cron expression of five fields that ever matches",
            "write minute, hour, day, month and weekday, such as 'CRON_TZ=Europe/Berlin 0 9 * * MON-FRI'",
        ) from None
    return expression


def check_span(start: str, end: str, *, field: str) -> None:
    """Check that what begins with every match of ``start`` and ends with the next of ``end`` lasts some time.

    Raises:
        RequestError: Both match the same minutes, so that it would end as it begins.
    """
    first, last = (tuple(islice(cron_matches(one, _EPOCH), _SAMPLE)) for one in (start, end))
    if first == last:
        raise RequestError(field, end, "is when the rule starts, so it would never be active", "write when it ends")


def _check_zone(expression: str, field: str) -> str:
    """Return what is left of the expression without its zone.

    Raises:
        RequestError: The zone is unknown.
    """
    try:
        return _parsed(expression)[0]
    except (KeyError, ValueError, OSError):
        raise RequestError(
            field, expression, "names an unknown time zone", "write one such as CRON_TZ=Europe/Berlin, or none for UTC"
        ) from None


def _walls(cron: str, after: datetime) -> CronSim:
    """Iterate over the minutes of a clock on the wall, without a zone, behind ``after``."""
    return CronSim(f"0 {cron}", after)  # seconds are stated because this is no job, which runs once


def check_window(expression: str, *, field: str) -> str:
    """Return the expression if it is a window.

    Raises:
        RequestError: Its zone is unknown, it is no cron expression of five fields, it never matches, or it matches single
            minutes, in which no batch can be carried out.
    """
    cron = _check_zone(expression, field)
    fix = "write minute, hour, day, month and weekday, such as '* 2-4 * * SAT'"
    if len(cron.split()) != 5:  # noqa: PLR2004  as cron has it
        raise RequestError(field, expression, "does not have five fields", fix)
    try:
        matches = list(islice(_walls(cron, _EPOCH.replace(tzinfo=None)), _SAMPLE))
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
    return not windows or any(_is_open(window, minute) for window in windows)


def next_opening(windows: Iterable[str], now: datetime) -> datetime:
    """Return when the first of the windows opens, in UTC; ``now`` if one is open or there is none."""
    windows = tuple(windows)
    if is_open(windows, now):
        return now
    minute = now.astimezone(UTC).replace(second=0, microsecond=0)
    return min(_next(window, minute) for window in windows)


def _is_open(expression: str, minute: datetime) -> bool:
    cron, zone = _parsed(expression)
    wall = minute.astimezone(zone).replace(tzinfo=None)
    return next(_walls(cron, wall - _MINUTE)) == wall


def _next(expression: str, after: datetime) -> datetime:
    """Return the first minute behind ``after`` that matches.

    As long as clocks do not change, the wall is as far from UTC as it was; at every change it is looked at anew.
    """
    cron, zone = _parsed(expression)
    while True:
        offset = _offset(zone, after + _MINUTE)
        found = next(_walls(cron, (after + offset).replace(tzinfo=None))).replace(tzinfo=UTC) - offset
        changed = _change(zone, after + _MINUTE, found)
        if changed is None:
            return found
        after = changed - _MINUTE


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _change(zone: ZoneInfo, start: datetime, end: datetime) -> datetime | None:
    """Return the first minute behind ``start``, up to ``end``, in which clocks are another way off UTC, or None."""
    offset = _offset(zone, start)
    while start < end:
        later = min(start + _DAY, end)  # no zone changes its clocks forth and back within a day
        if _offset(zone, later) != offset:
            while later - start > _MINUTE:
                middle = start + (later - start) // 2 // _MINUTE * _MINUTE
                start, later = (middle, later) if _offset(zone, middle) == offset else (start, middle)
            return later
        start = later
    return None
