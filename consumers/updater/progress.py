"""How far a rollout is: its phases, its clock, and the members that are under way. Pure."""

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from consumers.updater.down import FORGET, Down, carried, dropped, find_down, first_owners, taken_up, up_before
from consumers.updater.plan import batch_size, most_down
from consumers.updater.successors import owner_of, up_of
from consumers.updater.verdict import IsCurrent, some
from schemas.rollout import UNDER_WAY, BatchMember, Member, Phase, Reason, Replace, Replaced, Rollout, UpdatePolicy
from schemas.rollout_template import member_hashes

RETRY: Final = timedelta(seconds=5)
"""When members that could not be replaced are tried again."""

ACTIVE: Final[frozenset[Phase]] = UNDER_WAY | {"planned", "window", "interval"}
"""Phases in which a rollout goes on by itself."""


def count(record: Rollout, members: Iterable[Member]) -> tuple[int, int]:
    """Return how many members run what the record brings them to, and how many there are, now and not at its last step."""
    hash_of = member_hashes(record.target)
    owned = [member for member in members if member.owned]
    return sum(member.hash == hash_of(member) for member in owned), len(owned)


def fresh(record: Rollout, now: datetime) -> dict[str, Any]:
    """Return the fields with which a rollout begins."""
    return {
        "phase": "planned", "number": record.number + 1, "started_at": now, "back": False, "progress": 0, "batches": 0,
        "proven": False, "skipped": (), "accepted": (), "busy_s": 0, "busy_since": None, **dropped(record),
    }  # fmt: skip


def begun(
    record: Rollout,
    chosen: Sequence[Member],
    members: Iterable[Member],
    now: datetime,
    *,
    down: Down,
    is_current: IsCurrent,
) -> dict[str, Any]:
    """Return the fields with which a batch of these members begins; of none, one that awaits what owners of clients lack."""
    batch = [taken_up(one, down, is_current, now) for one in chosen]
    owners: dict[str, int] = {}
    if record.component == "client":
        more = first_owners(down, chosen) if chosen else down.owners
        taken = {one.name for one in chosen} - set(down.first)  # those stand, whatever was believed of them before
        known = msgspec.structs.replace(record, down=tuple(one for one in record.down if one.name not in taken))
        ready = up_of(known, members, map(owner_of, chosen) if chosen else down.owners)
        owners = {owner: count + more.get(owner, 0) for owner, count in ready.items()}
        batch = batch or [BatchMember(name=owner, uid="", replaced_at=now) for owner in owners]
    names = {one.name for one in batch}
    text = "waiting for" if all(one.replaced_at is not None for one in batch) else "replacing"
    return {
        "batches": record.batches + 1, "batch": tuple(batch), "owners": owners, "wanted": {}, "wanted_at": None,
        "down": tuple(one for one in record.down if one.name not in names), "busy_since": now,
        "message": f"{text} {some(names)}",
    }  # fmt: skip


def phase_of(record: Rollout) -> Phase:
    """Return the phase to go on in after an interruption."""
    if not record.batch:
        return "planned"
    return "canary" if not (record.proven or record.back) and len(record.batch) == 1 else "batch"


def resumed(record: Rollout, now: datetime) -> tuple[BatchMember, ...]:
    """Return the batch of a rollout that goes on: what was replaced in part is given its time again."""
    return tuple(one if one.part_at is None else msgspec.structs.replace(one, part_at=now) for one in record.batch)


