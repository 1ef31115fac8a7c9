"""Which pods would have to go for another one to fit: the fewest of the least rank, on one node, or nobody.

Pure, like every decision. A set of pods on one node is *good* if the pod outranks each of them, none is protected, the rule
about namespaces allows it, no disruption budget would be exceeded, and without them the pod fits under all filters. Of two
good sets the better one takes fewer pods of the highest rank that either touches, then of the next, and so on; then the one
that takes less VRAM, then the younger pods, then the earlier node and UIDs by name. The best of all is returned.

That is so of the nodes that a quick look has shown to be the likeliest; a large pool has more of them than can be searched in
the time that an allocator may be away.

Fitting is monotonic (a node without a pod fits whatever it fitted with it), so nodes are looked at in order of the least rank
up to which everybody must go, and within a node sizes are tried from the smallest.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.policy import Policy
from consumers.allocator.engine.probe import Probe
from consumers.allocator.engine.promises import unsupported
from consumers.allocator.engine.ranks import Rank, outranks, price
from consumers.allocator.engine.snapshot import Snapshot
from schemas.cluster import PreemptionScope
from schemas.ledger import HOLD, Allocation
from schemas.pod import GpuRequest

TRIES: Final = 256
"""Sets looked at on one node before the exact search gives way to a greedy one: some 8 ms."""

LOOKED_AT: Final = 256
"""Nodes looked at quickly, of those where nobody need go but pods of the least rank."""

SEARCHED: Final = 16
"""Nodes searched exactly, of those where a quick look found the best sets; with no more nodes than that, all are."""

NOT_YET: Final = 1 << 62

Victims = tuple[Allocation, ...]
Group = list[Allocation]


@dataclass(frozen=True, slots=True)
class Budgets:
    """Disruption budgets as far as they concern the pods of the ledger.

    Attributes:
        allowed: Evictions that each budget still allows.
        covering: Budgets that cover a pod, by UID.
    """

    allowed: Mapping[str, int] = field(default_factory=dict)
    covering: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def allow(self, victims: Iterable[Allocation]) -> bool:
        """Return whether all these pods may be evicted together."""
        used = Counter(name for victim in victims for name in self.covering.get(victim.pod_uid, ()))
        return all(count <= self.allowed.get(name, 0) for name, count in used.items())


@dataclass(frozen=True, slots=True)
class Terms:
    """What evictions are bound to, apart from the pods' ranks.

    Attributes:
        namespace: Namespace of the pod that wants room.
        now_s: The time, in seconds since the epoch, by which protection is over or not.
        budgets: Disruption budgets.
    """

    namespace: str
    now_s: int
    budgets: Budgets = Budgets()


@dataclass(frozen=True, slots=True)
class Choice:
    """The node to make room on, and the pods that have to go from there: those of least rank first."""

    node: str
    victims: Victims


def select(snapshot: Snapshot, request: GpuRequest, policy: Policy, terms: Terms) -> Choice | None:
    """Return whom to evict for a pod that fits nowhere, or None if nobody may be or it would not help.

    The snapshot is as before when this returns. A room that is only kept for a pod of lower rank (see
    :class:`schemas.ledger.Hold`) counts as a victim too, one that nobody misses yet.
    """
    pool = snapshot.pools().get(request.pool)
    if pool is None or pool.preemption == "never" or unsupported(request):
        return None
    probe = Probe(request, policy)
    found: list[tuple[Rank, _Room]] = []
    for host in _hosts(snapshot, request.pool):
        candidates = [held for held in host.allocations.values() if _may_go(held, request, pool.preemption, terms)]
        room = _Room.of(host, probe, candidates, terms.budgets)
        if room is not None:
            found.append((room.bound, room))
    best: tuple[_Key, Choice] | None = None
    for room in _likely(found):
        if best is not None and room.bound > best[0][0][0]:
            continue  # whatever goes from here outranks all that goes there
        victims = room.least()
        if victims:
            key = _key(victims)
            if best is None or (key, room.host.name) < (best[0], best[1].node):
                best = key, Choice(room.host.name, tuple(sorted(victims, key=_order)))
    return best[1] if best is not None else None


def _likely(found: list[tuple[Rank, "_Room"]]) -> list["_Room"]:
    """Return the rooms that are worth an exact search, those first where a quick one finds the best set."""
    rooms = [room for _, room in sorted(found, key=lambda entry: (entry[0], entry[1].host.name))][:LOOKED_AT]
    if len(rooms) <= SEARCHED:
        return rooms
    quick = [(_key(victims), room.host.name, room) for room in rooms if (victims := room.quick())]
    return [room for *_, room in sorted(quick, key=lambda entry: entry[:2])[:SEARCHED]]


def evictable(snapshot: Snapshot, request: GpuRequest, terms: Terms) -> Iterator[Allocation]:
    """Yield what might have to go for a pod, whether or not that would help."""
    pool = snapshot.pools().get(request.pool)
    if pool is None or pool.preemption == "never":
        return
    for host in _hosts(snapshot, request.pool):
        for held in host.allocations.values():
            if _may_go(held, request, pool.preemption, terms):
                yield held


def _hosts(snapshot: Snapshot, pool: str) -> Iterator[Host]:
    table = snapshot.table(pool)
    for host in table.hosts if table is not None else ():
        if host is not None and host.allocations:
            yield host


def _may_go(held: Allocation, request: GpuRequest, scope: PreemptionScope, terms: Terms) -> bool:
    if not outranks(request, held):
        return False
    if not held.pod_uid.startswith(HOLD) and (
        held.protected_until_s > terms.now_s or (scope != "cluster" and held.namespace != terms.namespace)
    ):
        return False
    return terms.budgets.allow((held,))


_Key = tuple[tuple[Rank, ...], int, tuple[int, ...], tuple[str, ...]]


def _key(victims: Victims) -> _Key:
    """Return what makes one good set better than another: the smaller the better."""
    ranks = tuple(sorted(map(price, victims), reverse=True))
    since = tuple(sorted(map(_age, victims)))
    return ranks, sum(map(_vram, victims)), since, tuple(sorted(victim.pod_uid for victim in victims))


def _order(held: Allocation) -> tuple[Rank, int, int, str]:
    return price(held), _vram(held), _age(held), held.pod_uid


def _age(held: Allocation) -> int:
    """Return a number that is the smaller the younger a pod is; one that is not in the ledger yet is the youngest."""
    return -held.since or -NOT_YET


def _vram(held: Allocation) -> int:
    return sum(grant.vram_bytes for grant in held.gpus)


class _Room:
    """What could be made of one node.

    Attributes:
        bound: Least rank up to which all candidates must go at least, whatever the budgets say.
    """

    __slots__ = ("_budgets", "_groups", "_probe", "_standing", "_tries", "bound", "host")

    def __init__(self, host: Host, probe: Probe, standing: list[int], groups: list[Group], budgets: Budgets) -> None:
        self.host = host
        self._probe = probe
        self._standing = standing
        self._groups = groups
        self._budgets = budgets
        self._tries = TRIES
        self.bound = price(groups[0][0])

    @classmethod
    def of(cls, host: Host, probe: Probe, candidates: Group, budgets: Budgets) -> "_Room | None":
        """Return the room that a node has without its candidates, or None if the pod would not fit even then."""
        standing = probe.standing(host) if candidates else None
        if standing is None:
            return None
        by_rank: dict[Rank, Group] = {}
        for held in sorted(candidates, key=_order):
            by_rank.setdefault(price(held), []).append(held)
        groups = [by_rank[rank] for rank in sorted(by_rank, reverse=True)]
        room = cls(host, probe, standing, groups, budgets)
        if not room._fits_without(candidates):
            return None
        # Groups are in descending order; nobody of the first ones need go if it fits without the rest.
        while len(groups) > 1 and room._fits_without([held for group in groups[1:] for held in group]):
            del groups[0]
        room.bound = price(groups[0][0])
        return room

    def least(self) -> Victims | None:
        """Return the best good set, or None if budgets leave none."""
        try:
            return self._search((), 0)
        except _TooManyError:
            return self._greedy()

    def quick(self) -> Victims | None:
        """Return a good set that may not be the best one, or None if budgets leave none that is found quickly."""
        return self._greedy()

    def _fits_without(self, gone: Iterable[Allocation]) -> bool:
        gone = tuple(gone)
        self.host.charge_all((held, -1) for held in gone)
        try:
            return self._probe.fits(self.host, self._standing)
        finally:
            self.host.charge_all((held, 1) for held in gone)

    def _search(self, gone: Victims, place: int) -> Victims | None:
        """Return the best good set that adds to ``gone`` only pods of the groups from ``place`` on."""
        if place == len(self._groups):
            return gone
        lower = tuple(held for group in self._groups[place + 1 :] for held in group)
        group = self._groups[place]
        for size in range(len(group) + 1):
            best: Victims | None = None
            for more in combinations(group, size):
                chosen = gone + more
                if not self._budgets.allow(chosen):
                    continue
                self._tries -= 1
                if self._tries < 0:
                    raise _TooManyError
                if not self._fits_without(chosen + lower):
                    continue
                found = self._search(chosen, place + 1)
                if found is not None and (best is None or _key(found) < _key(best)):
                    best = found
            if best is not None:
                return best
        return None

    def _greedy(self) -> Victims | None:
        """Keep whom we can, those of highest rank first, and among their like those that budgets cover, then the small ones."""
        gone = [held for group in self._groups for held in group]
        for group in self._groups:
            for held in sorted(group, key=lambda one: (one.pod_uid not in self._budgets.covering, _order(one))):
                rest = [other for other in gone if other is not held]
                if self._fits_without(rest):
                    gone = rest
        return tuple(gone) if self._budgets.allow(gone) else None


class _TooManyError(Exception):
    """The exact search would take too long."""
