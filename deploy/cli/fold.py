"""STATE and LEDGER read once and folded into what they add up to: the engine's snapshot, who waits, what is unreadable."""

from typing import Any

import msgspec

from bus.codec import check_name, decode_as
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Record
from bus.history import Cut, newest, newest_until
from bus.streams import LEDGER, STATE
from bus.subjects import names, subject
from consumers.allocator.engine import Snapshot
from schemas.cluster import GpuInventory, Node, Pool
from schemas.ledger import Allocation, Hold, NodeRecord
from schemas.pod import Waiting

_KINDS = ("pool", "node", "gpu", "waiting")
"""What the fold needs of STATE. Pods are left out: there are many, and the ledger says which of them hold something."""


class Unreadable(msgspec.Struct, frozen=True):
    """A record that could not be used, and why."""

    stream: str
    subject: str
    sequence: int
    reason: str


class Held(msgspec.Struct, frozen=True):
    """An allocation, the node it is on, and the sequence of the ledger record that lists it."""

    node: str
    record: int
    allocation: Allocation

    @property
    def since(self) -> int:
        """Sequence of the record that added it; that record itself says 0, as it could not know."""
        return self.allocation.since or self.record


class Kept(msgspec.Struct, frozen=True):
    """Room that is kept for a pod on a node, by the ledger record at ``record``."""

    node: str
    record: int
    hold: Hold

    @property
    def since(self) -> int:
        """Sequence of the record that began to keep it."""
        return self.hold.allocation.since or self.record


class World:
    """What the streams add up to.

    Attributes:
        snapshot: Pools, nodes, GPUs and allocations, as the allocator sees them.
        waiting: Pods that fit nowhere at present.
        held: Every allocation, those on nodes that STATE does not know included.
        kept: Room that is kept for pods while others leave for their sake.
        unreadable: Records that were left out.
        state_seq: STATE sequence reached.
        ledger_seq: LEDGER sequence reached.
    """

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.waiting: list[Waiting] = []
        self.held: list[Held] = []
        self.kept: list[Kept] = []
        self.unreadable: list[Unreadable] = []
        self.state_seq = self.ledger_seq = 0

    @classmethod
    async def load(cls, bus: Bus, cut: Cut | None = None) -> "World":
        """Read both streams up to their present end, or as they were at a moment.

        Raises:
            BusError: One of them could not be read in time.
        """
        world = cls()
        ledger, kinds = [subject("ledger", "node") + ".>"], _KINDS
        # The ledger goes first: a node that is in it and not yet in STATE would look as if it had vanished.
        if cut is None:
            records, world.ledger_seq = await newest(bus, LEDGER, ledger)
            state, world.state_seq = await newest(bus, STATE, [subject("state", kind) + ".>" for kind in kinds])
        else:
            records, world.ledger_seq = await newest_until(bus, LEDGER, ledger, cut)
            state, world.state_seq = await newest_until(bus, STATE, kinds, cut)
        for record in records:
            world.put_ledger(record)
        for record in state:
            world.put_state(record)
        return world

    def put_state(self, record: Record) -> None:
        """Take one STATE record in."""
        try:
            _, kind, *name = names(record.subject)
            self._put_state(kind, "/".join(name), record.payload)
        except (UndecodableError, ValueError) as error:
            self.unreadable.append(Unreadable(STATE, record.subject, record.seq, str(error)))

    def _put_state(self, kind: str, name: str, payload: bytes) -> None:
        if kind == "pool":
            pool = decode_as(Pool, payload).data
            check_name(pool.name, name)
            self.snapshot.put_pool(pool)
        elif kind == "node":
            node = decode_as(Node, payload).data
            check_name(node.name, name)
            self.snapshot.put_node(node)
        elif kind == "gpu":
            inventory = decode_as(GpuInventory, payload).data
            check_name(inventory.node, name)
            self.snapshot.put_inventory(inventory)
        elif kind == "waiting":
            self.waiting.append(decode_as(Waiting, payload).data)

    def put_ledger(self, record: Record) -> None:
        """Take one node's ledger record in; one that cannot be decoded freezes its node, as it does for the allocator."""
        try:
            data = decode_as(NodeRecord, record.payload).data
            node, allocations = names(record.subject)[-1], data.allocations
            check_name(data.node, node)
        except (UndecodableError, ValueError) as error:
            self.unreadable.append(Unreadable(LEDGER, record.subject, record.seq, str(error)))
            try:
                self.snapshot.freeze(names(record.subject)[-1])
            except ValueError:
                return  # not the name of a node either
        else:
            self.held += [Held(node, record.seq, allocation) for allocation in allocations]
            self.kept += [Kept(node, record.seq, hold) for hold in data.holds]
            self.snapshot.set_allocations(node, allocations)

    def unplaced(self) -> list[Held]:
        """Return the allocations on nodes that STATE does not know; no total counts them."""
        known = set(self.snapshot.nodes())
        return [held for held in self.held if held.node not in known]


def as_fields(held: Held) -> dict[str, Any]:
    """Return an allocation as an object for ``--json``, with its node."""
    fields: dict[str, Any] = msgspec.to_builtins(held.allocation)
    return {"node": held.node, **fields, "since": held.since, "record": held.record}
