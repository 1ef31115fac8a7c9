"""Learning the target workload from the requests that come in."""

from collections import Counter
from typing import Final

import msgspec

from consumers.allocator.engine.workload import VAGUE, Reference, Workload, kind_of
from schemas.cluster import PodKind
from schemas.pod import GpuRequest

FIRST: Final = 50
STEADY: Final = 1000


class WorkloadEstimator:
    """A fold over requests: what it has learnt depends on them and their order alone.

    It learns anew after 50, 100, 200, 400 and 800 requests, then after every 1000, since each time all that is cached under the
    old workload goes stale. A few vague pods that it starts from keep the first estimates from extremes. Every pod is to be
    added once, however often it is tried.

    Attributes:
        workload: The workload as last learnt.
        seen: Requests added so far.
    """

    __slots__ = ("_counts", "_reference", "seen", "workload")

    def __init__(self, reference: Reference = (0, 0)) -> None:
        self._reference = reference
        self._counts: Counter[PodKind] = Counter()
        for kind in VAGUE.kinds:
            self._counts[msgspec.structs.replace(kind, pods=1)] += kind.pods
        self.seen = 0
        self.workload = VAGUE

    def add(self, request: GpuRequest, *, heavy: bool = False) -> Workload | None:
        """Take a request in; return the new workload when this is the time to learn anew.

        ``heavy`` is that of :meth:`.Workload.counted`.
        """
        self._counts[kind_of(request, self._reference)] += 1
        self.seen += 1
        if not _due(self.seen):
            return None
        self.workload = Workload.counted(self._counts, heavy=heavy)
        return self.workload


def _due(seen: int) -> bool:
    if seen >= STEADY:
        return seen % STEADY == 0
    rounds, rest = divmod(seen, FIRST)
    return rest == 0 and rounds.bit_count() == 1
