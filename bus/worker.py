"""Handlers with typed outcomes: the usual way to consume commands one by one.

A handler says what became of its message by returning :class:`Done`, :class:`Retry` or :class:`Dead`. What it raises is a
retry with growing delay, except an undecodable message, which is dead at once. While it runs its message is kept from
being redelivered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from bus.consumer import PullConsumer
from bus.delivery import Delivery
from bus.errors import UndecodableError
from bus.tasks import end

log = logging.getLogger("gpubus.bus")

RETRY_DELAYS_S: Final = (0.2, 1.0, 5.0, 30.0)


class Done(msgspec.Struct, frozen=True):
    """Handled: take it off the queue."""


class Retry(msgspec.Struct, frozen=True):
    """A known transient trouble: deliver again after ``delay_s`` seconds."""

    delay_s: float = 1.0


class Dead(msgspec.Struct, frozen=True):
    """Bad input: no retry can help. ``reason`` goes into the dead letter."""

    reason: str


Outcome = Done | Retry | Dead
Handler = Callable[[Delivery], Awaitable[Outcome]]


class Worker:
    """Runs ``handler`` over a consumer's messages, at most ``concurrency`` at a time."""

    def __init__(self, consumer: PullConsumer, handler: Handler, *, concurrency: int = 16) -> None:
        self._consumer = consumer
        self._handler = handler
        self._slots = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event, *, drain_s: float = 10.0) -> None:
        """Work until ``stop`` is set, then give back what was not begun and let what runs finish, within ``drain_s``."""
        await self._consumer.start()
        loop = asyncio.create_task(self._loop(), name=f"worker-{self._consumer.spec.durable}")
        try:
            await stop.wait()
        finally:
            await self._consumer.stop()
            await asyncio.gather(loop, return_exceptions=True)
            if self._running:
                _, late = await asyncio.wait(self._running, timeout=drain_s)
                await end(*late)

    async def _loop(self) -> None:
        while True:
            await self._slots.acquire()
            taken = await self._consumer.take(1)
            if not taken:
                self._slots.release()
                return
            task = asyncio.create_task(self._handle(taken[0]))
            self._running.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()

    async def _handle(self, delivery: Delivery) -> None:
        keeper = asyncio.create_task(self._keep(delivery))
        try:
            outcome = await self._outcome(delivery)
        finally:
            await end(keeper)
        match outcome:
            case Done():
                await delivery.ack()
            case Retry(delay_s):
                await delivery.retry(delay_s)
            case Dead(reason):
                await delivery.dead(reason)

    async def _outcome(self, delivery: Delivery) -> Outcome:
        try:
            return await self._handler(delivery)
        except UndecodableError as error:
            return Dead(error.reason)
        except Exception as error:
            tries = delivery.position.deliveries
            if tries >= self._consumer.spec.max_deliver:
                return Dead(f"{type(error).__name__}: {error}")
            log.warning("%s: delivery %d failed", delivery.subject, tries, exc_info=error)
            return Retry(RETRY_DELAYS_S[min(tries, len(RETRY_DELAYS_S)) - 1])

    async def _keep(self, delivery: Delivery) -> None:
        while True:
            await asyncio.sleep(self._consumer.spec.ack_wait_s / 2)
            await delivery.extend()
