"""Evicted clients come back under other names: whether as many are ready as before, or as their owners still want. Pure.

Only what belongs to the owners of the batch counts. An owner that was scaled down meanwhile, has finished or is gone wants
fewer, and is asked; one that fails to make its pods wants as many as before, and that halts the rollout.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from consumers.updater.verdict import Verdict, some
from schemas.rollout import UNDER_WAY, Member, Rollout, UpdatePolicy

UNKNOWN: Final = -1
"""What an owner wants that cannot say."""


def owner_of(member: Member) -> str:
    """Return what makes a client's pods, with its namespace: ``default/apps/v1/ReplicaSet/web``."""
    return f"{member.name.rpartition('/')[0]}/{member.owner}"


def up_of(record: Rollout, members: Iterable[Member], owners: Iterable[str]) -> dict[str, int]:
    """Return how many pods of each of these owners are ready, or are accepted as they are.

    Pods that were evicted in an earlier batch do not count, though they may still be seen.
    """
    gone = {(one.name, one.uid) for one in record.down}
    up = (m for m in members if (m.ready or m.name in record.skipped) and (m.name, m.uid) not in gone)
    ready = Counter(map(owner_of, up))
    return {owner: ready[owner] for owner in sorted(set(owners))}


def missing(record: Rollout, members: Iterable[Member]) -> dict[str, int]:
    """Return the owners of the batch that have fewer ready pods than before it, all being evicted, and how many fewer."""
    all_gone = record.batch and all(one.replaced_at is not None for one in record.batch)
    if record.component != "client" or record.phase not in UNDER_WAY or not all_gone:
        return {}
    ready = up_of(record, members, record.owners)
    return {owner: before - ready[owner] for owner, before in record.owners.items() if before > ready[owner]}


def given_up(record: Rollout, members: Iterable[Member]) -> dict[str, int]:
    """Return what owners are still held to after a batch that went well: not to what they want no more."""
    less = missing(record, members)
    return {owner: max(had - less.get(owner, 0), 0) for owner, had in record.short.items()}


def told(record: Rollout, wanted: Mapping[str, int], policy: UpdatePolicy, now: datetime) -> Rollout | None:
    """Return the record with what owners say that they want, or None if that is no news."""
    late = now >= _last(record, now) + timedelta(seconds=policy.ready_within_s)
    if record.wanted == wanted and not (late and not _asked_in_the_end(record, policy.ready_within_s, now)):
        return None
    return msgspec.structs.replace(
        record, wanted=dict(wanted), wanted_at=now, step="asked", txn="", changed_at=now, by=""
    )


def judge_return(record: Rollout, members: Iterable[Member], limit: timedelta, now: datetime) -> Verdict:
    """Judge a batch of clients that have all been evicted. Nobody is blamed before the owners were asked in the end."""
    short = {
        owner: fewer for owner, less in missing(record, members).items() if (fewer := _still(record, owner, less)) > 0
    }
    if not short:
        return Verdict()
    within_s = int(limit.total_seconds())
    if now < _last(record, now) + limit or not _asked_in_the_end(record, within_s, now):
        return Verdict(pending=True)
    text = f"{sum(short.values())} fewer pods are ready than before the batch, {within_s} s after their eviction"
    return Verdict("NotReady", f"{text}: {some(short)}", tuple(sorted(short)))


def _still(record: Rollout, owner: str, less: int) -> int:
    """Return how many of the missing pods the owner still wants."""
    wanted = record.wanted.get(owner, UNKNOWN)
    return less if wanted == UNKNOWN else less - max(record.owners[owner] - wanted, 0)


def _last(record: Rollout, now: datetime) -> datetime:
    return max((one.replaced_at for one in record.batch if one.replaced_at is not None), default=now)


def _asked_in_the_end(record: Rollout, within_s: int, now: datetime) -> bool:
    return record.wanted_at is not None and record.wanted_at >= _last(record, now) + timedelta(seconds=within_s)
