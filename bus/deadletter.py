"""Dead letters: messages that could not be handled, kept with their reason until somebody looks.

A letter lives on ``gpubus.dead.<stream>.<sequence of the original>``, so a message that several readers give up makes one
letter. ``retry`` publishes the original where it was and drops the letter.
"""

import logging
import time
from collections.abc import AsyncIterator

from bus.codec import decode_as, encode
from bus.connection import Bus
from bus.errors import BusError, UndecodableError
from bus.stored import find
from bus.streams import DEAD, LEDGER, STATE
from bus.subjects import subject, token
from schemas.deadletter import DeadLetter
from schemas.event import Event, utc

log = logging.getLogger("gpubus.bus")


class NoSuchLetterError(BusError):
    """There is no letter for that message: it never died, or the letter was retried or expired."""


class NotRetryableError(BusError):
    """The message is no command: on its stream the newest message counts, and a retry would replace it by an old one."""


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


async def list_letters(bus: Bus) -> AsyncIterator[Event[DeadLetter]]:
    """Yield the letters from the oldest to the newest, one at a time: each carries a whole message.

    What lies among them and is no letter is logged and passed over.
    """
    seq = 0
    while True:
        message = await find(bus, DEAD, seq=seq + 1, next_by_subj=subject("dead") + ".>")
        if message is None:
            return
        seq = message.seq
        try:
            yield decode_as(DeadLetter, message.data)
        except UndecodableError as error:
            log.warning("%s %d is no dead letter: %s", DEAD, seq, error.reason)


async def get_event(bus: Bus, stream: str, sequence: int) -> Event[DeadLetter]:
    """Read one letter with the event that buried it, whose time says when that was.

    Raises:
        NoSuchLetterError: There is none for that message.
    """
    message = await find(bus, DEAD, last_by_subj=subject("dead", stream, str(sequence)))
    if message is None:
        raise NoSuchLetterError(f"no dead letter {token(stream)}/{sequence}: `gpubus dead list` shows those there are")
    return decode_as(DeadLetter, message.data)


async def get_letter(bus: Bus, stream: str, sequence: int) -> DeadLetter:
    """Read one letter.

    Raises:
        NoSuchLetterError: There is none for that message.
    """
    return (await get_event(bus, stream, sequence)).data


async def retry_letter(bus: Bus, stream: str, sequence: int) -> DeadLetter:
    """Publish the original message again where it was, then drop the letter.

    Raises:
        NoSuchLetterError: There is no such letter.
        NotRetryableError: The message was in STATE or LEDGER.
    """
    letter = await get_letter(bus, stream, sequence)
    if letter.stream in (STATE, LEDGER):
        raise NotRetryableError(
            f"{letter.stream}/{letter.sequence} cannot be retried: published again it would replace what is newer on "
            f"{letter.subject}; let its producer publish it anew"
        )
    await bus.publisher.publish(letter.subject, letter.payload, msg_id=f"retry:{stream}:{sequence}:{time.time_ns()}")
    await _purge(bus, stream, sequence)
    return letter


async def drop_letter(bus: Bus, stream: str, sequence: int) -> DeadLetter:
    """Drop a letter that nobody needs any more, and return it.

    Raises:
        NoSuchLetterError: There is no such letter.
    """
    letter = await get_letter(bus, stream, sequence)
    await _purge(bus, stream, sequence)
    return letter


async def _purge(bus: Bus, stream: str, sequence: int) -> None:
    await bus.api(f"STREAM.PURGE.{DEAD}", {"filter": subject("dead", stream, str(sequence))})
