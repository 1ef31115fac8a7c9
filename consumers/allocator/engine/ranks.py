"""Who goes before whom: by quality of service, then by Kubernetes priority.

A pod may take another one's place only if it is below the other in neither and above it in one: the two contracts that
users come with (``tensor-fusion.ai/qos`` and ``priorityClassName``) must agree, for either alone would surprise somebody.
"""

from typing import Final, NamedTuple, Protocol

from schemas.ledger import HOLD, Allocation
from schemas.pod import Qos

LEVELS: Final[dict[Qos, int]] = {"low": 0, "medium": 1, "high": 2, "critical": 3}

_PROMISED: Final = -1
"""Quality of service of room that is only kept for a pod: nothing runs there, so it is taken before any pod is evicted."""


class Ranked(Protocol):
    """A request, or what came of one."""

    @property
    def qos(self) -> Qos: ...  # noqa: D102
    @property
    def priority(self) -> int: ...  # noqa: D102


class Rank(NamedTuple):
    """Place of a pod among others; larger goes first. Members of gangs come behind their like only to be evicted."""

    qos: int
    priority: int
    gang: bool = False


def rank_of(pod: Ranked) -> Rank:
    """Return a pod's rank among those that wait."""
    return Rank(LEVELS[pod.qos], pod.priority)


def outranks(pod: Ranked, other: Ranked) -> bool:
    """Return whether a pod may take the place of another."""
    return goes_before(rank_of(pod), rank_of(other))


def goes_before(mine: Rank, theirs: Rank) -> bool:
    """Return whether a pod of one rank may take the place of one of another rank."""
    return mine != theirs and mine.qos >= theirs.qos and mine.priority >= theirs.priority


def price(held: Allocation) -> Rank:
    """Return what evicting a pod costs: its rank, and beside its like more if it takes a gang apart."""
    qos = _PROMISED if held.pod_uid.startswith(HOLD) else LEVELS[held.qos]
    return Rank(qos, held.priority, bool(held.gang))
