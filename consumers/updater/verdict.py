"""What is said of a rollout's health, and in which words. Pure."""

from collections.abc import Callable, Iterable

import msgspec

from schemas.event import Timestamp
from schemas.rollout import Member, Reason

_SHOWN = 3

IsCurrent = Callable[[Member], bool]
"""Whether a member runs what the rollout brings it to."""


class Firing(msgspec.Struct, frozen=True):
    """An alert that fires, and since when it was found."""

    name: str
    since: Timestamp


class Verdict(msgspec.Struct, frozen=True):
    """What the gate says of a batch.

    Attributes:
        reason: Why the rollout must not go on; empty when nothing speaks against it.
        message: The same for people.
        failed: The members, or the alerts, that are to blame.
        pending: Whether some may still become ready in time.
        left: Members that were down before and did not come up in time, which proves nothing.
    """

    reason: Reason = ""
    message: str = ""
    failed: tuple[str, ...] = ()
    pending: bool = False
    left: tuple[str, ...] = ()


def some(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    names = sorted(names)
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
