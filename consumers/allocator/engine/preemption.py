"""Which pods would have to go for another one to fit: the fewest of the least rank, from one node, or nobody.

Pure, like every decision. A set of pods of one node is *good* if the pod outranks each of them, none is protected, the rule
about namespaces allows it, no disruption budget would be exceeded, and without them the pod fits under all filters. Of two
good sets the better one takes fewer pods of the highest rank that either touches, then of the next, and so on; then the one
that takes less VRAM, then the younger pods, then the earlier node and UIDs by name. The best of all is returned.

No gang is torn: a set takes no more members of a gang than it has beyond the least number that it needs, or it takes all of
them, those on other nodes too, each of which must be one that may go.

That is so of the nodes that a quick look has shown to be the likeliest; a large pool has more of them than can be searched in
the time that an allocator may be away.

Fitting is monotonic (a node without a pod fits whatever it fitted with it), so nodes are looked at in order of the least rank
up to which everybody must go (:mod:`~consumers.allocator.engine.reclaim` says up to which at least), and within a node sizes are
tried from the smallest.
"""

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.manner import manner_of
from consumers.allocator.engine.need import Need
from consumers.allocator.engine.policy import Policy
from consumers.allocator.engine.promises import unsupported
from consumers.allocator.engine.ranks import outranks
from consumers.allocator.engine.snapshot import Snapshot
from consumers.allocator.engine.victims import Budgets, Key, Room, Victims, key_of, order_of
from schemas.cluster import Pool, PreemptionScope
from schemas.ledger import HOLD, Allocation
from schemas.pod import GpuRequest

LOOKED_AT: Final = 256
"""Nodes looked at quickly, of those where nobody need go but pods of the least rank."""

SEARCHED: Final = 16
"""Nodes searched exactly, of those where a quick look found the best sets; with no more nodes than that, all are."""