def trimmed(
    record: Rollout, members: Mapping[str, Member], policy: UpdatePolicy, is_current: IsCurrent, now: datetime
) -> tuple[BatchMember, ...]:
    """Return the batch as it is to go on now.

    Of one that was planned when more could be down, before the percentage was lowered or members left, those that are up and
    whose turn has not come are only asked after: they may have been replaced unheard, and leave the batch if they stand. One
    that had no pod when the batch began is replaced if it got one of another template.
    A worker that was scaled, or whose pods that were down before have come up, is held to what it has now.
    """
    batch = tuple(
        _held(_appeared(one, members.get(one.name), is_current, now), members.get(one.name), now)
        for one in record.batch
    )
    room = max(_room(record, batch, members, policy, is_current), 0)
    away = _away(record, members, is_current).first
    waiting = [one for one in batch if one.replaced_at is None and not _is_begun(one) and one.name not in away]
    up = [one for one in waiting if _can_lose(members.get(one.name))]
    back = {one.name for one in up[room:]}
    return tuple(
        one if one.name not in back else msgspec.structs.replace(one, unsure=True)
        for one in batch
        if one.name not in back or not one.stands
    )


def is_tight(record: Rollout, members: Mapping[str, Member], policy: UpdatePolicy, is_current: IsCurrent) -> bool:
    """Return whether more workloads have pods replaced than may be down now: those that are up have to wait for others."""
    return _room(record, record.batch, members, policy, is_current) < 0


def _room(
    record: Rollout,
    batch: tuple[BatchMember, ...],
    members: Mapping[str, Member],
    policy: UpdatePolicy,
    is_current: IsCurrent,
) -> int:
    away = _away(record, members, is_current)
    begun = sum(_is_begun(one) and one.name not in away.first for one in batch)
    return most_down(len(members), policy.batch_percentage) - away.count - begun


def _away(record: Rollout, members: Mapping[str, Member], is_current: IsCurrent) -> Down:
    """Return who is down by our doing, the batch included."""
    known = msgspec.structs.replace(record, batch=tuple(_if_confirmed(one) for one in record.batch))
    return find_down(msgspec.structs.replace(known, **carried(known)), members, is_current)


def _is_begun(one: BatchMember) -> bool:
    return one.replaced_at is None and (one.part_at is not None or one.unsure)


def _if_confirmed(one: BatchMember) -> BatchMember:
    # What is yet to be replaced is down only if it is seen to be.
    return one if one.replaced_at is not None else msgspec.structs.replace(one, uid="")


def _can_lose(member: Member | None) -> bool:
    if member is None:
        return False
    # A workload that misses pods of its own accord is down by our doing as soon as one of the others goes.
    return member.pods_ready > 0 if member.component == "worker" else member.ready and not member.crash_looping


def _appeared(one: BatchMember, member: Member | None, is_current: IsCurrent, now: datetime) -> BatchMember:
    if member is None or not member.uid or (member.component == "worker" and one.uid):
        return one
    if member.uid == one.uid:
        # It was kept, and runs the template that was come back to: it only has to come up.
        stands = one.replaced_at is None and not one.unsure and is_current(member)
        return msgspec.structs.replace(one, uid="", replaced_at=now) if stands else one
    if is_current(member):
        return one
    # Of a node that somebody else was faster with, what they made is replaced.
    return msgspec.structs.replace(one, uid=member.uid, replaced_at=None, unsure=False)


def _held(one: BatchMember, member: Member | None, now: datetime) -> BatchMember:
    wanted = 0 if member is None else member.wanted or member.pods
    if member is None or not (one.wanted and wanted):
        return one
    up = max(up_before(one, member), min(member.pods_ready, wanted))
    if wanted == one.wanted and up <= one.pods_ready:
        return one
    # Those that it was scaled up by have their time to come up too.
    part_at = now if one.part_at is not None and wanted > one.wanted else one.part_at
    return msgspec.structs.replace(one, pods_ready=up, wanted=wanted, part_at=part_at)


def busy(record: Rollout, now: datetime) -> int:
    """Return the seconds that the batches have taken so far."""
    running = (now - record.busy_since).total_seconds() if record.busy_since is not None else 0.0
    return record.busy_s + int(running)


def stop_clock(record: Rollout, now: datetime) -> dict[str, Any]:
    """Return the fields of a rollout whose batches take no time until they go on."""
    return {"busy_s": busy(record, now), "busy_since": None}


