"""Which changes must land together with a key of their own, and what that key then says."""

from bus import subjects
from consumers.allocator.book import Item
from consumers.allocator.bundle import Bundle, Seal
from consumers.allocator.quotas import Quotas
from consumers.allocator.shelf import Shelf
from schemas.ledger import Allocation, QuotaRecord


class Sealer:
    """Seals bundles with what they bring each namespace that has a quota to."""

    def __init__(self, shelf: Shelf, quotas: Quotas) -> None:
        self._shelf = shelf
        self._quotas = quotas

    def joins(self, item: Item) -> bool:
        """Whether the change may land only in a bundle."""
        return self._quotas.bound(item.namespace)

    def seal(self, bundle: Bundle, basis: int) -> None:
        """Have the bundle say what it leads to. ``basis`` is the LEDGER sequence that has been read."""
        changes: dict[str, tuple[list[Allocation], list[Allocation]]] = {}
        for commit in bundle.commits:
            before, after = self._shelf.book(commit.node).held, commit.held
            for uid, namespace in {(item.uid, item.namespace) for item in commit.items if self.joins(item)}:
                added, removed = changes.setdefault(namespace, ([], []))
                if uid in after and uid not in before:
                    added.append(after[uid])
                elif uid in before and uid not in after:
                    removed.append(before[uid])
        for namespace, (added, removed) in sorted(changes.items()):
            used, budget = self._quotas.after(namespace, added, removed)
            subject = subjects.ledger_quota(namespace)
            record = QuotaRecord(namespace=namespace, txn=bundle.txn, used=used, budget=budget, basis=basis)
            bundle.seals.append(Seal(subject, namespace, self._shelf.key(subject), record))
