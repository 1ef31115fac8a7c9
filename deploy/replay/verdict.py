"""What came of verifying, in whole or in parts that are put together again."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from bus.chain import Break
from bus.invariants import Violation
from deploy.replay.comparison import SHOWN, Difference

_ADDED: Final = (
    *("decisions", "reproduced", "different", "unexplained", "unfounded", "other_engine"),
    *("undecodable", "attempts", "unheard", "allocators", "gaps"),
    *("unannounced", "envelopes"),
)


class Verdict(msgspec.Struct, kw_only=True):
    """What became of all decisions on record.

    Attributes:
        decisions: Decisions in the log, each counted once.
        reproduced: Those of which every record came out the same, bit for bit.
        different: Records of decisions that came out otherwise.
        differences: The ten oldest of them.
        unexplained: Decisions that no journal leads to: it is older, or lacks a turn.
        unfounded: Of these, those that nothing excuses, since no journal is missing: nobody has decided so.
        other_engine: Of these, those that were made under other rules than those of this version.
        violations: Ledger records that break a rule: allocations move without a change that says so.
        taken_back: Second places of pods whose command came twice, which did not last.
        undecodable: Records that cannot be read.
        attempts: Placements that were overtaken by another allocator, told by a later decision and reproduced too.
        unheard: Decisions that never took effect, because their allocator died or left the pod to others.
        allocators: Allocators with a journal.
        gaps: Journals that lack a turn between two others, which no retention drops.
        unannounced: Decisions that were to be announced and are not in DECISION, although their allocator, or another in its
            place, went on.
        envelopes: Announcements whose envelope (subject, id, source, time, type) does not agree with what is in it.
        astray: The first ten of these.
        notes: What could not be followed, and why.
    """

    decisions: int = 0
    reproduced: int = 0
    different: int = 0
    differences: list[Difference] = []
    unexplained: int = 0
    unfounded: int = 0
    other_engine: int = 0
    violations: list[Violation] = []
    taken_back: list[Violation] = []
    undecodable: int = 0
    attempts: int = 0
    unheard: int = 0
    allocators: int = 0
    gaps: int = 0
    unannounced: int = 0
    envelopes: int = 0
    astray: list[Break] = []
    notes: list[str] = []

    @property
    def compared(self) -> bool:
        """Whether any decision was compared: nothing at all is no proof of anything."""
        return bool(self.reproduced or self.different)

    @property
    def holds(self) -> bool:
        """Whether decisions were compared and nothing speaks against any."""
        wrong = self.different or self.violations or self.undecodable or self.gaps or self.unfounded
        return self.compared and not (wrong or self.unannounced or self.envelopes)


Noted = tuple[int, str]
"""A note, and the time it belongs to: when what it speaks of was stored."""


class Part(msgspec.Struct):
    """A verdict on some of the allocators."""

    verdict: Verdict
    noted: list[Noted] = []


def together(parts: Sequence[Part]) -> Verdict:
    """Return the verdict on all: the same, however the allocators were shared out."""
    verdict = Verdict(**{name: sum(getattr(part.verdict, name) for part in parts) for name in _ADDED})
    differences = [one for part in parts for one in part.verdict.differences]
    verdict.differences = sorted(differences, key=lambda one: one.place)[:SHOWN]
    verdict.violations = [one for part in parts for one in part.verdict.violations]
    verdict.taken_back = [one for part in parts for one in part.verdict.taken_back]
    verdict.astray = [one for part in parts for one in part.verdict.astray][:SHOWN]
    verdict.notes = _in_order(note for part in parts for note in part.noted)
    return verdict


def _in_order(noted: Iterable[Noted]) -> list[str]:
    return [text for _, text in sorted(noted)]
