"""How a stream stood at an earlier point: the newest record of every subject up to there, found by the server.

What was replaced before that point is not even read, so looking back costs as much as there are objects, however long the log is.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Final, NamedTuple

import msgspec
import nats.errors
from nats.aio.msg import Msg

from bus.connection import API_TIMEOUT_S, Bus
from bus.errors import ApiError, BusError
from bus.follower import Record
from bus.origin import nanoseconds, origin
from bus.stored import find
from bus.streams import stream_info
from bus.tasks import within

AT_ONCE: Final = 1000
"""Subjects in one question: servers answer for 1024 at most."""

PROBES: Final = 12
"""Records that are looked at together: waiting for answers takes longer than giving them."""

ATTEMPTS: Final = 50
PAUSE_S: Final = 0.1

_END: Final = "204"
_NONE: Final = "404"
_STATUS: Final = b"NATS/1.0 "


class _Subjects(msgspec.Struct):
    subjects: dict[str, int] = {}


class _Listed(msgspec.Struct):
    state: _Subjects
    total: int = 0


_listed = msgspec.json.Decoder(_Listed)


class _BehindError(Exception):
    """A copy of the stream answered that has not heard of everything yet."""


async def newest_before(
    bus: Bus, stream: str, filters: Sequence[str], holds: Callable[[Record], bool], *, original: bool = False
) -> list[Record]:
    """Return the newest record of every subject among those for which ``holds``, tombstones included, in stream order.

    Args:
        bus: The connection.
        stream: Its name.
        filters: Subjects, which may have wildcards.
        holds: Whether a record had been stored by then: if it is true of one, it is of all before.
        original: Show records of a stream that copies another one with the sequence that they have there.

    Raises:
        BusError: The stream could not be read.
    """
    reading = _Reading(bus, stream, original=original)
    try:
        return await reading.find(filters, holds)
    except (nats.errors.Error, TimeoutError, OSError, ApiError) as error:
        raise BusError(f"stream {stream} could not be read: {str(error) or type(error).__name__}") from error


class _Copy(NamedTuple):
    """A record with the sequence that it has in the stream that is read, and the record to show."""

    seq: int
    record: Record


class _Reading:
    """One stream, read backwards from a point."""

    def __init__(self, bus: Bus, stream: str, *, original: bool) -> None:
        self._bus = bus
        self._stream = stream
        self._original = original

    async def find(self, filters: Sequence[str], holds: Callable[[Record], bool]) -> list[Record]:
        last = await self._last(holds)
        if last is None:
            return []
        found: dict[str, _Copy] = {}
        wanted = [subject for one in filters for subject in await self._subjects(one)]
        for first in range(0, len(wanted), AT_ONCE):
            some = wanted[first : first + AT_ONCE]
            found |= {copy.record.subject: copy for copy in await self._patiently(some, last)}
        kept = [found[subject] for subject in dict.fromkeys(wanted) if subject in found]
        return [copy.record for copy in sorted(kept)]

    async def _last(self, holds: Callable[[Record], bool]) -> _Copy | None:
        """Return the last record for which ``holds``, by what the stream's leader has: looked for in ever smaller parts."""
        state = (await stream_info(self._bus, self._stream)).state
        low, high, last = state.first_seq - 1, state.last_seq, None
        while low < high:
            step = max((high - low) // PROBES, 1)
            probes = [*range(high, low, -step)][:PROBES]
            for probe, found in zip(probes, await asyncio.gather(*map(self._next, probes)), strict=True):
                if found is not None and found.seq <= state.last_seq and holds(found.record):
                    last, low = found, found.seq
                    break
                high = probe - 1
            else:
                high = min(high, probes[-1] - 1)
        return last

    async def _next(self, seq: int) -> _Copy | None:
        """Return the first record at a sequence or behind it."""
        stored = await find(self._bus, self._stream, seq=seq, next_by_subj=">")
        if stored is None:
            return None
        return self._copy(stored.subject, stored.seq, stored.time, stored.hdrs, stored.data)

    def _copy(self, subject: str, seq: int, time: str, headers: bytes, payload: bytes) -> _Copy:
        time_ns = nanoseconds(time)
        shown, time_ns = origin(headers, time_ns) if self._original else (seq, time_ns)
        return _Copy(seq, Record(subject, shown, payload, time_ns, not payload))

    async def _subjects(self, matching: str) -> list[str]:
        """Return the subjects that the stream has records on."""
        found: dict[str, int] = {}
        while True:
            body = {"subjects_filter": matching, "offset": len(found)}
            listed = _listed.decode(await self._bus.api(f"STREAM.INFO.{self._stream}", body))
            found |= listed.state.subjects
            if not listed.state.subjects or len(found) >= listed.total:
                return sorted(found)

    async def _patiently(self, subjects: list[str], last: _Copy) -> list[_Copy]:
        """Return the newest records on some subjects up to ``last``.

        Any copy of the stream may answer. That it is not behind is seen by its knowing ``last``, which is asked for as well.
        """
        body = {"multi_last": list(dict.fromkeys((*subjects, last.record.subject))), "up_to_seq": last.seq}
        for _ in range(ATTEMPTS):
            answer = await self._ask(body)
            if answer.whole and any(copy.seq == last.seq for copy in answer.found):
                return answer.found
            await asyncio.sleep(PAUSE_S)
        raise BusError(
            f"stream {self._stream} could not be read: no copy of it that answers has record {last.seq}; try again"
        )

    async def _ask(self, body: dict[str, object]) -> "_Answer":
        answer = _Answer(self._stream, self._copy)

        async def on_message(message: Msg) -> None:
            raw = "".join(f"{name}: {value}\r\n" for name, value in (message.headers or {}).items()).encode()
            answer.take(b"", b"", raw, message.data)

        inbox = f"{self._bus.inbox}.moment.{token_hex(6)}"
        subscription = await self._bus.client.subscribe(
            inbox, cb=on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        self._bus.express.attach(subscription, answer.take)
        try:
            await self._bus.client.publish(f"$JS.API.DIRECT.GET.{self._stream}", msgspec.json.encode(body), reply=inbox)
            while not answer.ended:
                answer.heard.clear()
                await within(API_TIMEOUT_S, answer.heard.wait())
        finally:
            self._bus.express.detach(subscription)
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()
        if answer.whole and answer.pending:  # more than one answer holds
            rest = await self._ask(body | {"seq": answer.at + 1})
            answer.found += rest.found
            answer.whole = rest.whole
        if answer.problem:
            raise BusError(f"stream {self._stream} could not be read: {answer.problem}")
        return answer


class _Answer:
    """What comes for one question: records, each naming the one before, and a line that ends them.

    Attributes:
        whole: Whether none was lost on the way.
        pending: How many there are behind those that came.
    """

    def __init__(self, stream: str, copy: Callable[[str, int, str, bytes, bytes], _Copy]) -> None:
        self._stream = stream
        self._copy = copy
        self.found: list[_Copy] = []
        self.heard = asyncio.Event()
        self.at = self.pending = 0
        self.ended = False
        self.whole = True
        self.problem = ""

    def take(self, _subject: bytes, _reply: bytes, headers: bytes, payload: bytes) -> bool:
        """Take a message of the answer."""
        self.heard.set()
        fields = _fields(headers)
        status, before = fields.get("Status", ""), int(fields.get("Nats-Last-Sequence", 0))
        self.whole = self.whole and (before == self.at or not self.found or status == _NONE)
        if status:
            self.ended = True
            self.pending = int(fields.get("Nats-Num-Pending", 0))
            self.problem = "" if status in (_END, _NONE) else f"{status} {fields.get('Description', '')}"
            return True
        self.at = int(fields["Nats-Sequence"])
        self.found.append(self._copy(fields["Nats-Subject"], self.at, fields["Nats-Time-Stamp"], headers, payload))
        return True


def _fields(headers: bytes) -> dict[str, str]:
    """Return raw headers by name; the line that they begin with is told as ``Status`` and ``Description``."""
    fields: dict[str, str] = {}
    if headers.startswith(_STATUS):
        first, _, headers = headers.partition(b"\r\n")
        fields["Status"], _, fields["Description"] = first[len(_STATUS) :].decode().strip().partition(" ")
    for line in headers.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            fields[name.decode()] = value.decode().strip()
    return fields
