"""What limits whom a pod may have evicted, as one allocator knows it: disruption budgets, gangs, and other namespaces' room.

It is written down with the decision that it is for, so only pods count that might have to go.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from consumers.allocator.cluster import Cluster
from consumers.allocator.disruptions import TooManyCoveredError
from consumers.allocator.engine.preemption import may_go
from schemas.cluster import Pool
from schemas.journal import Budget, StandingGang
from schemas.ledger import HOLD, Hold
from schemas.pod import Schedule

MOST_MEMBERS: Final = 4096
"""Members of gangs that one decision may weigh; nobody of further gangs goes."""


class Limits(NamedTuple):
    """What is written down."""

    budgets: tuple[Budget, ...]
    gangs: tuple[StandingGang, ...]


class Weigher:
    """Weighs for one pod.

    Args:
        cluster: What is known.
        pool: The pod's pool.
        command: The pod.
        holds: All room that is kept for pods, or about to be.
        offered: Pods for which a place is kept free that they do not have yet.
    """

    def __init__(
        self, cluster: Cluster, pool: Pool, command: Schedule, holds: Iterable[Hold], offered: Iterable[str] = ()
    ) -> None:
        self._cluster = cluster
        self._pool = pool
        self._command = command
        self._holds = {hold.key: hold for hold in holds}
        self._offered = frozenset(offered)
        self._leaving = frozenset(victim.uid for hold in self._holds.values() for victim in hold.victims)

    def weigh(self) -> Limits | None:
        """Return what limits evictions for the pod; None if it is too much to weigh, so that nobody may be evicted."""
        try:
            budgets = self._cluster.disruptions.weigh(self._goes_of, self._leaving, self._all_of)
        except TooManyCoveredError:
            return None
        fenced = self._fenced()
        return Limits((*budgets, Budget(0, fenced)) if fenced else budgets, tuple(self._gangs()))

    def _goes(self, uid: str, namespace: str | None = None) -> bool:
        """Whether what is called so might have to go."""
        pod = self._command
        return any(
            namespace in (None, held.namespace)
            and may_go(held, pod.request, self._pool.preemption, pod.namespace, self._cluster.time_s)
            for held in self._cluster.snapshot.copies(self._pool.name, uid)
        )

    def _goes_of(self, namespace: str, uid: str) -> bool:
        return self._goes(uid, namespace)

    def _all_of(self, namespace: str) -> Iterable[str]:
        snapshot = self._cluster.snapshot
        for node in snapshot.nodes(self._pool.name):
            for held in snapshot.allocations(node):
                uid = held.pod_uid
                if held.namespace == namespace and not uid.startswith(HOLD) and self._goes(uid, namespace):
                    yield uid

    def _fenced(self) -> tuple[str, ...]:
        """Return what may not be taken, as if a budget covered it that allows nothing.

        That is what is offered to pods, which do not stand and cannot go; and the room of other namespaces, where pods go only
        for those of their own namespace: so does the room that they have left.
        """
        kept = self._holds.items() if self._pool.preemption == "namespace" else ()
        others = {key for key, hold in kept if hold.allocation.namespace != self._command.namespace}
        return tuple(sorted(key for key in others | self._offered if self._goes(key)))

    def _gangs(self) -> Iterable[StandingGang]:
        gangs, left = self._cluster.gangs, MOST_MEMBERS
        for key in gangs:
            members = gangs.standing(key)
            if len(members) <= left and any(map(self._goes, members)):
                left -= len(members)
                yield StandingGang(key, gangs.spare(key, self._leaving), tuple(sorted(members)))