def to_replace(record: Rollout, most: int | None = None, but: Container[str] = ()) -> tuple[BatchMember, ...]:
    """Return the members that are to be replaced now: at most so many, and none of those named in ``but``."""
    if record.phase not in UNDER_WAY:
        return ()
    return tuple(one for one in record.batch if one.replaced_at is None and one.name not in but)[:most]


def request_of(
    record: Rollout, one: BatchMember, member: Member, policy: UpdatePolicy, *, tight: bool = False
) -> Replace:
    """Return the request to replace a member of the batch.

    Of a worker's pods no more are down at a time than ``batchPercentage`` of those that it wants, beside those that were down
    before; those that it was scaled up by count as down until they are up. Of a canary's one goes first. Where more are under
    way than may be (``tight``), one that is up gives up its turn.
    """
    wanted = member.wanted or member.pods
    return Replace(
        pool=record.pool, component=record.component, name=one.name, uid=one.uid, template=record.target,
        hash=member_hashes(record.target)(member), isolation=member.isolation, up=up_before(one, member),
        at_once=batch_size(wanted, policy.batch_percentage), first=record.phase == "canary" and one.pods_ready > 0,
        since=one.since, keep=one.unsure or (tight and record.component == "worker"),
    )  # fmt: skip


def replaced(record: Rollout, answers: Mapping[str, Replaced], now: datetime) -> Rollout | None:
    """Return the record after the answers about some of its members, by name, or None if they say nothing new."""
    batch = tuple(_answered(one, answers.get(one.name), now) for one in record.batch)
    if batch == record.batch:
        return None
    blocked = [one for one in batch if one.blocked]
    reason: Reason = "Blocked" if blocked else ""
    parts = [f"{name}: {answer.message}" for name, answer in sorted(answers.items()) if answer.outcome == "part"]
    message = f"{some(one.name for one in blocked)}: {blocked[0].blocked}" if blocked else "".join(parts[:1])
    return msgspec.structs.replace(
        record, batch=batch, step="replaced", txn="", changed_at=now, reason=reason, message=message, by=""
    )


def _answered(one: BatchMember, answer: Replaced | None, now: datetime) -> BatchMember:
    if answer is None:
        return one
    if one.wanted and answer.up > one.pods_ready:
        one = msgspec.structs.replace(one, pods_ready=min(answer.up, one.wanted))
    if answer.outcome == "blocked":
        part_at = now if answer.pods else one.part_at
        unsure = one.unsure or answer.unsure
        stands = one.stands and not (unsure or answer.pods)
        return msgspec.structs.replace(
            one, blocked=answer.message or "blocked", part_at=part_at, unsure=unsure, stands=stands
        )
    if answer.outcome == "part":
        # What was forbidden is allowed again: only from then on is somebody to blame who does not come up.
        part_at = now if answer.pods or one.blocked or one.unsure else one.part_at
        stands = one.stands and not answer.pods
        return msgspec.structs.replace(one, blocked="", part_at=part_at, unsure=False, stands=stands)
    if answer.outcome == "kept":
        return msgspec.structs.replace(one, blocked="", part_at=None, unsure=False, stands=True)
    return msgspec.structs.replace(one, replaced_at=now, blocked="", unsure=False)


def due(record: Rollout, policy: UpdatePolicy, now: datetime) -> datetime | None:
    """Return when to look again even if nothing happens, or None when only an event can change anything."""
    if record.phase == "outdated" and any(one.unsure for one in record.down):
        return max(record.changed_at + FORGET, now + RETRY)
    if record.phase not in UNDER_WAY:
        return record.due_at if record.phase in ACTIVE else None
    within = timedelta(seconds=policy.ready_within_s)
    instants = [one.replaced_at + within for one in record.batch if one.replaced_at is not None]
    instants += [one.part_at + within for one in record.batch if one.part_at is not None and one.replaced_at is None]
    if record.busy_since is not None:
        instants.append(record.busy_since + timedelta(seconds=policy.max_duration_s - record.busy_s + 1))
    if to_replace(record):
        instants.append(now + RETRY)
    return min((instant for instant in instants if instant > now), default=now + RETRY)
