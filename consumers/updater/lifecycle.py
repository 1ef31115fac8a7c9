"""The life of a rollout: what its record becomes next. Pure: time comes in, and a killed updater's successor decides the same.

::

    synced ──change──► outdated (updates are not automatic, or first seen)
       ▲ └──change──► planned ──► canary ──► interval ──► batch ──► interval … ──► synced or rolled-back
       │                 │  ▲        │ window closed: window, opens: on with the same batch
       └──all updated────┘  │        └ trouble: halted
                            └── a newer change supersedes from where it stands, in any phase

``pause``, ``resume``, ``abort`` and ``rollback`` are orders of people; see :mod:`consumers.updater.orders`.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from consumers.updater.down import blamed, dropped
from consumers.updater.health import find_looping, find_trouble, is_proven, judge_batch, judge_parts
from consumers.updater.look import Look
from consumers.updater.plan import FULL, plan_batch
from consumers.updater.progress import ACTIVE, begun, busy, fresh, phase_of, resumed, stop_clock, trimmed
from consumers.updater.seen import Seen, without_pool
from consumers.updater.successors import given_up
from consumers.updater.verdict import Verdict, some
from schemas.rollout import UNDER_WAY, ComponentSpec, Reason, Rollout, Step, Template
from schemas.windows import is_open, next_opening


def advance(record: Rollout | None, seen: Seen, now: datetime) -> Rollout | None:
    """Return the record's next revision, one step on, or None when it stands right as it is."""
    if seen.spec is None:
        return without_pool(record, now) if record is not None and seen.gone else None
    if record is None:
        return _first(seen.spec, seen, now)
    return _Step(record, seen.spec, seen, now).next()


def _first(spec: ComponentSpec, seen: Seen, now: datetime) -> Rollout:
    record = Rollout(
        pool=spec.pool, component=spec.component, target=spec.template, changed_at=now, step="recorded", since=now
    )
    step = _Step(record, spec, seen, now)
    return step.leave_alone() if step.outdated else step.to("recorded", phase="synced")


_REST: Final[dict[Reason, str]] = {
    "FirstSeen": "what runs differs from the pool's template, and nothing is known of what was before; "
    "`gpubus rollout resume` begins the update",
    "AutoUpdateOff": "updates are not automatic: members take the template when they are next made",
}


