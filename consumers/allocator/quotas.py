"""Quotas: what each namespace may hold and does, as one allocator sees it.

Two sums are kept per namespace that has a quota: what its pods hold by the ledger, and what this allocator has promised to
pods whose record has not landed. A decision counts both. What is on its way out counts until its record has landed, so
a batch never relies on a release that is not in it or before it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from consumers.allocator.engine import ENGINE_VERSION
from schemas import reasons
from schemas.decision import Basis, Decision
from schemas.ledger import Allocation, QuotaRecord
from schemas.pod import GpuRequest
from schemas.quota import DIMENSIONS, Budget, Quota, Usage
from schemas.quota_rules import WORDS, shown, singles, stated

_NOTHING: Final = Usage()
_UNREADABLE: Final = Budget(workers=0)
"""What a quota that was never readable allows: nothing, until a good one comes."""


@dataclass(slots=True)
class _Claim:
    """What one pod counts on one node: by the ledger, by our promise, or both for a moment.

    Attributes:
        more: What we have promised it beyond what it holds.
    """

    usage: Usage
    more: Usage = _NOTHING
    held: bool = False
    promised: bool = False


@dataclass(slots=True)
class _Namespace:
    """One namespace with a quota. ``stated`` is what the newest ledger record says that its pods hold."""

    quotas: dict[str, Quota] = field(default_factory=dict)
    claims: dict[tuple[str, str], _Claim] = field(default_factory=dict)
    held: Usage = _NOTHING
    promised: Usage = _NOTHING
    stated: Usage = _NOTHING

    def allows(self, used: Usage, more: Usage) -> bool:
        return not any(quota.total.exceeded(used, more) for quota in self.quotas.values())


class Quotas:
    """The namespaces that have a quota; all others cost nothing here."""

    def __init__(self) -> None:
        self._namespaces: dict[str, _Namespace] = {}
        self._stated: dict[str, Usage] = {}
        self._unreadable_nodes: set[str] = set()
        self._changed: set[str] = set()
        self.freed: dict[str, None] = {}
        """Namespaces with room that they did not have before: whoever waits for it may be looked at."""

    def __bool__(self) -> bool:
        return bool(self._namespaces)

    def bound(self, namespace: str) -> bool:
        """Whether the namespace has a quota, so that what its pods hold may change only together with its record."""
        return namespace in self._namespaces

    # What the bus says

    def put(self, namespace: str, subject: str, quota: Quota | None) -> bool:
        """A quota object was written, or deleted (None). Return whether the namespace is bound only now: fill it."""
        known = self._namespaces.get(namespace)
        if quota is None:
            if known is not None:
                known.quotas.pop(subject, None)
                if not known.quotas:
                    del self._namespaces[namespace]
                self.freed[namespace] = None
            return False
        if known is None:
            known = self._namespaces[namespace] = _Namespace(stated=self._stated.get(namespace, _NOTHING))
            known.quotas[subject] = quota
            self._changed.add(namespace)
            return True
        known.quotas[subject] = quota
        self._changed.add(namespace)
        self.freed[namespace] = None
        return False

    def unreadable(self, namespace: str, subject: str, name: str) -> bool:
        """A quota object cannot be read: its last good state holds, and if there is none it allows nothing."""
        known = self._namespaces.get(namespace)
        if known is not None and subject in known.quotas:
            return False
        return self.put(namespace, subject, Quota(namespace=namespace, name=f"{name} (unreadable)", total=_UNREADABLE))

    def on_record(self, namespace: str, record: QuotaRecord | None) -> None:
        """The ledger says what the namespace's pods hold, in stream order."""
        self._stated[namespace] = record.used if record is not None else _NOTHING
        if (known := self._namespaces.get(namespace)) is not None:
            known.stated = self._stated[namespace]
            self._changed.add(namespace)

    def node_readable(self, node: str, *, readable: bool) -> None:
        """Note whether the ledger record of a node can be decoded."""
        (self._unreadable_nodes.discard if readable else self._unreadable_nodes.add)(node)

    # What pods hold

    def fill(
        self, namespace: str, held: Iterable[tuple[str, Allocation]], promised: Iterable[tuple[str, Allocation]]
    ) -> None:
        """Count what the pods of a namespace hold already, with the nodes they hold it on."""
        for node, allocation in held:
            if allocation.namespace == namespace:
                self.hold(node, allocation)
        for node, allocation in promised:
            if allocation.namespace == namespace:
                self.promise(node, allocation)

    def hold(self, node: str, allocation: Allocation) -> None:
        """The ledger gives the pod this."""
        known = self._namespaces.get(allocation.namespace)
        if known is None:
            return
        claim = known.claims.setdefault((node, allocation.pod_uid), _Claim(allocation.usage()))
        if claim.held:
            return
        if claim.promised:
            known.promised -= claim.usage
            claim.usage = allocation.usage()
        claim.held = True
        known.held += claim.usage
        self._changed.add(allocation.namespace)  # whoever did not know of the quota has not written its record

    def drop(self, node: str, allocation: Allocation) -> None:
        """The pod holds this no more."""
        known = self._namespaces.get(allocation.namespace)
        claim = known.claims.get((node, allocation.pod_uid)) if known is not None else None
        if known is None or claim is None or not claim.held:
            return
        claim.held = False
        known.held -= claim.usage
        known.promised -= claim.more
        claim.more = _NOTHING
        if claim.promised:
            known.promised += claim.usage
        else:
            del known.claims[node, allocation.pod_uid]
        self.freed[allocation.namespace] = None

    def promise(self, node: str, allocation: Allocation) -> None:
        """We have decided to give the pod this."""
        known = self._namespaces.get(allocation.namespace)
        if known is None:
            return
        claim = known.claims.setdefault((node, allocation.pod_uid), _Claim(allocation.usage()))
        if not claim.promised and not claim.held:
            known.promised += claim.usage
        claim.promised = True

    def promise_instead(self, node: str, held: Allocation, allocation: Allocation) -> None:
        """We have decided to give a pod this in place of what it holds: promised is what that is more."""
        known = self._namespaces.get(held.namespace)
        claim = known.claims.get((node, held.pod_uid)) if known is not None else None
        if known is None or claim is None:
            return
        more, now = allocation.usage(), held.usage()
        claim.more = Usage(**{name: max(getattr(more, name) - getattr(now, name), 0) for name in DIMENSIONS})
        known.promised += claim.more

    @contextmanager
    def without(self, node: str, held: Allocation) -> Iterator[None]:
        """Decide as if a pod held nothing there, by the ledger or by promise."""
        known = self._namespaces.get(held.namespace)
        claim = known.claims.get((node, held.pod_uid)) if known is not None else None
        if known is None or claim is None or not claim.held:
            yield
            return
        before = known.held
        known.held -= claim.usage
        try:
            yield
        finally:
            known.held = before

    @contextmanager
    def expecting(self, namespace: str, kept: Iterable[Allocation]) -> Iterator[None]:
        """Decide as if the pods for which room is kept had it already: it is promised to them, though nobody holds it."""
        known = self._namespaces.get(namespace)
        if known is None:
            yield
            return
        before = known.promised
        for allocation in kept:
            known.promised += allocation.usage()
        try:
            yield
        finally:
            known.promised = before

    def free(self, namespace: str) -> None:
        """Room is kept no more for a pod of the namespace: others may have its share of the quota."""
        if namespace in self._namespaces:
            self.freed[namespace] = None

    def withdraw(self, node: str, allocation: Allocation, *, quietly: bool = False) -> None:
        """What we promised is settled, or will not be; quietly if it was never meant."""
        known = self._namespaces.get(allocation.namespace)
        claim = known.claims.get((node, allocation.pod_uid)) if known is not None else None
        if known is None or claim is None:
            return
        known.promised -= claim.more
        claim.more = _NOTHING
        if not claim.promised:
            return
        claim.promised = False
        if not claim.held:
            known.promised -= claim.usage
            del known.claims[node, allocation.pod_uid]
            if not quietly:
                self.freed[allocation.namespace] = None

    def overdrawn(self) -> list[str]:
        """Return the namespaces in which we have promised more than there is by now; asked once after each change."""
        changed, self._changed = self._changed, set()
        return [name for name in sorted(changed) if self.is_overdrawn(name)]

    def is_overdrawn(self, namespace: str) -> bool:
        """Whether promises of ours have to be taken back."""
        known = self._namespaces.get(namespace)
        return known is not None and not known.allows(self._held(known), known.promised)

    def _held(self, known: _Namespace) -> Usage:
        """Return what the pods hold. While a node cannot be read, its record in the ledger may know of more than we do."""
        if not self._unreadable_nodes:
            return known.held
        return Usage(**{name: max(getattr(known.held, name), getattr(known.stated, name)) for name in DIMENSIONS})

    def after(self, namespace: str, added: Iterable[Allocation], removed: Iterable[Allocation]) -> tuple[Usage, Budget]:
        """Return what the pods will hold after a batch, and what they may."""
        known = self._namespaces[namespace]
        used = self._held(known)
        for allocation in added:
            used += allocation.usage()
        for allocation in removed:
            used -= allocation.usage()
        budget = Budget()
        for quota in known.quotas.values():
            budget = budget.narrowed(quota.total)
        return used, budget

    # Decisions

    def counted(self, namespace: str) -> tuple[Usage, Usage] | None:
        """Return what the pods of a namespace hold and what we have promised more; None if no quota asks for it."""
        known = self._namespaces.get(namespace)
        return (self._held(known), known.promised) if known is not None else None

    def assume(self, namespace: str, held: Usage, promised: Usage) -> None:
        """Take it as given what the pods of a namespace hold and are promised, for a decision that is made again."""
        known = self._namespaces.get(namespace)
        if known is not None:
            known.held, known.promised = held, promised

    def refuse(self, namespace: str, request: GpuRequest, usage: Usage | None = None) -> Decision | None:
        """Return the refusal of a pod that its namespace's quota does not allow, or None if it does.

        Args:
            namespace: The pod's.
            request: What it asks for.
            usage: What it would hold; None before a place is known, when only the amounts that it states are.
        """
        known = self._namespaces.get(namespace)
        if known is None:
            return None
        asked = usage or stated(request)
        before = self._held(known) + known.promised
        for _, quota in sorted(known.quotas.items()):
            for name, amount, limit in singles(quota, request):
                return _refusal(
                    request, reasons.QUOTA_SINGLE, f"{_of(quota)} allows {limit} {name} per pod or GPU, asked {amount}"
                )
            if name := quota.total.exceeded(before, asked):
                held, promised, limit, more = (
                    shown(name, getattr(of, name)) for of in (self._held(known), known.promised, quota.total, asked)
                )
                placing = f", {promised} more being placed" if getattr(known.promised, name) else ""
                message = f"{_of(quota)}: {WORDS[name]} {held} of {limit} used{placing}, {more} asked"
                return _refusal(request, reasons.QUOTA, message)
        return None

    def room(self, namespace: str, name: str) -> int | None:
        """Return how much of one dimension is left, or None if it has no limit."""
        known = self._namespaces.get(namespace)
        if known is None:
            return None
        used: int = getattr(self._held(known) + known.promised, name)
        limits = [limit for quota in known.quotas.values() if (limit := getattr(quota.total, name)) is not None]
        return max(min(limits) - used, 0) if limits else None


def _of(quota: Quota) -> str:
    return f"quota {quota.name} of namespace {quota.namespace}"


def _refusal(request: GpuRequest, reason: str, message: str) -> Decision:
    return Decision(
        outcome="unschedulable",
        namespace="",
        name="",
        pod_uid="",
        pool=request.pool,
        allocator="",
        basis=Basis(state=0, ledger=0, ordinal=0),
        reason=reason,
        message=message,
        help=reasons.CODES[reason].help,
        engine=ENGINE_VERSION,
    )
