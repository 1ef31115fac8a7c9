"""All books of one allocator, and which of them have something to commit."""

from collections.abc import Iterator

from consumers.allocator.book import Book, Commit, Item


class Shelf:
    """The books by node; ``name`` is the allocator, which its commits are signed with."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._books: dict[str, Book] = {}
        self._dirty: dict[str, Book] = {}
        self._commits = 0

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

    def landed(self, book: Book, seq: int) -> Commit:
        """The commit in flight is in the ledger at ``seq``; what has queued up behind it may go."""
        commit = book.land(seq)
        if book.queued:
            self._dirty[book.node] = book
        return commit

    def begin(self) -> list[Commit]:
        """Turn what is queued into commits, at most one per node in flight."""
        dirty, self._dirty = self._dirty, {}
        commits = []
        for book in dirty.values():
            self._commits += 1
            commit = book.begin(f"{self._name}:{self._commits}")
            if commit is not None:
                commits.append(commit)
        return commits

    def wrote(self, txn: str) -> bool:
        """Whether a ledger record's transaction is one of ours."""
        return txn.startswith(f"{self._name}:")

    @property
    def busy(self) -> int:
        """Number of nodes with a commit in flight or changes queued."""
        return sum(book.flying is not None or bool(book.queued) for book in self._books.values())
