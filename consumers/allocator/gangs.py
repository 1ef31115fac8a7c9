"""Gangs: pods that are placed all together or not at all, and which of them stand.

Members wait on the bus like any pod that fits nowhere, so every allocator knows them all and whichever takes the command of
one may place all that are there. A gang that stands takes further members one by one: a member that was restarted
joins alone. The ledger key of the gang is replaced with every change of who stands, so two allocators cannot both form it.
"""

from collections.abc import Collection, Iterator
from typing import Final

from schemas import reasons
from schemas.decision import Basis, Decision
from schemas.ledger import Allocation
from schemas.pod import GpuRequest
from schemas.requirements import Gang

MOST_MEMBERS: Final = 400
"""Members placed at once. Each may take a node and a quota of its own, and a batch holds a thousand records."""


class Gangs:
    """Who stands of each gang, by the ledger."""

    def __init__(self) -> None:
        self._standing: dict[str, dict[str, set[str]]] = {}
        self._least: dict[str, int] = {}
        self.formed: dict[str, None] = {}
        """Gangs that stand since a moment ago: members that wait may join."""

    def hold(self, node: str, allocation: Allocation) -> None:
        """A member stands on ``node``."""
        if not allocation.gang:
            return
        members = self._standing.setdefault(allocation.gang, {})
        members.setdefault(allocation.pod_uid, set()).add(node)

    def drop(self, node: str, allocation: Allocation) -> None:
        """A member stands there no more."""
        members = self._standing.get(allocation.gang, {})
        nodes = members.get(allocation.pod_uid, set())
        nodes.discard(node)
        if not nodes:
            members.pop(allocation.pod_uid, None)
            if not members:
                self._standing.pop(allocation.gang, None)
                self._least.pop(allocation.gang, None)

    def standing(self, key: str) -> Collection[str]:
        """Return the UIDs of the members that stand."""
        return self._standing.get(key, {}).keys()

    def __iter__(self) -> Iterator[str]:
        """Return the gangs of which somebody stands, in order of their keys."""
        return iter(sorted(self._standing))

    def needs(self, key: str, least: int) -> None:
        """The ledger says how many members a gang takes."""
        if least and key in self._standing:
            self._least[key] = least

    def least(self, key: str) -> int:
        """Return how many members a gang that stands takes; 0 if nobody has said so."""
        return self._least.get(key, 0)

    def spare(self, key: str, leaving: frozenset[str]) -> int:
        """Return how many members more a gang can do without, none if it is not known how many it takes.

        Args:
            key: The gang.
            leaving: Pods that go already.
        """
        least, standing = self.least(key), self._standing.get(key, {})
        return max(len(standing.keys() - leaving) - least, 0) if least else 0


def still_missing(gang: Gang, present: int, request: GpuRequest) -> Decision:
    """Refuse a member of a gang of which not enough are there."""
    return verdict(
        request.pool,
        reasons.GANG_WAITING,
        f"{present} of the {gang.min_members} members that gang {gang.key} needs are there",
    )


def being_placed(gang: Gang, request: GpuRequest) -> Decision:
    """Refuse a member that came while the others are on their way: it joins as soon as they stand."""
    return verdict(
        request.pool, reasons.GANG_WAITING, f"gang {gang.key} is being placed; this member joins once it stands"
    )


def unfulfillable(gang: Gang, placed: int, refused: Decision, whose: str, request: GpuRequest) -> Decision:
    """Refuse a member of a gang that does not fit as a whole, for the reason of the first member that did not."""
    return verdict(
        request.pool,
        reasons.GANG_UNFULFILLABLE,
        f"{placed} of the {gang.min_members} members that gang {gang.key} needs fit; "
        f"{whose}: {refused.reason}: {refused.message}",
    )


def overdue(gang: Gang, present: int, request: GpuRequest) -> Decision:
    """State that a gang has not become complete in time. Its members go on waiting."""
    return verdict(
        request.pool,
        reasons.GANG_TIMEOUT,
        f"{present} of the {gang.min_members} members that gang {gang.key} needs came within {gang.timeout_s} s",
    )


def verdict(pool: str, reason: str, message: str) -> Decision:
    """Return the refusal of a pod for a reason that lies in other pods."""
    return Decision(
        outcome="unschedulable",
        namespace="",
        name="",
        pod_uid="",
        pool=pool,
        allocator="",
        basis=Basis(state=0, ledger=0, ordinal=0),
        reason=reason,
        message=message,
        help=reasons.CODES[reason].help,
    )
