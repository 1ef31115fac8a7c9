"""What the ledger shows: our own records, which are announced then, and those of others, which ours may have come after."""

from collections.abc import Mapping

from bus import codec
from bus.chain import link
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.allocator.book import Addition, Book, Commit, Keep, Removal, kept_since
from consumers.allocator.bundle import Bundle
from consumers.allocator.effects import Announcement
from consumers.allocator.keeping import Keeping
from consumers.allocator.losing import Losing
from consumers.allocator.mind import Mind
from consumers.allocator.placing import Placing
from consumers.allocator.releasing import Releasing
from schemas.ledger import HOLD, Allocation, NodeRecord


class Landing:
    """Hears for ``mind`` what became of its commits."""

    def __init__(self, mind: Mind, keeping: Keeping, placing: Placing, releasing: Releasing, losing: Losing) -> None:
        self._mind = mind
        self._keeping = keeping
        self._placing = placing
        self._releasing = releasing
        self._losing = losing

    def stored(self, flight: Commit | Bundle, seq: int) -> None:
        """The server stored our record at ``seq``, or all of a bundle from there on."""
        shelf = self._mind.shelf
        for at, commit in enumerate(flight.commits, seq):
            book = shelf.book(commit.node)
            if book.flying is commit:  # or else the ledger showed it to us before the acknowledgement came
                book.unseen.append((at, self._landed(book, at)))
        if flight is shelf.bundle:
            for at, seal in enumerate(flight.seals, seq + len(flight.commits)):
                shelf.put_key(seal.subject, at)
                self._mind.sealer.heard(seal.name, seal.record)
            shelf.bundle_won()

    def _landed(self, book: Book, seq: int) -> Commit:
        mind, before, kept = self._mind, book.held, book.holds
        commit = mind.shelf.landed(book, seq)
        mind.rooms.note(book.node, kept, book.holds)
        if mind.quotas or mind.shelf.knows_gangs:
            self._count(book, before)
        return commit

    def _count(self, book: Book, before: Mapping[str, Allocation], seq: int = 0) -> None:
        """Count against quotas and gangs what a node's pods hold now; ``seq`` is given where that is by another's record."""
        mind, after = self._mind, book.held
        other = [uid for uid, now in after.items() if (was := before.get(uid)) is not None and not was.says_as(now)]
        gone, come = before.keys() - after.keys(), after.keys() - before.keys()
        mind.sealer.settle(book.node, [before[uid] for uid in (*gone, *other)], [after[uid] for uid in (*come, *other)])
        if other and seq:  # some may hold less than before
            mind.cluster.grow_by_ledger(book.node, seq)

    def on_node(self, node: str, record: Record) -> None:
        """A ledger record of ``node``, in stream order.

        Raises:
            UndecodableError: The record cannot be read. The node is frozen: it takes nothing more until a good one comes.
        """
        mind = self._mind
        mind.cluster.ledger_seq = max(mind.cluster.ledger_seq, record.seq)
        book = mind.shelf.book(node)
        while book.unseen and book.unseen[0][0] <= record.seq:
            seq, mine = book.unseen.pop(0)
            self._settle(mine, seq)
        if record.seq <= book.seq:
            return
        if book.flying is not None and record.payload == book.flying.payload:
            self._land_seen(book, record.seq)
            return
        newest = link(record.payload)
        try:
            data = None if record.deleted else codec.decode_as(NodeRecord, record.payload).data
            if data is not None:
                codec.check_name(data.node, node)
        except UndecodableError:
            self._freeze(book, record.seq)
            book.newest = newest
            raise
        if data is not None and book.flying is not None and data.txn == book.flying.txn:
            self._land_seen(book, record.seq)
        else:
            self._adopt(book, record.seq, data)
        book.newest = newest

    def on_key(self, kind: str, name: str, record: Record) -> None:
        """A ledger record of a key that is no node, in stream order: a quota's or a gang's.

        Raises:
            UndecodableError: The record cannot be read. The next batch replaces it with what the nodes' records add up to.
        """
        mind, shelf = self._mind, self._mind.shelf
        mind.cluster.ledger_seq = max(mind.cluster.ledger_seq, record.seq)
        if record.seq <= shelf.key(record.subject):
            return
        shelf.put_key(record.subject, record.seq)
        bundle = shelf.bundle
        sealed = [seal.subject for seal in bundle.seals] if bundle is not None else []
        txn = ""
        try:
            txn = mind.sealer.read(kind, name, record)
        finally:
            if bundle is not None and txn == bundle.txn:
                if record.subject == sealed[-1]:  # its nodes' records came before
                    shelf.bundle_won()
            else:
                if bundle is not None and record.subject in sealed:
                    self._losing.retry(bundle)
                if kind == "gang":
                    for item in [item for item in mind.pending.values() if item.gang == name]:
                        self._placing.reschedule(self._placing.take_back(item))

    def _land_seen(self, book: Book, seq: int) -> None:
        """The ledger shows our record before its acknowledgement came."""
        self._settle(self._landed(book, seq), seq)

    def _adopt(self, book: Book, seq: int, data: NodeRecord | None) -> None:
        """Take over a record that somebody else wrote, and decide anew what it overtook."""
        mind, before, kept = self._mind, book.held, book.holds
        if book.frozen:
            mind.cluster.grow_by_ledger(book.node, seq)
        book.seq, book.frozen = seq, False
        book.held = {a.pod_uid: a.known_since(seq) for a in (data.allocations if data is not None else ())}
        book.holds = {hold.key: kept_since(hold, seq) for hold in (data.holds if data is not None else ())}
        mind.rooms.note(book.node, kept, book.holds)
        for key in kept.keys() - book.holds.keys():
            mind.cluster.grow_by_ledger(book.node, seq)
            mind.cluster.recheck(key.removeprefix(HOLD))
            mind.quotas.free(kept[key].allocation.namespace)
        items = self._losing.overtaken(book)
        gone, come = before.keys() - book.held.keys(), book.held.keys() - before.keys()
        self._count(book, before, seq)
        mind.quotas.node_readable(book.node, readable=True)
        for uid in gone:
            mind.places.remove(uid, book.node, seq)
            mind.cluster.grow_by_ledger(book.node, seq)
        for change in data.changes if data is not None else ():  # tells a new allocator who left just before it came
            if change.op == "remove" and change.pod_uid not in book.held:
                mind.places.remove(change.pod_uid, book.node, seq)
        for uid in come:
            mind.places.add(uid, book.node, book.held[uid].since)
        mind.show_held(book)
        self._losing.note(items)  # before anything else is decided: from now on decisions do not see what was overtaken
        for uid in come:
            self._placing.withdraw(uid)
        self._losing.again(items)
        if data is not None and mind.shelf.wrote(data.txn):
            # A commit of ours that we had given up landed after all.
            for uid in come:
                self._releasing.undo_duplicate(uid, book.node)

    def _freeze(self, book: Book, seq: int) -> None:
        mind = self._mind
        book.seq, book.frozen = seq, True
        items = self._losing.overtaken(book)
        mind.offers.clear(book.node)
        mind.quotas.node_readable(book.node, readable=False)
        mind.snapshot.freeze(book.node)
        mind.journal.freeze(book.node)
        for item in items:
            mind.forget(item)
            if isinstance(item, Removal):
                mind.effects.again.append(item.token)
        self._losing.decide_anew(items)

    def _settle(self, commit: Commit, seq: int) -> None:
        """Our record has been seen in the ledger: announce what it changed."""
        for item in commit.items:
            self._mind.forget(item)
            if isinstance(item, Addition):
                self._settle_addition(item, commit.node, seq)
            elif isinstance(item, Keep):
                self._keeping.settle(item, commit.node, seq)
            else:
                self._releasing.settle(item, commit.node, seq)

    def _settle_addition(self, item: Addition, node: str, seq: int) -> None:
        mind = self._mind
        mind.decider.settled(item.uid)
        mind.ageless[node] = None
        if item.instead is not None:
            mind.cluster.grow_by_ledger(node, seq)
            mind.announce(f"{item.uid}:{seq}:resized", item.decision, item.token, item.encoded)
            return
        mind.places.add(item.uid, node, seq)
        self._keeping.give_up(item.uid, "Placed", node)
        if self._releasing.undo_duplicate(item.uid, node):
            mind.recover(item.command, item.token)  # whoever placed it first may have died over it
            if item.formation is not None:
                mind.effects.announcements += item.formation.settled(None)
            return
        mind.counters.placed += 1
        said = Announcement(f"{item.uid}:{seq}", item.decision, item.encoded, item.token)
        mind.effects.announcements += [said] if item.formation is None else item.formation.settled(said)

    def recreated(self) -> None:
        """The LEDGER stream is another one than before: its sequences start anew."""
        mind = self._mind
        mind.cluster.ledger_seq = 0
        mind.shelf.recreated()
        for book in mind.shelf.books():
            for _, commit in book.unseen:
                for item in commit.items:
                    mind.forget(item)
                    mind.effects.again.append(item.token)
            book.unseen.clear()
