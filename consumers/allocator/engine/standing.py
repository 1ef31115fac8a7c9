"""Of which ranks pods stand in each pool: whether anybody could be evicted, without a look at the pods themselves."""

from collections import Counter
from typing import Final

from consumers.allocator.engine.ranks import Rank, goes_before, rank_of
from schemas.cluster import PreemptionScope
from schemas.ledger import Allocation
from schemas.pod import GpuRequest

_ALL: Final = ""


class Standing:
    """Counts what stands on the nodes of each pool by rank, in all and per namespace; what is kept for pods counts too."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[str, Counter[Rank]]] = {}

    def count(self, pool: str, held: Allocation, more: int) -> None:
        """Something stands on a node of the pool from now on (1), or no more (-1)."""
        groups = self._pools.setdefault(pool, {})
        rank = rank_of(held)
        for group in (_ALL, held.namespace):
            ranks = groups.setdefault(group, Counter())
            ranks[rank] += more
            if not ranks[rank]:
                del ranks[rank]
            if not ranks:
                del groups[group]

    def outranked(self, request: GpuRequest, namespace: str, scope: PreemptionScope) -> bool:
        """Return whether the pod outranks anything that the rule about namespaces lets it take the place of."""
        groups = self._pools.get(request.pool, {})
        mine = rank_of(request)
        return any(goes_before(mine, rank) for rank in groups.get(_ALL if scope == "cluster" else namespace, ()))
