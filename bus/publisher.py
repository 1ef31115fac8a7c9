"""Acknowledged publishes, pipelined.

Only an acknowledged JetStream publish counts: bytes handed to a socket that dies are lost, and a publish that timed out
may still land later. So each carries either a deterministic message id (the server keeps one copy within its duplicate
window) or a compare-and-set expectation, and one that went unconfirmed is simply sent again, unchanged, until the server
gives a definite answer.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from bus.errors import ApiError, BusError, ConflictError, PublishUnconfirmedError
from bus.express import Express
from bus.tasks import end

WRONG_LAST_SEQUENCE: Final = (10071, 10164)
_RETRYABLE: Final = frozenset((10008, 10023, 10039, 10077, 10097, 10118, 10158, 10167))
"""Leaderless, out of resources, in-flight limits, another's copy on its way to the replicas: the same may succeed in a moment."""

CONFIRM_TIMEOUT_S: Final = 2.0
"""How long one attempt waits for its acknowledgement before the publish is sent again."""


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""

    @property
    def transient(self) -> bool:
        """Whether the same publish may succeed in a moment."""
        return self.code in (0, 503) or self.err_code in _RETRYABLE


class Ack(msgspec.Struct, frozen=True):
    """The server stored the message (or already had it, when ``duplicate``) at ``seq`` of ``stream``."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


class Message(NamedTuple):
    """What one attempt sends."""

    subject: str
    payload: bytes
    headers: dict[str, str]


class Replacement(NamedTuple):
    """A message that replaces the one at ``expected`` on its subject; 0 when there must be none."""

    subject: str
    payload: bytes
    expected: int
    headers: dict[str, str] | None = None


def _merged(msg_id: str | None, expected: int | None, headers: dict[str, str] | None) -> dict[str, str]:
    merged = dict(headers or ())
    if msg_id is not None:
        merged["Nats-Msg-Id"] = msg_id
    if expected is not None:
        merged["Nats-Expected-Last-Subject-Sequence"] = str(expected)
    return merged


class PublisherStatistics(msgspec.Struct, frozen=True):
    """Counters since the publisher started. ``unconfirmed`` attempts were sent again."""

    published: int
    duplicates: int
    conflicts: int
    unconfirmed: int
    in_flight: int


_Answer = Ack | PublishUnconfirmedError


async def _ignore(_: Msg) -> None:
    """Nothing comes the client library's own way."""


_NOBODY: Final = Ack(error=_Error(503, 0, "no stream took the message"))
"""What a bare status means: nobody listens on the subject just now."""

_ack_decoder = msgspec.json.Decoder(Ack)


