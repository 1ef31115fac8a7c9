"""Rows of messages into the metrics store, however long that takes: held while it is away, dead letters when it refuses them."""

import asyncio
import contextlib
import logging
import time
from typing import Final

import nats.errors

from bus.delivery import Delivery
from bus.errors import BusError
from bus.tasks import end
from consumers.metrics.store import MetricsStore, StoreError, StoreUnavailableError
from consumers.metrics.tables import Row, Table
from consumers.recorder.counters import Counters

log = logging.getLogger("gpubus.recorder")

LEASE_S: Final = 10.0
"""After this what a killed recorder had in hand goes to another; until then no window that it belongs to is judged."""

LONGEST_BACK_OFF_S: Final = 5.0


class Writer:
    """Writes for one recorder, and counts.

    Attributes:
        rows: Rows stored.
        writes: Writes that succeeded.
        failures: Writes that failed and were tried again.
        refused: Messages that the store refused for good.
        held: Messages in hand.
    """

    def __init__(self, store: MetricsStore, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self.rows = self.writes = self.failures = self.refused = self.held = 0

    async def write(self, rows: dict[Table, list[Row]]) -> None:
        """Store rows of no message, or raise what :meth:`MetricsStore.write` does."""
        await self._store.write(rows)
        self.writes += 1
        self.rows += sum(map(len, rows.values()))

    async def settle(self, rows: dict[Table, list[Row]], deliveries: list[Delivery]) -> bool:
        """Store rows, then acknowledge what they came from; return False where the store refused them."""
        self.held = len(deliveries)
        keeper = asyncio.create_task(_keep(deliveries))
        try:
            if not (refusal := await self._store_rows(rows)):
                for delivery in deliveries:
                    await delivery.ack()
                return True
            await self._note_refusal()
            self.refused += len(deliveries)
            for delivery in deliveries:
                await delivery.dead(refusal)
            return False
        finally:
            await end(keeper)
            self.held = 0

    async def _store_rows(self, rows: dict[Table, list[Row]]) -> str:
        """Store rows; return why the store refuses them, empty when it has taken them."""
        pause, failed = 0.2, False
        while True:
            try:
                await self.write(rows)
                if failed:
                    await self._note_loss()
            except StoreUnavailableError as error:
                self.failures, failed = self.failures + 1, True
                await self._note_loss()
                log.warning("metrics could not be stored: %s; trying again", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_BACK_OFF_S)
            except StoreError as error:
                log.warning("metrics are refused: %s", error)
                return str(error)
            else:
                return ""

    async def _note_refusal(self) -> None:
        """Let it be known before the messages are gone: rules must not take their absence for anything."""
        while True:
            try:
                return await self._counters.note_refusal(time.time_ns())
            except (BusError, TimeoutError, nats.errors.Error) as error:
                log.warning("that metrics are refused could not be said: %s; trying again", error)
                await asyncio.sleep(1.0)

    async def _note_loss(self) -> None:
        with contextlib.suppress(BusError, TimeoutError, nats.errors.Error):  # the next call counts it
            await self._counters.note_loss()


async def _keep(deliveries: list[Delivery]) -> None:
    """Keep messages from going to another recorder while their rows are being stored."""
    while True:
        await asyncio.sleep(LEASE_S / 2)
        for delivery in deliveries:
            await delivery.extend()
