"""Pods whose containers ask for GPUs of their own: which container gets which GPUs of a node, and what the pod takes of each.

Containers that run at the same time add up on a GPU, and each takes a slot; two may be given the same GPU, one never the same GPU
twice. Init containers run before, one at a time, so on each GPU the pod takes the larger of its largest init container and the
sum of the rest (HAMi, ``initContainer``). A dedicated container shares its GPUs with no container that runs beside it and with no
other pod; that it ran alone while the others had not started yet is not enough to give the GPU to more pods.

The containers of a pod are tried in order, each with the GPUs that are preferred. If one does not fit any more, those before it
are tried on others, so that no node is refused on which there is a way. GPUs that are alike are not tried twice.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Final, NamedTuple

import msgspec

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.manner import Manner
from consumers.allocator.engine.rules import CONTAINERS, FITS
from consumers.allocator.engine.together import Together
from schemas.cluster import GpuDevice
from schemas.decision import ContainerGrant, GpuGrant
from schemas.pod import WHOLE, GpuRequest
from schemas.requirements import ContainerRequest

MOST_TRIES: Final = 20_000
"""Sets of GPUs tried on one node before it counts as one that does not fit. Real pods need a few."""

_REMEMBERED: Final = 4096
_UNLIMITED: Final = 1 << 30

Seats = dict[int, tuple[int, ...]]
"""Slots by place of the container in the request."""


def loosest(request: GpuRequest) -> GpuRequest:
    """Return the request that every GPU must fit which any container is given; the request itself if there are no containers."""
    asked = request.containers
    if not asked:
        return request
    return msgspec.structs.replace(
        request,
        count=max(one.count for one in asked),
        compute_milli=min(one.compute_milli for one in asked),
        vram_bytes=min(one.vram_bytes for one in asked),
        vram_milli=min(one.vram_milli for one in asked),
        dedicated=all(one.dedicated for one in asked),
        containers=(),
    )


def leading(request: GpuRequest) -> GpuRequest:
    """Return the request of the container that asks for most: nodes are ranked as if it were the pod."""
    asked = request.containers
    if not asked:
        return request
    most = max(asked, key=lambda one: (one.count, one.vram_milli, one.vram_bytes, one.compute_milli))
    return msgspec.structs.replace(
        request,
        count=most.count,
        compute_milli=most.compute_milli,
        vram_bytes=most.vram_bytes,
        vram_milli=most.vram_milli,
        dedicated=most.dedicated,
        containers=(),
    )


class Member(NamedTuple):
    """One container, its place in the request, and what is asked of its GPUs as a whole."""

    place: int
    asks: ContainerRequest
    together: Together | None

    def takes(self, device: GpuDevice) -> tuple[int, int]:
        """Return the compute and the VRAM that it takes of a GPU."""
        asks = self.asks
        vram = device.vram_bytes * asks.vram_milli // WHOLE if asks.vram_milli else asks.vram_bytes
        return device.tflops_milli * asks.compute_milli // WHOLE, vram


class Room:
    """What is left of the GPUs of a node while the containers of a pod are given theirs.

    A container that states no compute takes what is left, so other pods must have left some.
    """

    __slots__ = ("_closed", "_compute", "_devices", "_mine", "_slots", "_vram", "host")

    def __init__(self, host: Host) -> None:
        self.host = host
        self._devices = host.devices or ()
        self._compute, self._vram = host.tflops_free.copy(), host.vram_free.copy()
        self._slots = [
            device.slots - used if device.slots else _UNLIMITED
            for device, used in zip(self._devices, host.tenants, strict=True)
        ]
        self._mine = [0] * len(self._devices)
        self._closed = [False] * len(self._devices)

    def fits(self, member: Member, slot: int) -> bool:
        """Return whether a GPU has room for a container."""
        compute, vram = member.takes(self._devices[slot])
        if member.asks.dedicated and (self.host.tenants[slot] or self._mine[slot]):
            return False
        return (
            not self._closed[slot]
            and self._slots[slot] > 0
            and self.host.tflops_free[slot] > 0
            and self._compute[slot] >= compute
            and self._vram[slot] >= vram
        )

    def take(self, member: Member, slots: tuple[int, ...], sign: int) -> None:
        """Take a container's share of some GPUs (``sign`` 1), or give it back (-1)."""
        for slot in slots:
            compute, vram = member.takes(self._devices[slot])
            self._compute[slot] -= sign * compute
            self._vram[slot] -= sign * vram
            self._slots[slot] -= sign
            self._mine[slot] += sign
            if member.asks.dedicated:
                self._closed[slot] = sign > 0

    def mine(self, slot: int) -> int:
        """Return how many containers of the pod are on a GPU."""
        return self._mine[slot]

    def likeness(self, slots: Iterable[int]) -> tuple[object, ...]:
        """Return what two sets of GPUs must share to be alike for all containers to come."""
        devices = self._devices
        return tuple(
            sorted(
                (
                    *(devices[slot].tflops_milli, devices[slot].vram_bytes, self._compute[slot], self._vram[slot]),
                    *(self._slots[slot], self._mine[slot], self._closed[slot], self.host.tenants[slot] > 0),
                )
                for slot in slots
            )
        )


