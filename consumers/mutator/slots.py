"""The arithmetic of ``enabled-replicas``: slots are taken at admission, confirmed by their pod, and given back. Pure.

A slot is taken for a pod that may never come to be: refused by another webhook, invalid, or created by a controller that
died. So one that no pod has confirmed for :data:`LEASE` is free again. That time ends with the last word about any pod: while
nobody tells of pods, nobody can confirm. The number in the newest pod's annotation is the
limit that holds: lowering it takes nothing from pods that run.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.slots import Slot, WorkloadSlots

LEASE: Final = timedelta(seconds=60)
"""Longest time from an admission to the pod's first event: several webhooks of up to 30 s may come in between."""


def take(
    record: WorkloadSlots, slot: str, limit: int, now: datetime, heard: datetime | None = None, *, before: str = ""
) -> tuple[WorkloadSlots, str]:
    """Take a slot if fewer than ``limit`` are taken, and return its id, empty if none is left.

    The same admission is granted its slot again, and a pod that comes a second time keeps the one it had ``before``. A slot
    that a pod has already is no other's: the label is a copy then, of a pod or of one in a template.
    ``heard`` is when the last word about any pod came, by which leases end; none given: ``now``.
    """
    heard = min(heard or now, now)
    for one in record.slots:
        if one.id == slot or (one.id == before and not one.pod_uid):
            return record, one.id
    held = tuple(one for one in record.slots if one.pod_uid or heard - one.taken_at < LEASE)
    if len(held) >= limit:
        return record, ""
    return msgspec.structs.replace(record, slots=(*held, Slot(id=slot, taken_at=now))), slot


def confirm(record: WorkloadSlots, slot: str, pod_uid: str, now: datetime) -> WorkloadSlots:
    """The pod that took the slot exists; it counts though the slot had been free again.

    A second pod with the first one's label takes nothing from it: labels are anybody's to write.
    """
    others = tuple(held for held in record.slots if held.id != slot)
    mine = next((held for held in record.slots if held.id == slot), None)
    if mine is not None and mine.pod_uid:
        return record
    taken_at = mine.taken_at if mine is not None else now
    return msgspec.structs.replace(record, slots=(*others, Slot(id=slot, taken_at=taken_at, pod_uid=pod_uid)))


def give_back(record: WorkloadSlots, slot: str, pod_uid: str) -> WorkloadSlots:
    """The pod has ended, or is gone. If another has the slot, that keeps it."""
    left = tuple(held for held in record.slots if held.id != slot or held.pod_uid not in ("", pod_uid))
    return record if len(left) == len(record.slots) else msgspec.structs.replace(record, slots=left)
