"""The order in which a policy prefers nodes, kept as one sortable number per row."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.policy import Policy
from consumers.allocator.engine.score import node_parts, node_score
from consumers.allocator.engine.table import Table
from schemas.decision import Candidate

ORDER_BITS: Final = 23
HOME_BIT: Final = 30
SCORE_MASK: Final = (1 << (HOME_BIT - ORDER_BITS)) - 1
LAST: Final = (1 << ORDER_BITS) - 1
REFUSED: Final = -1


class Ranking:
    """Score and tie-break order of every row under one policy, for pods with GPUs or for pods without.

    Attributes:
        keys: ``at home << 30 | score << 23 | (last - place by name)``: the node to take is the one with the largest key.
    """

    __slots__ = ("__weakref__", "_candidates", "_cursor", "_epoch", "_gpus", "_policy", "_table", "_ties", "keys")

    def __init__(self, policy: Policy, table: Table, *, gpus: bool) -> None:
        self._policy = policy
        self._table = table
        self._gpus = gpus
        self._epoch = -1
        self._cursor = 0
        self._ties: list[int] = []
        self._candidates: dict[int, Candidate] = {}
        self.keys: NDArray[np.int32] = np.zeros(0, dtype=np.int32)

    def refresh(self) -> None:
        """Apply what changed in the table since the last call."""
        table = self._table
        log = table.changes
        if self._epoch == table.epoch:
            if self._cursor == log.end:
                return
            changed = log.since(self._cursor)
        else:
            changed = None
            self._order()
        self._epoch, self._cursor = table.epoch, log.end
        if changed is None:
            changed = set(range(len(table.hosts)))
            self._candidates.clear()
        for row in changed:
            host = table.hosts[row]
            if host is not None:
                score = node_score(host, self._policy, gpus=self._gpus)
                self.keys[row] = (score << ORDER_BITS) | self._ties[row]
            self._candidates.pop(row, None)

    def candidate(self, row: int) -> Candidate:
        """Return a row as a decision names it."""
        found = self._candidates.get(row)
        if found is None:
            host = self._table.hosts[row]
            assert host is not None  # noqa: S101
            parts = node_parts(host, self._policy, gpus=self._gpus)
            found = Candidate(node=host.name, score=(int(self.keys[row]) >> ORDER_BITS) & SCORE_MASK, parts=parts)
            self._candidates[row] = found
        return found

    def _order(self) -> None:
        names, at_home = self._table.names, self._policy.at_home
        self.keys = np.zeros(len(names), dtype=np.int32)
        self._ties = [0] * len(names)
        placed = sorted((name, row) for row, name in enumerate(names))
        for place, (name, row) in enumerate(placed):
            self._ties[row] = (at_home(name) << HOME_BIT) | (LAST - place)
