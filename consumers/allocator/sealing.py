"""Which changes must land together with a key of their own, and what that key then says."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.allocator.book import Addition, Item
from consumers.allocator.bundle import Bundle, Seal
from consumers.allocator.gangs import Gangs
from consumers.allocator.quotas import Quotas
from consumers.allocator.shelf import Shelf
from schemas.ledger import HOLD, Allocation, GangRecord, QuotaRecord


@dataclass(slots=True)
class _Changes:
    added: list[Allocation] = field(default_factory=list)
    removed: list[Allocation] = field(default_factory=list)


class Sealer:
    """Seals bundles with what they bring namespaces that have a quota, and gangs, to."""

    def __init__(self, shelf: Shelf, quotas: Quotas, gangs: Gangs) -> None:
        self._shelf = shelf
        self._quotas = quotas
        self._gangs = gangs

    def joins(self, item: Item) -> bool:
        """Whether the change may land only in a bundle."""
        if item.uid.startswith(HOLD):
            return False  # what is kept is not held: it counts against no quota
        return bool(item.gang) or self._quotas.bound(item.namespace)

    def settle(self, node: str, gone: Iterable[Allocation], come: Iterable[Allocation]) -> None:
        """The ledger has a new record of a node: which pods hold nothing there any more, and which do now."""
        for keeper in (self._quotas, self._gangs):
            for allocation in gone:
                keeper.drop(node, allocation)
            for allocation in come:
                keeper.hold(node, allocation)

    def read(self, kind: str, name: str, record: Record) -> str:
        """Take in the record of a key and return its transaction.

        Raises:
            UndecodableError: It cannot be read, or speaks of another key.
        """
        if kind == "quota":
            try:
                quota = None if record.deleted else codec.decode_as(QuotaRecord, record.payload).data
                codec.check_name(quota.namespace if quota is not None else name, name)
            except UndecodableError:
                self._quotas.on_record(name, None)
                raise
            self._quotas.on_record(name, quota)
            return quota.txn if quota is not None else ""
        self._gangs.formed[name] = None
        if record.deleted:
            return ""
        gang = codec.decode_as(GangRecord, record.payload).data
        codec.check_name(gang.key, name)
        self._gangs.needs(name, gang.min_members)
        return gang.txn

    def heard(self, name: str, record: QuotaRecord | GangRecord) -> None:
        """Our own record of a key is in the ledger."""
        if isinstance(record, QuotaRecord):
            self._quotas.on_record(name, record)
        else:
            self._gangs.formed[name] = None
            self._gangs.needs(name, record.min_members)

    def seal(self, bundle: Bundle, basis: int) -> bool:
        """Have the bundle say what it leads to, or return that it must not leave: a part of a gang would stand alone.

        Args:
            bundle: What is about to leave.
            basis: LEDGER sequence that has been read.
        """
        namespaces: defaultdict[str, _Changes] = defaultdict(_Changes)
        gangs: defaultdict[str, _Changes] = defaultdict(_Changes)
        least: dict[str, int] = {}
        for commit in bundle.commits:
            before, after = self._shelf.book(commit.node).held, commit.held
            for item in {item.uid: item for item in commit.items if self.joins(item)}.values():
                kept = ([namespaces[item.namespace]] if self._quotas.bound(item.namespace) else []) + (
                    [gangs[item.gang]] if item.gang else []
                )
                for changes in kept:
                    was, held = before.get(item.uid), after.get(item.uid)
                    if was is not None and held is not None and was.says_as(held):
                        continue
                    if held is not None:
                        changes.added.append(held)
                    if was is not None:
                        changes.removed.append(was)
                if isinstance(item, Addition) and (gang := item.command.request.gang) is not None:
                    least[gang.key] = gang.min_members
        for namespace, changes in sorted(namespaces.items()):
            self._seal_quota(bundle, namespace, changes, basis)
        whole = [
            self._seal_gang(bundle, key, changes, least.get(key, 0) or self._gangs.least(key))
            for key, changes in sorted(gangs.items())
        ]
        return all(whole)

    def _seal_quota(self, bundle: Bundle, namespace: str, changes: _Changes, basis: int) -> None:
        used, budget = self._quotas.after(namespace, changes.added, changes.removed)
        record = QuotaRecord(namespace=namespace, txn=bundle.txn, used=used, budget=budget, basis=basis)
        subject = subjects.ledger_quota(namespace)
        bundle.seals.append(Seal(subject, namespace, self._shelf.key(subject), record))

    def _seal_gang(self, bundle: Bundle, key: str, changes: _Changes, least: int) -> bool:
        before = set(self._gangs.standing(key))
        removed = {allocation.pod_uid for allocation in changes.removed}
        after = (before - removed) | {allocation.pod_uid for allocation in changes.added}
        record = GangRecord(key=key, txn=bundle.txn, min_members=least, members=tuple(sorted(after)))
        subject = subjects.ledger_gang(key)
        bundle.seals.append(Seal(subject, key, self._shelf.key(subject), record))
        return bool(before & after) or not changes.added or len(after) >= least
