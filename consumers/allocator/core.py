"""The allocator without I/O: events and answers go in, commits and outcomes come out.

Everything that could race is decided here, in one thread, on values: which pod goes where, what becomes of it when
another allocator's record comes first, and when it is safe to tell the world. The shell in
:mod:`consumers.allocator.service` carries the effects out.

A pod is announced only when its record has been *seen* in the ledger, in stream order. Commits are compare-and-set per
node, so no GPU is given twice; but a command that was redelivered while its first taker was merely slow can be placed on
two nodes. All followers see both records in the same order, so the maker of the later one knows, announces nothing and
takes it back.
"""

from collections.abc import Callable

import msgspec

from bus import codec
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.allocator.book import Addition, Book, Commit, Item, Removal
from consumers.allocator.cluster import Cluster
from consumers.allocator.decider import Decider
from consumers.allocator.effects import Announcement, Counters, Effects, Recovery, encode
from consumers.allocator.places import Places
from consumers.allocator.shelf import Shelf
from schemas.decision import Decision
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import Release, Schedule, Waiting

DUPLICATE = "DuplicatePlacement"


class Core:
    """One allocator's mind.

    Args:
        name: Identity of this allocator.
        clock_us: Elapsed microseconds, for the duration noted in decisions and for nothing else.
    """

    def __init__(self, name: str, clock_us: Callable[[], int]) -> None:
        self.name = name
        self.cluster = Cluster()
        self.snapshot = self.cluster.snapshot
        self.effects = Effects()
        self.counters = Counters()
        self.decider = Decider(name, self.cluster, clock_us)
        self._shelf = Shelf(name)
        self._places = Places()
        self._pending: dict[str, Addition] = {}
        self._removing: dict[str, Removal] = {}

    # Commands

    def schedule(self, command: Schedule, token: object) -> None:
        """Find a place for a pod."""
        waiting_for = self._pending.get(command.uid)
        if waiting_for is not None:  # redelivered while we are at it: only the newest delivery can be acknowledged
            waiting_for.token = token
            return
        if self._places.first(command.uid) is not None:
            self._recover(command, token)
        else:
            self._place(command, token)

    def release(self, command: Release, token: object) -> None:
        """Give back what a pod holds."""
        removing = self._removing.get(command.uid)
        if removing is not None:
            removing.token = token
            return
        pending = self._pending.get(command.uid)
        place = self._places.first(command.uid)
        if pending is not None:
            self._remove(pending.decision.node, command, token)
        elif place is not None:
            self._remove(place.node, command, token)
        elif (waiting := self.cluster.waiting.get(command.uid)) is not None:
            self._announce(
                f"{command.uid}:{waiting[1]}:unplaced", self.decider.release(command, " while waiting"), token
            )
        elif self._places.left(command.uid) is not None:
            self.release_nothing(command, token)
        else:
            self.effects.unknown.append((command, token))

    def release_nothing(self, command: Release, token: object) -> None:
        """The pod holds nothing, or nothing any more: say so, because whoever asked may never have heard it."""
        left = self._places.left(command.uid)
        before = f" since ledger record {left.seq} of {left.node}" if left is not None else ""
        decision = self.decider.release(command, f": holds nothing{before}")
        self._announce(f"{command.uid}:{self.name}:{decision.basis.ordinal}", decision, token)

    def _recover(self, command: Schedule, token: object) -> None:
        """The pod has its place: only the announcement may be missing."""
        place = self._places.first(command.uid)
        if place is not None:
            self.counters.recovered += 1
            self.decider.settled(command.uid)
            waiting = self.cluster.waiting.get(command.uid)
            self.effects.recoveries.append(Recovery(command, place.seq, token, waiting))

    def _place(self, command: Schedule, token: object) -> None:
        request = command.request
        decision = self.decider.place(command)
        self.counters.decided += 1
        if not decision.node:
            self.counters.refused += 1
            self.decider.settled(command.uid)
            self._announce(f"{command.uid}:{self.name}:{decision.basis.ordinal}", decision, token, refused=command)
            return
        allocation = Allocation(
            pod_uid=command.uid,
            namespace=command.namespace,
            name=command.name,
            pool=request.pool,
            gpus=decision.gpus,
            cpu_milli=request.cpu_milli,
            memory_bytes=request.memory_bytes,
            qos=request.qos,
            priority=request.priority,
        )
        addition = Addition(command, token, allocation, decision, encode(decision))
        self._pending[command.uid] = addition
        self.snapshot.add(decision.node, allocation)
        self._shelf.queue(decision.node, addition)

    def _remove(self, node: str, command: Release, token: object, *, silent: bool = False) -> None:
        held = {a.pod_uid: a for a in self._shelf.book(node).expected_allocations()}.get(command.uid)
        if held is None:  # taken back already, as a duplicate
            if not silent:
                self.release_nothing(command, token)
            return
        decision = self.decider.release(command, ": gave back what it held", node, held.gpus)
        removal = Removal(command, token, decision, encode(decision), silent)
        if not silent:
            self._removing[command.uid] = removal
        self.snapshot.remove(node, command.uid)
        self._shelf.queue(node, removal)

    def flush(self) -> None:
        """Turn queued changes into commits, at most one per node in flight."""
        self.effects.commits += self._shelf.begin()

    def tokens(self) -> list[object]:
        """Return the tokens of everything on its way."""
        return [item.token for items in (self._pending, self._removing) for item in items.values()]

    @property
    def busy(self) -> int:
        """Number of nodes with a commit in flight or changes queued."""
        return self._shelf.busy

    @property
    def pending(self) -> int:
        """Number of pods placed but not yet seen in the ledger."""
        return len(self._pending)

    # Answers to commits

    def stored(self, commit: Commit, seq: int) -> None:
        """The server stored our record at ``seq``."""
        book = self._shelf.book(commit.node)
        if book.flying is not commit:  # the ledger showed it to us before the acknowledgement came
            return
        book.unseen.append((seq, self._shelf.landed(book, seq)))

    def is_flying(self, commit: Commit) -> bool:
        """Whether the core still waits to learn what became of the commit."""
        return self._shelf.book(commit.node).flying is commit

    def given_up(self, commit: Commit) -> None:
        """No answer came and the ledger, read to its end, does not hold the record: let others have the pods."""
        book = self._shelf.book(commit.node)
        if book.flying is not commit:
            return
        for item in book.overtaken():
            self._forget(item)
            self.effects.again.append(item.token)
        self.snapshot.set_allocations(commit.node, book.held.values())

    # What the bus says

    def on_ledger(self, node: str, record: Record) -> None:
        """A ledger record of ``node``, in stream order.

        Raises:
            UndecodableError: The record cannot be read. The node is frozen: it takes nothing more until a good one comes.
        """
        self.cluster.ledger_seq = max(self.cluster.ledger_seq, record.seq)
        book = self._shelf.book(node)
        while book.unseen and book.unseen[0][0] <= record.seq:
            seq, mine = book.unseen.pop(0)
            self._settle(mine, seq)
        if record.seq <= book.seq:
            return
        if book.flying is not None and record.payload == book.flying.payload:
            self._land_seen(book, record.seq)
            return
        try:
            data = None if record.deleted else codec.decode_as(NodeRecord, record.payload).data
            if data is not None:
                codec.check_name(data.node, node)
        except UndecodableError:
            self._freeze(book, record.seq)
            raise
        if data is not None and book.flying is not None and data.txn == book.flying.txn:
            self._land_seen(book, record.seq)
        else:
            self._adopt(book, record.seq, data)

    def _land_seen(self, book: Book, seq: int) -> None:
        """The ledger shows our record before its acknowledgement came."""
        self._settle(self._shelf.landed(book, seq), seq)

    def _adopt(self, book: Book, seq: int, data: NodeRecord | None) -> None:
        """Take over a record that somebody else wrote, and decide anew what it overtook."""
        before = book.held
        if book.frozen:
            self.cluster.grow_by_ledger(book.node, seq)
        book.seq, book.frozen = seq, False
        book.held = {
            a.pod_uid: a if a.since else msgspec.structs.replace(a, since=seq)
            for a in (data.allocations if data is not None else ())
        }
        items = book.overtaken()
        for uid in before.keys() - book.held.keys():
            self._places.remove(uid, book.node, seq)
            self.cluster.grow_by_ledger(book.node, seq)
        for change in data.changes if data is not None else ():  # tells a new allocator who left just before it came
            if change.op == "remove" and change.pod_uid not in book.held:
                self._places.remove(change.pod_uid, book.node, seq)
        for uid in book.held.keys() - before.keys():
            self._places.add(uid, book.node, book.held[uid].since)
            self._withdraw(uid)
        self.snapshot.set_allocations(book.node, book.held.values())
        self._retry(book, items)
        if data is not None and self._shelf.wrote(data.txn):
            # A commit of ours that we had given up landed after all.
            for uid in book.held.keys() - before.keys():
                self._undo_duplicate(uid, book.node)

    def _withdraw(self, uid: str) -> None:
        """Another allocator has placed the pod: if ours has not left yet, let it not leave."""
        ours = self._pending.get(uid)
        if ours is None:
            return
        book = self._shelf.book(ours.decision.node)
        if ours in book.queued:
            book.queued.remove(ours)
            self.snapshot.remove(book.node, uid)
            self._forget(ours)
            self.schedule(ours.command, ours.token)

    def _retry(self, book: Book, items: list[Item]) -> None:
        for item in items:
            self.counters.overtaken += 1
            if isinstance(item, Removal):
                if item.uid in book.held:
                    self.snapshot.remove(book.node, item.uid)
                    self._shelf.queue(book.node, item)
                else:
                    self._forget(item)
                    self.effects.again.append(item.token)  # it is gone from here, or was never here and goes elsewhere
                continue
            self._forget(item)
            self.decider.overtaken(item.decision)
            self.schedule(item.command, item.token)

    def _freeze(self, book: Book, seq: int) -> None:
        book.seq, book.frozen = seq, True
        items = book.overtaken()
        self.snapshot.freeze(book.node)
        for item in items:
            self._forget(item)
            if isinstance(item, Addition):
                self.schedule(item.command, item.token)
            else:
                self.effects.again.append(item.token)

    def _settle(self, commit: Commit, seq: int) -> None:
        """Our record has been seen in the ledger: announce what it changed."""
        for item in commit.items:
            self._forget(item)
            if isinstance(item, Addition):
                self.decider.settled(item.uid)
                self._places.add(item.uid, commit.node, seq)
                if self._undo_duplicate(item.uid, commit.node):
                    self._recover(item.command, item.token)  # whoever placed it first may have died over it
                    continue
                self.counters.placed += 1
                self._announce(f"{item.uid}:{seq}", item.decision, item.token, item.encoded)
            else:
                self._places.remove(item.uid, commit.node, seq)
                self.cluster.grow_by_ledger(commit.node, seq)
                if item.silent:
                    continue
                self.counters.released += 1
                token = item.token
                duplicate = self._places.first(item.uid)
                if duplicate is not None:  # nobody has undone it yet: the command is done when that is gone too
                    self._remove(duplicate.node, item.command, token)
                    token = None
                # One record may both add and remove a pod, so the sequence alone does not tell the two decisions apart.
                self._announce(f"{item.uid}:{seq}:released", item.decision, token, item.encoded)

    def _forget(self, item: Item) -> None:
        """The item is on its way no more."""
        if isinstance(item, Addition):
            self._pending.pop(item.uid, None)
        elif self._removing.get(item.uid) is item:
            del self._removing[item.uid]

    def _undo_duplicate(self, uid: str, node: str) -> bool:
        """If the pod stood elsewhere first, take back what we gave it here."""
        first = self._places.first(uid)
        if first is None or first.node == node:
            return False
        self.counters.duplicates += 1
        held = self._shelf.book(node).held.get(uid)
        if held is not None:
            command = Release(
                namespace=held.namespace, name=held.name, uid=uid, pool=held.pool, node=node, reason=DUPLICATE
            )
            self._remove(node, command, None, silent=True)
        return True

    def _announce(
        self,
        event_id: str,
        decision: Decision,
        token: object,
        encoded: msgspec.Raw | None = None,
        *,
        refused: Schedule | None = None,
    ) -> None:
        said = Announcement(event_id, decision, encoded or encode(decision), token, refused)
        self.effects.announcements.append(said)

    def ledger_recreated(self) -> None:
        """The LEDGER stream is another one than before: its sequences start anew."""
        self.cluster.ledger_seq = 0
        for book in self._shelf.books():
            book.seq = 0
            for _, commit in book.unseen:
                for item in commit.items:
                    self._forget(item)
                    self.effects.again.append(item.token)
            book.unseen.clear()

    def sweep(self) -> None:
        """Look at everything again that events or their readers may have missed."""
        self.cluster.sweep()
        self.undo_duplicates()
        for uid in self.cluster.waiting.all():
            entry = self.cluster.waiting.get(uid)
            if entry is not None:
                self._settle_waiting(entry[0])

    def undo_duplicates(self) -> None:
        """Take back every later placement of a pod that stands on two nodes, whoever made it and died over it."""
        for uid, place in self._places.later():
            held = self._shelf.book(place.node).held.get(uid)
            if held is not None and not any(item.uid == uid for item in self._shelf.book(place.node).queued):
                self._undo_duplicate(uid, place.node)

    def on_state(self, record: Record) -> None:
        """A record of STATE, in stream order.

        Raises:
            UndecodableError: It cannot be read; see :meth:`Cluster.on_state`.
        """
        waiting = self.cluster.on_state(record)
        self.decider.settle_home()
        if waiting is not None:
            self._settle_waiting(waiting)

    def _settle_waiting(self, pod: Waiting) -> None:
        """A pod that stands somewhere waits no more: one allocator refused it while another placed it, and may have died."""
        self._recover(Schedule(namespace=pod.namespace, name=pod.name, uid=pod.uid, request=pod.request), None)

    def wake(self) -> list[tuple[Waiting, int]]:
        """Return the waiting pods to try again after what has grown; see :meth:`Cluster.wake`."""
        return self.cluster.wake(
            self.decider.policy, lambda uid: uid in self._pending or self._places.first(uid) is not None
        )

    def take_effects(self) -> Effects:
        """Return what is to be done and start a new list."""
        effects, self.effects = self.effects, Effects()
        return effects
