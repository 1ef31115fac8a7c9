"""How near the GPUs of one node are to each other.

*Tier* of two GPUs (TensorFusion's scheduler plugin ``GPUNetworkTopologyAware``): 0 where NVLinks or a common board join them, 1
on one NUMA node, 2 across NUMA nodes, 3 where nothing is known. Links are looked at first, and NUMA nodes where no link is
known; with the source ``numa`` NUMA nodes alone.

*Pair score* (HAMi's device plugin): 10 across CPUs, 20 on one CPU, 30 under one host bridge, 40 over several switches, 50 over
one, 60 on one board, and 100 for every NVLink; 0 where nothing is known.
"""

from functools import lru_cache
from typing import Final

from schemas.hardware import GpuLink, GpuPath
from schemas.placement import UNKNOWN, TopologySource, tier_by_numa, tier_of_link

Matrix = tuple[tuple[int, ...], ...]
"""A number for every two GPUs, by slot and slot."""

_PATH_SCORES: Final[dict[GpuPath, int]] = {
    "": 0, "system": 10, "node": 20, "hostbridge": 30, "multiple": 40, "single": 50, "internal": 60,
}  # fmt: skip
_NVLINK_SCORE: Final = 100
_REMEMBERED: Final = 4096


class Layout:
    """Nearness of the GPUs of one kind of node, by slot. Nodes that are built alike share one.

    Attributes:
        numa: NUMA node of each GPU, ``UNKNOWN_NUMA`` where it is not known.
        nvlinks: Number of NVLinks of each pair.
        scores: Pair scores.
    """

    __slots__ = ("_tiers", "_twins", "farthest", "numa", "nvlinks", "scores")

    def __init__(self, numa: tuple[int, ...], links: tuple[GpuLink, ...]) -> None:
        self.numa = numa
        size = len(numa)
        nvlinks, scores = ([[0] * size for _ in range(size)] for _ in range(2))
        by_numa = [[tier_by_numa(one, other) for other in numa] for one in numa]
        tiers = [row.copy() for row in by_numa]
        for link in links:
            score = _PATH_SCORES[link.path] + _NVLINK_SCORE * link.nvlinks
            tier = tier_of_link(link)
            for one, other in ((link.first, link.second), (link.second, link.first)):
                nvlinks[one][other], scores[one][other] = link.nvlinks, score
                if tier != UNKNOWN:
                    tiers[one][other] = tier
        self.nvlinks = _matrix(nvlinks)
        self.scores = _matrix(scores)
        self._tiers = {True: _matrix(by_numa), False: _matrix(tiers)}
        self._twins: dict[Matrix, tuple[int, ...]] = {}
        self.farthest: dict[tuple[TopologySource, int, tuple[int, ...]], int] = {}
        """What :func:`.near.least_tier` has found out, as long as there is room."""

    def tiers(self, source: TopologySource) -> Matrix:
        """Return the tier of each pair."""
        return self._tiers[source == "numa"]

    def twins(self, matrix: Matrix) -> tuple[int, ...]:
        """Return for each slot the first slot that stands to all others as it does itself, by one of the matrices here."""
        found = self._twins.get(matrix)
        if found is None:
            found = self._twins[matrix] = twins_of(matrix)
        return found


@lru_cache(maxsize=_REMEMBERED)
def layout_of(numa: tuple[int, ...], links: tuple[GpuLink, ...]) -> Layout:
    """Return the layout of nodes with these NUMA nodes and links, by slot."""
    return Layout(numa, links)


def twins_of(matrix: Matrix) -> tuple[int, ...]:
    """Return for each place the first place that stands to all others as it does itself.

    Two such *twins* can be swapped and no sum over pairs changes, so no search needs to try one without having tried the
    other. It is an equivalence, as long as the matrix is symmetric.
    """
    found: list[int] = []
    for place, row in enumerate(matrix):
        for other in range(place):
            pairs = zip(row, matrix[other], strict=True)
            if all(a == b for third, (a, b) in enumerate(pairs) if third not in (place, other)):
                found.append(found[other])
                break
        else:
            found.append(place)
    return tuple(found)


def _matrix(rows: list[list[int]]) -> Matrix:
    return tuple(tuple(row) for row in rows)
