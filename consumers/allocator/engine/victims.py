"""Who would have to go from one node for a pod to fit there: the best good set, or one that is found quickly.

What makes a set good, and which of two is better, is said in :mod:`~consumers.allocator.engine.preemption`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.need import Need
from consumers.allocator.engine.ranks import Rank, price
from consumers.allocator.engine.without import without
from schemas.ledger import Allocation

TRIES: Final = 256
"""Sets looked at on one node before the exact search gives way to a greedy one: some 4 ms."""

NOT_YET: Final = 1 << 62

Victims = tuple[Allocation, ...]
Group = list[Allocation]

Key = tuple[tuple[Rank, ...], int, tuple[int, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Budgets:
    """Disruption budgets as far as they concern the pods of the ledger.

    Attributes:
        allowed: Evictions that each budget still allows.
        covering: Budgets that cover a pod, by UID.
    """

    allowed: Mapping[str, int] = field(default_factory=dict)
    covering: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def also(self, limits: Mapping[str, tuple[int, Iterable[str]]]) -> "Budgets":
        """Return these budgets and others: by name how many evictions each allows, and the pods that it covers."""
        allowed, covering = dict(self.allowed), dict(self.covering)
        for name, (most, uids) in limits.items():
            allowed[name] = most
            for uid in uids:
                covering[uid] = (*covering.get(uid, ()), name)
        return Budgets(allowed, covering)

    def allow(self, victims: Iterable[Allocation]) -> bool:
        """Return whether all these pods may be evicted together."""
        if not self.covering:
            return True
        used = Counter(name for victim in victims for name in self.covering.get(victim.pod_uid, ()))
        return all(count <= self.allowed.get(name, 0) for name, count in used.items())


def key_of(victims: Victims) -> Key:
    """Return what makes one good set better than another: the smaller the better."""
    ranks = tuple(sorted(map(price, victims), reverse=True))
    since = tuple(sorted(map(_age, victims)))
    return ranks, sum(map(_vram, victims)), since, tuple(sorted(victim.pod_uid for victim in victims))


def order_of(held: Allocation) -> tuple[Rank, int, int, str]:
    """Return what pods are put in order by: those of least rank first."""
    return price(held), _vram(held), _age(held), held.pod_uid


def _age(held: Allocation) -> int:
    """Return a number that is the smaller the younger a pod is; one that is not in the ledger yet is the youngest."""
    return -held.since or -NOT_YET


def _vram(held: Allocation) -> int:
    return sum(grant.vram_bytes for grant in held.gpus)


class Room:
    """What could be made of one node.

    Attributes:
        host: The node.
        row: Its place among the nodes by name.
        stopped: Pods that go in any case: whole gangs, with their members on other nodes.
        bound: Least rank up to which all candidates must go at least, whatever the budgets say.
    """

    __slots__ = ("_budgets", "_groups", "_here", "_tries", "_without", "bound", "host", "row", "stopped")

    def __init__(
        self, host: Host, row: int, need: Need, standing: list[int], *, budgets: Budgets, stopped: Victims = ()
    ) -> None:
        self.host, self.row = host, row
        self.stopped = stopped
        self._here = tuple(held for held in stopped if held.pod_uid in host.allocations)
        self._without = without(host, need, standing)
        self._budgets = budgets
        self._tries = TRIES
        self._groups: list[Group] = []
        self.bound = max(map(price, stopped), default=Rank(-NOT_YET, 0))

    @property
    def place(self) -> tuple[Rank, int, int]:
        """What rooms are looked at in order of."""
        return self.bound, self.row, len(self.stopped)

    def settle(self, candidates: Group) -> bool:
        """Note who may go beside those that are stopped; return whether the pod would fit without all of them."""
        by_rank: dict[Rank, Group] = {}
        for held in sorted(candidates, key=order_of):
            by_rank.setdefault(price(held), []).append(held)
        groups = self._groups = [by_rank[rank] for rank in sorted(by_rank, reverse=True)]
        try:
            if not self._fits_without(candidates):
                return False
            # Groups are in descending order; nobody of the first ones need go if it fits without the rest.
            while len(groups) > (not self.stopped) and self._fits_without(
                held for group in groups[1:] for held in group
            ):
                del groups[0]
        finally:
            self._without.restore()
        if groups:
            self.bound = max(self.bound, price(groups[0][0]))
        return True

    def least(self, most: tuple[Rank, ...] | None = None) -> Victims | None:
        """Return the best good set, or None if budgets leave none.

        Args:
            most: The ranks of a set that is known already: if all here are worse, the answer may be None too.
        """
        if not self._budgets.allow(self.stopped):
            return None
        try:
            return self._search(self.stopped, 0, most)
        except _TooManyError:
            return self._greedy()
        finally:
            self._without.restore()

    def quick(self) -> Victims | None:
        """Return a good set that may not be the best one, or None if budgets leave none that is found quickly."""
        try:
            return self._greedy()
        finally:
            self._without.restore()

    def _fits_without(self, gone: Iterable[Allocation]) -> bool:
        """Return whether the pod fits without some pods and those that are stopped."""
        here = self.host.allocations
        return self._without.fits({held.pod_uid: held for held in (*gone, *self._here) if held.pod_uid in here})

    def _search(self, gone: Victims, place: int, most: tuple[Rank, ...] | None) -> Victims | None:
        """Return the best good set that adds to ``gone`` only pods of the groups from ``place`` on."""
        if place == len(self._groups):
            return gone
        lower = tuple(held for group in self._groups[place + 1 :] for held in group)
        group = self._groups[place]
        for size in range(len(group) + 1):
            if most is not None and (price(group[0]),) * size > most:
                return None  # so is whatever else goes from here
            best: Victims | None = None
            best_key: Key | None = None
            for more in combinations(group, size):
                chosen = gone + more
                if not self._budgets.allow(chosen):
                    continue
                self._tries -= 1
                if self._tries < 0:
                    raise _TooManyError
                if not self._fits_without(chosen + lower):
                    continue
                found = self._search(chosen, place + 1, None)
                if found is not None and (best_key is None or key_of(found) < best_key):
                    best, best_key = found, key_of(found)
            if best is not None:
                return best
        return None

    def _greedy(self) -> Victims | None:
        """Keep whom we can, those of highest rank first, and among their like those that budgets cover, then the small ones."""
        gone = [held for group in self._groups for held in group]
        for group in self._groups:
            for held in sorted(group, key=lambda one: one.pod_uid not in self._budgets.covering):
                rest = [other for other in gone if other is not held]
                if self._fits_without(rest):
                    gone = rest
        found = (*self.stopped, *gone)
        return found if self._budgets.allow(found) else None


class _TooManyError(Exception):
    """The exact search would take too long."""
