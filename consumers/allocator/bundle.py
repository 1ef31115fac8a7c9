"""Commits that land together or not at all, sealed by the ledger keys that keep their sums.

A pod of a namespace with a quota changes two keys, its node's and its namespace's; a gang changes its own and those of many
nodes. They are written as one atomic batch with an expectation on each. Because a batch costs a single server an fsync,
many decisions travel in one. The keys that keep sums come last: whoever reads one has read everything that it counts.
"""

from dataclasses import dataclass, field
from typing import Final

from consumers.allocator.book import Commit
from schemas.ledger import GangRecord, QuotaRecord

MOST_ITEMS: Final = 256
"""Changes in one bundle at most. The server takes a thousand messages in a batch, and each change may bring two."""


@dataclass(slots=True, eq=False)
class Seal:
    """A key beside the nodes: its record replaces the one at ``expected``."""

    subject: str
    name: str
    expected: int
    record: QuotaRecord | GangRecord


@dataclass(slots=True, eq=False)
class Bundle:
    """Commits on their way together, and the seals behind them."""

    txn: str
    commits: list[Commit] = field(default_factory=list)
    seals: list[Seal] = field(default_factory=list)


class Pace:
    """How many changes to put in one bundle: fewer after each loss, so that a busy cluster does not overtake it for ever."""

    def __init__(self) -> None:
        self.items = MOST_ITEMS

    def won(self) -> None:
        """The last bundle landed."""
        self.items = min(2 * self.items, MOST_ITEMS)

    def lost(self) -> None:
        """Somebody else's record came before the last bundle."""
        self.items = max(self.items // 2, 1)
