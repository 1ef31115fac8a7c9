"""Whether what was replaced is well: the gate between two batches. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from consumers.updater.down import up_before
from consumers.updater.successors import judge_return
from consumers.updater.verdict import Firing, IsCurrent, Verdict, some
from schemas.rollout import BatchMember, Member, Rollout, UpdatePolicy


def find_trouble(
    record: Rollout, members: Iterable[Member], alerts: Iterable[Firing], is_current: IsCurrent
) -> Verdict:
    """Look for what stops a rollout at any moment: a crash loop of the new template, or an alert of the pool.

    Alerts that are older than the rollout are not its fault, as a pool that is full often has some, nor do those count that an
    operator went on in spite of. None stops the way back, which may be what ends them. What was down before its replacement
    says nothing about the template, nor does what was on it before the way back began.
    """
    looping = find_looping(record, members, is_current)
    if looping:
        return Verdict("CrashLooping", f"crash looping with template {record.target.hash}: {some(looping)}", looping)
    began = record.started_at
    if record.back or began is None:
        return Verdict()
    firing = tuple(one.name for one in alerts if one.since >= began and one.name not in record.accepted)
    return Verdict("AlertsFiring", f"alerts of the pool fire: {some(firing)}", firing) if firing else Verdict()


def find_looping(record: Rollout, members: Iterable[Member], is_current: IsCurrent) -> tuple[str, ...]:
    """Return the members whose crash loop speaks against the template."""
    tried = {one.name: one.was_ready for one in record.batch}
    innocent = {*record.skipped, *(name for name, was_ready in tried.items() if not was_ready)}
    return tuple(
        m.name
        for m in members
        if m.crash_looping and is_current(m) and m.name not in innocent and (m.name in tried or not record.back)
    )


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
            (late if one.was_ready or _lost_pods(one, members.get(one.name)) else left).append(one.name)
    if late:
        text = f"not ready within {policy.ready_within_s} s with template {record.target.hash}: {some(late)}"
        return Verdict("NotReady", text, tuple(late))
    if not pending and record.component == "client":
        return judge_return(record, members.values(), limit, now)
    return Verdict(pending=pending, left=tuple(left))


def _lost_pods(one: BatchMember, member: Member | None) -> bool:
    """Return whether a workload that was not ready before has fewer pods ready than it had: those are down by our doing."""
    if member is None or member.component != "worker":
        return False
    return member.pods_ready < min(one.pods_ready, up_before(one, member))


def is_well(one: BatchMember, member: Member | None, is_current: IsCurrent, *, stays: bool) -> bool:
    """Return whether nothing more is awaited of a member of the batch.

    A node or workload that is gone (``stays``) has left the cluster. A pod that is gone is looked for among the new ones.
    """
    if member is None:
        return stays or one.replaced_at is not None
    if one.replaced_at is None or (member.component != "worker" and one.uid == member.uid):
        return False  # of what was replaced news is yet to come
    return member.ready and not member.crash_looping and is_current(member)


def is_proven(record: Rollout, members: dict[str, Member], is_current: IsCurrent) -> bool:
    """Return whether a member that the batch replaced runs the new template, and well. Evicted pods have other names."""
    tried = members.values() if record.component == "client" else [members.get(one.name) for one in record.batch]
    return any(one is not None and one.ready and not one.crash_looping and is_current(one) for one in tried)


def judge_parts(record: Rollout, policy: UpdatePolicy, now: datetime) -> Verdict:
    """Judge workers whose pods are replaced some at a time: those replaced last must come up before the next are."""
    limit = timedelta(seconds=policy.ready_within_s)
    waiting = [one for one in record.batch if one.replaced_at is None and one.pods_ready and not one.blocked]
    late = tuple(one.name for one in waiting if one.part_at is not None and now >= one.part_at + limit)
    if not late:
        return Verdict()
    text = f"some pods not ready within {policy.ready_within_s} s with template {record.target.hash}: {some(late)}"
    return Verdict("NotReady", text, late)
