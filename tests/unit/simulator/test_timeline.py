"""Virtual time: arrivals, and the ends that starts bring about."""

import pytest

from producers.simulator.timeline import Arrival, End, Timeline
from producers.simulator.trace import TracePod


def make(name: str, arrives_s: int, runs_s: int | None = 10) -> TracePod:
    return TracePod(name=name, cpu_milli=1, memory_mib=1, num_gpu=0, gpu_milli=0, arrives_s=arrives_s, runs_s=runs_s)


def timeline(*pods: TracePod) -> Timeline:
    return Timeline({pod.name: pod for pod in pods})


def drain(line: Timeline, *, start: bool = True) -> list[tuple[str, int, str]]:
    seen = []
    while event := line.next():
        seen.append((type(event).__name__, event.at_s, event.uid))
        if start and isinstance(event, Arrival):
            line.started(event.uid)
    return seen


def test_events_come_in_the_order_of_virtual_time() -> None:
    line = timeline(make("late", 20), make("first", 0, 25), make("short", 5, 3))
    assert line.now == 0
    assert line.next_s == 0
    assert drain(line) == [
        ("Arrival", 0, "first"),
        ("Arrival", 5, "short"),
        ("End", 8, "short"),
        ("Arrival", 20, "late"),
        ("End", 25, "first"),
        ("End", 30, "late"),
    ]
    assert line.now == 30
    assert line.next_s is None


def test_what_never_starts_never_ends() -> None:
    assert drain(timeline(make("a", 0, 1), make("b", 5, 1)), start=False) == [("Arrival", 0, "a"), ("Arrival", 5, "b")]


def test_time_runs_from_the_start_and_not_from_the_arrival() -> None:
    line = timeline(make("runs", 0, 50), make("waits", 1, 10))
    line.next()
    line.started("runs")
    line.next()
    end = line.next()
    assert end == End(50, "runs", make("runs", 0, 50))
    assert line.next() is None
    assert line.started("waits")
    assert line.next_s == 60
    assert line.next() == End(60, "waits", make("waits", 1, 10))


def test_ends_come_before_arrivals_of_the_same_second() -> None:
    line = timeline(make("b", 10), make("a", 0, 10), make("c", 10))
    assert drain(line)[:4] == [("Arrival", 0, "a"), ("End", 10, "a"), ("Arrival", 10, "b"), ("Arrival", 10, "c")]


def test_a_pod_may_run_for_ever_or_not_at_all() -> None:
    assert drain(timeline(make("a", 0, None), make("b", 3, 0))) == [
        ("Arrival", 0, "a"),
        ("Arrival", 3, "b"),
        ("End", 3, "b"),
    ]


def test_a_start_that_is_reported_again_changes_nothing() -> None:
    line = timeline(make("a", 0, 5), make("b", 3, None))
    line.next()
    assert line.started("a")
    line.next()
    assert not line.started("a")
    assert drain(line) == [("End", 5, "a")]
    assert not line.started("a")


def test_refuses_starts_that_cannot_be() -> None:
    line = timeline(make("a", 4))
    with pytest.raises(ValueError, match=r"pod 'a' has not arrived at second 0"):
        line.started("a")
    with pytest.raises(ValueError, match=r"pod 'x' is not on this timeline"):
        line.started("x")


def test_an_empty_timeline_has_nothing_to_say() -> None:
    assert timeline().next() is None
