"""Finds places for a whole gang, or says to each of its members why there are none."""

from collections.abc import Collection
from dataclasses import dataclass, field

from consumers.allocator.cluster import Cluster
from consumers.allocator.decider import Decider
from consumers.allocator.gangs import MOST_MEMBERS, Gangs, still_missing, unfulfillable
from schemas.decision import Decision
from schemas.ledger import Allocation
from schemas.pod import Schedule
from schemas.requirements import Gang


@dataclass(slots=True)
class Outcome:
    """What became of the members: places that are booked in the snapshot already, and refusals."""

    placed: list[tuple[Schedule, Decision, Allocation]] = field(default_factory=list)
    refused: list[tuple[Schedule, Decision]] = field(default_factory=list)


class Former:
    """Forms gangs on what ``cluster`` knows."""

    def __init__(self, cluster: Cluster, decider: Decider) -> None:
        self._cluster = cluster
        self._decider = decider

    def form(self, gang: Gang, command: Schedule) -> Outcome:
        """Place the members that are there, if enough of them are and fit.

        Members are placed one after another, each on what the others left, so members that are alike are placed whenever they
        fit at all. Those beyond ``min_members`` that do not fit go on waiting and join later.
        """
        waiting = self._cluster.waiting
        others = [pod for pod, _ in waiting.of_gang(gang.key) if pod.uid != command.uid and not waiting.ended(pod.uid)]
        members = [command]
        members += (pod.command() for pod in others)
        members = members[:MOST_MEMBERS]
        if len(members) < gang.min_members:
            decision = still_missing(gang, len(members), command.request)
            return Outcome(refused=[(command, self._decider.tell(decision, command))])
        outcome = Outcome()
        for member in members:
            decision, held = self._decider.place(member)
            if held is None:
                outcome.refused.append((member, decision))
            else:
                self._cluster.snapshot.add(decision.node, held)
                self._cluster.quotas.promise(decision.node, held)
                outcome.placed.append((member, decision, held))
        if len(outcome.placed) >= gang.min_members:
            return outcome
        for _, decision, held in reversed(outcome.placed):
            self._cluster.snapshot.remove(decision.node, held.pod_uid)
            self._decider.journal.drop(held.pod_uid, decision.node)
            self._cluster.quotas.withdraw(decision.node, held, quietly=True)
        return self._none(gang, members, outcome)

    def _none(self, gang: Gang, members: list[Schedule], tried: Outcome) -> Outcome:
        whose, why = tried.refused[0]
        return Outcome(
            refused=[
                (
                    member,
                    self._decider.tell(unfulfillable(gang, len(tried.placed), why, whose.name, member.request), member),
                )
                for member in members
            ]
        )


def gang_of(gangs: Gangs, command: Schedule, leaving: Collection[str]) -> Gang | None:
    """Return the gang that a pod may only be placed together with, or None if it may be placed alone.

    Args:
        gangs: Who stands.
        command: The pod.
        leaving: Pods that are about to stand no more.
    """
    gang = command.request.gang
    return None if gang is None or set(gangs.standing(gang.key)).difference(leaving) else gang