class Publisher:
    """Publishes with acknowledgement over one connection; at most ``window`` unconfirmed at once."""

    def __init__(self, client: Client, express: Express, inbox: str, *, window: int = 4096) -> None:
        self._client = client
        self._express = express
        self._inbox = inbox
        self._slots = asyncio.Semaphore(window)
        self.epoch = 0
        """Number of connections lost so far: what was sent in an earlier epoch is stored already or never will be."""
        self._waiting: dict[str, asyncio.Future[_Answer]] = {}
        self._deadlines: deque[tuple[float, str, str]] = deque()
        self._next = 0
        self._connected = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None
        self._published = self._duplicates = self._conflicts = self._unconfirmed = 0

    async def start(self) -> None:
        """Begin to listen for acknowledgements."""
        heard = await self._client.subscribe(f"{self._inbox}.*", cb=_ignore)
        self._express.attach(heard, self._on_ack)
        self._connected.set()
        self._sweeper = asyncio.create_task(self._sweep(), name="publisher-sweeper")

    async def stop(self) -> None:
        """Fail what is unconfirmed and stop listening."""
        await end(self._sweeper)
        self._fail_all("the connection was closed")

    def disconnected(self) -> None:
        """The connection is gone: everything unconfirmed is ambiguous from now on."""
        self.epoch += 1
        self._connected.clear()
        self._fail_all("the connection was lost")

    def reconnected(self) -> None:
        """The connection is back."""
        self._connected.set()

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        msg_id: str | None = None,
        expected: int | None = None,
        headers: dict[str, str] | None = None,
        epoch: int | None = None,
        timeout: float = 30.0,
    ) -> Ack:
        """Publish until the server gives a definite answer, for at most ``timeout`` seconds.

        Args:
            subject: Where to.
            payload: What.
            msg_id: Deterministic identity, ``Nats-Msg-Id``.
            expected: Compare-and-set: the stream sequence of the newest message on ``subject``; 0 when there must be none.
            headers: Further NATS headers.
            epoch: Send in this epoch only, for what must not arrive after somebody else has taken over.
            timeout: Seconds over all attempts.

        Raises:
            ConflictError: ``expected`` no longer holds.
            ApiError: The server refused the message for good.
            PublishUnconfirmedError: No definite answer came in time.
        """
        message = Message(subject, payload, _merged(msg_id, expected, headers))
        deadline = time.monotonic() + timeout
        attempt, cause = 0, "no connection"
        while (left := deadline - time.monotonic()) > 0:
            if epoch is not None and epoch != self.epoch:
                raise PublishUnconfirmedError(subject, "the connection was lost")
            try:
                ack = await (await self._send(message, left))
            except PublishUnconfirmedError as error:
                ack = error
            if isinstance(ack, PublishUnconfirmedError):
                cause = str(ack)
            else:
                if ack.error is None:
                    return self._count(ack)
                if ack.error.err_code in WRONG_LAST_SEQUENCE:
                    self._conflicts += 1
                    raise ConflictError(subject, expected, ambiguous=attempt > 0)
                if not ack.error.transient:
                    raise ApiError(f"publish on {subject}", ack.error.code, ack.error.err_code, ack.error.description)
                cause = ack.error.description
            attempt += 1
            self._unconfirmed += 1
            await asyncio.sleep(min(0.02 * 2**attempt, 0.5) * random.uniform(0.5, 1.0))  # noqa: S311  jitter
        raise PublishUnconfirmedError(subject, cause)

    async def publish_all(self, messages: Sequence[tuple[str, bytes, str]], *, timeout: float = 30.0) -> list[Ack]:
        """Publish many ``(subject, payload, msg_id)`` at once, pipelined, and return their acknowledgements in order.

        Cheaper than as many :meth:`publish` calls: no task per message. What goes unconfirmed is sent again one by one.

        Raises:
            ApiError, PublishUnconfirmedError: As for :meth:`publish`; those before it in order are stored.
        """
        deadline = time.monotonic() + timeout
        sent = [await self._send(Message(s, p, {"Nats-Msg-Id": i}), timeout) for s, p, i in messages]
        acks: list[Ack] = []
        for future, (subject, payload, msg_id) in zip(sent, messages, strict=True):
            ack = await future
            if isinstance(ack, PublishUnconfirmedError):
                self._unconfirmed += 1
            elif ack.error is None:
                acks.append(self._count(ack))
                continue
            left = max(deadline - time.monotonic(), 0.1)
            acks.append(await self.publish(subject, payload, msg_id=msg_id, timeout=left))
        return acks

    async def replace_all(self, messages: Sequence[Replacement], *, timeout: float = 30.0) -> list[Ack | BusError]:
        """Publish many at once, pipelined, each by compare-and-set, and return in order what became of each.

        One that is refused or unconfirmed stands as its error, of a kind that :meth:`publish` raises; the others are none
        the worse for it. Cheaper than as many :meth:`publish` calls: no task per message.
        """
        deadline = time.monotonic() + timeout
        sent = [
            await self._send(Message(m.subject, m.payload, _merged(None, m.expected, m.headers)), timeout)
            for m in messages
        ]
        results: list[Ack | BusError] = []
        for future, message in zip(sent, messages, strict=True):
            ack = await future
            if isinstance(ack, PublishUnconfirmedError):
                self._unconfirmed += 1
            elif ack.error is None:
                results.append(self._count(ack))
                continue
            elif ack.error.err_code in WRONG_LAST_SEQUENCE:
                self._conflicts += 1
                results.append(ConflictError(message.subject, message.expected))
                continue
            try:
                results.append(
                    await self.publish(
                        message.subject,
                        message.payload,
                        expected=message.expected,
                        headers=message.headers,
                        timeout=max(deadline - time.monotonic(), 0.1),
                    )
                )
            except BusError as error:
                results.append(error)
        return results

    def _count(self, ack: Ack) -> Ack:
        self._published += 1
        self._duplicates += ack.duplicate
        return ack

    async def _send(self, message: Message, left: float) -> asyncio.Future[_Answer]:
        """Write one message and return the future of its acknowledgement, or of the error that none came in time."""
        if not self._connected.is_set():
            try:
                async with asyncio.timeout(left):
                    await self._connected.wait()
            except TimeoutError:
                raise PublishUnconfirmedError(message.subject, "no connection") from None
        await self._slots.acquire()
        self._next += 1
        reply = f"{self._inbox}.{self._next}"
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = future
        self._deadlines.append((time.monotonic() + CONFIRM_TIMEOUT_S, reply, message.subject))
        try:
            # The headers are copied because the client library changes what it is given.
            await self._client.publish(
                message.subject, message.payload, reply=reply, headers=dict(message.headers) or None
            )
        except (nats.errors.Error, OSError) as error:
            self._settle(reply, PublishUnconfirmedError(message.subject, str(error) or type(error).__name__))
        return future

    def _settle(self, reply: str, answer: _Answer) -> None:
        """One attempt is over. It may be over already, and whoever waited for it may have gone."""
        future = self._waiting.pop(reply, None)
        if future is None:
            return
        self._slots.release()
        if not future.done():
            future.set_result(answer)

    def _on_ack(self, subject: bytes, _reply: bytes, _headers: bytes, payload: bytes) -> bool:
        try:
            ack = _ack_decoder.decode(payload) if payload else _NOBODY
        except msgspec.DecodeError as error:
            ack = Ack(error=_Error(0, 0, f"unreadable acknowledgement: {error}"))
        self._settle(subject.decode(), ack)
        return True

    async def _sweep(self) -> None:
        """Fail overdue attempts. One task for all of them: a timer per message would cost more than the message."""
        while True:
            await asyncio.sleep(0.25)
            now = time.monotonic()
            while self._deadlines and self._deadlines[0][0] <= now:
                _, reply, subject = self._deadlines.popleft()
                self._settle(reply, PublishUnconfirmedError(subject, "no acknowledgement in time"))

    def _fail_all(self, cause: str) -> None:
        self._deadlines.clear()
        for reply in list(self._waiting):
            self._settle(reply, PublishUnconfirmedError(reply, cause))

    def statistics(self) -> PublisherStatistics:
        """Return the counters of this publisher."""
        return PublisherStatistics(
            published=self._published,
            duplicates=self._duplicates,
            conflicts=self._conflicts,
            unconfirmed=self._unconfirmed,
            in_flight=len(self._waiting),
        )
