"""The room that one allocator knows to be kept for pods, and the pods that others may be evicted for.

Looking for room takes long, some 0.1 s on thousands of nodes, so pods are looked at one at a time, between other work,
and where there was nobody to evict nobody is looked for again at once.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from consumers.allocator.cluster import Cluster
from schemas import reasons
from schemas.decision import Decision
from schemas.ledger import HOLD, Hold
from schemas.pod import GpuRequest, Schedule, Waiting

KEPT_S: Final = 600
"""How long room is kept: for grace periods and disruption budgets."""

UNCLAIMED_S: Final = 60
"""After so long somebody must be waiting for it: its record has come, or never will."""

VAIN_S: Final = 60
"""Where nobody could be evicted nobody is looked for again for so long, by the server's clock."""

MOST_VAIN: Final = 4096

FREEABLE: Final = frozenset(
    {
        *(reasons.ISOLATION_CONFLICT, reasons.GPU_NOT_IDLE, reasons.GPU_EXCLUSIVE, reasons.SLOTS, reasons.PARTITION),
        *(reasons.COMPUTE, reasons.VRAM, reasons.SAME_NODE, reasons.CONTAINERS, reasons.NUMA, reasons.TOPOLOGY),
        *(reasons.WORKERS, reasons.PODS, reasons.CPU, reasons.MEMORY),
    }
)
"""Reasons that lie in what other pods hold."""

AGAIN: Final = FREEABLE | {reasons.AWAITING_EVICTION, reasons.EVICTION_OVERDUE}


Shape = tuple[GpuRequest, str]
"""What pods ask for, and their namespace: of those alike one is looked at."""


class Known(NamedTuple):
    """Room that the ledger keeps on a node."""

    node: str
    hold: Hold


class Seeker(NamedTuple):
    """A pod that fits nowhere as things are, and the decision that says so."""

    command: Schedule
    decision: Decision
    token: object


class Rooms:
    """What is kept, by the ledger, and who is to be looked at."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[str, dict[str, Hold]] = {}
        self._seekers: dict[str, Seeker] = {}
        self._vain: dict[Shape, int] = {}
        self._woken: dict[Shape, int] = {}

    # What is kept

    def note(self, node: str, before: Mapping[str, Hold], after: Mapping[str, Hold]) -> None:
        """The ledger keeps ``after`` on a node, where it was ``before``."""
        for key in before.keys() - after.keys():
            nodes = self._kept.get(key, {})
            nodes.pop(node, None)
            if not nodes:
                self._kept.pop(key, None)
        for key, hold in after.items():
            self._kept.setdefault(key, {})[node] = hold

    def first(self, uid: str) -> Known | None:
        """Return the room that has been kept for a pod for longest: the one that counts."""
        return min(self.all_of(uid), key=lambda known: (known.hold.allocation.since, known.node), default=None)

    def all_of(self, uid: str) -> list[Known]:
        """Return all room that is kept for a pod: more than one only while a duplicate is being undone."""
        return [Known(node, hold) for node, hold in self._kept.get(HOLD + uid, {}).items()]

    def __iter__(self) -> Iterator[Known]:
        for nodes in self._kept.values():
            for node, hold in nodes.items():
                yield Known(node, hold)

    # Who is to be looked at

    @property
    def sought(self) -> bool:
        """Whether somebody is to be looked at."""
        return bool(self._seekers)

    @property
    def next_pool(self) -> str:
        """The pool of the next pod to be looked at; empty if there is none."""
        return next((seeker.command.request.pool for seeker in self._seekers.values()), "")

    def may(self, pod: Schedule | Waiting, reason: str) -> bool:
        """Whether somebody might be evicted for the pod, for all that is cheap to know."""
        request, pools = pod.request, self._cluster.snapshot.pools()
        if not request.preempts or request.gang is not None or reason not in AGAIN:
            return False
        if isinstance(pod, Schedule) and (pod.way != "native" or pod.node):
            return False
        pool = pools.get(request.pool)
        if pool is None or pool.preemption == "never" or self._cluster.waiting.ended(pod.uid):
            return False
        if self._lately(self._vain, pod):
            return False
        return self._cluster.snapshot.standing.outranked(request, pod.namespace, pool.preemption)

    def in_vain(self, pod: Schedule | Waiting) -> None:
        """There is nobody to evict for the pod, or it is no use."""
        self._note_time(self._vain, pod)

    def to_wake(self, most: int) -> list[tuple[Waiting, int]]:
        """Return waiting pods to try again, one of those alike: somebody may be evicted by now, as protections end.

        Those alike that were tried longest ago come first, so that no pod that is tried in vain keeps others from it.
        """
        found: dict[Shape, tuple[Waiting, int]] = {}
        for pod, seq in self._cluster.waiting.in_order():
            shape = pod.request, pod.namespace
            if shape in found or self._lately(self._woken, pod) or self.first(pod.uid) is not None:
                continue
            if self.may(pod, pod.reason):
                found[shape] = pod, seq
        chosen = sorted(found, key=lambda shape: self._woken.get(shape, -1))[:most]
        for shape in chosen:
            self._note_time(self._woken, found[shape][0])
        return [found[shape] for shape in chosen]

    def _lately(self, times: dict[Shape, int], pod: Schedule | Waiting) -> bool:
        at = times.get((pod.request, pod.namespace))
        return at is not None and self._cluster.time_s < at + VAIN_S

    def _note_time(self, times: dict[Shape, int], pod: Schedule | Waiting) -> None:
        if len(times) >= MOST_VAIN:
            times.clear()
        times[pod.request, pod.namespace] = self._cluster.time_s

    def seek(self, seeker: Seeker) -> None:
        """Have a pod looked at."""
        self._seekers[seeker.command.uid] = seeker

    def seeking(self, uid: str) -> Seeker | None:
        """Return a pod that is to be looked at."""
        return self._seekers.get(uid)

    def take(self, uid: str = "") -> Seeker | None:
        """Return the next pod to look at, or a certain one; it is the caller's from now on."""
        chosen = uid or next(iter(self._seekers), "")
        return self._seekers.pop(chosen, None)

    def tokens(self) -> list[object]:
        """Return the tokens of those to be looked at."""
        return [seeker.token for seeker in self._seekers.values()]
