"""What is remembered of workloads' use, on the bus: one record each, replaced by compare-and-set."""

import logging
import time
from datetime import datetime, timedelta
from typing import Final

from bus import records, subjects
from bus.codec import decode_as
from bus.connection import Bus
from bus.errors import ConflictError, UndecodableError
from bus.streams import STATE
from schemas.event import Event, utc
from schemas.scaling import Unit, WorkloadUse

log = logging.getLogger("gpubus.scaler")

KIND: Final = "use"


class Uses:
    """Reads and replaces the records."""

    def __init__(self, bus: Bus, source: str) -> None:
        self._bus = bus
        self._source = source

    async def read(
        self, namespace: str, workload: str, *, uid: str, unit: Unit, now: datetime, history_s: int
    ) -> tuple[int, WorkloadUse]:
        """Return the record and its sequence.

        One that is missing, unreadable, of an earlier workload of that name or in another unit begins anew, with as much
        history as the metrics store is to be asked for.

        Raises:
            BusError: The bus did not answer.
        """
        fresh = WorkloadUse(
            namespace=namespace, workload=workload, uid=uid, until=now - timedelta(seconds=history_s), unit=unit
        )
        stored = await records.latest(self._bus, STATE, subjects.state(KIND, namespace, workload))
        if not stored.payload:
            return stored.seq, fresh
        try:
            found = decode_as(WorkloadUse, stored.payload).data
        except UndecodableError as error:
            log.warning(
                "what was known of workload %s/%s is unreadable and is learnt anew: %s", namespace, workload, error
            )
            return stored.seq, fresh
        return stored.seq, found if (found.uid, found.unit) == (uid, unit) else fresh

    async def replace(self, seq: int, use: WorkloadUse) -> bool:
        """Write the record that follows the one at ``seq``; return False when somebody else came first.

        Raises:
            BusError: The bus did not answer.
        """
        where = subjects.state(KIND, use.namespace, use.workload)
        event = Event(
            id=f"use:{use.namespace}/{use.workload}:{seq}",
            source=self._source,
            type="gpubus.use.v1",
            subject=f"{use.namespace}/{use.workload}",
            time=utc(time.time()),
            data=use,
        )
        try:
            await records.replace(self._bus, where, event, expected=seq)
        except ConflictError:
            return False
        return True

    async def forget(self, namespace: str, workload: str) -> None:
        """Erase the record of a workload that is no more, or whose requests nothing is to change.

        Raises:
            BusError: The bus did not answer.
        """
        where = subjects.state(KIND, namespace, workload)
        while (stored := await records.latest(self._bus, STATE, where)).payload:
            try:
                await records.erase(self._bus, where, expected=stored.seq)
            except ConflictError:
                continue
            return
