"""What people may order of a rollout, as transitions of its record. Pure."""

from datetime import datetime
from typing import Any

import msgspec

from consumers.updater.down import carried
from consumers.updater.progress import ACTIVE, fresh, stop_clock
from schemas.rollout import ComponentSpec, Rollout, Step, UpdatePolicy


class OrderRefusedError(ValueError):
    """The order makes no sense in this phase. The message says which would."""


def pause(record: Rollout, now: datetime, by: str) -> Rollout:
    """Begin nothing more until :func:`resume`; what has been replaced comes up meanwhile.

    Raises:
        OrderRefusedError: Nothing is under way.
    """
    if record.phase not in ACTIVE:
        raise OrderRefusedError(f"{_name(record)} is {record.phase}: there is nothing to pause")
    # The interval after a batch is there to watch it; a pause does not cut it short.
    due_at = record.due_at if record.phase == "interval" else None
    return _ordered(record, "paused", now, by, phase="paused", due_at=due_at, **stop_clock(record, now))


def resume(record: Rollout, now: datetime, by: str) -> Rollout:
    """Go on after a pause; go on in spite of what halted it or of the alerts that it waits for; or begin what is not automatic.

    Members and alerts that are accepted so stop this rollout no more; others, and other alerts, still do.

    Raises:
        OrderRefusedError: There is nothing to go on with.
    """
    match record.phase:
        case "paused":
            early = record.due_at is not None and now < record.due_at
            return _ordered(
                record,
                "resumed",
                now,
                by,
                phase="interval" if early else "planned",
                due_at=record.due_at if early else None,
            )
        case "halted":
            # The others of the batch are still to come up: who goes on accepts those that are named, and no more down at once.
            return _ordered(record, "resumed", now, by, phase="planned", busy_s=0, **_left(record), **_accepted(record))
        case "planned" if record.reason == "AlertsFiring":
            return _ordered(record, "resumed", now, by, **_accepted(record))
        case "outdated":
            return _ordered(record, "started", now, by, **fresh(record, now), manual=True)
        case _:
            hint = "; change the pool's template, or roll back" if record.phase == "aborted" else ""
            raise OrderRefusedError(f"{_name(record)} is {record.phase}: there is nothing to resume{hint}")


def check_policy(record: Rollout, policy: UpdatePolicy) -> None:
    """Check that there is a policy to go on by. The way back needs none.

    Raises:
        OrderRefusedError: What the pool states cannot be followed.
    """
    if policy.refused and not record.back:
        raise OrderRefusedError(
            f"{_name(record)} cannot go on, as its update policy cannot be followed: {policy.refused}; mend the pool first"
        )


def begin_anew(last: Rollout | None, spec: ComponentSpec | None, now: datetime, by: str) -> Rollout:
    """Return the record to go on with where the newest cannot be read: nothing is updated before somebody resumes it.

    Args:
        last: The last revision that can be read, if any. What halted or was aborted stays so.
        spec: What the pool wants, if that is known.
        now: The time.
        by: Who ordered it.

    Raises:
        OrderRefusedError: Nothing at all is known of it.
    """
    text = f"begun anew by {by}"
    if last is None:
        if spec is None:
            raise OrderRefusedError(
                "neither an earlier record nor what the pool wants is known: run a watcher, then try again"
            )
        return Rollout(
            pool=spec.pool, component=spec.component, target=spec.template, changed_at=now, since=now, step="recorded",
            phase="outdated", reason="FirstSeen", by=by,
            message=f"{text}: nothing is known of what was before; `gpubus rollout resume` begins the update",
        )  # fmt: skip
    if last.phase in ("halted", "aborted"):
        message = "; ".join(filter(None, (text, last.message)))
        return msgspec.structs.replace(
            last, step="recorded", changed_at=now, txn="", by=by, message=message, busy_since=None
        )
    message = f"{text} from a record of {last.changed_at.isoformat(timespec='seconds')}; look at what runs, then resume"
    # All had the target then, so it is what to go back to from any other.
    previous = last.target if last.phase in ("synced", "rolled-back") else last.previous
    return _ordered(last, "paused", now, by, phase="paused", message=message, busy_since=None, previous=previous)


def abort(record: Rollout, now: datetime, by: str) -> Rollout:
    """Leave things as they stand, for good: only another change or :func:`rollback` moves them.

    Raises:
        OrderRefusedError: Nothing is under way.
    """
    if record.phase not in ACTIVE | {"paused", "halted"}:
        raise OrderRefusedError(f"{_name(record)} is {record.phase}: there is nothing to abort")
    return _ordered(record, "aborted", now, by, phase="aborted", **stop_clock(record, now))


def rollback(record: Rollout, now: datetime, by: str) -> Rollout:
    """Bring what has been updated back to the previous template, at once: without canary and outside windows too.

    A way back that was aborted goes on.

    Raises:
        OrderRefusedError: No previous template is known.
    """
    if record.back and record.phase == "aborted":
        return _ordered(record, "rolled-back", now, by, **fresh(record, now) | {"back": True})
    if record.previous is None or record.previous.hash == record.target.hash:
        already = "is rolling or rolled back already" if record.back else "has no previous template to go back to"
        raise OrderRefusedError(f"{_name(record)} {already}: change the pool's template instead")
    changes = fresh(record, now) | {"back": True, "target": record.previous, "previous": None}
    return _ordered(record, "rolled-back", now, by, **changes, rejected=record.target.hash)


def _left(record: Rollout) -> dict[str, Any]:
    """What halted it is under way no longer, but not forgotten: the next template begins with it."""
    failed = {*record.failed}
    if failed & {*record.owners} and record.reason == "NotReady":
        # Clients that did not come back have no name: their owners are held to what they have.
        short = {owner: had for owner, had in record.short.items() if owner not in failed}
        return {"batch": (), "owners": {}, "short": short}
    kept = tuple(one for one in record.batch if one.name not in failed)
    if record.component == "client":
        return {"batch": kept}
    down = tuple(one for one in carried(record)["down"] if one.name not in {member.name for member in kept})
    return {"batch": kept, "down": down}


def _accepted(record: Rollout) -> dict[str, Any]:
    field = "accepted" if record.reason == "AlertsFiring" else "skipped"
    return {field: tuple(sorted({*getattr(record, field), *record.failed}))}


def _name(record: Rollout) -> str:
    return f"{record.component} of pool {record.pool}"


def _ordered(record: Rollout, step: Step, now: datetime, by: str, **changes: Any) -> Rollout:
    said = {"reason": "Ordered", "message": f"by {by}", "by": by, "due_at": None, "failed": ()}
    return msgspec.structs.replace(record, step=step, changed_at=now, txn="", **said | changes)
