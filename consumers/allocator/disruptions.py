"""What disruption budgets allow, as far as it concerns pods that may have to make room for others."""

from collections.abc import Callable, Iterable
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

    def weigh(
        self,
        may_go: Callable[[str, str], bool],
        leaving: frozenset[str],
        all_of: Callable[[str], Iterable[str]],
    ) -> tuple[Budget, ...]:
        """Return the budgets that cover some of the pods that might have to go, and those of them that each covers.

        Args:
            may_go: Tells of a namespace and a UID whether that is one of those pods.
            leaving: UIDs of pods that go already: a budget that does not know it yet allows fewer beside them.
            all_of: Returns the UIDs of all those pods of a namespace.

        Raises:
            TooManyCoveredError: They are more than a decision may weigh.
        """
        found: list[Budget] = []
        weighed = 0
        for _, budget in sorted(self._budgets.items()):
            covered = tuple(sorted(uid for uid in budget.pods if may_go(budget.namespace, uid)))
            if covered:
                found.append(Budget(max(budget.allowed - len(leaving.intersection(budget.pods)), 0), covered))
            weighed = self._weighed(weighed, covered)
        for _, namespace in sorted(self._unreadable.items()):
            if covered := tuple(sorted(all_of(namespace))):
                found.append(Budget(0, covered))
            weighed = self._weighed(weighed, covered)
        return tuple(found)

    @staticmethod
    def _weighed(before: int, covered: tuple[str, ...]) -> int:
        if before + len(covered) > MOST_COVERED:
            raise TooManyCoveredError
        return before + len(covered)
