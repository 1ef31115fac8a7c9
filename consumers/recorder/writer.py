"""Rows of messages into the metrics store: held while it is away for a short time, dead letters when it refuses them.

Of many messages the store refuses those alone that it cannot take. Each refusal is said on the bus before its message is gone, as
no rule may take what is missing for health.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import nats.errors

from bus.delivery import Delivery
from bus.errors import BusError
from bus.tasks import end
from consumers.metrics.store import MetricsStore, StoreError, StoreUnavailableError
from consumers.metrics.tables import GPU_USAGE, Row, Table
from consumers.recorder.counters import Counters

log = logging.getLogger("gpubus.recorder")

LEASE_S: Final = 10.0
"""After this what a killed recorder had in hand goes to another; until then no window that it belongs to is judged."""

LONGEST_BACK_OFF_S: Final = 5.0

GIVE_UP_S: Final = 30.0
"""After so long without the store what is in hand goes to other recorders: it may be our own way to it that is broken."""

_LOGGED: Final = 3
"""Refusals of one batch that the log names; the dead letters name all."""

_UNWRITABLE: Final = (ValueError, TypeError, ArithmeticError, LookupError)
"""Raised while rows are put into the store's words: no other try will change that."""


class Part(NamedTuple):
    """One message and its rows."""

    delivery: Delivery
    rows: dict[Table, list[Row]]


class Writer:
    """Writes for one recorder, and counts.

    Attributes:
        rows: Rows stored.
        writes: Writes that succeeded.
        failures: Writes that failed and were tried again.
        refused: Messages that were refused for good.
        held: Messages in hand.
        trouble: Why the store has not been reached for :data:`GIVE_UP_S`; empty while it has.
    """

    def __init__(self, store: MetricsStore, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self.rows = self.writes = self.failures = self.refused = self.held = 0
        self.trouble = ""

    async def write(self, rows: dict[Table, list[Row]]) -> None:
        """Store rows of no message, or raise what :meth:`MetricsStore.write` does."""
        await self._store.write(rows)
        self.writes += 1
        self.rows += sum(map(len, rows.values()))
        self.trouble = ""

    async def settle(self, parts: Sequence[Part]) -> int:
        """Store rows, then acknowledge what they came from; return how many GPU samples are stored.

        Raises:
            StoreUnavailableError: The store was away for :data:`GIVE_UP_S`. What is not settled is still in hand.
        """
        self.held = len(parts)
        keeper = asyncio.create_task(_keep([part.delivery for part in parts]))
        try:
            return await self._settle(parts)
        finally:
            await end(keeper)
            self.held = 0

    async def _settle(self, parts: Sequence[Part]) -> int:
        waiting, bad, samples = [parts] if parts else [], list[tuple[Delivery, str]](), 0
        while waiting:
            some = waiting.pop()
            rows = together(some)
            if not (refusal := await self._store_rows(rows)):
                for part in some:
                    await part.delivery.ack()
                samples += len(rows.get(GPU_USAGE, ()))
            elif len(some) == 1:
                bad.append((some[0].delivery, refusal))
            else:
                waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
        await self.refuse(bad)
        return samples

    async def refuse(self, bad: Sequence[tuple[Delivery, str]]) -> None:
        """Make dead letters of messages that can never be stored, each with its reason.

        That they are refused is said first, as of when the bus stored them: their window is the one that lacks them.
        """
        if not bad:
            return
        for _, reason in bad[:_LOGGED]:
            log.warning("metrics are refused: %s", reason)
        await self._note_refusal(max(delivery.position.time_ns for delivery, _ in bad))
        self.refused += len(bad)
        for delivery, reason in bad:
            try:
                await delivery.dead(reason)
            except (BusError, TimeoutError, nats.errors.Error) as error:
                log.warning("no dead letter could be written: %s; the message comes again", error)

    async def _store_rows(self, rows: dict[Table, list[Row]]) -> str:
        """Store rows; return why the store refuses them, empty when it has taken them."""
        clock = asyncio.get_running_loop()
        pause, failed, began = 0.2, False, clock.time()
        while True:
            try:
                await self.write(rows)
                if failed:
                    await self.note_loss()
            except StoreUnavailableError as error:
                self.failures, failed = self.failures + 1, True
                await self.note_loss()
                if (away_s := clock.time() - began) >= GIVE_UP_S:
                    self.trouble = f"the metrics store has not been reached for {away_s:.0f} s: {error}"
                    raise
                log.warning("metrics could not be stored: %s; trying again", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_BACK_OFF_S)
            except StoreError as error:
                return str(error)
            except _UNWRITABLE as error:
                return f"no store can hold it: {type(error).__name__}: {error}"
            else:
                return ""

    async def _note_refusal(self, at: int) -> None:
        """Let it be known before the messages are gone: rules must not take their absence for anything."""
        while True:
            try:
                return await self._counters.note_refusal(at)
            except (BusError, TimeoutError, nats.errors.Error) as error:
                log.warning("that metrics are refused could not be said: %s; trying again", error)
                await asyncio.sleep(1.0)

    async def note_loss(self) -> None:
        """Count what the bus has dropped meanwhile, if it can be asked."""
        with contextlib.suppress(BusError, TimeoutError, nats.errors.Error):  # the next call counts it
            await self._counters.note_loss()


def together(parts: Sequence[Part]) -> dict[Table, list[Row]]:
    """Return the rows of many messages by table."""
    rows: dict[Table, list[Row]] = {}
    for part in parts:
        for table, some in part.rows.items():
            rows.setdefault(table, []).extend(some)
    return rows


async def _keep(deliveries: list[Delivery]) -> None:
    """Keep messages from going to another recorder while their rows are being stored."""
    while True:
        await asyncio.sleep(LEASE_S / 2)
        for delivery in deliveries:
            await delivery.extend()
