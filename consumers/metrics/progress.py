"""How far the metrics store has been written: what the bus knows of the recorders, whichever store they write to.

Recorders acknowledge a message once its rows are stored, so everything before the oldest message that is not acknowledged can be
queried. That holds for any number of recorders, and tells of one that is dead, behind or kept from writing all alike.
"""

from datetime import UTC, datetime
from typing import Final

import msgspec
import nats.errors

from bus import subjects
from bus.codec import decode_as
from bus.connection import Bus
from bus.errors import ApiError, BusError, UndecodableError
from bus.origin import nanoseconds
from bus.records import latest
from bus.stored import find
from bus.streams import STATE, USAGE
from schemas.record import RecorderCounters

USAGE_DURABLE: Final = "recorder-usage"
"""Name that all recorders share as consumers of usage."""

USAGE_SUBJECTS: Final = "gpubus.usage.>"
COUNTERS: Final = subjects.state("recorder", "counters")

_NO_CONSUMER: Final = 10014
_NS: Final = 1_000_000_000


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far recorders are. Times are the bus's, in nanoseconds since the epoch.

    Attributes:
        at: When this was so.
        usage: All usage that the bus had stored before this is in the metrics store; None when no recorder ever ran.
        snapshot: The newest snapshot of the cluster in the metrics store; 0 when there is none.
        refused: When the metrics store last refused usage for good; 0 for never.
    """

    at: int
    usage: int | None
    snapshot: int
    refused: int = 0


class _Floor(msgspec.Struct):
    stream_seq: int = 0


class _Consumer(msgspec.Struct):
    ts: str
    ack_floor: _Floor
    num_pending: int = 0
    num_ack_pending: int = 0


_consumer = msgspec.json.Decoder(_Consumer)


async def progress(bus: Bus) -> Progress:
    """Ask how far recorders are.

    Raises:
        BusError: The bus did not answer.
    """
    try:
        return await _progress(bus)
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BusError(f"how far metrics are recorded is not known: {str(error) or type(error).__name__}") from None


async def _progress(bus: Bus) -> Progress:
    stored = await latest(bus, STATE, COUNTERS)
    try:
        counted = decode_as(RecorderCounters, stored.payload).data if stored.payload else RecorderCounters()
    except UndecodableError:
        counted = RecorderCounters()  # recorders replace it with their next one
    try:
        found = _consumer.decode(await bus.api(f"CONSUMER.INFO.{USAGE}.{USAGE_DURABLE}"))
    except ApiError as error:
        if error.err_code != _NO_CONSUMER:
            raise
        return Progress(at=int(datetime.now(UTC).timestamp() * _NS), usage=None, snapshot=counted.slot)
    at = nanoseconds(found.ts)
    waiting = found.num_pending or found.num_ack_pending
    # Of what waits some may be gone from the stream: the first that is still there is the oldest that can yet be written.
    oldest = await _first(bus, {"seq": found.ack_floor.stream_seq + 1}) if waiting else None
    return Progress(at=at, usage=at if oldest is None else oldest, snapshot=counted.slot, refused=counted.refused_at)


async def said(bus: Bus, begin: int, end: int, *, node: str = "") -> bool:
    """Whether the bus holds usage, of one node or any, that it stored from ``begin`` until before ``end``, in ns since the epoch.

    Raises:
        BusError: The bus did not answer.
    """
    start = f"{datetime.fromtimestamp(begin // _NS, UTC):%Y-%m-%dT%H:%M:%S}.{begin % _NS:09}Z"
    try:
        first = await _first(bus, {"start_time": start}, subjects.usage_gpu(node) if node else USAGE_SUBJECTS)
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BusError(f"usage could not be looked for: {str(error) or type(error).__name__}") from None
    return first is not None and first < end


async def _first(bus: Bus, where: dict[str, object], subject: str = USAGE_SUBJECTS) -> int | None:
    """Return when the first usage message from a sequence or an instant on was stored; None when there is none."""
    message = await find(bus, USAGE, **where, next_by_subj=subject)
    return message.time_ns if message is not None else None
