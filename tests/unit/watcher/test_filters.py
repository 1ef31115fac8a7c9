"""What the watcher says is what it reads again: else it is not known after a restart, and never taken back."""

import pytest

from producers.watcher.mirror import FILTERS
from producers.watcher.plan import KINDS
from producers.watcher.world import place, subject_of


def matches(pattern: str, subject: str) -> bool:
    wanted, found = pattern.split("."), subject.split(".")
    return len(wanted) == len(found) and all(one in ("*", other) for one, other in zip(wanted, found, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_subject_that_is_said_is_followed(kind: str) -> None:
    key = tuple(f"name{number}" for number in range(KINDS[kind]))
    subject = subject_of(kind, key)
    assert place(subject) == (kind, key)
    assert [pattern for pattern in FILTERS if matches(pattern, subject)] != []


def test_clients_and_connections_are_among_them() -> None:
    assert {"gpubus.state.client.*.*", "gpubus.state.connection.*.*"} <= set(FILTERS)