class _Step(Look):
    """The step that is due."""

    def next(self) -> Rollout | None:
        """Return the next revision."""
        wanted, record = self.spec.template, self.record
        if wanted.hash not in (record.target.hash, record.rejected):
            return self._take_on(wanted)
        if record.phase == "aborted" and record.back and wanted.hash == record.target.hash:
            return self._begin("started")  # the pool wants now what it was on the way back to
        if record.phase in UNDER_WAY:
            return self._under_way()
        if record.phase in ACTIVE:
            return self._on_the_way()
        return self._at_rest()

    # At rest

    def _take_on(self, wanted: Template) -> Rollout:
        """The pool wants another template than the one members are brought to."""
        record = self.record
        # All had the target of a way back before, so it stays what to go back to.
        settled = record.phase in ("synced", "rolled-back") or record.reason == "FirstSeen" or record.back
        previous = record.target if settled else record.previous
        if record.phase in ACTIVE | {"paused", "halted", "aborted"}:
            looping = find_looping(record, self.members.values(), self.is_current)
            record = msgspec.structs.replace(record, **blamed(record, looping, self.members))
        self.take(msgspec.structs.replace(record, target=wanted, previous=previous, rejected="", manual=False))
        return self._begin("superseded" if record.phase in ACTIVE | {"paused", "halted"} else "started")

    def _begin(self, step: Step) -> Rollout:
        changes = fresh(self.record, self.now)
        if self.record.phase == "paused":
            changes |= {"phase": "paused", "message": "paused before the change"}
        elif not self.policy.auto_update:
            step = "recorded"
            changes |= {"phase": "outdated", "number": self.record.number, "started_at": None}
            changes |= {"reason": "AutoUpdateOff", "message": self._why_off}
        return self.to(step, **changes)

    def leave_alone(self) -> Rollout:
        """Nothing is known of what ran before, so nothing is touched: somebody who installs this expects no restarts."""
        reason: Reason = "FirstSeen" if self.policy.auto_update else "AutoUpdateOff"
        message = _REST[reason] if self.policy.auto_update else self._why_off
        return self.to("recorded", phase="outdated", reason=reason, message=message)

    @property
    def _why_off(self) -> str:
        refused = self.policy.refused
        return (
            f"the update policy cannot be followed, so nothing is updated: {refused}"
            if refused
            else _REST["AutoUpdateOff"]
        )

    def _at_rest(self) -> Rollout | None:
        record = self.record
        if record.phase == "rolled-back" and self.spec.template.hash == record.target.hash:
            return self.to("completed", phase="synced", rejected="", reason="Completed")
        if record.phase == "outdated":
            return self._outdated()
        if record.phase == "synced" and self.outdated:
            # Made from an old template after all were updated, or a workload was edited; or, before anything ever was, made
            # by somebody else before we came, and seen only after their pool.
            return self._begin("started") if record.number or self._made_since() else self.leave_alone()
        if record.phase == "rolled-back" and self.outdated:
            return self.to("started", **fresh(record, self.now) | {"back": True})
        return None

    def _made_since(self) -> bool:
        """Whether all that is out of date was made when new members took the template already."""
        if self.record.since is None:
            return False
        since = self.record.since.replace(microsecond=0)  # an API server tells whole seconds, the last that began
        return all(member.created_at >= since for member in self.outdated)

    def _outdated(self) -> Rollout | None:
        if not self.unfinished:
            return self.to("completed", phase="synced", reason="Completed", down=(), short={})
        if (self.record.down, self.record.short) != self.remembered:
            record = self.record  # who has come up is not down by our doing any more, whatever becomes of it later
            return self.to("recorded", phase=record.phase, reason=record.reason, message=record.message)
        if self.record.reason != "AutoUpdateOff":
            return None
        if self.policy.auto_update:
            return self._begin("started")
        return self.leave_alone() if self.record.message != self._why_off else None

    # On the way

    def _on_the_way(self) -> Rollout | None:
        record = self.record
        trouble = find_trouble(record, self.members.values(), self.alerts, self.is_current)
        if (end := self._end(trouble)) is not None:
            return end
        if record.phase == "interval" and record.due_at is not None and self.now < record.due_at:
            return None
        if trouble.reason:
            return self._await_quiet(trouble)
        if not record.back and not is_open(self.policy.windows, self.now):
            known = record.phase == "window" and record.due_at == next_opening(self.policy.windows, self.now)
            return None if known else self._await_window()
        if record.batch:  # interrupted by a pause, or by the end of a window
            return self.to("continued", phase=phase_of(record), busy_since=self.now, batch=resumed(record, self.now))
        return self._begin_batch()

    def _end(self, trouble: Verdict) -> Rollout | None:
        """Return the record if the rollout ends here, between two batches."""
        record = self.record
        if trouble.reason == "CrashLooping" or (trouble.reason and record.batches):
            return self._halt(trouble)
        allowed = (self.policy.auto_update or record.manual) and not self.policy.refused
        if not (allowed or record.back):
            return self.to(
                "recorded", phase="outdated", reason="AutoUpdateOff", message=self._why_off, **dropped(record)
            )
        return None if self.unfinished or record.batch else self._finish(())

    def _await_quiet(self, trouble: Verdict) -> Rollout | None:
        """Alerts that came before the first batch are not its fault, but nothing is begun on top of them."""
        if (self.record.reason, self.record.message) == (trouble.reason, trouble.message):
            return None
        return self.to("waited", phase="planned", reason=trouble.reason, message=trouble.message, failed=trouble.failed)

    def _await_window(self) -> Rollout:
        opens = next_opening(self.policy.windows, self.now)
        text = f"the maintenance window opens at {opens.isoformat()}"
        return self.to(
            "waited",
            phase="window",
            due_at=opens,
            reason="WindowClosed",
            message=text,
            **stop_clock(self.record, self.now),
        )

    def _begin_batch(self) -> Rollout | None:
        record = self.record
        canary = self.policy.canary and not record.back and not record.proven
        chosen, batch = plan_batch(
            self.members.values(), self.is_done, self.policy.batch_percentage, record.progress,
            canary=canary, first=self.down.first, down=self.down.count,
        )  # fmt: skip
        if not (chosen or self.down.owners):
            return None
        return self.to(
            "batch",
            phase="canary" if canary else "batch",
            progress=batch.progress,
            **begun(record, chosen, self.members.values(), self.now, down=self.down, is_current=self.is_current),
        )

    # Under way

    def _under_way(self) -> Rollout | None:
        record = self.record
        trouble = find_trouble(record, self.members.values(), self.alerts, self.is_current)
        if trouble.reason:
            return self._halt(trouble)
        if busy(record, self.now) > self.policy.max_duration_s:
            text = f"the batches have taken longer than maxDuration, {self.policy.max_duration_s} s"
            blocked = [one.name for one in record.batch if one.blocked]
            text += f"; could not replace {some(blocked)}: {record.message}" if blocked else ""
            return self._halt(Verdict("MaxDurationExceeded", text))
        kept = trimmed(record, self.members, self.policy, self.is_current, self.now)
        if kept != record.batch:
            phase = record.phase if kept else "planned"
            return self.to("continued", phase=phase, batch=kept, **{} if kept else stop_clock(record, self.now))
        if any(one.replaced_at is None for one in record.batch):
            return self._replacing()
        verdict = judge_batch(record, self.members, self.policy, self.is_current, self.now)
        if verdict.reason:
            return self._halt(verdict)
        return None if verdict.pending else self._pass(verdict.left)

    def _replacing(self) -> Rollout | None:
        late = judge_parts(self.record, self.policy, self.now)
        if late.reason:
            return self._halt(late)
        closed = not self.record.back and not is_open(self.policy.windows, self.now)
        return self._await_window() if closed else None

    def _pass(self, left: tuple[str, ...]) -> Rollout:
        skipped = tuple(sorted({*self.record.skipped, *left}))
        proven = self.record.proven or is_proven(self.record, self.members, self.is_current)
        short = given_up(self.record, self.members.values())
        self.take(msgspec.structs.replace(self.record, skipped=skipped, proven=proven, short=short))
        if not self.unfinished:
            return self._finish(left)
        due = self.now + timedelta(seconds=self.policy.batch_interval_s)
        return self.to("passed", phase="interval", batch=(), due_at=due, **stop_clock(self.record, self.now))

    def _halt(self, why: Verdict) -> Rollout:
        stopped = stop_clock(self.record, self.now)
        if why.reason == "CrashLooping":
            self.record = msgspec.structs.replace(self.record, **blamed(self.record, why.failed, self.members))
        return self.to("halted", phase="halted", reason=why.reason, message=why.message, failed=why.failed, **stopped)

    def _finish(self, left: tuple[str, ...]) -> Rollout:
        record = self.record
        agrees = self.spec.template.hash == record.target.hash
        skipped = {*record.skipped, *left} & {name for name, member in self.members.items() if not member.ready}
        text = f"left out, as they are not ready: {some(skipped)}" if skipped else ""
        return self.to(
            "completed",
            phase="synced" if agrees else "rolled-back",
            rejected="" if agrees else record.rejected,
            progress=FULL,
            batch=(),
            down=(),
            short={},
            manual=False,
            skipped=tuple(sorted(skipped)),
            reason="Completed",
            message=text,
            **stop_clock(record, self.now),
        )
