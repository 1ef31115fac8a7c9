"""Pods that are to hold more or less of the GPUs that they stand on: decided like a place, on their own GPUs alone.

To the engine it is a place like any other, without what the pod holds now and on none but its own GPUs; so capacity, quota and
every rule hold as they always do. To the ledger it is one change: the record that lists the new amounts says by which decision,
and there is no moment in which the pod holds nothing. What it holds, it keeps until then, and if that comes to nothing.
"""

from typing import Final

import msgspec

from consumers.allocator.book import Addition
from consumers.allocator.effects import encode
from consumers.allocator.mind import Mind
from schemas import reasons
from schemas.ledger import Allocation
from schemas.pod import WHOLE, GpuRequest, Schedule

SAME: Final = "same"
"""The pod holds that already."""


class Resizing:
    """Has pods of ``mind`` hold other amounts."""

    def __init__(self, mind: Mind) -> None:
        self._mind = mind

    def resize(self, command: Schedule, token: object) -> str:
        """Have a pod hold what ``command`` asks for, where it stands.

        Args:
            command: Its request, with other amounts, and the node that it stands on.
            token: Is acknowledged when that is in the ledger, or given back if it did not come to that.

        Returns:
            Why not; empty if it is under way, and :data:`SAME` if there is nothing to do.
        """
        mind, uid, node = self._mind, command.uid, command.node
        place, book = mind.places.first(uid), mind.shelf.book(node)
        held = book.held.get(uid)
        if place is None or place.node != node or held is None:
            return f"the pod does not stand on {node}"
        if uid in mind.pending or uid in mind.removing or book.frozen:
            return "what the pod holds is being changed already"
        request = msgspec.structs.replace(
            command.request, uuids=tuple(gpu.uuid for gpu in held.gpus), count=len(held.gpus), gpu_indices=()
        )
        host = mind.snapshot.host(node)
        physical = {device.uuid: device.tflops_milli for device in (host.devices if host is not None else None) or ()}
        compute = _limit(held, request, physical)
        if problem := _fixed(held, command.request) or _limited(held, request, physical, compute):
            return problem
        if _is_so(held, request, compute):
            return SAME
        command = msgspec.structs.replace(command, request=request, way="resize")
        mind.snapshot.remove(node, uid)
        mind.journal.drop(uid, node)
        with mind.quotas.without(node, held):
            decision, allocation = mind.decider.place(command)
        mind.counters.decided += 1
        if allocation is None:
            mind.restore(uid, book)
            mind.decider.settled(uid)
            over_quota = decision.reason in (reasons.QUOTA, reasons.QUOTA_SINGLE)
            return (
                f"{decision.reason}: {decision.message if over_quota else 'the GPUs that it stands on do not allow it'}"
            )
        mind.snapshot.add(node, allocation)
        mind.quotas.promise_instead(node, held, allocation)
        mind.put(Addition(command, token, allocation, decision, encode(decision), instead=held))
        return ""


def _fixed(held: Allocation, request: GpuRequest) -> str:
    """Return why a pod's amounts are what they are; empty if they can be others."""
    if held.gang or request.gang is not None:
        return "members of gangs hold what they were placed with"
    if held.containers or request.containers:
        return "its containers have amounts of their own"
    if request.dedicated or request.partition_template or any(gpu.partition or gpu.exclusive for gpu in held.gpus):
        return "it has its GPUs, or partitions of them, to itself"
    if request.remote or not held.gpus:
        return "it holds no GPU"
    return ""


def _limit(held: Allocation, request: GpuRequest, physical: dict[str, int]) -> int:
    """Return the limit of compute that a request comes down to on the GPUs that are held; 0 where it states none."""
    if request.compute_limit_milli:
        return sum(physical.get(gpu.uuid, 0) * request.compute_limit_milli // WHOLE for gpu in held.gpus)
    return request.tflops_limit_milli * len(held.gpus)


def _limited(held: Allocation, request: GpuRequest, physical: dict[str, int], compute: int) -> str:
    """Return which limit is below what would be granted; empty if none is."""
    share = request.compute_milli
    asked = sum(physical.get(gpu.uuid, 0) * share // WHOLE if share else request.tflops_milli for gpu in held.gpus)
    if 0 < compute < asked:
        return f"its limit of {compute / 1000:g} TFLOPS is below the {asked / 1000:g} that it asks for: raise the limit"
    if 0 < request.vram_limit_bytes < request.vram_bytes:
        return (
            f"its limit of {request.vram_limit_bytes} bytes of VRAM is below the {request.vram_bytes} that it asks for: "
            "raise the limit"
        )
    return ""


def _is_so(held: Allocation, request: GpuRequest, limit: int) -> bool:
    """Return whether a pod holds what is asked for, as far as that is stated in amounts."""
    count = len(held.gpus)
    compute = (
        held.compute_milli == request.compute_milli * count
        if request.compute_milli
        else all(gpu.tflops_milli == request.tflops_milli for gpu in held.gpus)
    )
    return bool(
        compute
        and held.tflops_limit_milli == limit
        and not request.vram_milli
        and all(gpu.vram_bytes == request.vram_bytes for gpu in held.gpus)
        and held.vram_limit_bytes == request.vram_limit_bytes * count
    )
