"""Quotas and what the pods of their namespaces hold, as the bus says it."""

import logging
from typing import Final

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.streams import LEDGER, STATE
from consumers.mutator.quota import Bounds
from schemas.ledger import QuotaRecord
from schemas.quota import Quota, Usage

log = logging.getLogger("gpubus.mutator")

_STATE: Final = "gpubus.state.quota.>"
_LEDGER: Final = "gpubus.ledger.quota.>"


class Quotas:
    """What admission knows of quotas. What it cannot read it leaves as it was: allocators hold the quota all the same.

    Args:
        bus: The connection.
    """

    def __init__(self, bus: Bus) -> None:
        self._quotas: dict[str, dict[str, Quota]] = {}
        self._held: dict[str, Usage] = {}
        self._state = Follower(bus, STATE, [_STATE], self._on_quota)
        self._ledger = Follower(bus, LEDGER, [_LEDGER], self._on_record, recreated=self._held.clear)

    async def start(self) -> None:
        """Begin to follow, and return when everything is known."""
        await self._state.start()
        await self._ledger.start()

    async def stop(self) -> None:
        """Stop following."""
        await self._ledger.stop()
        await self._state.stop()

    def _on_quota(self, record: Record) -> None:
        try:
            _, _, namespace, name = subjects.names(record.subject)
            data = None if record.deleted else codec.decode_as(Quota, record.payload).data
        except (UndecodableError, ValueError) as error:
            log.warning("STATE %d on %s: %s", record.seq, record.subject, error)
            return
        known = self._quotas.setdefault(namespace, {})
        if data is None:
            known.pop(name, None)
        else:
            known[name] = data

    def _on_record(self, record: Record) -> None:
        try:
            _, _, namespace = subjects.names(record.subject)
            data = None if record.deleted else codec.decode_as(QuotaRecord, record.payload).data
        except (UndecodableError, ValueError) as error:
            log.warning("LEDGER %d on %s: %s", record.seq, record.subject, error)
            return
        self._held[namespace] = data.used if data is not None else Usage()

    def bounds(self, namespace: str) -> Bounds:
        """Return the quotas of a namespace and what its pods hold."""
        quotas = self._quotas.get(namespace)
        if not quotas:
            return Bounds()
        return Bounds(tuple(quotas[name] for name in sorted(quotas)), self._held.get(namespace, Usage()))
