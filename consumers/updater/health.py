"""Whether what was replaced is well: the gate between two batches. Pure."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import msgspec

from schemas.event import Timestamp
from schemas.rollout import BatchMember, Member, Reason, Rollout, UpdatePolicy

_SHOWN = 3

IsCurrent = Callable[[Member], bool]
"""Whether a member runs what the rollout brings it to."""


class Firing(msgspec.Struct, frozen=True):
    """An alert that fires, and since when it was found."""

    name: str
    since: Timestamp


class Verdict(msgspec.Struct, frozen=True):
    """What the gate says of a batch.

    Attributes:
        reason: Why the rollout must not go on; empty when nothing speaks against it.
        message: The same for people.
        failed: The members that are to blame.
        pending: Whether some may still become ready in time.
        left: Members that were down before and did not come up in time, which proves nothing.
    """

    reason: Reason = ""
    message: str = ""
    failed: tuple[str, ...] = ()
    pending: bool = False
    left: tuple[str, ...] = ()


def some(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    names = sorted(names)
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def find_trouble(
    record: Rollout, members: Iterable[Member], alerts: Iterable[Firing], is_current: IsCurrent
) -> Verdict:
    """Look for what stops a rollout at any moment: a crash loop of the new template, or an alert of the pool.

    Alerts that are older than the rollout are not its fault, as a pool that is full often has some. None stops the way back,
    which may be what ends them. What was down before its replacement says nothing about the template, nor does what was on
    it before the way back began.
    """
    tried = {one.name: one.was_ready for one in record.batch}
    innocent = {*record.skipped, *(name for name, was_ready in tried.items() if not was_ready)}
    looping = tuple(
        m.name
        for m in members
        if m.crash_looping and is_current(m) and m.name not in innocent and (m.name in tried or not record.back)
    )
    if looping:
        return Verdict("CrashLooping", f"crash looping with template {record.target.hash}: {some(looping)}", looping)
    began = record.started_at
    firing = [] if record.back or began is None else [one.name for one in alerts if one.since >= began]
    return Verdict("AlertsFiring", f"alerts of the pool fire: {some(firing)}") if firing else Verdict()


def judge_batch(
    record: Rollout, members: dict[str, Member], policy: UpdatePolicy, is_current: IsCurrent, now: datetime
) -> Verdict:
    """Judge a batch whose members have all been replaced; members that left are no fault of it."""
    limit = timedelta(seconds=policy.ready_within_s)
    late: list[str] = []
    left: list[str] = []
    pending = False
    for one in record.batch:
        if is_well(one, members.get(one.name), is_current, stays=record.component != "client"):
            continue
        if one.replaced_at is None or now < one.replaced_at + limit:
            pending = True
        else:
            (late if one.was_ready else left).append(one.name)
    if late:
        text = f"not ready within {policy.ready_within_s} s with template {record.target.hash}: {some(late)}"
        return Verdict("NotReady", text, tuple(late))
    if not pending and record.component == "client":
        return _judge_return(record, members, limit, now)
    return Verdict(pending=pending, left=tuple(left))


def is_well(one: BatchMember, member: Member | None, is_current: IsCurrent, *, stays: bool) -> bool:
    """Return whether nothing more is awaited of a member of the batch.

    A node or workload that is gone (``stays``) has left the cluster. A pod that is gone is looked for among the new ones.
    """
    if member is None:
        return stays or one.replaced_at is not None
    return one.replaced_at is not None and member.ready and not member.crash_looping and is_current(member)


def is_proven(record: Rollout, members: dict[str, Member], is_current: IsCurrent) -> bool:
    """Return whether a member that the batch replaced runs the new template, and well. Evicted pods have other names."""
    tried = members.values() if record.component == "client" else [members.get(one.name) for one in record.batch]
    return any(one is not None and one.ready and not one.crash_looping and is_current(one) for one in tried)


def _judge_return(record: Rollout, members: dict[str, Member], limit: timedelta, now: datetime) -> Verdict:
    """Evicted pods come back under other names: as many must be ready as before."""
    missing = record.ready_before - sum(member.ready for member in members.values())
    if missing <= 0:
        return Verdict()
    last = max((one.replaced_at for one in record.batch if one.replaced_at is not None), default=now)
    if now < last + limit:
        return Verdict(pending=True)
    text = f"{missing} fewer pods are ready than before the batch, {int(limit.total_seconds())} s after their eviction"
    return Verdict("NotReady", text)
