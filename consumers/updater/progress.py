"""How far a rollout is: its phases, its clock, and the members that are under way. Pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from consumers.updater.health import some
from schemas.rollout import BatchMember, Member, Phase, Reason, Replaced, Rollout, UpdatePolicy
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
        "proven": False, "batch": (), "skipped": (), "busy_s": 0, "busy_since": None,
    }  # fmt: skip


def phase_of(record: Rollout) -> Phase:
    """Return the phase to go on in after an interruption."""
    if not record.batch:
        return "planned"
    return "canary" if not record.proven and len(record.batch) == 1 else "batch"


def busy(record: Rollout, now: datetime) -> int:
    """Return the seconds that the batches have taken so far."""
    running = (now - record.busy_since).total_seconds() if record.busy_since is not None else 0.0
    return record.busy_s + int(running)


def stop_clock(record: Rollout, now: datetime) -> dict[str, Any]:
    """Return the fields of a rollout whose batches take no time for now."""
    return {"busy_s": busy(record, now), "busy_since": None}


def to_replace(record: Rollout) -> tuple[BatchMember, ...]:
    """Return the members that are to be replaced now."""
    return tuple(one for one in record.batch if one.replaced_at is None) if record.phase in UNDER_WAY else ()


def replaced(record: Rollout, answers: Mapping[str, Replaced], now: datetime) -> Rollout | None:
    """Return the record after the answers about some of its members, by name, or None if they say nothing new."""
    batch = tuple(_answered(one, answers.get(one.name), now) for one in record.batch)
    if batch == record.batch:
        return None
    blocked = [one for one in batch if one.blocked]
    reason: Reason = "Blocked" if blocked else ""
    message = f"{some(one.name for one in blocked)}: {blocked[0].blocked}" if blocked else ""
    return msgspec.structs.replace(
        record, batch=batch, step="replaced", txn="", changed_at=now, reason=reason, message=message, by=""
    )


def _answered(one: BatchMember, answer: Replaced | None, now: datetime) -> BatchMember:
    if answer is None:
        return one
    if answer.outcome == "blocked":
        return msgspec.structs.replace(one, blocked=answer.message or "blocked")
    return msgspec.structs.replace(one, replaced_at=now, blocked="")


def due(record: Rollout, policy: UpdatePolicy, now: datetime) -> datetime | None:
    """Return when to look again even if nothing happens, or None when only an event can change anything."""
    if record.phase not in UNDER_WAY:
        return record.due_at if record.phase in ACTIVE else None
    within = timedelta(seconds=policy.ready_within_s)
    instants = [one.replaced_at + within for one in record.batch if one.replaced_at is not None]
    if record.busy_since is not None:
        instants.append(record.busy_since + timedelta(seconds=policy.max_duration_s - record.busy_s + 1))
    if to_replace(record):
        instants.append(now + RETRY)
    return min((instant for instant in instants if instant > now), default=now + RETRY)
