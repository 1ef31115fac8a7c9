"""What pods of each rank hold on each node of a pool, as arrays: where evictions could make room for a pod at all.

A look at every pod of a large pool takes seconds. Here a few array operations say of each node up to which rank everybody would
have to go at least, or that nobody's leaving would help, without regard to who is protected or which GPUs go together: nothing
that could help is left out. What is kept here follows the table's changes and is brought up to date before it is used.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.need import Need
from consumers.allocator.engine.ranks import Rank, goes_before, price, rank_of
from consumers.allocator.engine.rules import NOT_IDLE
from consumers.allocator.engine.screen import Screen, count_per_row
from consumers.allocator.engine.table import CPU_FREE, MEMORY_FREE, POD_SLOTS, WORKERS_FREE, Table
from schemas.pod import WHOLE, GpuRequest

Ints = NDArray[np.int64]

MOST_KINDS: Final = 64
"""Kinds of rank told apart; pods of further ones count as if they cost least."""

_MOST: Final = 1 << 52
"""Larger amounts than any pod's; a thousand of them can be added up."""

_Key = tuple[Rank, Rank]
"""What evicting a pod costs, and its rank as others see it."""

_LEAST: Final[_Key] = (Rank(-(1 << 62), 0), Rank(-(1 << 62), 0))

_LIMITS: Final = [WORKERS_FREE, POD_SLOTS, CPU_FREE, MEMORY_FREE]
_PODS: Final = _LIMITS.index(POD_SLOTS)


class _Kind:
    """What the pods of one rank hold.

    Attributes:
        gpus: Compute, VRAM and the number of pods, per row and slot.
        node: Worker and pod slots, CPU and memory, per row.
    """

    __slots__ = ("gpus", "node")

    def __init__(self, rows: int, width: int) -> None:
        self.gpus: Ints = np.zeros((3, rows, width), dtype=np.int64)
        self.node: Ints = np.zeros((rows, len(_LIMITS)), dtype=np.int64)

    def moved(self, old: NDArray[np.intp], new: NDArray[np.intp], rows: int, width: int) -> "_Kind":
        """Return the same with the rows ``old`` at ``new``."""
        found = _Kind(rows, width)
        found.gpus[:, new, : self.gpus.shape[2]] = self.gpus[:, old]
        found.node[new] = self.node[old]
        return found


