"""How many pods of which shape nodes would take, roughly: GPUs, compute, VRAM, CPU and memory, nothing else. Pure.

The allocator decides where pods go. This only says how many nodes to order, and errs, if at all, towards another order later:
what it thought would fit and does not is missing again.
"""

from collections.abc import Iterable, Sequence

from schemas.capacity import Offer, Shape


class Room:
    """What is free on a node that is not there yet."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._tflops = [offer.tflops_milli] * offer.gpus
        self._vram = [offer.vram_bytes] * offer.gpus
        self._cpu, self._memory = offer.cpu_milli, offer.memory_bytes

    def take(self, shape: Shape) -> bool:
        """Take what a pod asks for and return whether it was there; the fullest GPUs that hold it are taken from."""
        offer = self.offer
        if not suits(shape, offer):
            return False
        if (offer.cpu_milli and shape.cpu_milli > self._cpu) or (
            offer.memory_bytes and shape.memory_bytes > self._memory
        ):
            return False
        tflops, vram = per_gpu(shape, offer)
        fits = [n for n in range(offer.gpus) if self._tflops[n] >= tflops and self._vram[n] >= vram]
        if shape.dedicated:
            fits = [n for n in fits if self._tflops[n] == offer.tflops_milli and self._vram[n] == offer.vram_bytes]
        if len(fits) < shape.gpus:
            return False
        for n in sorted(fits, key=lambda n: (self._tflops[n], self._vram[n], n))[: shape.gpus]:
            self._tflops[n] -= offer.tflops_milli if shape.dedicated else tflops
            self._vram[n] -= offer.vram_bytes if shape.dedicated else vram
        self._cpu -= shape.cpu_milli
        self._memory -= shape.memory_bytes
        return True


def suits(shape: Shape, offer: Offer) -> bool:
    """Return whether an idle node of an offer would take a pod."""
    tflops, vram = per_gpu(shape, offer)
    return (
        shape.gpus <= offer.gpus
        and tflops <= offer.tflops_milli
        and vram <= offer.vram_bytes
        and (not shape.models or offer.model in shape.models)
        and (not shape.vendor or offer.vendor == shape.vendor)
        and (not offer.cpu_milli or shape.cpu_milli <= offer.cpu_milli)
        and (not offer.memory_bytes or shape.memory_bytes <= offer.memory_bytes)
    )


def per_gpu(shape: Shape, offer: Offer) -> tuple[int, int]:
    """Return compute and VRAM of each GPU that a pod takes of an offer; shares are rounded up."""
    tflops = shape.tflops_milli or -(-offer.tflops_milli * shape.compute_milli // 1000)
    return tflops, shape.vram_bytes or -(-offer.vram_bytes * shape.vram_milli // 1000)


def weight(shape: Shape, offer: Offer) -> int:
    """Return how much of a node a pod takes, in thousandths of a GPU: the larger of its parts of compute and VRAM."""
    tflops, vram = per_gpu(shape, offer)
    if shape.dedicated:
        return 1000 * shape.gpus
    return shape.gpus * max(1000 * tflops // offer.tflops_milli, 1000 * vram // offer.vram_bytes, 1)


def pack(wanted: Sequence[tuple[Shape, int]], rooms: Iterable[Room]) -> list[tuple[Shape, int]]:
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


def held_by(offer: Offer, wanted: Sequence[tuple[Shape, int]]) -> int:
    """Return how much of what is wanted one node of an offer takes, in thousandths of a GPU."""
    room = Room(offer)
    left = dict(pack(wanted, [room]))
    return sum((pods - left.get(shape, 0)) * weight(shape, offer) for shape, pods in wanted if suits(shape, offer))
