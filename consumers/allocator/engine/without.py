"""Whether a pod fits a node without some of the pods that are on it: asked many times of one node, each time without others.

Most requests look at each GPU by itself. For those the sums are kept here and the node is left alone; for the rest the node is
charged and put right again. Both come to what the filters say of the node.
"""

from collections.abc import Iterable
from typing import Protocol

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.need import Need
from consumers.allocator.engine.tenancy import marks, weight
from schemas.ledger import Allocation
from schemas.pod import WHOLE

Pods = dict[str, Allocation]


class Without(Protocol):
    """One node and one request."""

    def fits(self, gone: Pods) -> bool:
        """Return whether the request fits without these pods of the node, by UID."""

    def restore(self) -> None:
        """Leave the node as it was."""


def without(host: Host, need: Need, standing: list[int]) -> Without:
    """Return what answers for a request on a node; ``standing`` are the GPUs that it may have whatever is free."""
    return (
        Charging(host, need, standing)
        if need.together is not None or need.portion is not None
        else Summing(host, need, standing)
    )


def _changes(out: Pods, now: Pods) -> Iterable[tuple[Allocation, int]]:
    """Yield what comes back (1) and what goes (-1) if ``now`` is left out instead of ``out``."""
    for uid, held in out.items():
        if uid not in now:
            yield held, 1
    for uid, held in now.items():
        if uid not in out:
            yield held, -1


class Charging:
    """Charges the node itself."""

    __slots__ = ("_host", "_need", "_out", "_standing")

    def __init__(self, host: Host, need: Need, standing: list[int]) -> None:
        self._host, self._need, self._standing = host, need, standing
        self._out: Pods = {}

    def fits(self, gone: Pods) -> bool:
        """Return whether the request fits without these pods."""
        self._leave_out(gone)
        return self._need.fits(self._host, self._standing)

    def restore(self) -> None:
        """Leave the node as it was."""
        self._leave_out({})

    def _leave_out(self, now: Pods) -> None:
        if charges := list(_changes(self._out, now)):
            self._host.charge_all(charges)
        self._out = now


class Summing:
    """Keeps what would be left of the GPUs standing and of the node."""

    __slots__ = ("_asked", "_count", "_effects", "_free", "_mask", "_out", "_places", "_slots", "_wanted")

    def __init__(self, host: Host, need: Need, standing: list[int]) -> None:
        devices = host.devices or ()
        slots = standing if need.count else []
        self._count, self._mask = need.count, need.marks
        self._asked = need.workers, 1, need.cpu, need.memory
        self._free = [host.workers_free, host.pods_free, host.cpu_free, host.memory_free]
        self._places = {devices[slot].uuid: place for place, slot in enumerate(slots)}
        self._wanted = [
            (
                devices[slot].tflops_milli * need.compute // WHOLE
                if need.compute_column == "tflops_share"
                else need.compute,
                devices[slot].vram_bytes * need.vram // WHOLE if need.vram_column == "vram_share" else need.vram,
                devices[slot].slots,
            )
            for slot in slots
        ]
        self._slots = [[host.tflops_free[slot], host.vram_free[slot], host.tally(slot)] for slot in slots]
        self._effects: dict[str, list[tuple[int, int, int, int]]] = {}
        self._out: Pods = {}

    def fits(self, gone: Pods) -> bool:
        """Return whether the request fits without these pods."""
        for held, sign in _changes(self._out, gone):
            self._charge(held, sign)
        self._out = gone
        if any(free < asked for free, asked in zip(self._free, self._asked, strict=True)):
            return False
        if not self._count:
            return True
        fitting = 0
        for (compute, vram, tally), (asked_compute, asked_vram, slots) in zip(self._slots, self._wanted, strict=True):
            if compute >= asked_compute and vram >= asked_vram and not (tally and marks(tally, slots) & self._mask):
                fitting += 1
        return fitting >= self._count

    def restore(self) -> None:
        """Leave the node as it was."""

    def _charge(self, held: Allocation, sign: int) -> None:
        effects = self._effects.get(held.pod_uid)
        if effects is None:
            effects = self._effects[held.pod_uid] = [
                (place, grant.tflops_milli, grant.vram_bytes, weight(grant))
                for grant in held.gpus
                if (place := self._places.get(grant.uuid)) is not None
            ]
        for place, compute, vram, tally in effects:
            left = self._slots[place]
            left[0] -= sign * compute
            left[1] -= sign * vram
            left[2] += sign * tally
        free = self._free
        free[0] -= sign * bool(held.gpus)
        free[1] -= sign
        free[2] -= sign * held.cpu_milli
        free[3] -= sign * held.memory_bytes