class Crew:
    """The containers of one request.

    Args:
        request: A request with containers.
        manner: How its GPUs are to be chosen; what is asked of GPUs as a whole is asked of each container's.
        stack: Whether containers rather share GPUs than take others.

    Attributes:
        narrows: As :attr:`.Together.narrows`: they may not fit together on GPUs that one of them fits on.
    """

    __slots__ = ("_alike", "_inits", "_known", "_rest", "_stack", "_stated", "narrows")

    def __init__(self, request: GpuRequest, manner: Manner | None, *, stack: bool) -> None:
        whole = manner if manner is not None and manner.as_a_whole else None
        self.narrows = True
        self._alike = whole is None  # otherwise it matters where in the node a GPU is
        members = [
            Member(place, asks, Together(whole, asks.count) if whole is not None else None)
            for place, asks in enumerate(request.containers)
        ]
        self._inits = [member for member in members if member.asks.init]
        self._rest = [member for member in members if not member.asks.init]
        self._stack = stack
        # Most nodes are like another one.
        self._known: dict[tuple[object, ...] | None, bool] = {}
        self._stated = request

    def narrow(self, host: Host, fitting: list[int]) -> tuple[int, list[int]]:
        """Return the filter that refuses the node, or ``FITS``, and the slots to choose from."""
        room = Room(host)
        likeness = room.likeness(fitting) if self._alike else None
        fits = self._known.get(likeness)
        if fits is None:
            fits = self._seat(room, fitting) is not None
            if likeness is not None:
                if len(self._known) == _REMEMBERED:
                    self._known.clear()
                self._known[likeness] = fits
        return (FITS, fitting) if fits else (CONTAINERS, [])

    def give(self, host: Host, preferred: list[int]) -> tuple[tuple[GpuGrant, ...], tuple[ContainerGrant, ...]]:
        """Return what the pod takes of each GPU, and what of that is for which container.

        Args:
            host: A node that :meth:`narrow` does not refuse.
            preferred: The slots to choose from, the preferred ones first.
        """
        seats = self._seat(Room(host), preferred)
        devices = host.devices or ()
        assert seats is not None  # noqa: S101
        by_container = []
        for member in sorted((*self._inits, *self._rest), key=lambda member: member.place):
            grants = [self._grant(member, devices[slot]) for slot in seats[member.place]]
            by_container.append(ContainerGrant(name=member.asks.name, gpus=tuple(grants)))
        taken = sorted({slot for slots in seats.values() for slot in slots})
        return tuple(self._collapse(devices[slot], slot, seats) for slot in taken), tuple(by_container)

    def _grant(self, member: Member, device: GpuDevice) -> GpuGrant:
        compute, vram = member.takes(device)
        return GpuGrant(
            uuid=device.uuid,
            index=device.index,
            tflops_milli=compute,
            vram_bytes=vram,
            exclusive=member.asks.dedicated,
            isolation=self._stated.isolation,
        )

    def _collapse(self, device: GpuDevice, slot: int, seats: Seats) -> GpuGrant:
        before = [self._grant(member, device) for member in self._inits if slot in seats[member.place]]
        beside = [self._grant(member, device) for member in self._rest if slot in seats[member.place]]
        compute = sum(grant.tflops_milli for grant in beside)
        vram = sum(grant.vram_bytes for grant in beside)
        return GpuGrant(
            uuid=device.uuid,
            index=device.index,
            tflops_milli=max([compute, *(grant.tflops_milli for grant in before)]),
            vram_bytes=max([vram, *(grant.vram_bytes for grant in before)]),
            exclusive=any(grant.exclusive for grant in (*before, *beside)),
            isolation=self._stated.isolation,
            slots=max(1, len(beside)),
        )

    def _seat(self, room: Room, preferred: list[int]) -> Seats | None:
        """Return the slots of each container, or None if there is no way."""
        seats: Seats = {}
        # An init container finds the GPUs as other pods left them. Whether it fits has nothing to do with the rest.
        for member in self._inits:
            if next(self._sets(room, member, preferred), None) is None:
                return None
        if not self._fill(room, 0, preferred, seats, [MOST_TRIES]):
            return None
        held = {slot for slots in seats.values() for slot in slots}
        for member in self._rest:
            room.take(member, seats[member.place], -1)
        for member in self._inits:
            # GPUs that the pod has anyway cost nothing more.
            order = sorted(preferred, key=lambda slot: slot not in held)
            found = next(self._sets(room, member, order))
            seats[member.place] = tuple(sorted(found))
            held.update(found)
        return seats

    def _fill(self, room: Room, number: int, preferred: list[int], seats: Seats, tries: list[int]) -> bool:
        if number == len(self._rest):
            return True
        member = self._rest[number]
        seen: set[tuple[object, ...]] = set()
        order = (
            sorted(preferred, key=lambda slot: -room.mine(slot) if self._stack else room.mine(slot))
            if number
            else preferred
        )
        for slots in self._sets(room, member, order):
            if seen and room.likeness(slots) in seen:
                continue
            tries[0] -= 1
            if tries[0] < 0:
                return False
            room.take(member, slots, 1)
            if self._fill(room, number + 1, preferred, seats, tries):
                seats[member.place] = tuple(sorted(slots))
                return True
            room.take(member, slots, -1)
            if self._alike:
                seen.add(room.likeness(slots))
        return False

    @staticmethod
    def _sets(room: Room, member: Member, order: list[int]) -> Iterator[tuple[int, ...]]:
        """Yield the sets of GPUs that a container could be given, the preferred ones first."""
        fitting = [slot for slot in order if room.fits(member, slot)]
        together = member.together
        if together is not None and len(fitting) >= member.asks.count:
            stage, left = together.narrow(room.host, fitting)
            if stage:
                return
            yield tuple(together.choose(room.host, [slot for slot in fitting if slot in left]))
        for slots in combinations(fitting, member.asks.count):
            if together is None or together.narrow(room.host, list(slots))[0] == FITS:
                yield slots