class Reclaim:
    """Who could be made to leave, by row of ``table``."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._kinds: dict[_Key, _Kind] = {}
        self._physical: Ints = np.zeros((2, 0, 0), dtype=np.int64)
        self._tenants: Ints = np.zeros((0, 0), dtype=np.int64)
        self._hosts: list[Host | None] = []
        self._epoch = -1
        self._log = table.changes
        self._cursor = 0
        self._due: dict[int, None] = {}

    def advance(self, most: int) -> bool:
        """Look at up to so many rows that changed, and return whether all has been looked at: a row takes some 50 us."""
        self._note()
        for row in list(islice(self._due, most)):
            del self._due[row]
            self._look(row)
        return not self._due

    def _note(self) -> None:
        """Note which rows have changed."""
        table, log = self._table, self._table.changes
        if self._epoch != table.epoch:
            # What changed in rows that came and went again unseen is in no log any more.
            self._move(self._log.since(self._cursor) if self._epoch + 1 == table.epoch else None)
            self._epoch, self._log, self._cursor = table.epoch, log, 0
        changed = log.since(self._cursor)
        self._due.update(dict.fromkeys(sorted(changed) if changed is not None else range(len(self._hosts))))
        self._cursor = log.end

    def _move(self, changed: set[int] | None) -> None:
        """The rows are others: carry over what is known of those that have not changed."""
        table, width = self._table, self._table.width
        due = self._due.keys() | (changed if changed is not None else range(len(self._hosts)))
        known = {id(host): row for row, host in enumerate(self._hosts) if host is not None and row not in due}
        rows = len(table.hosts)
        pairs = [
            (known[id(host)], row) for row, host in enumerate(table.hosts) if host is not None and id(host) in known
        ]
        old = np.array([before for before, _ in pairs], dtype=np.intp)
        new = np.array([after for _, after in pairs], dtype=np.intp)
        self._kinds = {rank: kind.moved(old, new, rows, width) for rank, kind in self._kinds.items()}
        physical, tenants = self._physical, self._tenants
        self._physical = np.zeros((2, rows, width), dtype=np.int64)
        self._physical[:, new, : physical.shape[2]] = physical[:, old]
        self._tenants = np.zeros((rows, width), dtype=np.int64)
        self._tenants[new, : tenants.shape[1]] = tenants[old]
        self._hosts = list(table.hosts)
        carried = set(new.tolist())
        self._due = dict.fromkeys(row for row in range(rows) if row not in carried)

    def _look(self, row: int) -> None:
        host = self._hosts[row] = self._table.hosts[row]
        for kind in self._kinds.values():
            kind.gpus[:, row] = 0
            kind.node[row] = 0
        self._physical[:, row] = 0
        self._tenants[row] = 0
        if host is None:
            return
        devices = host.devices or ()
        self._physical[0, row, : len(devices)] = [min(device.tflops_milli, _MOST) for device in devices]
        self._physical[1, row, : len(devices)] = [min(device.vram_bytes, _MOST) for device in devices]
        width = self._table.width
        tenants = [0] * width
        sums: dict[_Key, tuple[list[int], list[int], list[int], list[int]]] = {}
        for held in host.allocations.values():
            key = price(held), rank_of(held)
            found = sums.get(key)
            if found is None:
                found = sums[key] = [0] * width, [0] * width, [0] * width, [0] * len(_LIMITS)
            compute, vram, count, node = found
            node[0] += bool(held.gpus)
            node[1] += 1
            node[2] += held.cpu_milli
            node[3] += held.memory_bytes
            for grant in held.gpus:
                slot = host.slots.get(grant.uuid)
                if slot is not None:
                    tenants[slot] += 1
                    count[slot] += 1
                    compute[slot] += grant.tflops_milli
                    vram[slot] += grant.vram_bytes
        self._tenants[row] = tenants
        for key, (compute, vram, count, node) in sums.items():
            kind = self._kind(key)
            kind.gpus[0, row] += [min(amount, _MOST) for amount in compute]
            kind.gpus[1, row] += [min(amount, _MOST) for amount in vram]
            kind.gpus[2, row] += count
            kind.node[row] += [min(amount, _MOST) for amount in node]

    def _kind(self, key: _Key) -> _Kind:
        if key not in self._kinds and len(self._kinds) >= MOST_KINDS:
            key = _LEAST
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(len(self._hosts), self._table.width)
        return kind

    def rows(self, request: GpuRequest, need: Need, screen: Screen) -> Iterator[tuple[Rank, int]]:
        """Yield the rows on which evictions might make room, each with the least rank up to which all would have to go.

        They come by that rank and in row order. All changes must have been looked at (:meth:`advance`).

        Args:
            request: The pod that wants room.
            need: What the filters compare for it.
            screen: The outcome of the filters that do not depend on what is free.
        """
        table, wanted = self._table, self._wanted(need)
        free = np.stack((table.tflops_free, table.vram_free, -self._tenants))
        limits = table.limits[:, _LIMITS]
        open_, leaving = screen.stages == 0, np.zeros(len(self._hosts), dtype=np.int64)
        mine = rank_of(request)
        kinds: dict[Rank, list[_Kind]] = {}
        for (rank, theirs), kind in self._kinds.items():
            if rank == _LEAST[0] or goes_before(mine, theirs):
                kinds.setdefault(rank, []).append(kind)
        for rank in sorted(kinds):
            for kind in kinds[rank]:
                free += kind.gpus
                limits += kind.node
                leaving += kind.node[:, _PODS]
            enough = (limits >= need.limits[_LIMITS]).all(axis=1) & open_ & (leaving > 0)
            if need.count:
                fitting = screen.standing & (free >= wanted).all(axis=0)
                enough &= count_per_row(fitting) >= need.count
            open_ &= ~enough
            for row in enough.nonzero()[0].tolist():
                yield rank, row

    def _wanted(self, need: Need) -> Ints:
        """Return how much the request takes of each GPU, in the order of :attr:`_Kind.gpus`: as much as is surely needed."""
        wanted: Ints = np.full((3, *self._tenants.shape), -_MOST, dtype=np.int64)
        if need.portion is None:
            columns = ((need.compute_column, need.compute), (need.vram_column, need.vram))
            for place, (column, amount) in enumerate(columns):
                shared = column.endswith("_share")
                wanted[place] = self._physical[place] * amount // WHOLE if shared else amount
        if any(stage == NOT_IDLE for stage in need.sieve_stages):
            wanted[2] = 0
        return wanted
