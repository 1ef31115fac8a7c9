"""What streams hold, read directly: in order, from anywhere, without a consumer, so that nothing is taken from anybody.

A consumer on a work queue would compete for its messages. Direct reads do not, they work the same on every stream, and a
reader that asks for "the next one behind sequence n" resumes where it was after the server was away.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from secrets import token_hex
from typing import Any, Final

import msgspec
import nats.errors

from bus.connection import Bus
from bus.errors import ApiError
from bus.streams import StreamLimits, StreamState, declarations, stream_info

log = logging.getLogger("gpubus.cli")

BATCH: Final = 256
ANSWER_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.2
_RETRY_S: Final = 1.0
_NO_MORE: Final = ("204", "404")


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One stored message. An empty payload marks the deletion of what the subject named."""

    stream: str
    subject: str
    seq: int
    stored_at: datetime
    payload: bytes


def narrowed(pattern: str, subject: str) -> str | None:
    """Return the pattern of what two subject patterns have in common, or None when that is nothing."""
    left, right = pattern.split("."), subject.split(".")
    common: list[str] = []
    for i in range(max(len(left), len(right))):
        if i >= len(left) or i >= len(right):
            return None
        if left[i] == ">":
            return ".".join((*common, *right[i:]))
        if right[i] == ">":
            return ".".join((*common, *left[i:]))
        if left[i] != right[i] and "*" not in (left[i], right[i]):
            return None
        common.append(right[i] if left[i] == "*" else left[i])
    return ".".join(common)


def sources(pattern: str) -> list[tuple[str, str]]:
    """Return the streams that can hold what a pattern names, each with the part of the pattern that it holds."""
    found = []
    for config in declarations(StreamLimits()):
        for subject in config.subjects or ():
            common = narrowed(pattern, subject)
            if common is not None:
                found.append((config.name or "", common))
    return found


def words() -> list[str]:
    """Return the words that may follow the prefix in a stored subject."""
    return list(
        dict.fromkeys(s.split(".")[1] for config in declarations(StreamLimits()) for s in config.subjects or ())
    )


async def _read(bus: Bus, stream: str, request: dict[str, Any]) -> tuple[list[Entry], int]:
    """Return the answers to one direct read, and how many matching messages there are behind them."""
    inbox = f"{bus.inbox}.read.{token_hex(6)}"
    subscription = await bus.client.subscribe(inbox)
    entries: list[Entry] = []
    try:
        await bus.client.publish(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(request), reply=inbox)
        while True:
            message = await subscription.next_msg(ANSWER_TIMEOUT_S)
            headers = message.headers or {}
            status = headers.get("Status")
            if status in _NO_MORE:
                return entries, int(headers.get("Nats-Num-Pending", 0))
            if status == "503":
                raise nats.errors.NoRespondersError
            if status is not None:
                raise ApiError(f"DIRECT.GET.{stream}", int(status), 0, headers.get("Description", "no reason given"))
            entries.append(
                Entry(
                    stream,
                    headers["Nats-Subject"],
                    int(headers["Nats-Sequence"]),
                    datetime.fromisoformat(headers["Nats-Time-Stamp"]),
                    message.data,
                )
            )
    finally:
        await subscription.unsubscribe()


class Lane:
    """Reads one subject pattern of one stream from a sequence on, up to what was there at first if it is ``bounded``."""

    def __init__(self, bus: Bus, stream: str, pattern: str, extent: StreamState) -> None:
        self._bus = bus
        self.stream = stream
        self._pattern = pattern
        self._extent = extent
        self.next = extent.last_seq + 1
        self.waiting: deque[Entry] = deque()
        self.bounded = False

    def from_sequence(self, seq: int) -> None:
        """Begin at a sequence."""
        self.next = max(seq, 1)

    async def from_time(self, at: datetime) -> None:
        """Begin with what was stored at an instant or later."""
        request = {"start_time": at, "next_by_subj": self._pattern, "batch": 1}
        found, _ = await _read(self._bus, self.stream, request)
        if found:
            self.next = found[0].seq

    async def from_last(self, count: int) -> None:
        """Begin so that ``count`` messages are left to read, or all when there are fewer.

        Other subjects lie in between, so the place is found by bisection: the server tells how many follow a sequence.
        """
        low, high = max(self._extent.first_seq, 1), self._extent.last_seq + 1
        while low < high:
            middle = (low + high + 1) // 2
            if await self._left(middle) >= count:
                low = middle
            else:
                high = middle - 1
        self.next = low

    async def _left(self, seq: int) -> int:
        found, behind = await _read(self._bus, self.stream, {"seq": seq, "next_by_subj": self._pattern, "batch": 1})
        return len(found) + behind

    async def fill(self) -> None:
        """Fetch the next messages; nothing happens when there are none."""
        if self.bounded and self.next > self._extent.last_seq:
            return
        entries, _ = await _read(
            self._bus, self.stream, {"seq": self.next, "next_by_subj": self._pattern, "batch": BATCH}
        )
        kept = [entry for entry in entries if not self.bounded or entry.seq <= self._extent.last_seq]
        self.waiting.extend(kept)
        if kept:
            self.next = kept[-1].seq + 1
        elif entries:
            self.next = self._extent.last_seq + 1  # what came later is for whoever follows


async def lanes(bus: Bus, pattern: str) -> list[Lane]:
    """Return a lane, at its end, for every source of a pattern. Streams that this bus has not declared are left out."""
    opened = []
    for stream, part in sources(pattern):
        try:
            opened.append(Lane(bus, stream, part, (await stream_info(bus, stream)).state))
        except ApiError as error:
            log.info("stream %s is left out: %s", stream, error.description)
    return opened


async def merged(opened: Sequence[Lane], *, follow: bool) -> AsyncGenerator[Entry]:
    """Yield what the lanes hold in the order in which it was stored, then, if ``follow``, what comes.

    Raises:
        nats.errors.Error, TimeoutError: The server stopped answering; only without ``follow``, which waits for its return.
    """
    away = False
    for lane in opened:
        lane.bounded = not follow
    while True:
        current = list(opened)
        while current:
            try:
                await asyncio.gather(*(lane.fill() for lane in current if not lane.waiting))
            except (nats.errors.Error, TimeoutError, OSError) as error:
                if not follow:
                    raise
                if not away:
                    log.warning("the bus does not answer, waiting for it: %s", error or type(error).__name__)
                away = True
                await asyncio.sleep(_RETRY_S)
                continue
            away = False
            current = [lane for lane in current if lane.waiting]
            # A lane that runs dry may hold an older message than the others' next: ask it before going on.
            while current and all(lane.waiting for lane in current):
                oldest = min(current, key=lambda lane: (lane.waiting[0].stored_at, lane.waiting[0].seq))
                yield oldest.waiting.popleft()
        if not follow:
            return
        await asyncio.sleep(POLL_S)
