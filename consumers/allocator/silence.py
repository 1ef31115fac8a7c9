"""Which agents are silent: they promised how long their word holds, and nothing newer has come by then.

Time is the server's: that at which it stored the records of STATE, of which some come all the time. Nobody's own clock counts,
so that all allocators agree, and one that replays the log sees the same.
"""

from heapq import heappop, heappush
from typing import Final

_NS: Final = 1_000_000_000


class Silence:
    """The inventories' expiry, by node."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._promised = False
        self._until: dict[str, int] = {}
        self._expiries: list[tuple[int, str]] = []

    @property
    def now_ns(self) -> int:
        """The server's time as far as it has been told; 0 as long as nobody has promised anything by it."""
        return self._now_ns if self._promised else 0

    def heard(self, node: str, at_ns: int, valid_s: int) -> None:
        """The server stored a node's inventory, which holds for some seconds; 0 for ever."""
        self.forget(node)
        if valid_s:
            self._promised = True
            until = self._until[node] = at_ns + valid_s * _NS
            heappush(self._expiries, (until, node))

    def forget(self, node: str) -> None:
        """The node's inventory is gone."""
        self._until.pop(node, None)

    def advance(self, now_ns: int) -> list[str]:
        """Return the nodes whose agents have fallen silent by a time of the server, each once."""
        self._now_ns = max(self._now_ns, now_ns)
        silent = []
        while self._expiries and self._expiries[0][0] < self._now_ns:
            until, node = heappop(self._expiries)
            if self._until.get(node) == until:
                del self._until[node]
                silent.append(node)
        return silent
