"""A slice of the log from a bus to a file, and from a file to an empty bus, where it replays as it did where it happened."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Final

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import BusError, UndecodableError
from bus.follower import Record
from bus.history import Cut, batches, past_state
from bus.origin import IMPORTED
from bus.streams import (
    DECISION,
    HISTORY,
    HISTORY_KINDS,
    JOURNAL,
    LEDGER,
    STATE,
    StreamLimits,
    declarations,
    stream_info,
)
from deploy.replay.logfile import LogFileError
from schemas.journal import Saw, Step, Turn, referred

Entry = tuple[str, Record]

SUBJECTS: Final = {LEDGER: "gpubus.ledger.>", DECISION: "gpubus.decision.>", JOURNAL: "gpubus.journal.>"}
_AT_ONCE: Final = 2000
MOST_MISSING: Final = 50_000_000
"""Sequences that may be missing between two messages: retention drops many, and each has to be filled."""
_ENTRANCE: Final = "gpubus.imported."


async def collect(bus: Bus, since_ns: int | None, until: Cut | None) -> list[Entry]:
    """Return all that it takes to think the decisions of a time again.

    Decisions are those from ``since_ns`` (nanoseconds since the epoch) on. What led to them reaches further back: the
    journals of the allocators that made them from their first turn, the ledger as far back as those refer to it, and STATE.

    Raises:
        BusError: A stream cannot be read.
    """
    end, since = until or Cut(), since_ns or 0
    found = {stream: [r async for r in _records(bus, stream) if _before(stream, r, end)] for stream in SUBJECTS}
    state = [r for r in await past_state(bus, HISTORY_KINDS) if end.holds(STATE, r)]
    if since:
        awake = {record.subject for record in found[JOURNAL] if record.time_ns >= since}
        found[JOURNAL] = [record for record in found[JOURNAL] if record.subject in awake]
        first = min(_referred(found[JOURNAL]), default=0)
        found[LEDGER] = [record for record in found[LEDGER] if record.seq >= first]
        found[DECISION] = [record for record in found[DECISION] if record.time_ns >= since]
    entries = [(stream, record) for stream, records in ((STATE, state), *found.items()) for record in records]
    return sorted(entries, key=lambda entry: (entry[0], entry[1].seq))


def _before(stream: str, record: Record, end: Cut) -> bool:
    return end.holds(stream, record) if stream == LEDGER else end.time_ns is None or record.time_ns <= end.time_ns


async def _records(bus: Bus, stream: str) -> AsyncGenerator[Record]:
    async for batch in batches(bus, stream, [SUBJECTS[stream]]):
        for record in batch:
            yield record


def _referred(turns: Iterable[Record]) -> Iterator[int]:
    """Yield the ledger sequences that turns refer to."""
    yield from referred(_steps(turns))


def parts_of(entries: Iterable[Entry]) -> set[int]:
    """Return into how many parts the nodes have been divided at any time."""
    turns = (record for stream, record in entries if stream == JOURNAL)
    return {step.parts for step in _steps(turns) if isinstance(step, Saw)}


def _steps(turns: Iterable[Record]) -> Iterator[Step]:
    for record in turns:
        with contextlib.suppress(UndecodableError):
            yield from codec.decode_as(Turn, record.payload).data.steps


async def put_back(bus: Bus, entries: Iterable[Entry]) -> int:
    """Store the messages of a file in the streams of an empty bus, each at its own sequence; return how many.

    When they were stored is not kept, except for STATE: the server dates them anew. What they say themselves stays.

    Raises:
        BusError: A stream is not empty, or a message could not be stored at its sequence.
        LogFileError: The messages are not in their order.
    """
    for stream in (STATE, *SUBJECTS):
        if (await stream_info(bus, stream)).state.last_seq:
            raise BusError(f"stream {stream} of this bus is not empty: import into a new one")
    count, past = 0, []
    filling = _Filling(bus)
    for stream, record in entries:
        count += 1
        if stream == STATE:
            past.append(record)
        else:
            await filling.put(stream, record)
    await _put_history(bus, past)
    newest = {record.subject: record for record in past}
    for record in sorted(newest.values(), key=lambda record: record.seq):
        if not record.deleted:
            await filling.put(STATE, record)
    await filling.end()
    return count


async def _put_history(bus: Bus, past: list[Record]) -> None:
    """Store what STATE has said. STATE itself would forget it before HISTORY has copied it."""
    (config,) = (config for config in declarations(StreamLimits()) if config.name == HISTORY)
    body = config.as_dict() | {
        "sources": None,
        "subjects": [f"{_ENTRANCE}>"],
        "subject_transform": {"src": f"{_ENTRANCE}>", "dest": ">"},
    }
    await bus.api(f"STREAM.DELETE.{HISTORY}")
    await bus.api(f"STREAM.CREATE.{HISTORY}", body)
    for first in range(0, len(past), _AT_ONCE):
        await asyncio.gather(
            *(
                bus.publisher.publish(
                    _ENTRANCE + record.subject, record.payload, headers={IMPORTED: f"{record.seq} {record.time_ns}"}
                )
                for record in past[first : first + _AT_ONCE]
            )
        )


class _Filling:
    """Publishes to one stream after the other. Sequences that the file does not have are filled, and emptied at the end."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._stream = ""
        self._waiting: list[tuple[str, bytes, str]] = []
        self._at = 0
        self._begun: list[str] = []

    async def put(self, stream: str, record: Record) -> None:
        """Store a message at its sequence, which must be larger than that of the one before in the same stream."""
        if stream != self._stream:
            if stream in self._begun:
                raise LogFileError(
                    f"the file has messages of {stream} in two places: it is not as `gpubus export` wrote it"
                )
            await self._send()
            self._stream, self._at = stream, record.seq - 1
            self._begun.append(stream)
            if record.seq > 1:
                await self._bus.api(f"STREAM.PURGE.{stream}", {"seq": record.seq})  # it begins there
        if not 0 < record.seq - self._at <= MOST_MISSING:
            raise LogFileError(
                f"{stream} {record.seq} follows {stream} {self._at} in the file: it is not as `gpubus export` wrote it"
            )
        while self._at + 1 < record.seq:
            await self._say(_gap(stream), b"-")
        await self._say(record.subject, record.payload)

    async def _say(self, subject: str, payload: bytes) -> None:
        self._at += 1
        self._waiting.append((subject, payload, f"import:{self._stream}:{self._at}"))
        if len(self._waiting) >= _AT_ONCE:
            await self._send()

    async def _send(self) -> None:
        if not self._waiting:
            return
        messages, self._waiting = self._waiting, []
        acks = await self._bus.publisher.publish_all(messages)
        if acks[-1].seq != self._at:
            raise BusError(
                f"stream {self._stream} stored a message at {acks[-1].seq} instead of {self._at}: is somebody else writing?"
            )

    async def end(self) -> None:
        """Send what is left and empty what was filled."""
        await self._send()
        for stream in self._begun:
            await self._bus.api(f"STREAM.PURGE.{stream}", {"filter": _gap(stream)})


def _gap(stream: str) -> str:
    """Subject of what fills a sequence that the file does not have, until all is stored."""
    return subjects.subject(stream.lower(), "gap")
