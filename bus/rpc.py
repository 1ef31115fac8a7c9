"""Request/reply services: any number of responders in one queue group, each request answered by one of them."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import nats.errors
from nats.aio.msg import Msg

from bus.connection import Bus
from bus.errors import CallError
from bus.subjects import rpc

log = logging.getLogger("gpubus.bus")

Request = TypeVar("Request")
Response = TypeVar("Response")

_ERROR_HEADER = "Gpubus-Error"


class ServiceStatistics(msgspec.Struct, frozen=True):
    """Counters since the responder started."""

    answered: int
    failed: int
    in_flight: int


class Service:
    """One responder of the service ``name``.

    Args:
        bus: The connection.
        name: Service name; the subject is ``gpubus.rpc.<name>``.
        request_type: What requests decode to.
        handler: Gives the answer. What it raises reaches the caller as an error with the exception's text.
        concurrency: Requests handled at once; further ones wait.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        request_type: type[Any],
        handler: Callable[[Any], Awaitable[object]],
        *,
        concurrency: int = 64,
    ) -> None:
        self._bus = bus
        self._subject = rpc(name)
        self._decoder = msgspec.json.Decoder(request_type)
        self._handler = handler
        self._slots = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._answered = self._failed = 0
        self._subscription: Any = None

    async def start(self) -> None:
        """Join the queue group and begin to answer."""
        self._subscription = await self._bus.client.subscribe(self._subject, queue="gpubus", cb=self._on_request)

    async def stop(self, *, drain_s: float = 5.0) -> None:
        """Leave the group, then let running requests finish, within ``drain_s`` seconds."""
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._subscription.unsubscribe()
        if self._running:
            await asyncio.wait(self._running, timeout=drain_s)

    async def _on_request(self, message: Msg) -> None:
        await self._slots.acquire()
        task = asyncio.create_task(self._answer(message))
        self._running.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()

    async def _answer(self, message: Msg) -> None:
        headers: dict[str, str] | None = None
        try:
            body = msgspec.json.encode(await self._handler(self._decoder.decode(message.data)))
            self._answered += 1
        except Exception as error:  # the caller must hear of it, whatever it is
            self._failed += 1
            body, headers = b"", {_ERROR_HEADER: f"{type(error).__name__}: {error}".replace("\n", " ")}
            log.info("%s failed", self._subject, exc_info=error)
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._bus.client.publish(message.reply, body, headers=headers)

    def statistics(self) -> ServiceStatistics:
        """Return the counters of this responder."""
        return ServiceStatistics(answered=self._answered, failed=self._failed, in_flight=len(self._running))


async def call(
    bus: Bus, name: str, request: object, response_type: type[Response], *, timeout: float = 2.0
) -> Response:
    """Ask any responder of ``name`` and decode its answer.

    Raises:
        CallError: Nobody answers, no answer came in time, the handler failed, or its answer has another shape.
    """
    try:
        reply = await bus.client.request(rpc(name), msgspec.json.encode(request), timeout=timeout)
    except nats.errors.NoRespondersError:
        raise CallError(name, "nobody answers; is that role running?") from None
    except (nats.errors.Error, TimeoutError):
        raise CallError(name, f"no answer within {timeout:g} s") from None
    if (failure := (reply.headers or {}).get(_ERROR_HEADER)) is not None:
        raise CallError(name, failure)
    try:
        return msgspec.json.decode(reply.data, type=response_type)
    except msgspec.DecodeError as error:
        raise CallError(name, f"unexpected answer: {error}") from None
