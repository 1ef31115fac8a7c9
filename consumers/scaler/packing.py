"""How many pods of which shape nodes would take, roughly: GPUs, compute, VRAM, CPU and memory, nothing else. Pure.

The allocator decides where pods go. This only says how many nodes to order, and errs, if at all, towards another order later:
what it thought would fit and does not is missing again.
"""

from collections.abc import Iterable, Sequence

from schemas.capacity import Offer, Shape
from schemas.cluster import Oversubscription

Wanted = Sequence[tuple[Shape, int]]
"""Shapes, each with a number of pods."""


class Room:
    """What is free on a node that is not there yet."""

    def __init__(self, offer: Offer, oversold: Oversubscription) -> None:
        self.offer = offer
        self._oversold = oversold
        self._whole = schedulable(offer, oversold)
        self._tflops, self._vram = [self._whole[0]] * offer.gpus, [self._whole[1]] * offer.gpus
        self._cpu, self._memory = offer.cpu_milli, offer.memory_bytes

    def take(self, shape: Shape) -> bool:
        """Take what a pod asks for and return whether it was there; the fullest GPUs that hold it are taken from."""
        offer = self.offer
        if not suits(shape, offer, self._oversold):
            return False
        if (offer.cpu_milli and shape.cpu_milli > self._cpu) or (
            offer.memory_bytes and shape.memory_bytes > self._memory
        ):
            return False
        tflops, vram = per_gpu(shape, offer)
        fits = [n for n in range(offer.gpus) if self._tflops[n] >= tflops and self._vram[n] >= vram]
        if shape.dedicated:
            fits = [n for n in fits if (self._tflops[n], self._vram[n]) == self._whole]
        if len(fits) < shape.gpus:
            return False
        for n in sorted(fits, key=lambda n: (self._tflops[n], self._vram[n], n))[: shape.gpus]:
            self._tflops[n] -= self._whole[0] if shape.dedicated else tflops
            self._vram[n] -= self._whole[1] if shape.dedicated else vram
        self._cpu -= shape.cpu_milli
        self._memory -= shape.memory_bytes
        return True


def schedulable(offer: Offer, oversold: Oversubscription) -> tuple[int, int]:
    """Return what of one GPU may be asked for, as the engine counts it; disks of nodes that are not there are not known."""
    tflops = offer.tflops_milli * oversold.tflops_ratio // 100
    return tflops, offer.vram_bytes + offer.memory_bytes * oversold.host_memory // 100 // offer.gpus


def suits(shape: Shape, offer: Offer, oversold: Oversubscription) -> bool:
    """Return whether an idle node of an offer would take a pod."""
    tflops, vram = per_gpu(shape, offer)
    most = schedulable(offer, oversold)
    return (
        not shape.other
        and shape.gpus <= offer.gpus
        and tflops <= most[0]
        and vram <= most[1]
        and (not shape.models or offer.model in shape.models)
        and (not shape.vendor or offer.vendor == shape.vendor)
        and (not offer.cpu_milli or shape.cpu_milli <= offer.cpu_milli)
        and (not offer.memory_bytes or shape.memory_bytes <= offer.memory_bytes)
    )


def per_gpu(shape: Shape, offer: Offer) -> tuple[int, int]:
    """Return compute and VRAM of each GPU that a pod takes of an offer; shares are of what there is, rounded up."""
    tflops = shape.tflops_milli or -(-offer.tflops_milli * shape.compute_milli // 1000)
    return tflops, shape.vram_bytes or -(-offer.vram_bytes * shape.vram_milli // 1000)


def weight(shape: Shape, offer: Offer, oversold: Oversubscription) -> int:
    """Return how much of a node a pod takes, in thousandths of a GPU: the larger of its parts of compute and VRAM."""
    if shape.dedicated:
        return 1000 * shape.gpus
    tflops, vram = per_gpu(shape, offer)
    most = schedulable(offer, oversold)
    return shape.gpus * max(1000 * tflops // most[0], 1000 * vram // most[1], 1)


def pack(wanted: Wanted, rooms: Iterable[Room]) -> list[tuple[Shape, int]]:
    """Put pods into rooms, in the order given, and return what is left over: shapes and numbers of pods."""
    rooms = list(rooms)
    left = []
    for shape, pods in wanted:
        for room in rooms:
            while pods and room.take(shape):
                pods -= 1  # noqa: PLW2901  what is left of them
        if pods:
            left.append((shape, pods))
    return left


def held_by(offer: Offer, wanted: Wanted, oversold: Oversubscription) -> int:
    """Return how much of what is wanted one node of an offer takes, in thousandths of a GPU."""
    left = dict(pack(wanted, [Room(offer, oversold)]))
    return sum(
        (pods - left.get(shape, 0)) * weight(shape, offer, oversold)
        for shape, pods in wanted
        if suits(shape, offer, oversold)
    )
