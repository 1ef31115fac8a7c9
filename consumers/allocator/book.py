"""The book of one node: what the ledger holds there, what is on its way there, and what waits behind that.

At most one commit of ours is in flight per node, because the next one must name the sequence of the record it replaces.
Changes that come meanwhile queue up and travel together in the next record, so a busy node costs one write per round trip
however many pods it takes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from bus.chain import link
from schemas.decision import Decision
from schemas.ledger import Allocation, Change, NodeRecord
from schemas.pod import Release, Schedule

if TYPE_CHECKING:
    from consumers.allocator.effects import Announcement


@dataclass(slots=True, eq=False)
class Addition:
    """A pod decided to go on the node. ``token`` is whatever the shell must acknowledge when it is done.

    Attributes:
        formation: The members that it is placed together with or not at all.
    """

    command: Schedule
    token: object
    allocation: Allocation
    decision: Decision
    encoded: msgspec.Raw
    formation: "Formation | None" = None

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.command.uid

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.command.namespace

    @property
    def gang(self) -> str:
        """The pod's gang."""
        return self.allocation.gang


@dataclass(slots=True, eq=False)
class Formation:
    """Members of a gang on their way together."""

    additions: list[Addition] = field(default_factory=list)
    _said: "list[Announcement | None]" = field(default_factory=list)

    def settled(self, said: "Announcement | None") -> "list[Announcement]":
        """One member is seen in the ledger. Return what is to be said of all once all are: one command stands for them."""
        self._said.append(said)
        if len(self._said) < len(self.additions):
            return []
        everything, self._said = self._said, []
        return [said for said in everything if said is not None]


@dataclass(slots=True, eq=False)
class Removal:
    """A pod to be taken off the node. A silent one undoes a duplicate: the pod goes on elsewhere and nobody is told."""

    command: Release
    token: object
    decision: Decision
    encoded: msgspec.Raw
    silent: bool = False
    gang: str = ""

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.command.uid

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.command.namespace


Item = Addition | Removal


@dataclass(slots=True, eq=False)
class Commit:
    """One record on its way: it replaces the one at ``expected``, and ``held`` is what the node holds if it lands."""

    node: str
    txn: str
    expected: int
    items: list[Item]
    held: dict[str, Allocation]
    previous: str = ""
    payload: bytes = b""
    """What was published, so that our own record is known when it comes back without being decoded."""

    @property
    def commits(self) -> tuple["Commit", ...]:
        """Itself: a commit alone is used like a bundle."""
        return (self,)

    def record(self) -> NodeRecord:
        """Return the ledger record to publish."""
        return NodeRecord(
            node=self.node,
            txn=self.txn,
            allocations=tuple(self.held.values()),
            changes=tuple(
                Change(op="add" if isinstance(item, Addition) else "remove", pod_uid=item.uid, decision=item.encoded)
                for item in self.items
            ),
            previous=self.previous,
        )


@dataclass(slots=True, eq=False)
class Book:
    """What one allocator knows of one node."""

    node: str
    seq: int = 0
    held: dict[str, Allocation] = field(default_factory=dict)
    flying: Commit | None = None
    queued: list[Item] = field(default_factory=list)
    unseen: list[tuple[int, Commit]] = field(default_factory=list)
    """Commits that the server stored but the follower has not shown yet, by sequence."""
    frozen: bool = False
    newest: str = ""
    """Digest of the newest record, which the next one names."""

    def begin(self, txn: str) -> Commit | None:
        """Start a commit of everything queued, unless one is in flight or nothing is queued."""
        if self.flying is not None or not self.queued or self.frozen:
            return None
        held = dict(self.held)
        for item in self.queued:
            _apply(held, item)
        self.flying = Commit(self.node, txn, self.seq, self.queued, held, self.newest)
        self.queued = []
        return self.flying

    def land(self, seq: int) -> Commit:
        """The commit in flight is in the ledger at ``seq``."""
        commit = self.flying
        if commit is None:
            raise ValueError(f"node {self.node} has no commit in flight")
        self.flying = None
        self.seq = seq
        self.newest = link(commit.payload)
        for item in commit.items:
            if isinstance(item, Addition) and item.uid in commit.held:
                commit.held[item.uid] = msgspec.structs.replace(item.allocation, since=seq)
        self.held = commit.held
        return commit

    def overtaken(self) -> list[Item]:
        """Somebody else's record came first: return everything of ours that must be decided anew."""
        items = (self.flying.items if self.flying is not None else []) + self.queued
        self.flying, self.queued = None, []
        return items

    def expected_allocations(self) -> Iterator[Allocation]:
        """Yield what the node will hold once everything of ours has landed."""
        held = dict(self.flying.held if self.flying is not None else self.held)
        for item in self.queued:
            _apply(held, item)
        yield from held.values()


def _apply(held: dict[str, Allocation], item: Item) -> None:
    if isinstance(item, Addition):
        held[item.uid] = item.allocation
    else:
        held.pop(item.uid, None)
