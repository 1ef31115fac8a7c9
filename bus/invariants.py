"""The ledger's invariants, checked over its records in stream order by code that shares nothing with the allocator.

* no GPU gives out more than it can schedule, no node more CPU or memory than it has;
* what is given to one pod alone is given to no other, isolations that do not go together are kept apart, no GPU is shared by
  more containers than it has slots, no container is given what its pod does not hold, no node takes more pods with GPUs than
  its pool allows;
* hardware partitions are such as the GPU can be cut into, never overlap, and nothing else is on a GPU that is cut;
* a pod stands on one node only, and there once; where its command came twice it may be placed on a second, until whoever did
  so takes that back, and as long as it has not it is a violation;
* every record decodes, speaks of the node its subject names, and is its predecessor plus the changes it states: a pod that
  is added holds what the decision behind it grants, and nobody else's share moves;
* what is kept for a pod fits beside all others once those that leave for its sake are gone, and only the record that adds the
  pod, or says so, drops it;
* no gang stands in part: its first members come in one batch, as many as it takes, and its record names who stands;
* a quota record says what the pods of its namespace hold, and nothing was added beyond the budget it names.

Pure: feed it what STATE says about nodes, GPUs and pools, then every ledger record; it returns what is wrong.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from bus import capacity, codec, sharing, subjects
from bus.capacity import Limits
from bus.errors import UndecodableError
from bus.sums import GangSums, QuotaSums
from schemas.decision import GpuGrant
from schemas.ledger import HOLD, Allocation, GangRecord, Hold, NodeRecord, QuotaRecord

_GIVEN_TWICE: Final = (
    "GpuOverCapacity", "GpuNotExclusive", "GpuOutOfSlots", "PartitionMixed", "PartitionOverlap", "PodOnTwoNodes", "PodTwice",
)  # fmt: skip


class Violation(msgspec.Struct, frozen=True):
    """One broken invariant, at the record where it first shows: that of a node or that of a namespace's quota."""

    seq: int
    node: str
    rule: str
    detail: str
    namespace: str = ""

    @property
    def where(self) -> str:
        """Whose record it is, in words."""
        return f"namespace {self.namespace}" if self.namespace else f"node {self.node}"


class _Kept(msgspec.Struct, frozen=True):
    gpus: tuple[GpuGrant, ...] = ()


class _Grants(msgspec.Struct):
    gpus: tuple[GpuGrant, ...] = ()
    preemption: _Kept = _Kept()


_grants = msgspec.json.Decoder(_Grants)


