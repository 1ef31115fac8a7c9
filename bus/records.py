"""One record on one subject, read and replaced by compare-and-set: state that several processes share.

Whoever replaces a record names the sequence it has read; of two that read the same one, the second loses and reads again.
"""

from typing import Final, NamedTuple, TypeVar

import msgspec
import nats.errors

from bus.codec import decode_as, encode
from bus.connection import API_TIMEOUT_S, Bus
from bus.errors import BusError
from bus.stored import find
from bus.streams import TOMBSTONE_TTL_S
from schemas.event import Event

T = TypeVar("T", bound=msgspec.Struct)


class Stored(NamedTuple):
    """The newest message of a subject: its sequence, 0 for none, and its body, empty for none or a tombstone."""

    seq: int
    payload: bytes


_NOTHING_THERE: Final = "404"


async def latest(bus: Bus, stream: str, subject: str) -> Stored:
    """Ask the stream's leader for the newest message on ``subject``.

    Raises:
        BusError: The leader did not answer.
    """
    try:
        message = await find(bus, stream, last_by_subj=subject)
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BusError(f"{subject} could not be read: {str(error) or type(error).__name__}") from None
    return Stored(message.seq, message.data) if message is not None else Stored(0, b"")


async def nearest(bus: Bus, stream: str, subject: str) -> Stored:
    """Ask any server that has the stream for the newest message on ``subject``; it may lag a little behind the leader.

    The question names the subject where the bus can see it, so that somebody may be let read this one and no other.

    Raises:
        BusError: Nobody answered.
    """
    try:
        reply = await bus.client.request(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", timeout=API_TIMEOUT_S)
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BusError(f"{subject} could not be read: {str(error) or type(error).__name__}") from None
    headers = reply.headers or {}
    if "Nats-Sequence" in headers:
        return Stored(int(headers["Nats-Sequence"]), reply.data)
    if headers.get("Status") == _NOTHING_THERE:
        return Stored(0, b"")
    raise BusError(f"{subject} could not be read: {headers.get('Status', '')} {headers.get('Description', '')}")


async def peek(bus: Bus, stream: str, subject: str, struct: type[T]) -> T | None:
    """Return what the newest record says as :func:`nearest` finds it, or None where there is none.

    Raises:
        UndecodableError: It is no such record.
        BusError: Nobody answered.
    """
    stored = await nearest(bus, stream, subject)
    return decode_as(struct, stored.payload).data if stored.payload else None


async def read(bus: Bus, stream: str, subject: str, struct: type[T]) -> tuple[int, T | None]:
    """Return the sequence of the newest record and what it says, or None where there is none.

    Raises:
        UndecodableError: It is no such record.
        BusError: The leader did not answer.
    """
    stored = await latest(bus, stream, subject)
    return stored.seq, decode_as(struct, stored.payload).data if stored.payload else None


async def replace(bus: Bus, subject: str, event: Event[T], *, expected: int, timeout: float = 10.0) -> int:
    """Replace the record at sequence ``expected``, 0 for none, and return the sequence of the new one.

    Raises:
        ConflictError: There is a newer one. When the conflict is ambiguous it may be this one: read it.
        PublishUnconfirmedError: No definite answer in time.
    """
    return (await bus.publisher.publish(subject, encode(event), expected=expected, timeout=timeout)).seq


async def erase(bus: Bus, subject: str, *, expected: int) -> None:
    """Put a tombstone in place of the record at sequence ``expected``.

    Raises:
        ConflictError: There is a newer one.
    """
    headers = {"Nats-TTL": f"{TOMBSTONE_TTL_S}s"}
    await bus.publisher.publish(subject, b"", expected=expected, headers=headers)
