"""The order in which a policy prefers nodes, kept as one sortable number per row."""

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.policy import Policy
from consumers.allocator.engine.score import choose_gpus, node_parts, node_score, prefer_gpus
from consumers.allocator.engine.table import Table
from schemas.decision import Candidate

ORDER_BITS: Final = 23
HOME_BIT: Final = 30
SCORE_MASK: Final = (1 << (HOME_BIT - ORDER_BITS)) - 1
LAST: Final = (1 << ORDER_BITS) - 1
REFUSED: Final = -1


Keys = NDArray[np.signedinteger[Any]]


def ties_by_name(names: list[str], policy: Policy) -> NDArray[np.int32]:
    """Return what decides between rows of equal score: nodes at home come first, then earlier names.

    Away from home the order is reversed: whoever is at home there takes from the front.
    """
    ties: NDArray[np.int32] = np.zeros(len(names), dtype=np.int32)
    for place, (name, row) in enumerate(sorted((name, row) for row, name in enumerate(names))):
        home = policy.at_home(name)
        ties[row] = (home << HOME_BIT) | (LAST - (place if home else len(names) - 1 - place))
    return ties


def largest(keys: Keys, count: int) -> list[int]:
    """Return the rows of the ``count`` largest keys, largest first."""
    found: list[tuple[int, int]] = []
    for _ in range(count):
        row = int(keys.argmax())
        found.append((row, keys.item(row)))
        keys[row] = REFUSED
    for row, key in found:
        keys[row] = key
    return [row for row, _ in found]


class Order(Protocol):
    """How a policy prefers the nodes that a request fits on: a sort key per row, and what explains it.

    ``fitting`` are the GPUs that the request fits on: slots of a row, or flags per slot for several rows.

    Attributes:
        dtype: Type of the keys.
    """

    dtype: type[np.signedinteger[Any]]

    def refresh(self) -> None:
        """Apply what changed in the table since the last call."""

    def key(self, row: int, host: Host, fitting: list[int]) -> int:
        """Return the key of a row that the request fits on, at least 0."""

    def keys(self, rows: NDArray[np.intp], fitting: NDArray[np.bool_]) -> Keys:
        """Return the keys of several rows that the request fits on."""

    def best(self, keys: Keys, count: int) -> list[int]:
        """Return the best ``count`` rows, best first; rows that it does not fit on have the key ``REFUSED``."""

    def candidate(self, row: int) -> Candidate:
        """Return a row that the request fits on as a decision names it."""

    def choose(self, row: int, host: Host, fitting: list[int], count: int) -> list[int]:
        """Return the ``count`` slots to take on a row, in slot order."""

    def prefer(self, row: int, host: Host, fitting: list[int], count: int) -> list[int]:
        """Return all slots that the request fits on, those first that it would rather take."""


class Ranking:
    """Order by how used the nodes are, for pods with GPUs or for pods without, whatever else they ask.

    A key is ``at home << 30 | score << 23 | (last - place by name)``: the node to take is the one with the largest.
    """

    __slots__ = ("__weakref__", "_candidates", "_cursor", "_epoch", "_gpus", "_keys", "_policy", "_table", "_ties")

    dtype: type[np.signedinteger[Any]] = np.int32

    def __init__(self, policy: Policy, table: Table, *, gpus: bool) -> None:
        self._policy = policy
        self._table = table
        self._gpus = gpus
        self._epoch = -1
        self._cursor = 0
        self._ties: list[int] = []
        self._candidates: dict[int, Candidate] = {}
        self._keys: Keys = np.zeros(0, dtype=self.dtype)

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
            self._keys = np.zeros(len(table.hosts), dtype=self.dtype)
            self._ties = ties_by_name(table.names, self._policy).tolist()
        self._epoch, self._cursor = table.epoch, log.end
        if changed is None:
            changed = set(range(len(table.hosts)))
            self._candidates.clear()
        for row in changed:
            host = table.hosts[row]
            if host is not None:
                self._keys[row] = self._key(host, self._ties[row])
            self._candidates.pop(row, None)

    def _key(self, host: Host, tie: int) -> int:
        return (node_score(host, self._policy, gpus=self._gpus) << ORDER_BITS) | tie

    def _explain(self, host: Host, key: int) -> Candidate:
        parts = node_parts(host, self._policy, gpus=self._gpus)
        return Candidate(node=host.name, score=(key >> ORDER_BITS) & SCORE_MASK, parts=parts)

    def key(self, row: int, _host: Host, _fitting: list[int]) -> int:
        """Return the key of a row."""
        return self._keys.item(row)

    def keys(self, rows: NDArray[np.intp], _fitting: NDArray[np.bool_]) -> Keys:
        """Return the keys of several rows."""
        return self._keys.take(rows)

    def best(self, keys: Keys, count: int) -> list[int]:
        """Return the best rows."""
        return largest(keys, count)

    def candidate(self, row: int) -> Candidate:
        """Return a row as a decision names it."""
        found = self._candidates.get(row)
        if found is None:
            host = self._table.hosts[row]
            assert host is not None  # noqa: S101
            found = self._candidates[row] = self._explain(host, self._keys.item(row))
        return found

    def choose(self, _row: int, host: Host, fitting: list[int], count: int) -> list[int]:
        """Return the slots that the mode prefers by their load."""
        return choose_gpus(host, fitting, count, self._policy)

    def prefer(self, _row: int, host: Host, fitting: list[int], _count: int) -> list[int]:
        """Return the slots in that order."""
        return prefer_gpus(host, fitting, self._policy)