class LedgerChecker:
    """Folds ledger records and collects violations.

    Args:
        limits: What each node can give; None leaves capacity unchecked.
        complete: Whether the records start with the first of every node. If retention has dropped older ones, the first
            record of a node is taken as it is.
    """

    def __init__(self, limits: dict[str, Limits] | None, *, complete: bool = True) -> None:
        self._limits = limits
        self._complete = complete
        self._held: dict[str, dict[str, Allocation]] = {}
        self._kept: dict[str, dict[str, Hold]] = {}
        self._home: dict[str, str] = {}
        self.sums = QuotaSums()
        self._gangs = GangSums()
        self.records = 0
        self.ever_placed: set[str] = set()
        self.violations: list[Violation] = []
        self.taken_back: list[Violation] = []
        """Second places of pods, at the records that added them, which have been taken back since."""
        self._second: dict[tuple[str, str], Violation] = {}

    @property
    def double_allocations(self) -> int:
        """Number of times that something was given twice, second places of pods that were taken back since included."""
        return sum(v.rule in _GIVEN_TWICE for v in self.violations) + len(self.taken_back)

    def pods(self) -> dict[str, str]:
        """Return the node of every pod that holds something now, by UID."""
        return dict(self._home)

    def granted(self, subject: str) -> int:
        """Return the milli-TFLOPS that the newest record on ``subject`` gives out."""
        held = self._held.get(subjects.names(subject)[-1], {})
        return sum(gpu.tflops_milli for allocation in held.values() for gpu in allocation.gpus)

    def apply(self, seq: int, subject: str, payload: bytes) -> None:
        """Check the next record of the LEDGER stream."""
        self.records += 1
        try:
            _, kind, *name = subjects.names(subject)
        except ValueError as error:
            self._report(seq, subject, "Undecodable", str(error))
            return
        if kind == "quota" and len(name) == 1:
            self._check_quota(seq, name[0], payload)
        if kind == "gang" and len(name) == 1:
            self._check_gang(seq, name[0], payload)
        if kind != "node" or len(name) != 1:
            return
        node = name[0]
        try:
            record = codec.decode_as(NodeRecord, payload).data if payload else None
        except UndecodableError as error:
            self._report(seq, node, "Undecodable", error.reason)
            return
        self.check(seq, node, record)

    def check(self, seq: int, node: str, record: NodeRecord | None) -> None:
        """Check the next record, decoded; None for a node whose record was deleted."""
        after = self._check_list(seq, node, record)
        kept = {hold.key: hold for hold in record.holds} if record is not None else {}
        self._check_chain(seq, node, record, after, kept)
        self._check_capacity(seq, node, after.values())
        self._check_sharing(seq, node, record, after)
        if kept and record is not None and record.changes:
            self._check_kept(seq, node, after, kept)
        if self._limits is not None:
            txn, before = record.txn if record is not None else "", self._held.get(node, {})
            self._check_unclosed(seq, txn)
            self._gangs.change(txn, before, after)
            self.sums.change(seq, txn, before, after)
        self._held[node] = after
        self._kept[node] = kept

    def _check_quota(self, seq: int, namespace: str, payload: bytes) -> None:
        if not payload:
            return
        try:
            record = codec.decode_as(QuotaRecord, payload).data
        except UndecodableError as error:
            self.violations.append(Violation(seq, "", "Undecodable", error.reason, namespace))
            return
        self._check_unclosed(seq, record.txn)
        if record.namespace != namespace:
            detail = f"the record speaks of {record.namespace}"
            self.violations.append(Violation(seq, "", "WrongNamespace", detail, namespace))
            return
        for rule, detail in self.sums.record(record):
            if self._complete or rule != "QuotaSum":  # what was dropped may have been counted
                self.violations.append(Violation(seq, "", rule, detail, namespace))

    def _check_unclosed(self, seq: int, txn: str) -> None:
        if self._complete:
            for key, detail in self._gangs.unclosed(txn):
                self.violations.append(Violation(seq, "", "PartialGang", f"gang {key}: {detail}", key.split("/")[0]))

    def _check_gang(self, seq: int, key: str, payload: bytes) -> None:
        if not payload:
            return
        namespace = key.split("/", maxsplit=1)[0]
        try:
            record = codec.decode_as(GangRecord, payload).data
        except UndecodableError as error:
            self.violations.append(Violation(seq, "", "Undecodable", error.reason, namespace))
            return
        self._check_unclosed(seq, record.txn)
        if record.key != key:
            detail = f"the record speaks of {record.key}"
            self.violations.append(Violation(seq, "", "WrongGang", detail, namespace))
        elif self._complete:
            for rule, detail in self._gangs.record(record):
                self.violations.append(Violation(seq, "", rule, f"gang {key}: {detail}", namespace))

    def _check_list(self, seq: int, node: str, record: NodeRecord | None) -> dict[str, Allocation]:
        allocations = record.allocations if record is not None else ()
        if record is not None and record.node != node:
            self._report(seq, node, "WrongNode", f"the record speaks of {record.node}")
        after: dict[str, Allocation] = {}
        for allocation in allocations:
            if allocation.pod_uid in after:
                self._report(seq, node, "PodTwice", f"pod {allocation.pod_uid} is listed twice")
            after[allocation.pod_uid] = allocation
        for uid in self._held.get(node, {}).keys() - after.keys():
            if self._home.get(uid) == node:
                del self._home[uid]
            if (second := self._second.pop((uid, node), None)) is not None:
                self.violations.remove(second)
                self.taken_back.append(second)
        for uid in after:
            home = self._home.setdefault(uid, node)
            if home != node and (uid, node) not in self._second:
                self._report(seq, node, "PodOnTwoNodes", f"pod {uid} stands on {home} already")
                self._second[uid, node] = self.violations[-1]
        self.ever_placed.update(after)
        return after

    def _check_chain(
        self, seq: int, node: str, record: NodeRecord | None, after: dict[str, Allocation], kept: dict[str, Hold]
    ) -> None:
        expected = {*self._held.get(node, ()), *self._kept.get(node, ())}
        added: dict[str, msgspec.Raw] = {}
        for change in record.changes if record is not None else ():
            if change.op == "add":
                expected.add(change.pod_uid)
                expected.discard(HOLD + change.pod_uid)  # the pod has what was kept for it
                added[change.pod_uid] = change.decision
            else:
                expected.discard(change.pod_uid)
                added.pop(change.pod_uid, None)
        known = self._complete or node in self._held
        found = after.keys() | kept.keys()
        if record is not None and known and expected != found:
            odd = ", ".join(sorted(expected ^ found)[:3])
            self._report(seq, node, "ChangesDoNotAddUp", f"differs from its predecessor plus its changes in {odd}")
        before = self._held.get(node, {})
        for uid, now in after.items() if record is not None and known else ():
            decision = added.get(uid)
            if decision is None:
                was = before.get(uid)
                if was is not None and not was.says_as(now):
                    self._report(
                        seq, node, "AllocationChanged", f"pod {uid} holds something else, and no change says so"
                    )
            elif not _grants_match(decision, now):
                self._report(
                    seq, node, "AllocationNotDecided", f"pod {uid} holds something else than its decision grants"
                )
        for key, hold in kept.items() if record is not None and known else ():
            if key in added and not _keeps(added[key], hold):
                self._report(seq, node, "HoldNotDecided", f"{key} keeps something else than its decision says")

    def _check_kept(self, seq: int, node: str, after: dict[str, Allocation], kept: dict[str, Hold]) -> None:
        """What is kept must fit once those that leave for its sake are gone: it counts as if they were."""
        leaving = {victim.uid for hold in kept.values() for victim in hold.victims}
        rest = [allocation for uid, allocation in after.items() if uid not in leaving]
        rest += [hold.allocation for hold in kept.values()]
        self._check_capacity(seq, node, rest, "Hold")
        limits = (self._limits or {}).get(node)
        if limits is not None:
            for rule, detail in sharing.faults(rest, limits.slots, limits.partitions):
                self._report(seq, node, f"Hold{rule}", detail)

    def _check_capacity(self, seq: int, node: str, allocations: Collection[Allocation], what: str = "") -> None:
        if self._limits is None:
            return
        limits = self._limits.get(node)
        if limits is None:
            self._report(seq, node, "UnknownNode", "STATE does not know this node")
            return
        for rule, detail in capacity.faults(allocations, limits):
            self._report(seq, node, rule if rule == "UnknownGpu" else what + rule, detail)

    def _check_sharing(self, seq: int, node: str, record: NodeRecord | None, after: dict[str, Allocation]) -> None:
        added = {change.pod_uid for change in record.changes if change.op == "add"} if record is not None else set()
        limits = (self._limits or {}).get(node)
        if limits is None or not added:
            return  # nothing comes to be shared by a pod's leaving
        for rule, detail in sharing.faults(after.values(), limits.slots, limits.partitions):
            self._report(seq, node, rule, detail)
        workers = sum(bool(allocation.gpus) for allocation in after.values())
        if 0 < limits.workers < workers and any(after[uid].gpus for uid in added & after.keys()):
            self._report(seq, node, "TooManyWorkers", f"holds {workers} pods with GPUs where {limits.workers} may be")

    def _report(self, seq: int, node: str, rule: str, detail: str) -> None:
        self.violations.append(Violation(seq, node, rule, detail))


def _grants_match(decision: msgspec.Raw, allocation: Allocation) -> bool:
    try:
        return _grants.decode(decision).gpus == allocation.gpus
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _keeps(decision: msgspec.Raw, hold: Hold) -> bool:
    try:
        return _grants.decode(decision).preemption.gpus == hold.allocation.gpus
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
