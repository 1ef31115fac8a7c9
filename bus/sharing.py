"""Who shares a GPU with whom, as the ledger says: checked with code of its own, so that an allocator's mistake shows."""

from collections.abc import Iterable, Iterator, Mapping

from schemas.decision import GpuGrant
from schemas.hardware import PartitionTemplate
from schemas.ledger import Allocation

Fault = tuple[str, str]
"""Rule and detail."""


def faults(
    allocations: Iterable[Allocation],
    slots: dict[str, int],
    templates: Mapping[str, tuple[PartitionTemplate, ...]],
) -> Iterator[Fault]:
    """Yield what must not be together on the GPUs of one node.

    Args:
        allocations: What the node's pods hold.
        slots: By GPU UUID how many containers may share it; 0 or no entry for no limit.
        templates: By GPU UUID the partitions that it can be cut into.
    """
    on: dict[str, list[tuple[str, GpuGrant]]] = {}
    for allocation in allocations:
        yield from _beyond(allocation)
        for grant in allocation.gpus:
            on.setdefault(grant.uuid, []).append((allocation.pod_uid, grant))
    for uuid, holders in on.items():
        if len(holders) > 1:
            yield from _together(uuid, holders)
        if any(grant.partition is not None for _, grant in holders):
            yield from _cut(uuid, holders, templates.get(uuid, ()))
        used, most = sum(grant.slots for _, grant in holders), slots.get(uuid, 0)
        if most and used > most:
            yield "GpuOutOfSlots", f"GPU {uuid} gives {used} of {most} slots"


def _together(uuid: str, holders: list[tuple[str, GpuGrant]]) -> Iterator[Fault]:
    alone = [uid for uid, grant in holders if grant.exclusive]
    if alone:
        yield "GpuNotExclusive", f"GPU {uuid} is given to pod {alone[0]} alone, and to {len(holders) - 1} more"
    modes = {grant.isolation for _, grant in holders}
    if {"soft", "hard"} <= modes or ("partitioned" in modes and len(modes) > 1):
        yield (
            "IsolationMixed",
            f"GPU {uuid} has pods with isolation {', '.join(sorted(mode or 'none' for mode in modes))}",
        )


def _beyond(allocation: Allocation) -> Iterator[Fault]:
    """Yield what a container is given that its pod is not."""
    held = {grant.uuid: (grant.tflops_milli, grant.vram_bytes) for grant in allocation.gpus}
    for container in allocation.containers:
        for grant in container.gpus:
            tflops, vram = held.get(grant.uuid, (-1, -1))
            if grant.tflops_milli > tflops or grant.vram_bytes > vram:
                name = f"container {container.name} of pod {allocation.pod_uid}"
                yield "ContainerBeyondPod", f"{name} is given more of GPU {grant.uuid} than the pod holds"


def _cut(uuid: str, holders: list[tuple[str, GpuGrant]], templates: tuple[PartitionTemplate, ...]) -> Iterator[Fault]:
    places = {(template.id, start, template.slots) for template in templates for start in template.starts}
    taken: dict[int, str] = {}
    for uid, grant in holders:
        cut = grant.partition
        if cut is None:
            yield "PartitionMixed", f"GPU {uuid} is cut into partitions, and pod {uid} holds none of them"
            continue
        if (cut.template, cut.start, cut.slots) not in places:
            yield (
                "UnknownPartition",
                f"GPU {uuid} cannot be cut into {cut.template} of {cut.slots} slots at slot {cut.start}",
            )
        for slot in range(cut.start, cut.start + cut.slots):
            if slot in taken:
                yield "PartitionOverlap", f"slot {slot} of GPU {uuid} is in partitions of pods {taken[slot]} and {uid}"
                break
            taken[slot] = uid
