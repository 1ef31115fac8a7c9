"""What the core wants done: values that the shell carries out."""

from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from bus import codec
from consumers.allocator.book import Commit
from consumers.allocator.bundle import Bundle
from schemas.cluster import ExpectedPods
from schemas.decision import Decision
from schemas.pod import Release, Schedule, Waiting
from schemas.preemption import Evict
from schemas.requirements import Gang


@dataclass(slots=True)
class Announcement:
    """A decision to publish under ``id``; ``token`` is acknowledged once it is stored.

    Attributes:
        encoded: The decision as it stands in the ledger record, if it stands in one: both say the same bytes.
        refused: The command of a pod that fits nowhere and has to be remembered as waiting.
        waits: The pod waits as before: whoever has its command will say so.
        evict: The command to have others go for it.
    """

    id: str
    decision: Decision
    encoded: msgspec.Raw
    token: object
    refused: Schedule | None = None
    waits: bool = False
    evict: Evict | None = None


@dataclass(slots=True)
class Recovery:
    """A pod that is in the ledger already, since ``seq``: repeat what that record announced.

    Then its waiting record, if it has one, is to be cleared, and ``token`` acknowledged.

    Attributes:
        room: It is room for the pod that is in the ledger, and the pod waits for others to go.
    """

    command: Schedule
    seq: int
    token: object
    waiting: tuple[Waiting, int] | None
    room: bool = False


@dataclass(slots=True)
class Effects:
    """What the shell has to do, in no particular order."""

    commits: list[Commit | Bundle] = field(default_factory=list)
    announcements: list[Announcement] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    learnt: list[ExpectedPods] = field(default_factory=list)
    """What to tell STATE of the pods that come."""
    again: list[object] = field(default_factory=list)
    """Tokens to give back: their commands are to be delivered anew."""
    ended: list[tuple[Waiting, int]] = field(default_factory=list)
    """Waiting records, with their sequences, of pods that have ended: they are to be cleared."""
    timers: list[tuple[Gang, datetime | None]] = field(default_factory=list)
    """Gangs that are to be complete in time, with the time since which their first member waits; None: it has just come."""
    wakes: list[tuple[Waiting, int]] = field(default_factory=list)
    """Waiting pods to try again, with their records' sequences."""
    unknown: list[tuple[Release, object]] = field(default_factory=list)
    """Releases of pods that nothing is known of, as yet."""


@dataclass(slots=True)
class Counters:
    """What happened since the start."""

    decided: int = 0
    placed: int = 0
    refused: int = 0
    released: int = 0
    overtaken: int = 0
    duplicates: int = 0
    recovered: int = 0
    rooms: int = 0
    evicted: int = 0


def encode(decision: Decision) -> msgspec.Raw:
    """Encode a decision once, for the ledger record and for its announcement."""
    return msgspec.Raw(codec.encode(decision))
