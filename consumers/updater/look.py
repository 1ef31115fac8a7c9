"""One look at a rollout's record: what it is about, and how its next revision is written. Pure."""

from datetime import datetime
from typing import Any

import msgspec

from consumers.updater.down import at_rest, find_down, remembered
from consumers.updater.seen import Seen
from consumers.updater.verdict import IsCurrent
from schemas.rollout import ComponentSpec, Member, Rollout, Step, Template
from schemas.rollout_template import member_hashes


class Look:
    """One look at one record.

    Attributes:
        down: Who is down by our doing, beside the batch under way.
        remembered: Who was down by our doing, as it is written.
        outdated: Members that are yet to be updated, or to come up.
    """

    def __init__(self, record: Rollout, spec: ComponentSpec, seen: Seen, now: datetime) -> None:
        self.spec = spec
        self.policy = spec.policy
        self.alerts = seen.alerts
        self.now = now
        # What nothing makes anew would be gone for good: it is none of ours.
        self.members = {member.name: member for member in seen.members if member.owned}
        self.remembered = record.down, record.short
        self.take(at_rest(record, self.members, now))

    def take(self, record: Rollout) -> None:
        """Look at this record from now on."""
        self.record = record
        self.is_current = current_of(record.target)
        self.down = find_down(record, self.members, self.is_current)
        self.outdated = [member for member in self.members.values() if not self.is_done(member)]

    def is_done(self, member: Member) -> bool:
        """Return whether nothing is to be done for a member."""
        if member.name in self.down.first:
            return False
        # One without a UID has yet to be made, and will be made from what is wanted.
        left_out = member.name in self.record.skipped and not member.ready
        return self.is_current(member) or left_out or not member.uid

    @property
    def unfinished(self) -> bool:
        """Whether some are yet to be updated, or to come up."""
        return bool(self.outdated or self.down.count)

    def to(self, step: Step, **changes: Any) -> Rollout:
        """Return the record with changes; what is not said about the present is not kept."""
        said = {"reason": "", "message": "", "by": "", "due_at": None, "failed": ()}
        count = {"updated": sum(map(self.is_current, self.members.values())), "total": len(self.members)}
        kept = remembered(self.record, self.members)
        return msgspec.structs.replace(
            self.record, step=step, changed_at=self.now, txn="", **said | count | kept | changes
        )


def current_of(template: Template) -> IsCurrent:
    """Return what tells whether a member runs ``template``."""
    hash_of = member_hashes(template)
    return lambda member: member.hash == hash_of(member)
