"""What disruption budgets allow, as far as it concerns pods that may have to make room for others."""

from collections.abc import Iterable
from typing import Final

from schemas.journal import Budget
from schemas.preemption import DisruptionBudget

MOST_COVERED: Final = 8192
"""Pods under budgets that one decision may weigh: it writes them down, and a message has to hold them."""


class TooManyCoveredError(Exception):
    """More pods are under disruption budgets than one decision may weigh."""


class Disruptions:
    """The budgets by the subject that tells of them. One that cannot be read lets nobody of its namespace go."""

    def __init__(self) -> None:
        self._budgets: dict[str, DisruptionBudget] = {}
        self._unreadable: dict[str, str] = {}

    def put(self, subject: str, budget: DisruptionBudget) -> None:
        """A budget is so."""
        self._unreadable.pop(subject, None)
        self._budgets[subject] = budget

    def drop(self, subject: str) -> None:
        """There is no such budget."""
        self._unreadable.pop(subject, None)
        self._budgets.pop(subject, None)

    def unreadable(self, subject: str, namespace: str) -> None:
        """What is said of a budget cannot be read."""
        self._budgets.pop(subject, None)
        self._unreadable[subject] = namespace

    def weigh(self, candidates: Iterable[tuple[str, str]], leaving: Iterable[str]) -> tuple[Budget, ...]:
        """Return the budgets that cover some of the candidates, and those of them that each covers.

        Args:
            candidates: Namespace and UID of the pods that might have to go.
            leaving: UIDs of pods that go already: a budget that does not know it yet allows fewer beside them.

        Raises:
            TooManyCoveredError: They are more than a decision may weigh.
        """
        if not self._budgets and not self._unreadable:
            return ()
        spaces: dict[str, set[str]] = {}
        for namespace, uid in candidates:
            spaces.setdefault(namespace, set()).add(uid)
        gone = set(leaving)
        found = [
            Budget(max(budget.allowed - len(gone.intersection(budget.pods)), 0), tuple(sorted(covered)))
            for _, budget in sorted(self._budgets.items())
            if (covered := spaces.get(budget.namespace, set()).intersection(budget.pods))
        ]
        found += [
            Budget(0, tuple(sorted(spaces[namespace])))
            for _, namespace in sorted(self._unreadable.items())
            if namespace in spaces
        ]
        if sum(len(budget.pods) for budget in found) > MOST_COVERED:
            raise TooManyCoveredError
        return tuple(found)
