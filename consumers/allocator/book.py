"""The book of one node: what the ledger holds there, what is on its way there, and what waits behind that.

At most one commit of ours is in flight per node, because the next one must name the sequence of the record it replaces.
Changes that come meanwhile queue up and travel together in the next record, so a busy node costs one write per round trip
however many pods it takes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from bus.chain import link
from schemas.decision import Decision
from schemas.ledger import HOLD, Allocation, Change, Hold, NodeRecord
from schemas.pod import Release, Schedule

if TYPE_CHECKING:
    from consumers.allocator.effects import Announcement


@dataclass(slots=True, eq=False)
class Addition:
    """A pod decided to go on the node. ``token`` is whatever the shell must acknowledge when it is done.

    Attributes:
        formation: The members that it is placed together with or not at all.
        instead: What the pod holds there already and is to hold no more; None for one that comes.
    """

    command: Schedule
    token: object
    allocation: Allocation
    decision: Decision
    encoded: msgspec.Raw
    formation: "Formation | None" = None
    instead: Allocation | None = None

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
    """A pod to be taken off the node, or room to be kept there no more.

    A silent one undoes a duplicate, the pod goes on elsewhere and nobody is told; or it is about room, which nobody holds.
    """

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


@dataclass(slots=True, eq=False)
class Keep:
    """Room to be kept on the node for a pod that others are evicted for.

    Attributes:
        decision: Tells the pod to wait.
        evicted: Tell the victims to go, each as it is and encoded.
        displaced: Room kept for pods that this one goes before, given up for it.
    """

    command: Schedule
    token: object
    hold: Hold
    decision: Decision
    encoded: msgspec.Raw
    evicted: list[tuple[Decision, msgspec.Raw]]
    displaced: tuple[str, ...] = ()
    gang: str = ""

    @property
    def uid(self) -> str:
        """The key of the room."""
        return self.hold.key

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.command.namespace

    @property
    def node(self) -> str:
        """Where room is made."""
        return self.decision.preemption.node if self.decision.preemption is not None else ""


Item = Addition | Removal | Keep


@dataclass(slots=True, eq=False)
class Commit:
    """One record on its way: it replaces the one at ``expected``, and ``held`` is what the node holds if it lands.

    Attributes:
        holds: What is kept there then, by key.
    """

    node: str
    txn: str
    expected: int
    items: list[Item]
    held: dict[str, Allocation]
    holds: dict[str, Hold]
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
            changes=tuple(change for item in self.items for change in _changes(item)),
            previous=self.previous,
            holds=tuple(self.holds.values()),
        )


def _changes(item: Item) -> Iterator[Change]:
    if isinstance(item, Keep):
        for key in item.displaced:
            yield Change(op="remove", pod_uid=key, decision=item.encoded)
        evicts = tuple(encoded for _, encoded in item.evicted)
        yield Change(op="add", pod_uid=item.uid, decision=item.encoded, evicts=evicts)
    else:
        op: Literal["add", "remove"] = "add" if isinstance(item, Addition) else "remove"
        yield Change(op=op, pod_uid=item.uid, decision=item.encoded)


@dataclass(slots=True, eq=False)
class Book:
    """What one allocator knows of one node."""

    node: str
    seq: int = 0
    held: dict[str, Allocation] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    """Room that is kept there, by key."""
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
        held, holds = dict(self.held), dict(self.holds)
        for item in self.queued:
            _apply(held, holds, item)
        self.flying = Commit(self.node, txn, self.seq, self.queued, held, holds, self.newest)
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
                since = item.instead.since if item.instead is not None else seq
                commit.held[item.uid] = msgspec.structs.replace(item.allocation, since=since)
            elif isinstance(item, Keep) and item.uid in commit.holds:
                commit.holds[item.uid] = kept_since(item.hold, seq)
        self.held, self.holds = commit.held, commit.holds
        return commit

    @property
    def quiet(self) -> bool:
        """Whether the node is as its newest record says, as far as we know."""
        return self.flying is None and not (self.queued or self.unseen or self.frozen)

    def overtaken(self) -> list[Item]:
        """Somebody else's record came first: return everything of ours that must be decided anew."""
        items = (self.flying.items if self.flying is not None else []) + self.queued
        self.flying, self.queued = None, []
        return items

    def expected_allocations(self) -> Iterator[Allocation]:
        """Yield what the node will hold once everything of ours has landed."""
        yield from self._expected()[0].values()

    def expected_hold(self, key: str) -> Hold | None:
        """Return room that will be kept on the node once everything of ours has landed."""
        return self._expected()[1].get(key)

    def charges(self) -> Iterator[Allocation]:
        """Yield all that counts as taken by the ledger."""
        yield from self.held.values()
        for hold in self.holds.values():
            yield hold.charge()

    def _expected(self) -> tuple[dict[str, Allocation], dict[str, Hold]]:
        newest = self.flying if self.flying is not None else self
        held, holds = dict(newest.held), dict(newest.holds)
        for item in self.queued:
            _apply(held, holds, item)
        return held, holds


def kept_since(hold: Hold, seq: int) -> Hold:
    """Return room as it is known to be kept since the ledger record at ``seq``, if it does not say since when."""
    return msgspec.structs.replace(hold, allocation=hold.allocation.known_since(seq))


def _apply(held: dict[str, Allocation], holds: dict[str, Hold], item: Item) -> None:
    match item:
        case Addition():
            since = item.instead.since if item.instead is not None else 0
            held[item.uid] = msgspec.structs.replace(item.allocation, since=since) if since else item.allocation
            holds.pop(HOLD + item.uid, None)  # the pod has what was kept for it
        case Keep():
            for key in item.displaced:
                holds.pop(key, None)
            holds[item.uid] = item.hold
        case Removal():
            held.pop(item.uid, None)
            holds.pop(item.uid, None)
