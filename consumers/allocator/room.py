"""Making room for a pod that fits nowhere: who is evicted, and what is kept for the pod until they are gone.

Pure. The engine says who has to go (:mod:`consumers.allocator.engine.preemption`); here it becomes what is told to each of them
and what the ledger is to keep. What is kept counts as taken *beside* the pods that leave, so nobody else is given what they
leave, and the room is there once they are gone.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from consumers.allocator.choice import choose
from consumers.allocator.engine import Policy, Snapshot, decide
from consumers.allocator.engine.preemption import Choice, Standing, Terms, select
from consumers.allocator.engine.victims import Budgets
from consumers.allocator.gangs import verdict
from consumers.allocator.quotas import Quotas
from schemas import reasons
from schemas.decision import Basis, Decision, PodRef, Preemption
from schemas.journal import Budget, Preempt
from schemas.ledger import HOLD, Allocation, Hold
from schemas.pod import Schedule

PREEMPTED: Final = "Preempted"
SHOWN: Final = 3

_NO_BASIS: Final = Basis(state=0, ledger=0, ordinal=0)


class Room(NamedTuple):
    """Room to be made.

    Attributes:
        hold: What the ledger is to keep.
        decision: Tells the pod to wait.
        evicted: Tell each victim to go, in the order of the hold.
        displaced: Room of others that is given up for this one.
    """

    hold: Hold
    decision: Decision
    evicted: tuple[Decision, ...]
    displaced: tuple[str, ...]

    @property
    def node(self) -> str:
        """Where it is."""
        return self.decision.preemption.node if self.decision.preemption is not None else ""


def keep(snapshot: Snapshot, room: Room) -> None:
    """Count as taken what is to be kept, in place of what it displaces."""
    for key in room.displaced:
        snapshot.remove(room.node, key)
    snapshot.add(room.node, room.hold.charge())


def plan(snapshot: Snapshot, quotas: Quotas, step: Preempt, policy: Policy) -> Room | None:
    """Return the room to make for a pod that fits nowhere; None if nobody may be evicted, or it would be no use.

    The snapshot is as before when this returns. The decisions bear no basis yet.
    """
    command = step.command()
    gangs = None
    if step.gangs is not None:
        gangs = {gang.key: Standing(gang.spare, frozenset(gang.members)) for gang in step.gangs}
    terms = Terms(step.namespace, step.now_s, _read(step.budgets), gangs)
    choice = select(snapshot, command.request, policy, terms)
    if choice is None:
        return None
    for victim in choice.victims:
        snapshot.remove(choice.node, victim.pod_uid)
    _, held = choose(snapshot, quotas, msgspec.structs.replace(command, node=choice.node), policy)
    for victim in choice.victims:
        snapshot.add(choice.node, victim)
    if held is None:  # its quota has no room for it
        return None
    preemptor = PodRef(command.namespace, command.name, command.uid)
    leaving = [(choice.node, victim) for victim in choice.victims if not victim.pod_uid.startswith(HOLD)]
    leaving += choice.elsewhere
    refs = tuple(PodRef(victim.namespace, victim.name, victim.pod_uid) for _, victim in leaving)
    said = Preemption(node=choice.node, preemptor=preemptor, victims=refs, gpus=held.gpus, until_s=step.until_s)
    return Room(
        hold=Hold(allocation=held, victims=refs, until_s=step.until_s),
        decision=_waits(decide(snapshot, command.request, policy), said),
        evicted=tuple(_goes(victim, node, command, said) for node, victim in leaving),
        displaced=_displaced(choice),
    )


def still_leaving(node: str, hold: Hold, left: Sequence[PodRef], refused: Decision) -> Decision:
    """Return the refusal of a pod for which room is kept, where the pods ``left`` still are."""
    if left:
        return verdict(hold.allocation.pool, reasons.AWAITING_EVICTION, f"{_names(left)} have still to leave {node}")
    message = f"room is kept on {node}, where the pod does not fit now: {refused.reason}: {refused.message}"
    return verdict(hold.allocation.pool, reasons.AWAITING_EVICTION, message)


def overdue_eviction(node: str, hold: Hold, left: Sequence[PodRef]) -> Decision:
    """Return the refusal of a pod for which room was kept long enough."""
    still = f"{_names(left)} have not left {node}" if left else f"the pod did not fit on {node} though all have left it"
    return verdict(hold.allocation.pool, reasons.EVICTION_OVERDUE, f"{still} in the time that room was kept there")


def _names(pods: Sequence[PodRef]) -> str:
    names = [f"{pod.namespace}/{pod.name}" for pod in pods]
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _read(budgets: tuple[Budget, ...]) -> Budgets:
    allowed: dict[str, int] = {}
    covering: dict[str, tuple[str, ...]] = {}
    for number, budget in enumerate(budgets):
        allowed[str(number)] = budget.allowed
        for uid in budget.pods:
            covering[uid] = (*covering.get(uid, ()), str(number))
    return Budgets(allowed, covering)


def _displaced(choice: Choice) -> tuple[str, ...]:
    return tuple(victim.pod_uid for victim in choice.victims if victim.pod_uid.startswith(HOLD))


def _waits(refused: Decision, said: Preemption) -> Decision:
    return msgspec.structs.replace(
        refused,
        reason=reasons.AWAITING_EVICTION,
        message=f"{_count(said)} to make room on {said.node}; without that {refused.message}",
        help=reasons.CODES[reasons.AWAITING_EVICTION].help,
        preemption=said,
    )


def _count(said: Preemption) -> str:
    if not said.victims:
        return "room that was kept for a pod of lower rank is taken"
    return f"{len(said.victims)} pod{'s' * (len(said.victims) != 1)} evicted ({_names(said.victims)})"


def _goes(victim: Allocation, node: str, command: Schedule, said: Preemption) -> Decision:
    request = command.request
    beside = (
        ""
        if node == said.node
        else f"; it leaves {node} because its gang {victim.gang} cannot do without those that go"
    )
    return Decision(
        outcome="evicted",
        namespace=victim.namespace,
        name=victim.name,
        pod_uid=victim.pod_uid,
        pool=victim.pool,
        allocator="",
        basis=_NO_BASIS,
        node=node,
        gpus=victim.gpus,
        reason=PREEMPTED,
        message=f"makes room on {said.node} for {command.namespace}/{command.name}, which goes before it: QoS {request.qos} and "
        f"priority {request.priority} before {victim.qos} and {victim.priority}{beside}",
        preemption=said,
    )
