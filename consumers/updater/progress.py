"""How far a rollout is: its phases, its clock, and the members that are under way. Pure."""

from collections.abc import Collection, Container, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from consumers.updater.plan import batch_size
from consumers.updater.successors import owner_of, ready_of
from consumers.updater.verdict import some
from schemas.rollout import BatchMember, Member, Phase, Reason, Replace, Replaced, Rollout, UpdatePolicy
from schemas.rollout_template import member_hashes

RETRY: Final = timedelta(seconds=5)
"""When members that could not be replaced are tried again."""

UNDER_WAY: Final[frozenset[Phase]] = frozenset({"canary", "batch"})
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
        "proven": False, "batch": (), "skipped": (), "accepted": (), "busy_s": 0, "busy_since": None,
    }  # fmt: skip


def begun(record: Rollout, chosen: Collection[Member], members: Iterable[Member], now: datetime) -> dict[str, Any]:
    """Return the fields with which a batch of these members begins."""
    batch = tuple(
        BatchMember(name=one.name, uid=one.uid, was_ready=one.ready, pods_ready=one.pods_ready) for one in chosen
    )
    owners = map(owner_of, chosen) if record.component == "client" else ()
    return {
        "batches": record.batches + 1, "batch": batch, "owners": ready_of(members, owners), "wanted": {},
        "wanted_at": None, "busy_since": now, "message": f"replacing {some(one.name for one in batch)}",
    }  # fmt: skip


def phase_of(record: Rollout) -> Phase:
    """Return the phase to go on in after an interruption."""
    if not record.batch:
        return "planned"
    return "canary" if not (record.proven or record.back) and len(record.batch) == 1 else "batch"


def interrupted(record: Rollout, now: datetime) -> tuple[BatchMember, ...]:
    """Return the batch of a rollout that goes on: what was replaced in part is given its time again."""
    return tuple(one if one.part_at is None else msgspec.structs.replace(one, part_at=now) for one in record.batch)


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


def request_of(record: Rollout, one: BatchMember, member: Member, policy: UpdatePolicy) -> Replace:
    """Return the request to replace a member of the batch.

    Of a worker's pods no more are down at a time than ``batchPercentage`` of those that it wants, beside those that were down
    before; of a canary's one goes first.
    """
    wanted = member.wanted or member.pods
    return Replace(
        pool=record.pool, component=record.component, name=one.name, uid=one.uid, template=record.target,
        hash=member_hashes(record.target)(member), isolation=member.isolation, up=min(one.pods_ready, wanted),
        at_once=batch_size(wanted, policy.batch_percentage), first=record.phase == "canary" and one.pods_ready > 0,
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
    if answer.outcome == "blocked":
        part_at = now if answer.pods else one.part_at
        return msgspec.structs.replace(one, blocked=answer.message or "blocked", part_at=part_at)
    if answer.outcome == "part":
        # What was forbidden is allowed again: only from then on is somebody to blame who does not come up.
        part_at = now if answer.pods or one.blocked else one.part_at
        return msgspec.structs.replace(one, blocked="", part_at=part_at)
    return msgspec.structs.replace(one, replaced_at=now, blocked="")


def due(record: Rollout, policy: UpdatePolicy, now: datetime) -> datetime | None:
    """Return when to look again even if nothing happens, or None when only an event can change anything."""
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
