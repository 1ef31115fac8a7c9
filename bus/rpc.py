"""Request/reply services: any number of responders in one queue group, each request answered by one of them."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_hex
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import nats.errors
from nats.aio.msg import Msg

from bus import direct
from bus.connection import Bus
from bus.errors import CallError, CallTimeoutError, NoResponderError
from bus.subjects import rpc

log = logging.getLogger("gpubus.bus")

Request = TypeVar("Request")
Response = TypeVar("Response")

_ERROR_HEADER: Final = "Gpubus-Error"
_NOBODY: Final = "503"
_PARTS_HEADER: Final = "Gpubus-Parts"
"""How many messages an answer comes in, on each of them. One connection's messages arrive in order."""

PART: Final = 512 << 10
"""Bytes of an answer in one message: half of what a NATS server takes by default."""

LARGEST: Final = 64 << 20
"""Bytes of an answer altogether: what a caller must be ready to hold."""

LATER: Final = object()
"""What ``at_once`` of a :class:`Service` returns for a request that takes waiting."""


class ServiceStatistics(msgspec.Struct, frozen=True):
    """Counters since the responder started."""

    answered: int
    failed: int
    in_flight: int


class Service:
    """One responder of the service ``name``. Answers above :data:`PART` bytes go to callers of :func:`gather` only.

    Args:
        bus: The connection.
        name: Service name; the subject is ``gpubus.rpc.<name>``.
        request_type: What requests decode to: a type or a union.
        handler: Gives the answer. What it raises reaches the caller as an error with the exception's text. Not needed where
            ``at_once`` answers everything.
        at_once: Gives the answer of a request for which nothing has to be waited for, and :data:`LATER` for one that is the
            handler's. It spares those a task each, which is a tenth of the time of a short one.
        concurrency: Requests handled at once; further ones wait.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        request_type: Any,
        handler: Callable[[Any], Awaitable[object]] | None = None,
        *,
        at_once: Callable[[Any], object] | None = None,
        concurrency: int = 64,
    ) -> None:
        self._bus = bus
        self._subject = rpc(name)
        self._decoder = msgspec.json.Decoder(request_type)
        self._handler = handler
        self._at_once = at_once
        self._slots = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._answered = self._failed = 0
        self._subscription: Any = None

    async def start(self) -> None:
        """Join the queue group and begin to answer."""
        client = self._bus.client
        if self._at_once is None:
            self._subscription = await client.subscribe(self._subject, queue="gpubus", cb=self._on_request)
        else:
            self._subscription = await direct.subscribe(
                client, self._subject, partial(self._on_short, self._at_once), queue="gpubus"
            )

    async def stop(self, *, drain_s: float = 5.0) -> None:
        """Leave the group, then let running requests finish, within ``drain_s`` seconds."""
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._subscription.unsubscribe()
        if self._running:
            await asyncio.wait(self._running, timeout=drain_s)

    def _on_short(self, at_once: Callable[[Any], object], message: Msg) -> None:
        try:
            answer = at_once(self._decoder.decode(message.data))
        except Exception as error:  # noqa: BLE001  the caller must hear of it, whatever it is
            answer = error
        if answer is not LATER:
            self._say(message.reply, answer)
            return
        task = asyncio.create_task(self._in_turn(message))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _in_turn(self, message: Msg) -> None:
        async with self._slots:
            await self._answer(message)

    async def _on_request(self, message: Msg) -> None:
        await self._slots.acquire()
        task = asyncio.create_task(self._answer(message))
        self._running.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()

    async def _answer(self, message: Msg) -> None:
        answer: object
        try:
            assert self._handler is not None, "at_once answers everything"  # noqa: S101
            answer = await self._handler(self._decoder.decode(message.data))
        except Exception as error:  # noqa: BLE001  the caller must hear of it, whatever it is
            answer = error
        self._say(message.reply, answer)

    def _say(self, reply: str, answer: object) -> None:
        body, error = b"", answer if isinstance(answer, Exception) else None
        if error is None:
            try:
                body = _encoded(answer)
            except (TypeError, ValueError) as unspeakable:
                error = unspeakable
        headers = None
        if error is None:
            self._answered += 1
        else:
            self._failed += 1
            headers = {_ERROR_HEADER: f"{type(error).__name__}: {error}".replace("\n", " ")}
            log.info("%s failed", self._subject, exc_info=error)
        parts = [body[start : start + PART] for start in range(0, len(body), PART)] or [b""]
        if len(parts) > 1:
            headers = {_PARTS_HEADER: str(len(parts))}
        with contextlib.suppress(nats.errors.Error, OSError):
            for part in parts:
                direct.publish(self._bus.client, reply, part, headers)

    def statistics(self) -> ServiceStatistics:
        """Return the counters of this responder."""
        return ServiceStatistics(answered=self._answered, failed=self._failed, in_flight=len(self._running))


class _Caller:
    """What one connection has asked and waits for: one subscription for all answers.

    As the client library's own ``request`` does it, without two task switches and a system call for randomness per request.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._prefix = f"{bus.inbox}.rpc."
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._asked = 0
        self._subscribed = False

    async def ask(self, subject: str, payload: bytes, timeout: float, again: float) -> Msg:
        """Return the first answer. The request is sent again every ``again`` seconds until one has come.

        Raises:
            TimeoutError: None came in time.
            nats.errors.Error, OSError: The request could not be sent.
        """
        if not self._subscribed:
            self._subscribed = True
            await direct.subscribe(self._bus.client, f"{self._prefix}*", self._on_answer)
        self._asked += 1
        reply = f"{self._prefix}{self._asked}"
        loop = asyncio.get_running_loop()
        future = self._waiting[reply] = loop.create_future()
        deadline = loop.time() + timeout
        timer: asyncio.TimerHandle

        def late() -> None:
            nonlocal timer
            left = deadline - loop.time()
            if future.done():
                return
            if left <= 0:
                future.set_exception(TimeoutError())
                return
            with contextlib.suppress(nats.errors.Error, OSError):
                direct.publish(self._bus.client, subject, payload, reply=reply)
            timer = loop.call_later(min(again, left), late)

        timer = loop.call_later(min(again, timeout), late)
        try:
            await self._bus.client.publish(subject, payload, reply=reply)
            answer: Msg = await future
            return answer
        finally:
            timer.cancel()
            del self._waiting[reply]

    def _on_answer(self, message: Msg) -> None:
        future = self._waiting.get(message.subject)
        if future is not None and not future.done():
            future.set_result(message)


