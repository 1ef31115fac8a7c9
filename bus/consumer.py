"""Shared work: a member of a durable pull consumer's group.

Any number of processes hold the same durable; the server gives each message to one of them. A message that is not
acknowledged within ``ack_wait`` goes to another. This pull loop keeps its own long-lived requests instead of the client
library's ``fetch``, which can stall for its whole timeout after a reconnect: the number of messages on order is bounded
by ``prefetch``, topped up at half, and forgotten whenever the server may have forgotten it (reconnect, missed heartbeats).
"""

import asyncio
import contextlib
import logging
from collections import deque
from secrets import token_hex
from typing import Final

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus import direct
from bus.connection import Bus
from bus.delivery import ConsumerSpec, Delivery
from bus.errors import ApiError
from bus.tasks import end

log = logging.getLogger("gpubus.bus")

_NS: Final = 1_000_000_000
_HEARTBEAT_S: Final = 1.0
_EXPIRES_S: Final = 15.0
_STOPPED_S: Final = 2.0
"""Longest time between two signs of life of the event loop; after more the process had been stopped, or starved."""
_AWAKE: Final = b"awake"
_DRAIN_S: Final = 2.0


class ConsumerStatistics(msgspec.Struct, frozen=True):
    """Counters since the member started."""

    delivered: int
    acked: int
    retried: int
    dead: int
    redelivered: int
    buffered: int
    resets: int


