"""Maintenance windows: minutes of the wall clock, when clocks change too."""

from datetime import UTC, datetime, timedelta

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
    ],
)
def test_what_is_no_window_is_refused_with_the_field_the_value_and_the_fix(window: str, says: str) -> None:
    with pytest.raises(RequestError) as refusal:
        check_window(window, field="maintenanceWindow.includes[0]")
    assert says in str(refusal.value)
    assert refusal.value.field == "maintenanceWindow.includes[0]"
    assert refusal.value.value == window
    assert refusal.value.fix
