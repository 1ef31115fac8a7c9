"""Learning which pods come to a pool, for the placement modes that prepare for them where nobody states a workload.

Every allocator counts the pods that it is asked to place, a fair sample of all. The one that is at home on the first part
of the nodes tells STATE what it has learnt, and all of them, that one included, decide by what STATE says. So a decision's basis
tells which workload it was made for, and a replay needs no other source.
"""

from typing import Final

from consumers.allocator.cluster import Cluster
from consumers.allocator.engine import AHEAD, PACKING, STEADY, WorkloadEstimator
from schemas.cluster import ExpectedPods
from schemas.pod import Schedule

REMEMBERED: Final = 65_536
"""Pods that are known to have been counted: one that waits is tried again and again."""


class Learner:
    """What one allocator has counted so far, by pool."""

    def __init__(self) -> None:
        self._estimators: dict[str, WorkloadEstimator] = {}
        self._counted: dict[str, None] = {}

    def take(self, command: Schedule, cluster: Cluster) -> ExpectedPods | None:
        """Count a pod, once however often it comes; return what to tell when it is time to.

        What is learnt from few pods replaces nothing that was learnt from more, up to a thousand: after a restart an allocator
        counts anew.
        """
        name = command.request.pool
        if command.request.isolation == "partitioned":
            return None  # partitions are no shares of a GPU, and nothing is prepared for them
        pool = cluster.snapshot.pools().get(name)
        if pool is None or pool.workload or pool.placement not in AHEAD or command.uid in self._counted:
            return None
        estimator = self._estimators.get(name)
        if estimator is None:
            total = cluster.snapshot.total(name)
            if not total.gpus:
                return None
            # Amounts are turned into shares of the pool's average GPU.
            reference = total.physical_tflops_milli // total.gpus, total.physical_vram_bytes // total.gpus
            estimator = self._estimators[name] = WorkloadEstimator(reference)
        self._counted[command.uid] = None
        if len(self._counted) > REMEMBERED:
            del self._counted[next(iter(self._counted))]
        workload, known = estimator.add(command.request, heavy=pool.placement == PACKING), cluster.expected.get(name)
        if workload is None or (known is not None and estimator.seen < min(known.seen, STEADY)):
            return None
        return ExpectedPods(pool=name, seen=estimator.seen, kinds=workload.kinds)
