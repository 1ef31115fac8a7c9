"""Publishes that are repeated until they are confirmed, in order.

A cluster does not forget a pod because the bus was away: the API server still has it, and the watcher says so later. So
what is to be said here is said until the server has it. One call ends before the next begins, which keeps the facts about
one object in order even when some of them had to be sent again; within a call the order is open.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from bus.connection import Bus
from bus.errors import PublishUnconfirmedError
from bus.streams import TOMBSTONE_TTL_S
from producers.simulator.speech import Outgoing

log = logging.getLogger("gpubus.simulator")

CHUNK: Final = 512
"""Messages on the way at once: enough to hide the round trip, few enough to be sent again quickly one by one."""

_TOMBSTONE: Final = {"Nats-TTL": f"{TOMBSTONE_TTL_S}s"}


class Speaker:
    """Says things on ``bus`` and counts what the server has confirmed."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.published = 0
        """Messages confirmed so far."""

    async def say(self, messages: Sequence[Outgoing]) -> None:
        """Publish ``messages``, each on a subject of its own wherever order matters.

        Returns when all are stored, which during an outage of the bus may take as long as that lasts.

        Raises:
            ApiError: The server refuses a message for good.
        """
        for first in range(0, len(messages), CHUNK):
            chunk = messages[first : first + CHUNK]
            await self._insist(partial(self._bus.publisher.publish_all, chunk))
            self.published += len(chunk)

    async def erase(self, gone: Sequence[tuple[str, str]]) -> None:
        """Replace the history of every ``(subject, message id)`` by a tombstone; as :meth:`say` otherwise."""
        for first in range(0, len(gone), CHUNK):
            chunk = gone[first : first + CHUNK]
            await self._insist(partial(self._bury, chunk))
            self.published += len(chunk)

    async def try_to_say(self, messages: Sequence[Outgoing]) -> bool:
        """Publish ``messages`` once and return whether they were confirmed: for what is stale soon.

        Raises:
            ApiError: The server refuses a message for good.
        """
        try:
            await self._bus.publisher.publish_all(messages)
        except PublishUnconfirmedError as error:
            log.info("%s; dropped", error)
            return False
        self.published += len(messages)
        return True

    async def _bury(self, chunk: Sequence[tuple[str, str]]) -> None:
        publish = self._bus.publisher.publish
        buried = (publish(subject, b"", msg_id=msg_id, headers=_TOMBSTONE) for subject, msg_id in chunk)
        # All of them are waited for before one failure counts: a straggler could land after what is said next.
        for result in await asyncio.gather(*buried, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _insist(self, attempt: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await attempt()
            except PublishUnconfirmedError as error:
                log.warning("%s; saying it again", error)
            else:
                return
