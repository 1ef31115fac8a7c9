"""Who is down by our doing, over successive templates. Pure.

A batch that is dropped before its members have come up, by a newer template, a way back or a policy, leaves them down. They are
remembered, so that however many templates follow one another, and however many of these are broken, no more are ever down by our
doing than one batch may have: those that are down go first, also as the canary, and others only while there is room beside them.
Whom an operator has accepted as it is (``resume``) is not counted until another template comes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from consumers.updater.successors import owner_of, up_of
from consumers.updater.verdict import IsCurrent
from schemas.rollout import BatchMember, Member, Rollout


def up_before(one: BatchMember, member: Member) -> int:
    """Return how many pods of a worker are ready when none is down by our doing: all that it wants but those down before."""
    wanted = member.wanted or member.pods
    if not one.wanted:
        return min(one.pods_ready, wanted)
    return max(wanted - max(one.wanted - one.pods_ready, 0), 0)


class Down(msgspec.Struct, frozen=True):
    """Who is down by our doing now, but for the batch under way.

    Attributes:
        first: What can be replaced, or awaited, at no cost, by name, as it was before.
        count: Members that are down.
        owners: Clients that each owner lacks.
    """

    first: dict[str, BatchMember] = {}
    count: int = 0
    owners: dict[str, int] = {}


def carried(record: Rollout) -> dict[str, Any]:
    """Return the fields that remember the batch under way when it is dropped.

    Those whose replacement was not confirmed may have been replaced all the same, so they count until it is known.
    """
    now = {one.name for one in record.batch}
    kept = [one for one in record.down if one.name not in now]
    if record.component == "client":
        gone = [_unsure(one) for one in record.batch if one.uid]
        owners = record.owners if record.batch else {}
        short = {owner: max(record.short.get(owner, 0), owners.get(owner, 0)) for owner in {*record.short, *owners}}
        return {"down": (*kept, *gone), "short": dict(sorted(short.items()))}
    taken = [_remembered(record, one) for one in record.batch if one.was_ready or one.pods_ready]
    return {"down": (*kept, *taken), "short": {}}


def dropped(record: Rollout) -> dict[str, Any]:
    """Return the fields of a record whose batch is dropped, whether or not its members have come up."""
    return {"batch": (), **carried(record)}


def _remembered(record: Rollout, one: BatchMember) -> BatchMember:
    one = _unsure(one)
    if record.component == "worker" and one.uid:
        # What is seen of a workload may be older than what was done to it, so it is asked after.
        touched = one.unsure or one.part_at is not None or one.replaced_at is not None
        one = msgspec.structs.replace(one, unsure=touched)
    # A workload keeps its UID; of a node the pod with that UID is the one that was removed, and may still be seen.
    uid = one.uid if one.unsure or record.component == "hypervisor" else ""
    return BatchMember(
        name=one.name, uid=uid, was_ready=one.was_ready, pods_ready=one.pods_ready, wanted=one.wanted,
        since=one.since or record.started_at, unsure=one.unsure,
    )  # fmt: skip


def _unsure(one: BatchMember) -> BatchMember:
    return msgspec.structs.replace(one, unsure=bool(one.uid) and one.replaced_at is None)


def blamed(record: Rollout, names: Iterable[str], members: Mapping[str, Member]) -> dict[str, Any]:
    """Return the fields that remember members that came up and crash loop since."""
    looping = [members[name] for name in names if name in members]
    if record.component == "client":
        lost = Counter(map(owner_of, looping))
        ready = up_of(record, members.values(), lost)
        short = {owner: max(record.short.get(owner, 0), ready[owner] + lost[owner]) for owner in lost}
        return {"short": dict(sorted((record.short | short).items()))}
    known = {one.name for one in (*record.batch, *record.down)}
    added = [
        BatchMember(
            name=one.name,
            uid="",
            pods_ready=one.wanted or one.pods,
            wanted=one.wanted or one.pods,
            since=record.started_at,
        )
        for one in looping
        if one.name not in known
    ]
    return {"down": (*record.down, *added)}


def find_down(record: Rollout, members: Mapping[str, Member], is_current: IsCurrent) -> Down:
    """Return who is down by our doing, beside the batch under way."""
    if record.component == "client":
        return _clients(record, members.values(), is_current)
    first: dict[str, BatchMember] = {}
    unseen = 0
    for one in record.down:
        member = members.get(one.name)
        if member is None or one.name in record.skipped:
            continue
        if one.unsure and _is_seen(one, member):
            first[one.name] = one  # asking for it again tells what became of it
        elif _is_seen(one, member):
            unseen += 1  # removed, and what came after it is yet to be seen
        elif _is_down(one, member):
            first[one.name] = one
    return Down(first, len(first) + unseen)


def remembered(record: Rollout, members: Mapping[str, Member]) -> dict[str, Any]:
    """Return the fields without those that are up again, or gone."""
    client = record.component == "client"
    test: Callable[[BatchMember, Member], bool] = _is_seen if client else _may_be_down
    down = tuple(one for one in record.down if one.name in members and test(one, members[one.name]))
    ready = up_of(record, members.values(), record.short)
    return {"down": down, "short": {owner: had for owner, had in record.short.items() if ready[owner] < had}}


FORGET: Final = timedelta(minutes=2)
"""No request is under way for longer: who is seen to stand as it was then has not been replaced."""


def at_rest(record: Rollout, members: Mapping[str, Member], now: datetime) -> Rollout:
    """Return a record of which nothing is under way without those that are up, for whom what they were down for is over."""
    if record.batch or record.phase not in ("synced", "rolled-back", "outdated"):
        return record
    settled = now >= record.changed_at + FORGET
    judged = (_at_rest(one, members.get(one.name), settled=settled) for one in record.down)
    down = tuple(one for one in judged if one is not None)
    kept = msgspec.structs.replace(record, down=down)
    ready = up_of(kept, members.values(), kept.short)
    short = {owner: had for owner, had in kept.short.items() if ready[owner] < had}
    return record if (down, short) == (record.down, record.short) else msgspec.structs.replace(kept, short=short)


def _at_rest(one: BatchMember, member: Member | None, *, settled: bool) -> BatchMember | None:
    if member is None:
        return None
    if not (one.unsure and _is_seen(one, member)):
        return one if _is_seen(one, member) or (member.component != "client" and _is_down(one, member)) else None
    if not settled:
        return one
    # An agent or client that is seen to stand was not replaced. A workload stands in any case: pods of it may have been.
    away = member.component == "worker" and _is_down(one, member)
    return msgspec.structs.replace(one, uid="", unsure=False) if away else None


def _clients(record: Rollout, members: Collection[Member], is_current: IsCurrent) -> Down:
    ready = up_of(record, members, record.short)
    lacks = {owner: had - ready[owner] for owner, had in record.short.items() if had > ready[owner]}
    gone = {(one.name, one.uid) for one in record.down}
    seen = {m.name: m for m in members}
    asked = [one for one in record.down if one.unsure and one.name in seen and _is_seen(one, seen[one.name])]
    first: dict[str, BatchMember] = {}
    for owner, lack in lacks.items():
        theirs = [m for m in members if not m.ready and owner_of(m) == owner and (m.name, m.uid) not in gone]
        theirs = [m for m in theirs if m.name not in record.skipped]
        # The youngest were made for those that were evicted. What is made from the right template already only has to come up.
        stale = sorted((m for m in theirs if not is_current(m)), key=lambda m: (m.created_at, m.name), reverse=True)
        left = max(lack - (len(theirs) - len(stale)), 0)
        unsure = [one for one in asked if owner_of(seen[one.name]) == owner and one.name not in record.skipped][:left]
        first |= {one.name: one for one in unsure}
        first |= {m.name: BatchMember(name=m.name, uid=m.uid) for m in stale[: left - len(unsure)]}
    return Down(first, sum(lacks.values()), lacks)


def _is_down(one: BatchMember, member: Member) -> bool:
    well = member.ready and not member.crash_looping
    if member.component == "worker":
        return member.pods_ready < up_before(one, member) or (one.was_ready and not well)
    return not well


def _may_be_down(one: BatchMember, member: Member) -> bool:
    return not one.uid or _is_seen(one, member) or _is_down(one, member)


def _is_seen(one: BatchMember, member: Member) -> bool:
    return bool(one.uid) and one.uid == member.uid


def first_owners(down: Down, chosen: Iterable[Member]) -> Counter[str]:
    """Return how many clients of each owner are brought up by replacing these, beside those that are ready."""
    return Counter(owner_of(one) for one in chosen if one.name in down.first)


def taken_up(one: Member, down: Down, is_current: IsCurrent, now: datetime) -> BatchMember:
    """Return a member as it enters a batch; of one that is down by our doing it counts how it was before that."""
    known = down.first.get(one.name)
    if known is None:
        return BatchMember(
            name=one.name, uid=one.uid, was_ready=one.ready, pods_ready=one.pods_ready, wanted=one.wanted or one.pods,
            since=now,
        )  # fmt: skip
    if is_current(one) and not (
        known.unsure and _is_seen(known, one)
    ):  # it only has to come up: nothing of that UID is to be removed
        return msgspec.structs.replace(known, uid="", since=known.since or now, replaced_at=now)
    unsure = known.unsure and _is_seen(known, one)
    return msgspec.structs.replace(known, uid=one.uid, since=known.since or now, unsure=unsure)
