"""What happens next: arrivals and ends of pods in the order of virtual time.

The end of a pod is not known in advance, because its time runs only once it has been given a place. So the one who drives
the timeline says which pods have started, and their ends fall into line.
"""

import heapq
from collections.abc import Mapping
from typing import Final

import msgspec

from producers.simulator.trace import TracePod

_END: Final = 0
_ARRIVAL: Final = 1
"""Ends sort before arrivals of the same second: what is released then may serve who comes then."""


class Arrival(msgspec.Struct, frozen=True):
    """A pod is created at second ``at_s`` of virtual time."""

    at_s: int
    uid: str
    pod: TracePod


class End(msgspec.Struct, frozen=True):
    """A pod that had started has finished at second ``at_s`` of virtual time."""

    at_s: int
    uid: str
    pod: TracePod


class Timeline:
    """The order of events; ``now`` is the virtual second of the last one returned, 0 before the first.

    Events of the same second come in a fixed order: ends, then arrivals, each in the order of ``pods``.
    """

    def __init__(self, pods: Mapping[str, TracePod]) -> None:
        """Take the pods by UID."""
        self.now = 0
        self._pods = dict(pods)
        self._places = {uid: place for place, uid in enumerate(self._pods)}
        self._arrived: set[str] = set()
        self._started: set[str] = set()
        self._heap = [(pod.arrives_s, _ARRIVAL, self._places[uid], uid) for uid, pod in self._pods.items()]
        heapq.heapify(self._heap)

    @property
    def next_s(self) -> int | None:
        """Virtual second of the next event, so that a driver can wait for it; None when nothing is due."""
        return self._heap[0][0] if self._heap else None

    def next(self) -> Arrival | End | None:
        """Advance to the next event and return it.

        Returns:
            The event, or None when nothing is due. More may follow None: pods that wait may be reported as started.
        """
        if not self._heap:
            return None
        self.now, kind, _, uid = heapq.heappop(self._heap)
        if kind == _END:
            return End(self.now, uid, self._pods[uid])
        self._arrived.add(uid)
        return Arrival(self.now, uid, self._pods[uid])

    def started(self, uid: str) -> bool:
        """Report that a pod has begun to run now, which schedules its end unless it runs for ever.

        Returns:
            Whether this was news: a bus may report one start several times, and only the first counts.

        Raises:
            ValueError: The pod is unknown or has not arrived.
        """
        if uid not in self._arrived:
            problem = "has not arrived" if uid in self._pods else "is not on this timeline"
            raise ValueError(f"pod {uid!r} {problem} at second {self.now}: report starts of arrived pods only")
        if uid in self._started:
            return False
        self._started.add(uid)
        runs_s = self._pods[uid].runs_s
        if runs_s is not None:
            heapq.heappush(self._heap, (self.now + runs_s, _END, self._places[uid], uid))
        return True
