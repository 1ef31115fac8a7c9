"""A message lent to one member of a consumer's group, and what may become of it."""

import asyncio
from typing import Any, Final, Protocol

import msgspec
from nats.aio.msg import Msg

from bus.codec import decode
from bus.connection import Bus
from bus.deadletter import bury
from bus.position import position
from schemas.deadletter import DeadLetter
from schemas.event import Event, utc

_NS: Final = 1_000_000_000


class ConsumerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A durable pull consumer.

    Attributes:
        stream: Stream it reads.
        durable: Name that all members of the group share.
        filters: Subjects it takes.
        ack_wait_s: Seconds after which an unacknowledged message goes to another member.
        max_deliver: Deliveries after which a message is dead-lettered unhandled.
        max_ack_pending: Unacknowledged messages over the whole group.
    """

    stream: str
    durable: str
    filters: tuple[str, ...]
    ack_wait_s: float = 30.0
    max_deliver: int = 5
    max_ack_pending: int = 10_000


class Lender(Protocol):
    """The consumer behind a delivery: it tells the server, and counts."""

    bus: Bus
    spec: ConsumerSpec
    acked: int
    retried: int
    buried: int

    async def answer(self, reply: str, body: bytes) -> None:
        """Tell the server about one delivery."""


class Delivery:
    """One message lent to this member until it says what became of it."""

    __slots__ = ("_consumer", "_message", "epoch", "expires", "position")

    def __init__(self, consumer: Lender, message: Msg, expires: float) -> None:
        self._consumer = consumer
        self._message = message
        self.position = position(message.reply)
        self.epoch = consumer.bus.epoch
        """Epoch of the connection that it came by."""
        self.expires = expires
        """Loop time at which the server gives the message to somebody else."""

    @property
    def subject(self) -> str:
        """NATS subject."""
        return self._message.subject

    @property
    def payload(self) -> bytes:
        """The body."""
        return self._message.data

    def event(self) -> Event[Any]:
        """Decode the body.

        Raises:
            UndecodableError: It is not a valid event.
        """
        return decode(self._message.data)

    @property
    def lapsed(self) -> bool:
        """Whether the server may have given the message to somebody else by now.

        A lost connection ends the lease too: a server that was killed may have forgotten whom it had lent what.
        """
        return self.epoch != self._consumer.bus.epoch or asyncio.get_running_loop().time() >= self.expires

    async def ack(self) -> None:
        """Say that the work is done. If this is lost the message comes again: handlers are idempotent."""
        self._consumer.acked += 1
        await self._consumer.answer(self._message.reply, b"+ACK")

    async def retry(self, delay_s: float = 0.0) -> None:
        """Give it back, to be delivered again after ``delay_s`` seconds; nothing to do once it has lapsed."""
        if self.lapsed:
            return
        self._consumer.retried += 1
        body = b"-NAK" if delay_s <= 0 else b"-NAK " + msgspec.json.encode({"delay": int(delay_s * _NS)})
        await self._consumer.answer(self._message.reply, body)

    async def dead(self, reason: str) -> None:
        """Move it to DEAD with the reason, then take it off the queue."""
        spec = self._consumer.spec
        letter = DeadLetter(
            stream=spec.stream,
            subject=self._message.subject,
            sequence=self.position.seq,
            consumer=spec.durable,
            deliveries=self.position.deliveries,
            reason=reason,
            payload=self._message.data,
            published_at=utc(self.position.time_ns / _NS),
            headers=dict(self._message.headers or {}),
        )
        await bury(self._consumer.bus, letter)
        self._consumer.buried += 1
        await self._consumer.answer(self._message.reply, b"+TERM")

    async def extend(self) -> None:
        """Ask for another ``ack_wait``."""
        self.expires = asyncio.get_running_loop().time() + self._consumer.spec.ack_wait_s
        await self._consumer.answer(self._message.reply, b"+WPI")
