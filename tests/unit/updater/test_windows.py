"""Maintenance windows: minutes of the wall clock, when clocks change too."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from schemas.dialects.text import RequestError
from schemas.windows import check_window, is_open, next_opening

BERLIN = "CRON_TZ=Europe/Berlin * 2-4 * * *"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def open_minutes(window: str, day: str) -> int:
    """Count the open minutes of the first six hours of ``day`` in UTC, looking at every tenth."""
    start = at(day)
    return sum(10 * is_open((window,), start + timedelta(minutes=i)) for i in range(0, 6 * 60, 10))


def test_a_window_is_open_in_every_minute_that_matches_and_closes_with_the_next() -> None:
    window = ("* 2-4 * * SAT",)
    assert not is_open(window, at("2026-11-28T01:59:59.999"))
    assert is_open(window, at("2026-11-28T02:00:00"))
    assert is_open(window, at("2026-11-28T04:59:59.999"))
    assert not is_open(window, at("2026-11-28T05:00:00"))
    assert not is_open(window, at("2026-11-29T03:00:00"))
    assert next_opening(window, at("2026-11-28T05:00:00")) == at("2026-12-05T02:00:00")
    assert next_opening(window, at("2026-11-28T03:12:07")) == at("2026-11-28T03:12:07")
    assert is_open((), at("2026-11-28T05:00:00"))


def test_the_first_of_several_windows_counts() -> None:
    windows = ("CRON_TZ=America/New_York * 22-23 * * MON-FRI", "TZ=Asia/Shanghai * 1-5 * * *")
    assert next_opening(windows, at("2026-11-30T12:00:00")) == at("2026-11-30T17:00:00")
    assert next_opening(windows[:1], at("2026-11-30T12:00:00")) == at("2026-12-01T03:00:00")
    assert is_open(windows, at("2026-11-30T17:00:00"))


def test_a_window_follows_the_clocks_when_they_change() -> None:
    assert open_minutes(BERLIN, "2026-03-28") == 3 * 60
    assert open_minutes(BERLIN, "2026-03-29") == 2 * 60  # two to three does not exist
    assert open_minutes(BERLIN, "2026-10-25") == 4 * 60  # two to three comes twice
    assert next_opening((BERLIN,), at("2026-03-28T12:00")) == at("2026-03-29T01:00")  # three o'clock in summer time
    assert next_opening((BERLIN,), at("2026-10-24T12:00")) == at("2026-10-25T00:00")
    assert is_open((BERLIN,), at("2026-10-25T00:30"))
    assert is_open((BERLIN,), at("2026-10-25T01:30"))


def test_an_hour_that_is_skipped_opens_on_the_next_day() -> None:
    window = ("CRON_TZ=Europe/Berlin 0-29 2 * * *",)
    assert next_opening(window, at("2026-03-28T12:00")) == at("2026-03-30T00:00")
    assert open_minutes(window[0], "2026-10-25") == 60


def test_clocks_that_change_by_half_an_hour_and_hours_that_come_twice() -> None:
    lord_howe = ("CRON_TZ=Australia/Lord_Howe * 2-3 * * *",)  # 2026-10-04 at two it is half past; back on 2026-04-05
    assert next_opening(lord_howe, at("2026-10-03T12:00")) == at("2026-10-03T15:30")  # at half past two
    assert next_opening(lord_howe, at("2026-04-04T12:00")) == at("2026-04-04T15:30")
    half = ("CRON_TZ=Australia/Lord_Howe 30-59 1 * * *",)
    assert next_opening(half, at("2026-04-04T12:00")) == at("2026-04-04T14:30")
    assert is_open(half, at("2026-04-04T14:45"))
    assert is_open(half, at("2026-04-04T15:15"))  # half past one comes twice
    berlin = ("CRON_TZ=Europe/Berlin 0-29 2 * * *",)
    assert next_opening(berlin, at("2026-10-25T00:45")) == at("2026-10-25T01:00")
    assert next_opening(berlin, at("2026-10-25T01:30")) == at("2026-10-26T01:00")


@pytest.mark.parametrize(
    "zone", ["Australia/Lord_Howe", "Europe/Berlin", "America/St_Johns", "Africa/Casablanca", "UTC"]
)
@pytest.mark.parametrize("cron", ["0-29 2 * * *", "* 1-2 * * SUN", "*/7,1 0-3 * * *"])
def test_every_opening_is_the_first_minute_that_the_wall_shows(zone: str, cron: str) -> None:
    hours, rest = {"0-29 2": ((2,), range(30)), "* 1-2": ((1, 2), range(60))}.get(
        " ".join(cron.split()[:2]), (range(4), [m for m in range(60) if m % 7 == 0 or m == 1])
    )
    sundays = cron.endswith("SUN")
    for day in ("2026-03-28", "2026-04-04", "2026-10-03", "2026-10-24", "2026-10-31", "2026-03-07", "2026-02-14"):
        opens = None
        for minute in reversed(range(0, 48 * 60, 5)):
            now = at(day) + timedelta(minutes=minute)
            for step in reversed(range(5)):
                wall = (now + timedelta(minutes=step)).astimezone(ZoneInfo(zone))
                if wall.hour in hours and wall.minute in rest and (not sundays or wall.weekday() == 6):
                    opens = now + timedelta(minutes=step)
            if opens is not None:
                assert next_opening((f"CRON_TZ={zone} {cron}",), now) == opens


@pytest.mark.parametrize(
    "window", ["* 2-4 * * SAT", "0,30-59 3 1 1 *", "CRON_TZ=Europe/Berlin  * * * * *", "59,0 * * * *"]
)
def test_windows_are_taken_as_written(window: str) -> None:
    assert check_window(window, field="f") == window


@pytest.mark.parametrize(
    ("window", "says"),
    [
        ("0 3 * * *", "is open for a single minute: write every minute"),
        ("*/5 3 * * *", "is open for a single minute"),
        ("* 3 * *", "does not have five fields"),
        ("* * 3 * * *", "does not have five fields"),
        ("", "does not have five fields"),
        ("* 25 * * *", "is no cron expression (bad hour)"),
        ("* 4-2 * * *", "is no cron expression (bad hour)"),
        ("* * 30 2 *", "is no cron expression (bad day-of-month)"),
        ("CRON_TZ=Europe/Atlantis * 2 * * *", "unknown time zone"),
        ("CRON_TZ=../../etc/passwd * 2 * * *", "unknown time zone"),
        ("CRON_TZ=localtime * 2 * * *", "unknown time zone"),
        ("CRON_TZ=posixrules * 2 * * *", "unknown time zone"),
        ("CRON_TZ=right/Europe/Berlin * 2 * * *", "unknown time zone"),
        ("CRON_TZ=Factory * 2 * * *", "unknown time zone"),
        ("CRON_TZ=europe/berlin * 2 * * *", "unknown time zone"),
    ],
)
def test_what_is_no_window_is_refused_with_the_field_the_value_and_the_fix(window: str, says: str) -> None:
    with pytest.raises(RequestError) as refusal:
        check_window(window, field="maintenanceWindow.includes[0]")
    assert says in str(refusal.value)
    assert refusal.value.field == "maintenanceWindow.includes[0]"
    assert refusal.value.value == window
    assert refusal.value.fix