class PullConsumer:
    """This process's membership in the group of ``spec``.

    With ``keep_lapsed`` messages whose lease has ended are handed out all the same: for work that may be done twice, and whose
    messages may be gone from the stream by now.
    """

    def __init__(self, bus: Bus, spec: ConsumerSpec, *, prefetch: int = 256, keep_lapsed: bool = False) -> None:
        self.bus = bus
        self.spec = spec
        self._prefetch = prefetch
        self._keep_lapsed = keep_lapsed
        self._inbox = f"{bus.inbox}.pull.{token_hex(6)}"
        self._buffer: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._kick = asyncio.Event()
        self._on_order = 0
        self._heard = 0.0
        self._awake = 0.0
        self._asleep_since: float | None = None
        self._marked = False
        self._reset = True
        self._suspect = False
        self._stopping = False
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None
        self.delivered = self.acked = self.retried = self.buried = self.redelivered = self.resets = 0

    async def start(self) -> None:
        """Create the durable if needed and begin to order messages."""
        await self._ensure()
        self._awake = asyncio.get_running_loop().time()
        self._subscription = await direct.subscribe(self.bus.client, self._inbox, self._on_message)
        self.bus.on_reconnect(self._on_reconnect)
        self._task = self.bus.spawn(self._order(), name=f"pull-{self.spec.durable}")

    async def stop(self) -> None:
        """Stop ordering and give back what was delivered but not taken."""
        self._stopping = True
        self.bus.off_reconnect(self._on_reconnect)
        await end(self._task)
        if self._subscription is not None:
            # What the server has sent by the time it hears of this is given back too, and need not wait for its lease.
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    connected = self.bus.client.is_connected
                    await (self._subscription.drain() if connected else self._subscription.unsubscribe())  # type: ignore[no-untyped-call]
        while self._buffer:
            await self._buffer.popleft().retry()
        self._arrived.set()

    async def take(self, limit: int) -> list[Delivery]:
        """Wait for messages and return up to ``limit`` of those at hand; an empty list means the consumer was stopped.

        Messages that have lapsed in the buffer are skipped: the server may have lent them to somebody else.
        """
        while not self._stopping:
            taken: list[Delivery] = []
            while self._buffer and len(taken) < limit:
                delivery = self._buffer.popleft()
                if self._keep_lapsed or not delivery.lapsed:
                    taken.append(delivery)
            self._top_up()
            if taken:
                return await self._bury_exhausted(taken)
            self._arrived.clear()
            await self._arrived.wait()
        return []

    async def take_now(self, limit: int) -> list[Delivery]:
        """Return up to ``limit`` of the messages at hand, without waiting for any."""
        return await self.take(limit) if self._buffer and limit > 0 else []

    async def _bury_exhausted(self, taken: list[Delivery]) -> list[Delivery]:
        """Dead-letter what has been delivered too often: it may be what kills its handlers."""
        limit = self.spec.max_deliver
        if all(delivery.position.deliveries <= limit for delivery in taken):
            return taken
        kept: list[Delivery] = []
        for delivery in taken:
            if delivery.position.deliveries <= limit:
                kept.append(delivery)
            else:
                await delivery.dead(f"not handled in {limit} deliveries")
        return kept or await self.take(len(taken))

    async def answer(self, reply: str, body: bytes) -> None:
        """Tell the server about one delivery. A lost answer is a redelivery, never an error."""
        with contextlib.suppress(nats.errors.Error, OSError):
            await self.bus.client.publish(reply, body)

    async def _ensure(self) -> None:
        spec = self.spec
        config = {
            "durable_name": spec.durable,
            "name": spec.durable,
            "ack_policy": "explicit",
            "ack_wait": int(spec.ack_wait_s * _NS),
            "max_deliver": -1,
            "max_ack_pending": spec.max_ack_pending,
            "deliver_policy": "all",
            "replay_policy": "instant",
            "filter_subjects": list(spec.filters),
        }
        body = {"stream_name": spec.stream, "config": config, "action": ""}
        deadline = asyncio.get_running_loop().time() + 30.0
        while True:
            try:
                await self.bus.api(f"CONSUMER.CREATE.{spec.stream}.{spec.durable}", body)
            except (nats.errors.Error, TimeoutError, ApiError) as error:
                transient = not isinstance(error, ApiError) or error.code in (500, 503)
                if not transient or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.2)
            else:
                return

    def _on_reconnect(self) -> None:
        self._reset = True
        self._kick.set()

    def _top_up(self) -> None:
        if (self._on_order + len(self._buffer)) * 2 <= self._prefetch:
            self._kick.set()

    async def _order(self) -> None:
        """Keep enough messages on order; order anew when the server has gone quiet."""
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        while True:
            self._notice_sleep(loop.time())
            if self._reset:
                self._reset, self._on_order, self._marked = False, 0, False
                self._heard = loop.time()
            if self._asleep_since is not None and not self._marked:
                await self.answer(self._inbox, _AWAKE)
                self._marked = True
            want = self._prefetch - self._on_order - len(self._buffer)
            if want > 0 and want * 2 >= self._prefetch:
                body = {"batch": want, "expires": int(_EXPIRES_S * _NS), "idle_heartbeat": int(_HEARTBEAT_S * _NS)}
                with contextlib.suppress(nats.errors.Error, OSError):
                    await self.bus.client.publish(
                        f"$JS.API.CONSUMER.MSG.NEXT.{self.spec.stream}.{self.spec.durable}",
                        msgspec.json.encode(body),
                        reply=self._inbox,
                    )
                    self._on_order += want
            self._kick.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT_S):
                    await self._kick.wait()
            if self._suspect or (self._on_order > 0 and loop.time() - self._heard > 3 * _HEARTBEAT_S):
                await self._revive()

    def _notice_sleep(self, now: float) -> None:
        """Notice that the process had been stopped, by whichever of our callbacks comes first.

        What the server sent meanwhile waits in the socket, and its leases have been running since then. A message to
        ourselves comes behind all of it: until that arrives, leases count from the moment we fell asleep.
        """
        if self._asleep_since is None and now - self._awake > _STOPPED_S:
            self._asleep_since, self._marked = self._awake, False
            self._kick.set()
        self._awake = now

    async def _revive(self) -> None:
        """Nothing was heard of our orders: make sure the durable exists and order again."""
        self.resets += 1
        self._reset, self._suspect = True, False
        if self.bus.client.is_connected:
            try:
                await self._ensure()
            except (nats.errors.Error, OSError, TimeoutError, ApiError) as error:
                log.info("consumer %s: %s; trying again", self.spec.durable, error)

    def _on_message(self, message: Msg) -> None:
        self._heard = asyncio.get_running_loop().time()
        self._notice_sleep(self._heard)
        if message.reply.startswith("$JS.ACK."):
            lent = self._heard if self._asleep_since is None else self._asleep_since
            delivery = Delivery(self, message, lent + self.spec.ack_wait_s)
            self._on_order = max(self._on_order - 1, 0)
            self.delivered += 1
            self.redelivered += delivery.position.deliveries > 1
            self._buffer.append(delivery)
            self._arrived.set()
            return
        if message.data == _AWAKE:
            self._asleep_since = None
            return
        headers = message.headers or {}
        status = headers.get("Status", "")
        if status == "100":
            return
        # The order has ended: expired (408), nothing there (404), or refused (409, 503). What it left unserved is ours to
        # order again; without a count, forget everything on order.
        left = headers.get("Nats-Pending-Messages")
        self._on_order = max(self._on_order - int(left), 0) if left is not None else 0
        self._suspect |= status in ("409", "503")
        self._kick.set()

    def statistics(self) -> ConsumerStatistics:
        """Return the counters of this member."""
        return ConsumerStatistics(
            delivered=self.delivered,
            acked=self.acked,
            retried=self.retried,
            dead=self.buried,
            redelivered=self.redelivered,
            buffered=len(self._buffer),
            resets=self.resets,
        )
