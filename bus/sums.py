"""Whether the ledger's quota and gang records say what the node records before them add up to.

Part of :mod:`bus.invariants`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from schemas.ledger import Allocation, GangRecord, QuotaRecord

Sums = Counter[str]


@dataclass(slots=True)
class _Open:
    """What one transaction changed in a namespace since the namespace's last record."""

    seq: int = 0
    sums: Sums = field(default_factory=Counter)


class QuotaSums:
    """Adds up what the pods of each namespace hold, and compares.

    A record counts the node records of its own transaction and all earlier ones. Node records that changed the namespace
    without it are left out only if its writer had not read them, which can be only while somebody does not know of a new
    quota yet; ``unsealed`` counts them per namespace.
    """

    def __init__(self) -> None:
        self._held: defaultdict[str, Sums] = defaultdict(Counter)
        self._open: defaultdict[str, dict[str, _Open]] = defaultdict(dict)
        self._sealed: set[str] = set()
        self.unsealed: Counter[str] = Counter()

    def change(self, seq: int, txn: str, before: Mapping[str, Allocation], after: Mapping[str, Allocation]) -> None:
        """A node's list changed from ``before`` to ``after``."""
        for uid in before.keys() | after.keys():
            old, new = before.get(uid), after.get(uid)
            if old == new or (old is not None and new is not None and dict(_amounts(old)) == dict(_amounts(new))):
                continue
            for allocation, sign in ((old, -1), (new, 1)):
                if allocation is not None:
                    self._add(seq, txn, allocation, sign)

    def _add(self, seq: int, txn: str, allocation: Allocation, sign: int) -> None:
        namespace = allocation.namespace
        opened = self._open[namespace].setdefault(txn, _Open())
        opened.seq = seq
        for name, amount in _amounts(allocation):
            self._held[namespace][name] += sign * amount
            opened.sums[name] += sign * amount

    def record(self, record: QuotaRecord) -> Iterator[tuple[str, str]]:
        """Yield the rule and the detail of everything that is wrong with a quota record."""
        opened = self._open.pop(record.namespace, {})
        mine = opened.pop(record.txn, _Open())
        if record.namespace in self._sealed:
            self.unsealed[record.namespace] += len(opened)
        self._sealed.add(record.namespace)
        used = msgspec.structs.asdict(record.used)
        if all(other.seq <= record.basis for other in opened.values()):
            held = self._held[record.namespace]
            if odd := [name for name in used if used[name] != held[name]]:
                said = ", ".join(f"{name} {used[name]} for {held[name]}" for name in odd)
                yield "QuotaSum", f"says {said}"
        for name, limit in msgspec.structs.asdict(record.budget).items():
            if limit is not None and mine.sums[name] > 0 and used[name] > limit:
                yield "QuotaExceeded", f"{name} {used[name]} of {limit}"


class GangSums:
    """Keeps who stands of each gang, and says when a part of one does.

    The records of one transaction are one atomic batch: nobody can see the ledger between them. So a gang is looked at when
    its own record closes the batch, and a batch that changes a gang without closing it is wrong.
    """

    def __init__(self) -> None:
        self._standing: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._before: dict[str, frozenset[str]] = {}
        self._open: dict[str, str] = {}

    def change(self, txn: str, before: Mapping[str, Allocation], after: Mapping[str, Allocation]) -> None:
        """A node's list changed from ``before`` to ``after``."""
        for uid in before.keys() ^ after.keys():
            allocation, step = (after[uid], 1) if uid in after else (before[uid], -1)
            if allocation.gang:
                standing = self._standing[allocation.gang]
                self._before.setdefault(allocation.gang, frozenset(+standing))
                self._open[allocation.gang] = txn
                standing[uid] += step

    def unclosed(self, txn: str) -> Iterator[tuple[str, str]]:
        """Yield the gang and the detail of what an earlier transaction left open, now that ``txn`` comes."""
        for key, other in list(self._open.items()):
            if other != txn:
                del self._open[key]
                self._before.pop(key, None)
                yield key, f"{other or 'a deletion'} changed who stands without the gang's record"

    def record(self, record: GangRecord) -> Iterator[tuple[str, str]]:
        """Yield the rule and the detail of everything that is wrong with a gang record."""
        now = frozenset(+self._standing[record.key])
        before = self._before.pop(record.key, now)
        self._open.pop(record.key, None)
        if now != frozenset(record.members):
            yield "GangMembers", f"names {len(record.members)} members, {len(now)} stand"
        if not before & now and now and len(now) < max(record.min_members, 2):
            yield "PartialGang", f"{len(now)} members stand of the {record.min_members} that it takes"


def _amounts(allocation: Allocation) -> Iterator[tuple[str, int]]:
    tflops = vram = 0
    for gpu in allocation.gpus:
        tflops += gpu.tflops_milli
        vram += gpu.vram_bytes
    yield "workers", 1 if allocation.gpus else 0
    yield "gpus", len(allocation.gpus)
    yield "tflops_milli", tflops
    yield "compute_milli", allocation.compute_milli
    yield "vram_bytes", vram
    yield "tflops_limit_milli", max(tflops, allocation.tflops_limit_milli)
    yield "vram_limit_bytes", max(vram, allocation.vram_limit_bytes)
