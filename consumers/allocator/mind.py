"""What one allocator knows, what it has on its way, and what it wants done: everything that its parts share.

The parts of the core work on this. :mod:`~consumers.allocator.keeping` sees to the room that is kept for pods,
:mod:`~consumers.allocator.resizing` has pods hold more or less where they stand,
:mod:`~consumers.allocator.placing` finds places, :mod:`~consumers.allocator.making` has others evicted,
:mod:`~consumers.allocator.releasing` gives back, :mod:`~consumers.allocator.losing` has decided anew what others came before, and
:mod:`~consumers.allocator.landing` hears what became of it all. Each may use those named before it, never those after.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from consumers.allocator.book import Addition, Book, Item, Keep, Removal
from consumers.allocator.cluster import Cluster
from consumers.allocator.decider import Decider
from consumers.allocator.effects import Announcement, Counters, Effects, Recovery, encode
from consumers.allocator.offers import Offers
from consumers.allocator.places import Places
from consumers.allocator.rooms import Rooms
from consumers.allocator.sealing import Sealer
from consumers.allocator.shelf import Shelf
from schemas.decision import Decision
from schemas.ledger import Allocation
from schemas.pod import Schedule


class Mind:
    """One allocator's memory.

    Args:
        name: Identity of this allocator.
        clock_us: Elapsed microseconds, for the duration noted in decisions and for nothing else.

    Attributes:
        pending: Pods placed but not yet seen in the ledger, by UID.
        removing: Pods that are giving back what they hold, by UID.
        keeping: Room on its way into the ledger, by UID of the pod that it is for.
        ageless: Nodes that pods of ours have come to of which decisions do not know yet since when they stand.
    """

    def __init__(self, name: str, clock_us: Callable[[], int]) -> None:
        self.name = name
        self.cluster = Cluster()
        self.snapshot = self.cluster.snapshot
        self.quotas = self.cluster.quotas
        self.effects = Effects()
        self.counters = Counters()
        self.decider = Decider(name, self.cluster, clock_us, self.expected)
        self.journal = self.decider.journal
        self.shelf = Shelf(name)
        self.sealer = Sealer(self.shelf, self.quotas, self.cluster.gangs)
        self.places = Places()
        self.offers = Offers(self.cluster, self.decider)
        self.rooms = Rooms(self.cluster)
        self.pending: dict[str, Addition] = {}
        self.removing: dict[str, Removal] = {}
        self.keeping: dict[str, Keep] = {}
        self.ageless: dict[str, None] = {}

    # What is said

    def announce(
        self,
        event_id: str,
        decision: Decision,
        token: object,
        encoded: msgspec.Raw | None = None,
        *,
        refused: Schedule | None = None,
    ) -> None:
        """Have a decision published; ``token`` is acknowledged then."""
        said = Announcement(event_id, decision, encoded or encode(decision), token, refused)
        self.effects.announcements.append(said)

    def refuse(self, command: Schedule, decision: Decision, token: object) -> None:
        """Tell a pod that it fits nowhere, and have it wait."""
        self.counters.refused += 1
        self.decider.settled(command.uid)
        waits = None if command.way == "extender" else command  # kube-scheduler has a queue of its own
        self.announce(f"{command.uid}:{self.name}:{decision.basis.ordinal}", decision, token, refused=waits)

    def tell(self, member: Schedule, decision: Decision, token: object = None) -> None:
        """Tell of a pod that goes on waiting, under the record that it has."""
        event_id = f"{member.uid}:{self.name}:{decision.basis.ordinal}"
        self.effects.announcements.append(Announcement(event_id, decision, encode(decision), token, waits=True))

    def recover(self, command: Schedule, token: object) -> None:
        """If the pod has its place only the announcement may be missing."""
        place = self.places.first(command.uid)
        if place is not None:
            self.counters.recovered += 1
            self.decider.settled(command.uid)
            waiting = self.cluster.waiting.get(command.uid)
            self.effects.recoveries.append(Recovery(command, place.seq, token, waiting))

    def take_effects(self) -> Effects:
        """Return what is to be done and start a new list."""
        effects, self.effects = self.effects, Effects()
        return effects

    # What is on its way

    def expected(self, namespace: str, but: Collection[str] = ()) -> Iterator[Allocation]:
        """Yield what is kept, or about to be, for pods of a namespace that do not stand yet, but for some pods by UID."""
        kept: dict[str, Allocation] = {}
        for hold in (*(keep.hold for keep in self.keeping.values()), *(known.hold for known in self.rooms)):
            if hold.allocation.namespace == namespace:
                kept[hold.allocation.pod_uid] = hold.allocation
        for uid, allocation in kept.items():
            if uid not in but and uid not in self.pending and self.places.first(uid) is None:
                yield allocation

    def put(self, addition: Addition) -> None:
        """Have a pod committed that is booked in the snapshot."""
        self.pending[addition.uid] = addition
        self.shelf.queue(addition.decision.node, addition)

    def pull(self, addition: Addition) -> None:
        """A pod that is queued does not leave: what it was to hold counts no more."""
        book = self.shelf.book(addition.decision.node)
        book.queued.remove(addition)
        if addition.instead is not None:
            self.restore(addition.uid, book)
            return
        self.snapshot.remove(book.node, addition.uid)
        self.journal.drop(addition.uid, book.node)

    def restore(self, uid: str, book: Book) -> None:
        """Have decisions see that a pod holds what the ledger says, and not what it was to hold instead."""
        self.snapshot.remove(book.node, uid)
        if (held := book.held.get(uid)) is not None:
            self.snapshot.add(book.node, held)
        self.journal.restore(uid, book.node, book.seq)

    def forget(self, item: Item) -> None:
        """The item is on its way no more."""
        if isinstance(item, Addition):
            self.pending.pop(item.uid, None)
            self.quotas.withdraw(item.decision.node, item.allocation)
        elif isinstance(item, Keep):
            self.keeping.pop(item.command.uid, None)
            self.quotas.free(item.namespace)
        elif self.removing.get(item.uid) is item:
            del self.removing[item.uid]

    def tokens(self) -> list[object]:
        """Return the tokens of everything on its way."""
        ours: tuple[Iterable[Item], ...] = (self.pending.values(), self.removing.values(), self.keeping.values())
        return [item.token for items in ours for item in items] + self.rooms.tokens()

    def show_held(self, book: Book) -> None:
        """Have decisions see the node as the ledger has it, without anything of ours that is on its way."""
        self.offers.swept(book.node)
        self.ageless.pop(book.node, None)
        self.snapshot.set_allocations(book.node, book.charges())
        self.journal.adopt(book.node, book.seq)
