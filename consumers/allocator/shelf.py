"""All books of one allocator, which of them have something to commit, and what must be committed together."""

from collections.abc import Callable, Iterator

from consumers.allocator.book import Addition, Book, Commit, Item
from consumers.allocator.bundle import Bundle, Pace


class Shelf:
    """The books by node; ``name`` is the allocator, which its commits are signed with."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._books: dict[str, Book] = {}
        self._dirty: dict[str, Book] = {}
        self._commits = 0
        self._pace = Pace()
        self.knows_gangs = False
        """Whether a member of a gang has ever been queued."""
        self._keys: dict[str, int] = {}
        self.bundle: Bundle | None = None
        """The bundle in flight, one at most: a second could not win while it shares a key with the first."""

    def book(self, node: str) -> Book:
        """Return the book of a node, an empty one if there is none yet."""
        book = self._books.get(node)
        if book is None:
            book = self._books[node] = Book(node)
        return book

    def books(self) -> Iterator[Book]:
        """Yield every book."""
        yield from self._books.values()

    def queue(self, node: str, item: Item) -> None:
        """Have ``item`` committed with the node's next record."""
        book = self.book(node)
        book.queued.append(item)
        self._dirty[node] = book
        self.knows_gangs |= bool(item.gang)

    def landed(self, book: Book, seq: int) -> Commit:
        """The commit in flight is in the ledger at ``seq``; what has queued up behind it may go."""
        commit = book.land(seq)
        if book.queued:
            self._dirty[book.node] = book
        return commit

    def begin(self, together: Callable[[Item], bool] | None = None) -> list[Commit]:
        """Turn what is queued into commits, at most one per node in flight.

        A node with an item that must land ``together`` with other keys goes into the next bundle as a whole; see
        :meth:`bundle_up`.
        """
        dirty, self._dirty = self._dirty, {}
        commits = []
        for book in dirty.values():
            if together is not None and any(map(together, book.queued)):
                self._dirty[book.node] = book
            elif (commit := book.begin(self._txn())) is not None:
                commits.append(commit)
        return commits

    def bundle_up(self) -> Bundle | None:
        """Turn what :meth:`begin` left over into a bundle, unless one is in flight; it is still to be sealed.

        A formation goes with all its nodes or waits until all of them are free.
        """
        if self.bundle is not None or not self._dirty:
            return None
        dirty, self._dirty = self._dirty, {}
        bundle = Bundle(self._txn())
        room = self._pace.items
        taken: set[str] = set()
        for node in dirty:
            if node in taken:
                continue
            together = self._reach(node)
            if (bundle.commits and len(together) > room) or any(
                book.flying is not None or book.frozen for book in together
            ):
                self._dirty[node] = dirty[node]
                continue
            for book in together:
                taken.add(book.node)
                if (commit := book.begin(bundle.txn)) is not None:
                    bundle.commits.append(commit)
                    room -= len(commit.items)
        if not bundle.commits:
            return None
        self.bundle = bundle
        return bundle

    def _reach(self, node: str) -> list[Book]:
        """Return the books whose changes must leave together with those of a node, for the sake of formations."""
        found = [self.book(node)]
        seen = {node}
        for book in found:
            for item in book.queued:
                formation = item.formation if isinstance(item, Addition) else None
                for other in formation.additions if formation is not None else ():
                    if other.decision.node not in seen:
                        seen.add(other.decision.node)
                        found.append(self.book(other.decision.node))
        return found

    def is_joint(self, commit: Commit) -> bool:
        """Whether the commit is part of the bundle in flight."""
        return self.bundle is not None and commit.txn == self.bundle.txn

    def bundle_won(self) -> None:
        """The bundle in flight has landed."""
        self.bundle = None
        self._pace.won()

    def bundle_lost(self) -> None:
        """The bundle in flight will never land."""
        self.bundle = None
        self._pace.lost()

    def key(self, subject: str) -> int:
        """Return the sequence of the newest record on a key that is no node's, 0 for none."""
        return self._keys.get(subject, 0)

    def put_key(self, subject: str, seq: int) -> None:
        """The ledger has a record on that key at ``seq``."""
        self._keys[subject] = seq

    def recreated(self) -> None:
        """All sequences start anew."""
        self._keys.clear()
        for book in self._books.values():
            book.seq, book.newest = 0, ""

    def wrote(self, txn: str) -> bool:
        """Whether a ledger record's transaction is one of ours."""
        return txn.startswith(f"{self._name}:")

    def _txn(self) -> str:
        self._commits += 1
        return f"{self._name}:{self._commits}"

    @property
    def busy(self) -> int:
        """Number of nodes with a commit in flight or changes queued."""
        return sum(book.flying is not None or bool(book.queued) for book in self._books.values())
