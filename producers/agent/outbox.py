"""Publishes that never hold the agent up: the newest of every state, and the last of what happened.

While the bus is away the agent goes on looking. Of a state (inventory, usage) only the newest matters, so it takes the place of
one that has not been sent; of events (drift, notices) the last thousand wait. What is given up is counted.
"""

import asyncio
import contextlib
import logging
from collections import deque
from typing import Final, NamedTuple

from bus.connection import Bus
from bus.errors import ApiError, PublishUnconfirmedError

log = logging.getLogger("gpubus.agent")

MOST_EVENTS: Final = 1000
ATTEMPT_S: Final = 2.0
"""How long one message is tried before a newer one may take its place."""


class Outgoing(NamedTuple):
    """One publish. ``msg_id`` is its deterministic identity."""

    subject: str
    payload: bytes
    msg_id: str


class Outbox:
    """Sends what is put into it, one message at a time."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._states: dict[str, Outgoing] = {}
        self._events: deque[Outgoing] = deque()
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sending = False
        self.sent = 0
        """Messages that the bus has confirmed."""
        self.lost = 0
        """Messages given up: overtaken by a newer state, crowded out, or refused by the server."""

    def state(self, message: Outgoing) -> None:
        """Say what is so now, in place of what was to be said before on the same subject."""
        if self._states.pop(message.subject, None) is not None:
            self.lost += 1
        self._states[message.subject] = message
        self._idle.clear()
        self._news.set()

    def event(self, message: Outgoing) -> None:
        """Say what happened."""
        self._events.append(message)
        if len(self._events) > MOST_EVENTS:
            self._events.popleft()
            self.lost += 1
        self._idle.clear()
        self._news.set()

    @property
    def waiting(self) -> int:
        """Messages that have not been confirmed yet."""
        return len(self._states) + len(self._events) + self._sending

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._news.wait()
            while self.waiting:
                await self._send_one()
            self._news.clear()
            self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Wait until everything is confirmed, or ``seconds`` are over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    async def _send_one(self) -> None:
        # Events first: that a GPU fails explains the inventory that follows.
        state = not self._events
        message = self._states.pop(next(iter(self._states))) if state else self._events[0]
        self._sending = state
        try:
            await self._bus.publisher.publish(
                message.subject, message.payload, msg_id=message.msg_id, timeout=ATTEMPT_S
            )
        except PublishUnconfirmedError:
            if state and message.subject in self._states:
                self.lost += 1
            elif state:
                self._states[message.subject] = message
            return
        except ApiError as error:
            log.warning("%s", error)
            self.lost += 1
        else:
            self.sent += 1
        finally:
            self._sending = False
        if not state and self._events and self._events[0] is message:
            self._events.popleft()
