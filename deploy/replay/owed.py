"""What has to have been announced: all that the ledger says, and every refusal of an allocator that lived on. Pure.

A command is acknowledged once its decision is announced. So where an allocator dies over an announcement, somebody else is
given the command: he repeats what stands in the ledger, and decides anew what does not. What is missing is therefore excused
only by a later decision about the same pod, or by a log that ends before anybody could have said it.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from consumers.allocator.replay import Said
from deploy.replay.comparison import REBUILDER, Key
from deploy.replay.envelope import ALLOCATOR, Origin
from schemas.decision import Basis, Decision, Outcome
from schemas.event import Event

SOON: Final = timedelta(seconds=1)
"""An allocator that takes a turn so long after something has announced that."""

REDELIVERED: Final = timedelta(seconds=30)
"""By then somebody else has been given the command of one that died, and has said what comes of it."""

TAKEN_BACK: Final = "DuplicatePlacement"
"""Why a second place of a pod is given back: neither is announced."""


class Debt(msgspec.Struct, frozen=True, gc=False):
    """Something that is not announced, as far as has been read.

    Attributes:
        kind: How it came about: the ledger adds or removes the pod, or it was only said.
        seq: Of the ledger record; 0 when it stands in none.
        at: When its author wrote it down.
    """

    key: Key
    kind: Literal["add", "remove", "said"]
    uid: str
    outcome: Outcome
    basis: Basis
    node: str
    at: datetime
    seq: int = 0


class Heard(msgspec.Struct, frozen=True, gc=False):
    """A decision about a pod that is announced."""

    key: Key
    outcome: Outcome
    basis: Basis
    way: str
    subject: str


class Owed:
    """Keeps account of what is to be announced.

    Args:
        last_turns: The allocators that have a journal, each with the time of its last turn.
        since: What was written down before is not looked at, as its announcement may have been dropped; None for all.
    """

    def __init__(self, last_turns: dict[str, datetime], since: datetime | None = None) -> None:
        self._last_turns = last_turns
        self._since = since
        self._debts: dict[Key, Debt] = {}
        self._paid: dict[Key, Origin] = {}
        self._taken_back: set[tuple[str, str]] = set()
        self._ordinals: dict[str, int] = {}
        self._landed: dict[str, int] = {}
        self._end = max(last_turns.values(), default=None)

    def said(self, decision: Decision, at: datetime) -> None:
        """An allocator has come to a decision that stands in no ledger, and that it tells at once."""
        key = decision.allocator, decision.basis.ordinal
        self._note(Debt(key, "said", decision.pod_uid, decision.outcome, decision.basis, decision.node, at))

    def changed(self, seq: int, op: Literal["add", "remove"], said: Said, at: datetime) -> str:
        """The ledger adds or removes a pod; return what is wrong with its announcement, if it was read before."""
        if said.allocator == REBUILDER or said.outcome not in ("allocated", "released"):
            return ""
        if said.reason == TAKEN_BACK:
            self._taken_back.add((said.pod_uid, said.node))
            return ""
        key = said.allocator, said.basis.ordinal
        origin = self._paid.get(key)
        self._note(Debt(key, op, said.pod_uid, said.outcome, said.basis, said.node, at, seq))
        return _misplaced(origin, seq)

    def _note(self, debt: Debt) -> None:
        self._end = debt.at if self._end is None else max(self._end, debt.at)
        if self._paid.pop(debt.key, None) is not None:
            return
        if self._since is None or debt.at > self._since:
            self._debts[debt.key] = debt

    def announced(self, event: Event[msgspec.Raw], said: Said, origin: Origin | None) -> str:
        """A decision is announced; return what is wrong with that, given the ledger as far as it is read."""
        key = said.allocator, said.basis.ordinal
        self._end = event.time if self._end is None else max(self._end, event.time)
        if origin is not None and event.source == ALLOCATOR + said.allocator:
            self._ordinals[said.allocator] = max(self._ordinals.get(said.allocator, 0), 0 if origin.seq else key[1])
            if origin.seq and origin.ending != ":unplaced":
                self._landed[said.allocator] = max(self._landed.get(said.allocator, 0), origin.seq)
        debt = self._debts.pop(key, None)
        if debt is None:
            self._paid[key] = origin or Origin(0)
            return ""
        return _misplaced(origin, debt.seq)

    def open(self) -> list[Debt]:
        """Return what is not announced and not excused by the ledger or the end of the log alone."""
        return [debt for debt in self._debts.values() if not self._is_excused(debt)]

    def _is_excused(self, debt: Debt) -> bool:
        if debt.kind == "add" and (debt.uid, debt.node) in self._taken_back:
            return True
        waited = self._end - debt.at if self._end is not None else timedelta(0)
        return not self._lived_on(debt) and waited <= REDELIVERED

    def _lived_on(self, debt: Debt) -> bool:
        """Whether its author went on speaking or thinking afterwards. It says things in the order in which it comes by them."""
        author, ordinal = debt.key
        said, landed = self._ordinals.get(author, 0), self._landed.get(author, 0)
        spoke = said > ordinal if debt.kind == "said" else landed > debt.seq
        last = self._last_turns.get(author)
        return spoke or (last is not None and last > debt.at + SOON)

    def unpaid(self, debt: Debt, heard: Iterable[Heard]) -> bool:
        """Whether nothing that is announced about the pod excuses what is not."""
        return not any(self._excuses(one, debt) for one in heard)

    def _excuses(self, one: Heard, debt: Debt) -> bool:
        if debt.kind == "add":  # it ended before anybody was given its command again
            return one.outcome == "released" and not self._lived_on(debt) and one.basis.ledger >= debt.basis.ledger
        if debt.outcome == "released":  # two may have been asked to let it go, and what both say alike is kept once
            return one.outcome == "released"
        # kube-scheduler asks again and again, and is told the same once.
        return one.way == "extender" or _is_later(one, debt)


def _is_later(one: Heard, debt: Debt) -> bool:
    """Whether a decision was made after another; of two allocators the one that had read further was later."""
    if one.key[0] == debt.key[0]:
        return one.key[1] > debt.key[1]
    return one.basis.state >= debt.basis.state and one.basis.ledger >= debt.basis.ledger


def _misplaced(origin: Origin | None, seq: int) -> str:
    """Return what is wrong with the sequence that an announcement names, if the ledger holds the decision at another."""
    if origin is None or not seq or not origin.seq or origin.seq == seq:
        return ""
    return f"its id names ledger record {origin.seq}, and the decision stands in {seq}"