STOPPED: Final = 3
"""Gangs of one node of which all combinations are tried; of more, each alone and all together."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A gang that stands.

    Attributes:
        spare: Members that may go without the others.
        members: UIDs of all.
    """

    spare: int
    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Terms:
    """What evictions are bound to, apart from the pods' ranks.

    Attributes:
        namespace: Namespace of the pod that wants room.
        now_s: The time, in seconds since the epoch, by which protection is over or not.
        budgets: Disruption budgets.
        gangs: The gangs of which somebody may go, by key; None to take no heed of gangs.
    """

    namespace: str
    now_s: int
    budgets: Budgets = field(default_factory=Budgets)
    gangs: Mapping[str, Standing] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The node to make room on, and the pods that have to go from there: those of least rank first.

    Attributes:
        elsewhere: The rest of gangs that are stopped, with their nodes, in the same order.
    """

    node: str
    victims: Victims
    elsewhere: tuple[tuple[str, Allocation], ...] = ()


def select(snapshot: Snapshot, request: GpuRequest, policy: Policy, terms: Terms) -> Choice | None:
    """Return whom to evict for a pod that fits nowhere, or None if nobody may be or it would not help.

    The snapshot is as before when this returns. A room that is only kept for a pod of lower rank (see
    :class:`schemas.ledger.Hold`) counts as a victim too, one that nobody misses yet.
    """
    pool = snapshot.pools().get(request.pool)
    if pool is None or pool.preemption == "never" or unsupported(request):
        return None
    best: tuple[Key, str, Victims] | None = None
    for room in _likely(_nearest(snapshot, request, policy, terms, pool)):
        if best is not None and room.bound > best[0][0][0]:
            continue  # whatever goes from here outranks all that goes there
        victims = room.least(best[0][0] if best is not None else None)
        if victims:
            key = key_of(victims)
            if best is None or (key, room.host.name) < best[:2]:
                best = key, room.host.name, victims
    return _choice(snapshot, best[1], best[2]) if best is not None else None


def _choice(snapshot: Snapshot, node: str, victims: Victims) -> Choice:
    here: list[Allocation] = []
    elsewhere: list[tuple[str, Allocation]] = []
    for held in sorted(victims, key=order_of):
        at = node if snapshot.held(node, held.pod_uid) is not None else snapshot.node_of(held.pod_uid)
        if at == node or at is None:
            here.append(held)
        else:
            elsewhere.append((at, held))
    return Choice(node, tuple(here), tuple(elsewhere))


def _nearest(snapshot: Snapshot, request: GpuRequest, policy: Policy, terms: Terms, pool: Pool) -> list[Room]:
    """Return the first rooms in order of the least rank up to which all must go, then by node, :data:`LOOKED_AT` at most."""
    found: list[Room] = []
    table = snapshot.table(request.pool)
    if table is None:
        return found
    judge = _Judge(snapshot, request, pool, terms)
    need, screen = Need(request, manner_of(request, policy)), snapshot.fit(table, request, policy).screen
    reclaim = snapshot.reclaim(table, request.pool)
    reclaim.advance(len(table.hosts))
    for rank, row in reclaim.rows(request, need, screen):
        if len(found) == LOOKED_AT and found[-1].place < (rank, row, 0):
            break
        host = table.hosts[row]
        if host is None:
            continue
        candidates = judge.candidates(host)
        for stopped in judge.stops(host):
            room = Room(host, row, need, screen.slots(row), budgets=judge.budgets(stopped), stopped=stopped)
            gone = {held.pod_uid for held in stopped}
            rest = [held for held in candidates if held.pod_uid not in gone]
            if (rest or stopped) and room.settle(rest):
                insort(found, room, key=lambda room: room.place)
                del found[LOOKED_AT:]
    return found


def _likely(rooms: list[Room]) -> list[Room]:
    """Return the rooms that are worth an exact search, those first where a quick one finds the best set."""
    if len(rooms) <= SEARCHED:
        return rooms
    quick = [(key_of(victims), room.host.name, room) for room in rooms if (victims := room.quick())]
    return [room for *_, room in sorted(quick, key=lambda entry: entry[:2])[:SEARCHED]]


def may_go(held: Allocation, request: GpuRequest, scope: PreemptionScope, namespace: str, now_s: int) -> bool:
    """Return whether a pod may have to go for another, as far as that does not depend on who else goes.

    Args:
        held: What it holds.
        request: What the other asks for.
        scope: The pool's rule about namespaces.
        namespace: Namespace of the other.
        now_s: The time by which protection is over or not.
    """
    if not outranks(request, held):
        return False
    if held.pod_uid.startswith(HOLD):
        return True
    return held.protected_until_s <= now_s and (scope == "cluster" or held.namespace == namespace)


class _Judge:
    """Says who may go, of single nodes."""

    def __init__(self, snapshot: Snapshot, request: GpuRequest, pool: Pool, terms: Terms) -> None:
        self._snapshot = snapshot
        self._request = request
        self._scope = pool.preemption
        self._terms = terms
        self._whole: dict[str, Victims] = {}
        self._limits: dict[frozenset[str], Budgets] = {}

    def candidates(self, host: Host) -> list[Allocation]:
        """Return who may go from a node, if the others of their gangs stay."""
        return [held for held in host.allocations.values() if self._may_go(held) and self._is_spare(held)]

    def stops(self, host: Host) -> Iterator[Victims]:
        """Yield what may be stopped for a node: nothing, and sets of whole gangs that have more on it than they can spare."""
        yield ()
        if self._terms.gangs is None:
            return
        here: dict[str, int] = {}
        for held in host.allocations.values():
            if held.gang in self._terms.gangs:
                here[held.gang] = here.get(held.gang, 0) + 1
        gangs = [
            key for key, count in sorted(here.items()) if count > self._terms.gangs[key].spare and self._all_of(key)
        ]
        sizes = range(1, len(gangs) + 1) if len(gangs) <= STOPPED else (1, len(gangs))
        for size in sizes:
            for keys in combinations(gangs, size):
                yield tuple(held for key in keys for held in self._all_of(key))

    def budgets(self, stopped: Victims) -> Budgets:
        """Return what limits who goes beside gangs that are stopped: disruption budgets, and what the other gangs can spare."""
        gangs = self._terms.gangs
        if not gangs:
            return self._terms.budgets
        gone = frozenset(held.gang for held in stopped)
        found = self._limits.get(gone)
        if found is None:
            limits = {
                f"gang/{key}": (gang.spare, gang.members)
                for key, gang in gangs.items()
                if gang.spare and key not in gone
            }
            found = self._limits[gone] = self._terms.budgets.also(limits)
        return found

    def _may_go(self, held: Allocation) -> bool:
        terms = self._terms
        return may_go(held, self._request, self._scope, terms.namespace, terms.now_s) and terms.budgets.allow((held,))

    def _is_spare(self, held: Allocation) -> bool:
        gangs = self._terms.gangs
        if not held.gang or gangs is None:
            return True
        gang = gangs.get(held.gang)
        return gang is not None and gang.spare > 0 and held.pod_uid in gang.members

    def _all_of(self, key: str) -> Victims:
        """Return all members of a gang if each may go, or nobody."""
        found = self._whole.get(key)
        if found is None:
            found = self._whole[key] = self._find_all(key)
        return found

    def _find_all(self, key: str) -> Victims:
        gangs, snapshot = self._terms.gangs or {}, self._snapshot
        found: list[Allocation] = []
        for uid in sorted(gangs[key].members):
            held = snapshot.allocation(uid)
            if held is None or held.gang != key or not self._may_go(held):
                return ()
            found.append(held)
        return tuple(found)
