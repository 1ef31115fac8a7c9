"""Dead letters: messages that could not be handled, kept with their reason until somebody looks.

A letter lives on ``gpubus.dead.<stream>.<sequence of the original>``, so a message that several readers give up makes one
letter. ``retry`` publishes the original where it was and drops the letter.
"""

import time

import msgspec

from bus.codec import decode_as, encode
from bus.connection import Bus
from bus.errors import ApiError, BusError
from bus.streams import DEAD
from bus.subjects import subject, token
from schemas.deadletter import DeadLetter
from schemas.event import Event, utc


class _StoredMessage(msgspec.Struct):
    subject: str
    seq: int
    data: bytes = b""


class _Got(msgspec.Struct):
    message: _StoredMessage


_got = msgspec.json.Decoder(_Got)


async def bury(bus: Bus, letter: DeadLetter) -> None:
    """Store a dead letter; storing the same one again does nothing."""
    event = Event(
        id=f"dead:{letter.stream}:{letter.sequence}:{letter.published_at.timestamp():.6f}",
        source=f"/gpubus/{letter.consumer}",
        type="gpubus.dead.v1",
        subject=letter.subject,
        time=utc(time.time()),
        data=letter,
    )
    where = subject("dead", letter.stream, str(letter.sequence))
    await bus.publisher.publish(where, encode(event), msg_id=event.id)


async def get_letter(bus: Bus, stream: str, sequence: int) -> DeadLetter:
    """Read one letter.

    Raises:
        BusError: There is none for that message.
    """
    where = subject("dead", stream, str(sequence))
    try:
        reply = await bus.api(f"STREAM.MSG.GET.{DEAD}", {"last_by_subj": where})
    except ApiError as error:
        raise BusError(
            f"no dead letter {token(stream)}/{sequence}: `gpubus dead list` shows those there are"
        ) from error
    return decode_as(DeadLetter, _got.decode(reply).message.data).data


async def retry_letter(bus: Bus, stream: str, sequence: int) -> DeadLetter:
    """Publish the original message again where it was, then drop the letter.

    Raises:
        BusError: There is no such letter.
    """
    letter = await get_letter(bus, stream, sequence)
    await bus.publisher.publish(letter.subject, letter.payload, msg_id=f"retry:{stream}:{sequence}:{time.time_ns()}")
    await bus.api(f"STREAM.PURGE.{DEAD}", {"filter": subject("dead", stream, str(sequence))})
    return letter
