"""What is known of pools between two looks, on the bus: one record each, and an event for every one that is written."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from bus import records, subjects
from bus.codec import decode_as, encode
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.streams import CAPACITY, STATE
from schemas.capacity import PoolCapacity
from schemas.event import Event

log = logging.getLogger("gpubus.scaler")

KIND: Final = "capacity"


class PoolRecords:
    """Reads and replaces the records.

    Args:
        bus: The connection.
        source: Who speaks, for events.
        clock: Seconds since the epoch.
    """

    def __init__(self, bus: Bus, source: str, clock: Callable[[], float]) -> None:
        self._bus = bus
        self._source = source
        self._clock = clock

    async def read(self, pool: str) -> tuple[int, PoolCapacity]:
        """Return the sequence of a pool's record, 0 for none, and what it says; one that is unreadable says nothing.

        Raises:
            BusError: The bus did not answer.
        """
        stored = await records.latest(self._bus, STATE, subjects.state(KIND, pool))
        try:
            if stored.payload:
                return stored.seq, decode_as(PoolCapacity, stored.payload).data
        except UndecodableError as error:
            log.warning("what was known of pool %s is unreadable and is learnt anew: %s", pool, error)
        return stored.seq, PoolCapacity(pool=pool)

    async def replace(self, record: PoolCapacity, seq: int) -> int:
        """Write the record that follows the one at ``seq`` and return its sequence.

        Raises:
            ConflictError: Somebody else came first.
            BusError: The bus did not answer.
        """
        return await records.replace(
            self._bus, subjects.state(KIND, record.pool), self._event(record, seq), expected=seq
        )

    async def tell(self, record: PoolCapacity, seq: int) -> None:
        """Publish a record as an event unless that was done; whoever wrote it may have died before.

        Raises:
            BusError: The bus did not answer.
        """
        if not seq:
            return
        where, event = subjects.capacity(record.pool), self._event(record, seq)
        last = await records.latest(self._bus, CAPACITY, where)
        try:
            told = decode_as(PoolCapacity, last.payload).id if last.payload else ""
        except UndecodableError:
            told = ""
        if told != event.id:
            await self._bus.publisher.publish(where, encode(event), msg_id=event.id)

    def _event(self, record: PoolCapacity, seq: int) -> Event[PoolCapacity]:
        return Event(
            id=f"capacity:{record.pool}:{seq}", source=self._source, type="gpubus.capacity.v1", subject=record.pool,
            time=datetime.fromtimestamp(self._clock(), UTC), data=record,
        )  # fmt: skip
