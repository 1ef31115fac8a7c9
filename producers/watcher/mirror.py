"""What STATE holds of our objects, and how it is replaced: by compare-and-set, and only by what is as new or newer.

The API server's versions are numbers that grow over all objects, so the one in the id of a stored event tells whether what
we know is older than what another replica has said already.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import nats.errors

from bus import codec
from bus.connection import Bus
from bus.errors import ApiError, BusError, ConflictError, PublishUnconfirmedError, UndecodableError
from bus.follower import Follower, Record
from bus.publisher import Ack, Replacement
from bus.streams import STATE, TOMBSTONE_TTL_S
from producers.watcher.plan import KINDS, Outgoing, Stored, stored_of

log = logging.getLogger("gpubus.watcher")

FILTERS: Final = tuple(".".join(("gpubus.state", kind, *"*" * names)) for kind, names in KINDS.items())
"""All that the watcher says, of every kind: what is missing here is not known after a restart, and never taken back."""

CATCH_UP_S: Final = 5.0
PUBLISH_S: Final = 5.0
_TOMBSTONE: Final = {"Nats-TTL": f"{TOMBSTONE_TTL_S}s"}


class Wish(msgspec.Struct, frozen=True, gc=False):
    """What STATE should hold on a subject; ``payload`` empty for nothing. ``expected`` is the sequence it replaces."""

    subject: str
    payload: bytes
    expected: int
    stored: Stored | None


class Mirror:
    """The newest record of everything in STATE that we say; ``on_other`` is told the subjects that others have changed."""

    def __init__(self, bus: Bus, on_other: Callable[[str], None]) -> None:
        self._bus = bus
        self._on_other = on_other
        self._stored: dict[str, Stored] = {}
        self._last: dict[str, int] = {}
        self._saying: dict[str, Wish] = {}
        self._follower = Follower(bus, STATE, FILTERS, self._on_record, recreated=self._forget)

    async def start(self) -> None:
        """Load what is there and follow it."""
        await self._follower.start(timeout=120.0)

    async def stop(self) -> None:
        """Stop following."""
        await self._follower.stop()

    @property
    def seq(self) -> int:
        """STATE sequence that has been reached."""
        return self._follower.seq

    def stored(self, subject: str) -> Stored | None:
        """Return what STATE holds on ``subject``."""
        return self._stored.get(subject)

    def last(self, subject: str) -> int:
        """Return the sequence of the newest message on ``subject``, tombstones included; 0 for none known."""
        return self._last.get(subject, 0)

    def subjects(self) -> list[str]:
        """Return the subjects that hold something."""
        return list(self._stored)

    async def replace(self, wishes: Sequence[Wish]) -> list[Wish]:
        """Fulfil wishes, all at once, and return those that failed: others came first, or the server could not say."""
        self._saying |= {wish.subject: wish for wish in wishes}
        try:
            results = await self._bus.publisher.replace_all(
                [
                    Replacement(one.subject, one.payload, one.expected, None if one.payload else _TOMBSTONE)
                    for one in wishes
                ],
                timeout=PUBLISH_S,
            )
        finally:
            for wish in wishes:
                self._saying.pop(wish.subject, None)
        failed: list[Wish] = []
        overtaken: list[Wish] = []
        unconfirmed: list[BusError] = []
        for wish, result in zip(wishes, results, strict=True):
            if isinstance(result, Ack):
                stored = wish.stored and msgspec.structs.replace(wish.stored, seq=result.seq)
                self._note(wish.subject, result.seq, stored)
                continue
            failed.append(wish)
            if isinstance(result, ConflictError):
                overtaken.append(wish)
            else:
                unconfirmed.append(result)
        if unconfirmed:
            log.warning("%s; as many as %d were not said, and will be again", unconfirmed[0], len(unconfirmed))
        if overtaken:
            await self._overtaken(overtaken)
        return failed

    async def _overtaken(self, wishes: Sequence[Wish]) -> None:
        """Wait for the newer records: until the follower has shown them, trying again would only fail again."""
        with contextlib.suppress(TimeoutError, nats.errors.Error, ApiError):
            async with asyncio.timeout(CATCH_UP_S):
                await self._follower.caught_up()
                for wish in wishes:
                    if self.last(wish.subject) <= wish.expected:
                        self._last.pop(wish.subject, None)  # a tombstone has expired: there is nothing on the subject

    async def say(self, messages: Sequence[Outgoing]) -> None:
        """Publish messages until they are confirmed, however long the bus is away.

        Raises:
            ApiError: The server refuses one for good.
        """
        while messages:
            try:
                await self._bus.publisher.publish_all(messages)
            except PublishUnconfirmedError as error:
                log.warning("%s; saying it again", error)
            else:
                return

    def _note(self, subject: str, seq: int, stored: Stored | None) -> None:
        if seq <= self._last.get(subject, 0):
            return
        self._last[subject] = seq
        if stored is None:
            self._stored.pop(subject, None)
        else:
            self._stored[subject] = stored

    def _on_record(self, record: Record) -> None:
        if record.seq <= self._last.get(record.subject, 0) and not record.deleted:
            return  # ours, noted when it was confirmed
        mine = self._saying.get(record.subject)
        if mine is not None and mine.stored is not None and mine.payload == record.payload and not record.deleted:
            self._note(record.subject, record.seq, msgspec.structs.replace(mine.stored, seq=record.seq))
            return  # ours, heard before it was confirmed
        stored = None
        if not record.deleted:
            try:
                stored = stored_of(record.seq, codec.decode(record.payload))
            except UndecodableError as error:
                # Whatever it is, what the API server says now is better.
                log.warning("%s at sequence %d: %s", record.subject, record.seq, error)
                stored = Stored(record.seq, 0, b"", None)
        self._note(record.subject, record.seq, stored)
        self._on_other(record.subject)

    def _forget(self) -> None:
        """The stream was deleted and made again: nothing that we knew is there."""
        self._stored.clear()
        self._last.clear()
