"""Of which ranks pods stand in each pool: whether anybody could be evicted, without a look at the pods themselves."""

from typing import Final

from consumers.allocator.engine.ranks import LEVELS, Rank, goes_before, rank_of
from schemas.cluster import PreemptionScope
from schemas.ledger import Allocation
from schemas.pod import GpuRequest, Qos

_ALL: Final = ""

_Like = tuple[str, Qos, int]
"""Namespace, quality of service and priority."""


class _Pool:
    """What stands in one pool: how many of a kind, and of which ranks in each namespace.

    Attributes:
        many: Pods of each kind. This is all that most pods change that come and go.
        ranks: Ranks by namespace, each once; in all, with the number of namespaces that have it.
    """

    __slots__ = ("many", "ranks")

    def __init__(self) -> None:
        self.many: dict[_Like, int] = {}
        self.ranks: dict[str, dict[Rank, int]] = {}


class Standing:
    """Counts what stands on the nodes of each pool by rank, in all and per namespace; what is kept for pods counts too."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}

    def count(self, pool: str, held: Allocation, more: int) -> None:
        """Something stands on a node of the pool from now on (1), or no more (-1)."""
        found = self._pools.get(pool)
        if found is None:
            found = self._pools[pool] = _Pool()
        like = held.namespace, held.qos, held.priority
        before = found.many.get(like, 0)
        after = found.many[like] = before + more
        if before and after:
            return
        if not after:
            del found.many[like]
        rank = Rank(LEVELS[held.qos], held.priority)
        for group in (_ALL, held.namespace):
            ranks = found.ranks.setdefault(group, {})
            ranks[rank] = ranks.get(rank, 0) + more
            if not ranks[rank]:
                del ranks[rank]
            if not ranks:
                del found.ranks[group]

    def outranked(self, request: GpuRequest, namespace: str, scope: PreemptionScope) -> bool:
        """Return whether the pod outranks anything that the rule about namespaces lets it take the place of."""
        found, mine = self._pools.get(request.pool), rank_of(request)
        ranks = found.ranks.get(_ALL if scope == "cluster" else namespace, {}) if found is not None else {}
        return any(goes_before(mine, rank) for rank in ranks)