_callers: WeakKeyDictionary[Bus, _Caller] = WeakKeyDictionary()


async def call(
    bus: Bus,
    name: str,
    request: object,
    response_type: type[Response],
    *,
    timeout: float = 2.0,
    again: float = math.inf,
) -> Response:
    """Ask any responder of ``name`` and decode its answer.

    Args:
        bus: The connection.
        name: Service name.
        request: What is asked.
        response_type: What the answer decodes to.
        timeout: Seconds until an answer must have come.
        again: Seconds after which another responder is asked as well, and so on; whoever answers first counts. For requests
            that may be answered twice: one that died over it is made up for, and one that is only slow is not asked in vain.

    Raises:
        NoResponderError: Nobody answers.
        CallTimeoutError: No answer came in time.
        CallError: The handler failed, or its answer has another shape.
    """
    caller = _callers.get(bus)
    if caller is None:
        caller = _callers[bus] = _Caller(bus)
    try:
        reply = await caller.ask(rpc(name), msgspec.json.encode(request), timeout, again)
    except (nats.errors.Error, OSError):  # a timeout is one of the latter
        raise _late(name, timeout) from None
    headers = reply.headers or {}
    if not reply.data and headers.get("Status") == _NOBODY:
        raise _nobody(name)
    if _PARTS_HEADER in headers:
        raise CallError(name, "the answer comes in parts: gather it")
    return _decoded(name, headers, reply.data, response_type)


async def gather(
    bus: Bus, name: str, request: object, response_type: type[Response], *, timeout: float = 2.0
) -> Response:
    """Ask as :func:`call` does, for an answer that may be larger than one message.

    Raises:
        CallError: As for :func:`call`.
    """
    inbox = f"{bus.inbox}.parts.{token_hex(8)}"
    subscription = await bus.client.subscribe(inbox)
    parts: list[bytes] = []
    headers: dict[str, str] = {}
    try:
        async with asyncio.timeout(timeout):
            await bus.client.publish(rpc(name), msgspec.json.encode(request), reply=inbox)
            while len(parts) < int(headers.get(_PARTS_HEADER, "1")):
                message = await subscription.next_msg(None)
                headers = message.headers or {}
                if not message.data and headers.get("Status") == _NOBODY:
                    raise _nobody(name)
                parts.append(message.data)
    except (nats.errors.Error, OSError):
        raise _late(name, timeout) from None
    finally:
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()
    return _decoded(name, headers, b"".join(parts), response_type)


def _encoded(answer: object) -> bytes:
    body = msgspec.json.encode(answer)
    if len(body) > LARGEST:
        raise ValueError(f"the answer is {len(body)} bytes, above {LARGEST}: ask for less")
    return body


def _nobody(name: str) -> CallError:
    return NoResponderError(name, "nobody answers; is that role running?")


def _late(name: str, timeout: float) -> CallError:
    return CallTimeoutError(name, f"no answer within {timeout:g} s")


def _decoded(name: str, headers: dict[str, str], body: bytes, response_type: type[Response]) -> Response:
    if (failure := headers.get(_ERROR_HEADER)) is not None:
        raise CallError(name, failure)
    try:
        return msgspec.json.decode(body, type=response_type)
    except msgspec.DecodeError as error:
        raise CallError(name, f"unexpected answer: {error}") from None
