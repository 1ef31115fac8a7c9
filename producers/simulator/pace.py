"""Even pacing: how many pods are due by now.

A token bucket over wall time. Small waits are rounded up to one step, because waking for every single pod would cost more
than the pod; several then come due together, and the mean rate holds.
"""

from typing import Final

STEP_S: Final = 0.005
"""Shortest wait worth sleeping for."""

DEBT_S: Final = 1.0
"""How long a stall is made up for. What was missed before that is given up: a flood would measure the stall, not the rate."""


class Pace:
    """Says how many pods are due at ``rate`` pods per second; a rate of 0 makes any number due at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate * DEBT_S)
        self._due = 1.0
        self._at: float | None = None

    def due(self, now: float, most: int) -> int:
        """Return how many pods are due at ``now`` (monotonic seconds), at most ``most``."""
        if self._rate <= 0:
            return most
        elapsed = now - self._at if self._at is not None else 0.0
        self._at = now
        self._due = min(self._due + elapsed * self._rate, self._most)
        return min(int(self._due), most)

    def spend(self, pods: int) -> None:
        """Note that ``pods`` pods were sent on their way."""
        self._due -= pods

    @property
    def wait_s(self) -> float:
        """Seconds from the last :meth:`due` until another pod is due, rounded up to one step."""
        if self._rate <= 0:
            return 0.0
        return max((1.0 - self._due) / self._rate, STEP_S)
