"""What is free of each GPU as one share, the view that the placement modes which look ahead build on.

The free share of a GPU is the largest share, in thousandths, that still fits both its compute and its VRAM: the scarcer of
the two, at most a whole GPU (with oversubscription more may fit, but no pod takes a GPU twice), and at least 0. It is 0 for
GPUs that no pod can get: unhealthy, cordoned, handed out or claimed by others, held by one pod alone, or out of slots.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.policy import Policy
from consumers.allocator.engine.ranking import ties_by_name
from consumers.allocator.engine.table import CPU_FREE, Table
from consumers.allocator.engine.tenancy import wants_alone
from consumers.allocator.engine.workload import share_of
from schemas.cluster import GpuDevice
from schemas.pod import WHOLE, GpuRequest

Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
Sort = tuple[str, int, int]
"""Model, TFLOPS and VRAM of a GPU: all that a share of it depends on."""

NO_GPU: Final = 0
"""Number of the sort of slots that no pod can get."""

_NOTHING: Final[list[bool]] = []
_ALL: Final = 1 << 20


class Supply:
    """Free shares per row and slot. What a mode derives from a row's shares, it keeps up to date in :meth:`_measure`.

    Attributes:
        table: The pool's nodes.
        shares: Free share per row and slot.
        sorts: Number of the GPU's sort per row and slot; ``NO_GPU`` where no pod can get one.
        known: The sorts by number.
        ties: Per row the part of the sort key that decides between equals.
        slots: ``shares`` and ``sorts`` of each row as lists, without the slots beyond its GPUs.
    """

    def __init__(self, policy: Policy, table: Table) -> None:
        self.table = table
        self.known: list[Sort] = [("", 0, 0)]
        self._policy = policy
        self._numbers: dict[Sort, int] = {}
        self._epoch = -1
        self._cursor = 0
        self._reset()

    def refresh(self) -> None:
        """Apply what changed in the table since the last call."""
        table = self.table
        log = table.changes
        changed = None
        if self._epoch == table.epoch:
            if self._cursor == log.end:
                return
            changed = log.since(self._cursor)
        if changed is None:
            self._reset()
            changed = set(range(len(table.hosts)))
        self._epoch, self._cursor = table.epoch, log.end
        for row in changed:
            host = table.hosts[row]
            usable = host.usable if host is not None else _NOTHING
            if usable is not self._usable[row]:
                self._usable[row] = usable
                devices = host.devices or () if host is not None else ()
                sorts = [self._sort(device) if able else NO_GPU for device, able in zip(devices, usable, strict=True)]
                self.sorts[row] = self.shares[row] = 0
                self.sorts[row, : len(sorts)] = sorts
            else:
                sorts = self.slots[row][1]
            pairs = zip(host.tflops_share, host.vram_share, sorts, strict=True) if host is not None else ()
            # `min` and `max` written out: this line runs for every GPU of every node that changes.
            shares = [
                0 if not sort or t < 0 or v < 0 else t if t < v and t < WHOLE else v if v < WHOLE else WHOLE  # noqa: FURB136
                for t, v, sort in pairs
            ]
            self.slots[row] = (shares, sorts)
            self.shares[row, : len(shares)] = shares
            self._measure(row, host)

    def cpu_free(self, rows: Rows) -> Ints:
        """Return the free CPU of some rows."""
        return self.table.limits[:, CPU_FREE].take(rows)

    def _reset(self) -> None:
        table = self.table
        shape = (len(table.hosts), table.width)
        self.shares: Ints = np.zeros(shape, dtype=np.int64)
        self.sorts: Ints = np.zeros(shape, dtype=np.int64)
        self.slots: list[tuple[list[int], list[int]]] = [([], [])] * shape[0]
        self._usable: list[list[bool]] = [_NOTHING] * shape[0]
        self.ties = ties_by_name(table.names, self._policy)

    def _sort(self, device: GpuDevice) -> int:
        sort = (device.model, device.tflops_milli, device.vram_bytes)
        number = self._numbers.get(sort)
        if number is None:
            number = self._numbers[sort] = len(self.known)
            self.known.append(sort)
            self._learn(device.model)
        return number

    def _learn(self, model: str) -> None:
        """Take note of the model of a sort that has just got the next number."""

    def _measure(self, row: int, host: Host | None) -> None:
        """Bring what depends on a row up to date; there is no host where the node has gone."""


class Ask:
    """What a request takes of the free share of each sort of GPU.

    A placement lowers the free share of compute by ``compute`` and that of VRAM by ``vram``, and so that of the GPU to the
    lower of both. Amounts are shares of the GPU's physical amounts, rounded up. A pod that wants its GPUs alone takes all.
    """

    __slots__ = ("_alone", "_compute", "_request", "_supply", "_vram")

    def __init__(self, request: GpuRequest, supply: Supply) -> None:
        self._request = request
        self._supply = supply
        self._alone = wants_alone(request)
        self._compute: list[int] = []
        self._vram: list[int] = []

    def of_sorts(self) -> tuple[list[int], list[int]]:
        """Return the shares of compute and of VRAM that are asked, by number of sort."""
        known, request = self._supply.known, self._request
        if len(known) == len(self._compute):
            return self._compute, self._vram
        for _, tflops, vram in known[len(self._compute) :]:
            if self._alone:
                self._compute.append(_ALL)
                self._vram.append(_ALL)
                continue
            self._compute.append(min(request.compute_milli or share_of(request.tflops_milli, tflops), _ALL))
            self._vram.append(min(request.vram_milli or share_of(request.vram_bytes, vram), _ALL))
        return self._compute, self._vram

    def left(self, host: Host, slot: int, sort: int) -> int:
        """Return the free share that a GPU is left with."""
        compute, vram = self.of_sorts()
        return max(0, min(host.tflops_share[slot] - compute[sort], host.vram_share[slot] - vram[sort], WHOLE))

    def left_on(self, rows: Rows) -> Ints:
        """Return the free share that each GPU of some rows is left with; no meaning where the request does not fit."""
        table, request = self._supply.table, self._request
        compute, vram = self.of_sorts()
        tflops: Ints = table.tflops_share.take(rows, axis=0)
        memory: Ints = table.vram_share.take(rows, axis=0)
        if self._alone or request.tflops_milli or request.vram_bytes:
            sorts = self._supply.sorts.take(rows, axis=0)
            tflops -= np.array(compute).take(sorts)
            memory -= np.array(vram).take(sorts)
        else:
            tflops -= request.compute_milli
            memory -= request.vram_milli
        np.minimum(tflops, memory, out=tflops)
        np.minimum(tflops, WHOLE, out=tflops)
        return np.maximum(tflops, 0, out=tflops)
