"""Who holds what on this node, by the ledger, and what those pods asked for."""

import asyncio
import logging
from typing import Final

import nats.errors

from bus import codec, history, subjects
from bus.connection import Bus
from bus.errors import ApiError, BusError, UndecodableError
from bus.follower import Follower, Record
from bus.streams import LEDGER, STATE
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import GpuRequest, Pod

log = logging.getLogger("gpubus.agent")

RETRY_S: Final = 5.0


class Holdings:
    """The node's ledger record, followed, and the requests of its pods, read once each.

    Attributes:
        allocations: What pods hold, by pod UID. A record that cannot be decoded changes nothing here: what it replaced stays.
        requests: What they asked for, as far as STATE tells, by pod UID.
        changed: Set whenever either changes; whoever waits for it clears it.
    """

    def __init__(self, bus: Bus, node: str) -> None:
        self._bus = bus
        self._follower = Follower(bus, LEDGER, [subjects.ledger_node(node)], self._apply)
        self._wanted = asyncio.Event()
        self.allocations: dict[str, Allocation] = {}
        self.requests: dict[str, GpuRequest] = {}
        self.changed = asyncio.Event()

    async def start(self) -> None:
        """Load the record and begin to follow.

        Raises:
            BusError: It could not be loaded.
        """
        await self._follower.start()

    def held(self) -> list[Allocation]:
        """Return what pods hold now."""
        return list(self.allocations.values())

    async def stop(self) -> None:
        """Stop following."""
        await self._follower.stop()

    def _apply(self, record: Record) -> None:
        allocations: tuple[Allocation, ...] = ()
        if not record.deleted:
            try:
                allocations = codec.decode_as(NodeRecord, record.payload).data.allocations
            except UndecodableError as error:
                log.warning("ledger record %d: %s; the one before stays in force here", record.seq, error)
                return
        self.allocations = {allocation.pod_uid: allocation for allocation in allocations}
        self.requests = {uid: self.requests[uid] for uid in self.requests.keys() & self.allocations.keys()}
        self._wanted.set()
        self.changed.set()

    async def learn_requests(self) -> None:
        """Read what pods asked for as they come, until cancelled. A pod that STATE does not know is asked for again."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            missing = [a for uid, a in self.allocations.items() if a.gpus and uid not in self.requests]
            if missing and not await self._read(missing):
                await asyncio.sleep(RETRY_S)
                self._wanted.set()

    async def _read(self, missing: list[Allocation]) -> bool:
        filters = [subjects.state("pod", allocation.namespace, allocation.name) for allocation in missing]
        try:
            records, _ = await history.newest(self._bus, STATE, filters)
        except (BusError, ApiError, nats.errors.Error, TimeoutError) as error:
            log.info("pods of this node: %s", error)
            return False
        for record in records:
            try:
                pod = codec.decode_as(Pod, record.payload).data
            except UndecodableError:
                continue  # buried by whoever decides about pods
            if pod.uid in self.allocations:
                self.requests[pod.uid] = pod.request
        self.changed.set()
        return all(allocation.pod_uid in self.requests for allocation in missing)
