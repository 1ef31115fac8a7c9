"""One connection to the bus, with everything built on it.

nats-py stops reading or never reconnects when one of its callbacks raises, so ours only set flags and schedule work.
It also buffers publishes while disconnected and sends them on reconnect, long after their author gave up; buffering is
off here, and :class:`bus.publisher.Publisher` decides what to send again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from secrets import token_hex
from typing import Any, Final, Self

import msgspec
import nats
import nats.errors
from nats.aio.client import Client

from bus.errors import ApiError, BusUnreachableError, SecurityError
from bus.express import Express
from bus.permissions import inbox
from bus.publisher import Publisher
from bus.security import OPEN, Security
from bus.tasks import end, within
from bus.websocket import provide

log = logging.getLogger("gpubus.bus")

CLOSE_TIMEOUT_S: Final = 2.0
PING_INTERVAL_S: Final = 5
"""A dead server is noticed after about two of these; nats-py's default of two minutes leaves a zombie."""

API_TIMEOUT_S: Final = 5.0


class _ApiErrorBody(msgspec.Struct):
    code: int
    description: str = ""
    err_code: int = 0


class _ApiReply(msgspec.Struct):
    error: _ApiErrorBody | None = None


_api_reply = msgspec.json.Decoder(_ApiReply)


class ConnectionStatistics(msgspec.Struct, frozen=True):
    """Counters of one connection since it was made."""

    connected: bool
    reconnects: int
    errors: int
    in_messages: int
    out_messages: int
    in_bytes: int
    out_bytes: int


class Bus:
    """A connection, its publisher, and the API of JetStream.

    Example::

        async with await Bus.connect("nats://127.0.0.1:4222", name="example") as bus:
            await bus.publisher.publish("gpubus.state.node.a", payload, msg_id="a:1")
    """

    def __init__(self, client: Client, inbox: str) -> None:
        self.client = client
        self.inbox = inbox
        self.express = Express(client)
        self.publisher = Publisher(client, self.express, f"{inbox}.ack")
        self._closing = False
        self._reconnects = 0
        self._errors = 0
        self._on_reconnect: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self.servers: tuple[str, ...] = ()
        """Where it was told to connect; with :attr:`security`, all that another process needs to do the same."""
        self.security = OPEN

    @classmethod
    async def connect(
        cls,
        servers: str | Sequence[str],
        *,
        name: str,
        timeout: float = 10.0,
        security: Security = OPEN,
    ) -> Self:
        """Connect, or say within ``timeout`` seconds why not.

        Raises:
            BusUnreachableError: No server accepted the connection in time.
            SecurityError: A file that ``security`` names cannot be used.
        """
        provide([servers] if isinstance(servers, str) else servers)
        tls, password = security.context(), security.secret()
        client = Client()
        own = inbox(security.user) if security.user else ""
        bus = cls(client, f"{own}.{token_hex(8)}" if own else f"_INBOX_{token_hex(8)}")
        bus.servers, bus.security = (servers,) if isinstance(servers, str) else tuple(servers), security
        last_error = ["no answer"]

        async def on_error(error: Exception) -> None:
            bus._errors += 1
            last_error[0] = str(error) or type(error).__name__

        async def on_disconnect() -> None:
            bus.publisher.disconnected()
            try:
                if tls is not None:
                    security.load(tls)
                client.options["password"] = security.secret()
            except SecurityError as error:
                log.warning("%s: %s; trying with what there was", name, error)
            if not bus._closing:
                log.warning("%s lost its connection: %s; trying again", name, last_error[0])

        async def on_reconnect() -> None:
            bus._reconnects += 1
            bus.publisher.reconnected()
            log.warning("%s is connected again", name)
            for callback in bus._on_reconnect:
                try:
                    callback()
                except Exception:  # a raising callback would stop nats-py for good
                    log.exception("reconnect callback failed")

        try:
            await within(
                timeout,
                client.connect(
                    servers=list([servers] if isinstance(servers, str) else servers),
                    name=name,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.25,  # type: ignore[arg-type]  # annotated int, used as seconds
                    ping_interval=PING_INTERVAL_S,
                    max_outstanding_pings=2,
                    connect_timeout=2,
                    drain_timeout=10,
                    pending_size=-1,
                    inbox_prefix=bus.inbox,
                    skip_subject_validation=True,
                    error_cb=on_error,
                    disconnected_cb=on_disconnect,
                    reconnected_cb=on_reconnect,
                    user=security.user or None,
                    password=password,
                    tls=tls,
                ),
            )
        except (TimeoutError, OSError, nats.errors.Error) as error:
            with contextlib.suppress(Exception):  # half-open: whatever it says, we are leaving
                await within(CLOSE_TIMEOUT_S, client.close())
            shown = servers if isinstance(servers, str) else ", ".join(servers)
            cause = last_error[0] if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise BusUnreachableError(shown, timeout, cause) from None
        await bus.publisher.start()
        return bus

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def epoch(self) -> int:
        """Number of connections lost so far; see :attr:`bus.publisher.Publisher.epoch`."""
        return self.publisher.epoch

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after every reconnect. It must only schedule work."""
        self._on_reconnect.append(callback)

    def off_reconnect(self, callback: Callable[[], None]) -> None:
        """Forget a callback of :meth:`on_reconnect`."""
        self._on_reconnect.remove(callback)

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run ``work`` beside the connection; it is cancelled when the connection closes."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=error)

    async def api(self, request: str, body: object = None, *, timeout: float = API_TIMEOUT_S) -> bytes:
        """Call the JetStream API, ``$JS.API.<request>``, and return the raw answer.

        Raises:
            ApiError: JetStream answered with an error.
            nats.errors.Error, TimeoutError: Nobody answered; the caller may try again.
        """
        payload = b"" if body is None else msgspec.json.encode(body)
        reply = await self.client.request(f"$JS.API.{request}", payload, timeout=timeout)
        error = _api_reply.decode(reply.data).error
        if error is not None:
            raise ApiError(request, error.code, error.err_code, error.description)
        return reply.data

    async def close(self) -> None:
        """Cancel what runs beside the connection, flush what is written, and close."""
        self._closing = True
        await end(*self._tasks)
        await self.publisher.stop()
        if self.client.is_connected:
            with contextlib.suppress(TimeoutError, nats.errors.Error, OSError):
                await self.client.flush(timeout=2)
        with contextlib.suppress(nats.errors.Error, OSError):
            await self.client.close()

    def statistics(self) -> ConnectionStatistics:
        """Return the counters of this connection."""
        stats = self.client.stats
        return ConnectionStatistics(
            connected=self.client.is_connected,
            reconnects=self._reconnects,
            errors=self._errors,
            in_messages=stats["in_msgs"],
            out_messages=stats["out_msgs"],
            in_bytes=stats["in_bytes"],
            out_bytes=stats["out_bytes"],
        )
