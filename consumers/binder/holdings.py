"""The ledger as the binder needs it: what each pod holds now, and where."""

import logging
from typing import NamedTuple

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.streams import LEDGER
from schemas.ledger import Allocation, NodeRecord

log = logging.getLogger("gpubus.binder")


class Holding(NamedTuple):
    """A pod's node and what it holds there."""

    node: str
    allocation: Allocation


class Holdings:
    """The fold of the ledger's node records. A node whose record cannot be decoded holds nothing that may be bound."""

    def __init__(self, bus: Bus) -> None:
        self._nodes: dict[str, dict[str, Allocation]] = {}
        self._home: dict[str, str] = {}
        self._follower = Follower(bus, LEDGER, ["gpubus.ledger.node.*"], self._on_record, recreated=self._forget)

    async def start(self) -> None:
        """Load the ledger and follow it."""
        await self._follower.start()

    async def stop(self) -> None:
        """Stop following."""
        await self._follower.stop()

    async def caught_up(self) -> None:
        """Wait until the ledger as it is now has been read.

        Raises:
            nats.errors.Error, TimeoutError, ApiError: The server cannot say just now.
        """
        await self._follower.caught_up()

    def get(self, uid: str) -> Holding | None:
        """Return what a pod holds; None if nothing."""
        node = self._home.get(uid)
        return Holding(node, self._nodes[node][uid]) if node is not None else None

    def __len__(self) -> int:
        return len(self._home)

    def _on_record(self, record: Record) -> None:
        node = subjects.names(record.subject)[-1]
        held: dict[str, Allocation] = {}
        if not record.deleted:
            try:
                held = {one.pod_uid: one for one in codec.decode_as(NodeRecord, record.payload).data.allocations}
            except UndecodableError as error:
                log.error("ledger record %d of node %s: %s", record.seq, node, error)  # noqa: TRY400
        for uid in self._nodes.get(node, {}).keys() - held.keys():
            if self._home.get(uid) == node:
                del self._home[uid]
        for uid in held:
            self._home.setdefault(uid, node)  # a duplicate is taken back by whoever made it: the first place counts
        self._nodes[node] = held

    def _forget(self) -> None:
        self._nodes.clear()
        self._home.clear()
