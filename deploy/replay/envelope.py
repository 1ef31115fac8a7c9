"""Whether the envelope of an announced decision agrees with the decision in it. Pure."""

import re
from datetime import datetime, timedelta
from typing import Final

import msgspec

from bus import subjects
from bus.follower import Record
from consumers.allocator.replay import Said
from schemas.decision import Decision
from schemas.event import Event, utc
from schemas.registry import TYPE_NAMES

ALLOCATOR: Final = "/gpubus/allocator/"
"""What the source of everything that an allocator says begins with."""

SKEW: Final = timedelta(seconds=60)
"""How far clocks may differ, and how much later something may be sent again."""

_TYPE: Final = TYPE_NAMES[Decision]
_LANDED: Final = {
    "allocated": ("", ":resized"),
    "released": (":released", ":unplaced"),
    "unschedulable": (":room",),
    "evicted": (":evicted",),
}
"""What follows the pod and a sequence in the id of a decision that follows from a record."""
_SEQUENCE: Final = re.compile(r"\d{1,20}")


class Origin(msgspec.Struct, frozen=True):
    """What the id of an announcement tells: the sequence of the record that it follows from, 0 for none, and of which kind."""

    seq: int
    ending: str = ""


def origin_of(event_id: str, said: Said) -> Origin | None:
    """Return what the id of an announcement tells, or None if it is no id that such a decision has."""
    if event_id == f"{said.pod_uid}:{said.allocator}:{said.basis.ordinal}":
        landed = said.outcome in {"allocated", "evicted"} or (said.outcome == "released" and said.node != "")
        return None if landed else Origin(0)
    prefix = f"{said.pod_uid}:"
    if not event_id.startswith(prefix):
        return None
    number, colon, word = event_id.removeprefix(prefix).partition(":")
    ending = colon + word
    known = ending in _LANDED[said.outcome] and _SEQUENCE.fullmatch(number)
    return Origin(int(number), ending) if known else None


class Envelopes:
    """Looks at the envelopes of the announcements, in the order of the stream.

    Args:
        last_turns: The allocators that have a journal, each with the time of its last turn.
    """

    def __init__(self, last_turns: dict[str, datetime]) -> None:
        self._last_turns = last_turns
        self._spoke: dict[str, datetime] = {}

    def wrong(self, record: Record, event: Event[msgspec.Raw], said: Said) -> list[str]:
        """Return what of an envelope does not agree with the decision in it."""
        origin, found = origin_of(event.id, said), []
        if event.type != _TYPE:
            found.append(f"type {event.type} is not {_TYPE}")
        if record.subject != _subject(said):
            found.append(f"subject {record.subject} is not that of pod {said.namespace}/{said.name}")
        if event.subject != f"{said.namespace}/{said.name}":
            found.append(f"it speaks of {event.subject}, and the decision of {said.namespace}/{said.name}")
        if origin is None:
            found.append(f"id {event.id} is not that of such a decision")
        if not self._may_say(event, said, origin):
            found.append(f"source {event.source} does not speak for {said.allocator}")
        if problem := self._untimely(record, event):
            found.append(problem)
        return found

    def _may_say(self, event: Event[msgspec.Raw], said: Said, origin: Origin | None) -> bool:
        """What stands in the ledger may be announced by another, who was given the command when its author was slow or dead."""
        speaker = event.source.removeprefix(ALLOCATOR)
        if event.source == ALLOCATOR + said.allocator:
            return True
        if not event.source.startswith(ALLOCATOR) or origin is None or not origin.seq or origin.ending == ":unplaced":
            return False
        # One that has decided nothing so far has no journal yet; it can only stand in for one who thinks no more.
        last = self._last_turns.get(said.allocator)
        return speaker in self._last_turns or last is None or event.time >= last

    def _untimely(self, record: Record, event: Event[msgspec.Raw]) -> str:
        before = self._spoke.get(event.source)
        if event.time > utc(record.time_ns / 1e9) + SKEW:
            return f"time {event.time.isoformat()} is later than when it was stored"
        if before is not None and event.time < before - SKEW:
            return f"time {event.time.isoformat()} is before what {event.source} had said at {before.isoformat()}"
        self._spoke[event.source] = event.time if before is None else max(before, event.time)
        return ""


def _subject(said: Said) -> str:
    try:
        return subjects.decision(said.namespace, said.name)
    except ValueError:
        return ""
