"""One node with everything known about it: what it has, who holds what, and what is left."""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from consumers.allocator.engine.layout import Layout, layout_of
from consumers.allocator.engine.rules import ALL_BP, FROZEN, MAX_AMOUNT, NO_INVENTORY, NOT_READY, SILENT
from consumers.allocator.engine.tenancy import ALONE, CLOSED, marks, weight
from schemas.cluster import GpuDevice, Node, Pool
from schemas.hardware import GpuLink, Partition, PartitionTemplate
from schemas.ledger import Allocation

_UNKNOWN: Final = -1
_ANY_SHARE: Final = 1 << 20
"""Stands for "every share fits": larger than any share a request can state."""


Judged = tuple[int, list[int], int]
"""A verdict by the filters of GPUs alone, the slots that fit, and the GPUs that fell for who is on them, packed."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """GPU capacity of a node or of several. Schedulable is physical with the pool's oversubscription applied.

    Attributes:
        granted_tflops_milli: Sum over all allocations, those on GPUs that the inventory does not list included.
        granted_vram_bytes: As ``granted_tflops_milli``.
    """

    nodes: int = 0
    gpus: int = 0
    pods: int = 0
    physical_tflops_milli: int = 0
    physical_vram_bytes: int = 0
    schedulable_tflops_milli: int = 0
    schedulable_vram_bytes: int = 0
    granted_tflops_milli: int = 0
    granted_vram_bytes: int = 0

    @classmethod
    def total(cls, parts: Iterable["Capacity"]) -> "Capacity":
        """Return the sum of several capacities."""
        sums = dict.fromkeys(cls.__struct_fields__, 0)
        for part in parts:
            for field in sums:
                sums[field] += getattr(part, field)
        return cls(**sums)


def _used_bp(used: int, capacity: int) -> int:
    if capacity <= 0 or used <= 0:
        return 0
    return min(used * ALL_BP // capacity, ALL_BP)


class Host:
    """What the engine knows about one node name, complete or not: events arrive in any order.

    Per-GPU lists are indexed by *slot*: the GPUs of the inventory in order of index, then UUID. Plain ints, exact at any size.

    Attributes:
        node: The Kubernetes node; None until its event arrives, and after it is gone.
        devices: The inventory; None until it arrives.
        links: How the GPUs reach each other, by slot.
        partitions: The hardware partitions that the GPUs can be cut into.
        cuts: The partitions that pods hold, by slot.
        frozen: The node's ledger record cannot be decoded.
        silent: The node's agent has not spoken for too long.
        allocations: What pods hold, by pod UID.
        row: Row in the pool's table; -1 while it has none.
        workers_free: Pods with GPUs that may still come.
        kinds: Number of each GPU's kind.
        usable: Whether pods can get shares of the GPU at all, whatever is free on it.
        marks: Who is on each GPU, as bits; see :mod:`~consumers.allocator.engine.tenancy`.
        marked: Bits of all GPUs together.
        tflops_share: Largest compute share, in thousandths of the physical GPU, that still fits each GPU.
        vram_share: As ``tflops_share``, for VRAM.
            Less than 0 where nobody can get anything more.
        tflops_bp: Used share of schedulable compute, in hundredths of a percent: all of a GPU that one pod holds alone.
        vram_bp: As ``tflops_bp``, for VRAM.
        tenants: How many pods are on each GPU.
        judged: What requests of one kin (see :class:`~consumers.allocator.engine.fit.Kin`) made of the GPUs as they are now.
    """

    __slots__ = (
        "_layout", "_tally", "allocations", "cpu_bp", "cpu_free", "cuts", "devices", "frozen", "judged", "kinds",
        "links",
        "marked", "marks", "memory_bp", "memory_free", "name", "node", "partitions", "pods_free", "row", "silent",
        "slots", "tenants", "tflops_bp", "tflops_cap", "tflops_free", "tflops_share", "usable", "vram_bp", "vram_cap",
        "vram_free", "vram_share", "workers_free",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: Node | None = None
        self.devices: tuple[GpuDevice, ...] | None = None
        self.links: tuple[GpuLink, ...] = ()
        self.partitions: tuple[PartitionTemplate, ...] = ()
        self._layout: Layout | None = None
        self.frozen = self.silent = False
        self.allocations: dict[str, Allocation] = {}
        self.row = -1
        self.judged: dict[object, Judged] = {}
        self.rebuild(Pool(name=""), lambda _device, _node: (0, True))

    @property
    def empty(self) -> bool:
        """Whether nothing is known under this name any more."""
        return self.node is None and self.devices is None and not (self.allocations or self.frozen or self.silent)

    @property
    def stage(self) -> int:
        """The first filter of whole nodes that refuses the node whatever the request, or 0."""
        if self.node is None or not self.node.ready or self.node.unschedulable:
            return NOT_READY
        if self.frozen:
            return FROZEN
        if self.devices is None:
            return NO_INVENTORY
        return SILENT if self.silent else 0

    @property
    def layout(self) -> Layout:
        """How near the GPUs are to each other."""
        if self._layout is None:
            self._layout = layout_of(tuple(device.numa_node for device in self.devices or ()), self.links)
        return self._layout

    def templates(self, slot: int) -> tuple[PartitionTemplate, ...]:
        """Return what a GPU can be cut into."""
        assert self.devices is not None  # noqa: S101
        model = self.devices[slot].model
        return tuple(template for template in self.partitions if template.model in ("", model))

    def tally(self, slot: int) -> int:
        """Return who is on a GPU, counted; see :mod:`~consumers.allocator.engine.tenancy`."""
        return self._tally[slot]

    def free(self) -> tuple[int, int, int, int, list[int], list[int], list[int]]:
        """Return what is left: worker and pod slots, CPU, memory, and per GPU compute, VRAM and who is on it."""
        return (
            *(self.workers_free, self.pods_free, self.cpu_free, self.memory_free),
            *(self.tflops_free.copy(), self.vram_free.copy(), self._tally.copy()),
        )

    def rebuild(self, pool: Pool, kind_of: Callable[[GpuDevice, Node | None], tuple[int, bool]]) -> None:
        """Compute everything anew from the node, the inventory and the allocations.

        Args:
            pool: The node's pool.
            kind_of: Returns the number of a GPU's kind, and whether pods can get it at all.
        """
        node, devices, over = self.node, self.devices or (), pool.oversubscription
        extra = 0
        if node is not None and devices:
            expansion = node.memory_bytes * over.host_memory // 100 + node.disk_bytes * over.host_disk // 100
            extra = expansion // len(devices)
        self._layout = None
        self.judged.clear()
        kinds = [kind_of(device, node) for device in devices]
        self.kinds, self.usable = [kind for kind, _ in kinds], [usable for _, usable in kinds]
        self.tenants = [0] * len(devices)
        self.cuts: dict[int, tuple[Partition, ...]] = {}
        self.slots = {device.uuid: slot for slot, device in enumerate(devices)}
        self.tflops_cap = [device.tflops_milli * over.tflops_ratio // 100 for device in devices]
        self.vram_cap = [device.vram_bytes + extra for device in devices]
        self.tflops_free, self.vram_free = self.tflops_cap.copy(), self.vram_cap.copy()
        self.tflops_share, self.vram_share = [0] * len(devices), [0] * len(devices)
        self.tflops_bp, self.vram_bp = [0] * len(devices), [0] * len(devices)
        self._tally, self.marks, self.marked = [0] * len(devices), [0] * len(devices), 0
        self.workers_free = pool.max_workers_per_node or MAX_AMOUNT
        self.pods_free = node.max_pods - node.taken_pods if node else 0
        self.cpu_free = node.cpu_milli - node.taken_cpu_milli if node else 0
        self.memory_free = node.memory_bytes - node.taken_memory_bytes if node else 0
        self.cpu_bp = self.memory_bp = 0
        for slot in range(len(devices)):
            self._measure(slot)
        self.charge_all((allocation, 1) for allocation in self.allocations.values())

    def charge(self, allocation: Allocation, sign: int) -> list[int]:
        """Take an allocation's amounts off what is free (``sign`` 1) or give them back (-1); return the slots changed.

        Grants on GPUs that the inventory does not list change no slot; :meth:`rebuild` finds them when it lists them.
        """
        return self.charge_all(((allocation, sign),))

    def charge_all(self, charges: Iterable[tuple[Allocation, int]]) -> list[int]:
        """Do several :meth:`charge` at once."""
        changed: list[int] = []
        slots, tflops_free, vram_free, tenants = self.slots, self.tflops_free, self.vram_free, self.tenants
        tally = self._tally
        for allocation, sign in charges:
            for grant in allocation.gpus:
                slot = slots.get(grant.uuid)
                if slot is not None:
                    tflops_free[slot] -= sign * grant.tflops_milli
                    vram_free[slot] -= sign * grant.vram_bytes
                    tenants[slot] += sign * grant.slots
                    tally[slot] += sign * weight(grant)
                    if grant.partition is not None:
                        self._cut(slot, grant.partition, sign)
                    if slot not in changed:
                        changed.append(slot)
            self.workers_free -= sign * bool(allocation.gpus)
            self.pods_free -= sign
            self.cpu_free -= sign * allocation.cpu_milli
            self.memory_free -= sign * allocation.memory_bytes
        for slot in changed:
            self._measure(slot)
        if self.marked == _UNKNOWN:
            self.marked = 0
            for found in self.marks:
                self.marked |= found
        node = self.node
        if node is not None:
            self.cpu_bp = _used_bp(node.cpu_milli - self.cpu_free, node.cpu_milli)
            self.memory_bp = _used_bp(node.memory_bytes - self.memory_free, node.memory_bytes)
        return changed

    def _cut(self, slot: int, partition: Partition, sign: int) -> None:
        held = list(self.cuts.pop(slot, ()))
        if sign > 0:
            held.append(partition)
        elif partition in held:
            held.remove(partition)
        if held:
            self.cuts[slot] = tuple(sorted(held, key=lambda cut: (cut.start, cut.slots, cut.template)))

    def _measure(self, slot: int) -> None:
        # A share m of physical p asks for floor(p*m/1000), which is within f exactly when m <= (1000*(f+1) - 1) // p.
        # So one number per GPU answers every share, without a product per request.
        assert self.devices is not None  # noqa: S101
        self.judged.clear()
        device = self.devices[slot]
        found = marks(self._tally[slot], device.slots)
        if found != self.marks[slot]:
            self.marks[slot], self.marked = found, _UNKNOWN
        free, physical = self.tflops_free[slot], device.tflops_milli
        self.tflops_share[slot] = (
            -1 if free < 0 else min((1000 * free + 999) // physical, _ANY_SHARE) if physical else _ANY_SHARE
        )
        self.tflops_bp[slot] = _used_bp(self.tflops_cap[slot] - free, self.tflops_cap[slot])
        free, physical = self.vram_free[slot], device.vram_bytes
        self.vram_share[slot] = (
            -1 if free < 0 else min((1000 * free + 999) // physical, _ANY_SHARE) if physical else _ANY_SHARE
        )
        self.vram_bp[slot] = _used_bp(self.vram_cap[slot] - free, self.vram_cap[slot])
        if found & CLOSED:
            self.tflops_share[slot] = self.vram_share[slot] = -1
            if found & ALONE:
                self.tflops_bp[slot] = self.vram_bp[slot] = ALL_BP

    def capacity(self) -> Capacity:
        """Return the node's GPU capacity, physical, schedulable and granted."""
        devices = self.devices or ()
        grants = [grant for allocation in self.allocations.values() for grant in allocation.gpus]
        return Capacity(
            nodes=1,
            gpus=len(devices),
            pods=len(self.allocations),
            physical_tflops_milli=sum(device.tflops_milli for device in devices),
            physical_vram_bytes=sum(device.vram_bytes for device in devices),
            schedulable_tflops_milli=sum(self.tflops_cap),
            schedulable_vram_bytes=sum(self.vram_cap),
            granted_tflops_milli=sum(grant.tflops_milli for grant in grants),
            granted_vram_bytes=sum(grant.vram_bytes for grant in grants),
        )
