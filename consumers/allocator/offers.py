"""Places offered to a kube-scheduler, which has a pod go to one of them: what it is likely to choose is kept free meanwhile.

kube-scheduler asks about the next pod before it has had the last one bound. Without a memory of what was offered every
pod would be sent to the same last gap. What is kept free is kept in this allocator's memory alone, for some seconds: the
reservation is the ledger record, and whoever loses the race for that is told so.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from consumers.allocator.choice import smaller
from consumers.allocator.cluster import Cluster
from consumers.allocator.decider import Decider
from consumers.allocator.engine import offers
from consumers.allocator.gangs import verdict
from schemas import reasons
from schemas.decision import Decision
from schemas.extender import MOST_POINTS, Offer
from schemas.ledger import Allocation
from schemas.pod import Schedule

KEPT_FREE_S: Final = 10.0
REMEMBERED: Final = 16_384
"""Pods whose offers are remembered, so that kube-scheduler can say where they go without saying again what they ask for."""


class Kept(NamedTuple):
    """A place that is kept free until ``until``, and the decision that it came of."""

    decision: Decision
    allocation: Allocation
    until: float


class Offers:
    """What one allocator has offered.

    Args:
        cluster: What it holds in memory.
        decider: Makes the decisions.
    """

    def __init__(self, cluster: Cluster, decider: Decider) -> None:
        self._cluster = cluster
        self._decider = decider
        self._known: OrderedDict[str, tuple[Schedule, tuple[str, ...]]] = OrderedDict()
        self._kept: dict[str, Kept] = {}
        self._refused: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def make(self, command: Schedule, names: Sequence[str], now: float) -> tuple[Offer, Decision | None]:
        """Judge a pod on the nodes called ``names``, and keep the best of them free for it.

        Args:
            command: The pod.
            names: The nodes that kube-scheduler offers.
            now: Time on any clock that goes forward, in seconds.

        Returns:
            The answer, and for a pod that fits on none of them the decision, unless the same was said of it last.
        """
        self.drop(command.uid)
        if command.request.gang is not None:
            refused = verdict(
                command.request.pool,
                reasons.UNSUPPORTED,
                "a gang is placed at once, and kube-scheduler asks pod by pod",
            )
            return self._refusal(command, self._decider.tell(refused, command), names)
        where, best = self._judge(command, names)
        if not best:
            return self._nowhere(command, names, where)
        decision, held = self._decider.place(msgspec.structs.replace(command, node=best[0]))
        if held is None:
            return self._refusal(command, decision, names)
        self._cluster.snapshot.add(decision.node, held)
        self._cluster.quotas.promise(decision.node, held)
        self._kept[command.uid] = Kept(decision, held, now + KEPT_FREE_S)
        self._refused.pop(command.uid, None)
        self.remember(command, tuple(best))
        return Offer(refused={code: tuple(nodes) for code, nodes in where.items()}, best=tuple(best)), None

    def _judge(self, command: Schedule, names: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
        request, snapshot = command.request, self._cluster.snapshot
        policy = self._decider.policy(request.pool)
        where, best = offers(snapshot, request, policy, names, MOST_POINTS)
        if best and self._cluster.quotas.bound(command.namespace):
            fewer = smaller(snapshot, self._cluster.quotas, command.namespace, request)
            if fewer is not None and (found := offers(snapshot, fewer, policy, names, MOST_POINTS))[1]:
                return found
        return where, best

    def _nowhere(
        self, command: Schedule, names: Sequence[str], where: dict[str, list[str]]
    ) -> tuple[Offer, Decision | None]:
        decision, held = self._decider.place(command)
        if held is not None:  # it fits, but not where kube-scheduler would have it
            self._decider.journal.drop(command.uid, decision.node)
            counted = ", ".join(f"{len(nodes)} {code}" for code, nodes in where.items())
            message = (
                f"0 of the {len(names)} nodes that kube-scheduler offers fit: {counted}; {decision.node} would fit"
            )
            decision = self._decider.tell(verdict(command.request.pool, reasons.NOT_OFFERED, message), command)
        offer, said = self._refusal(command, decision, names)
        if where:
            offer = Offer(refused={code: tuple(nodes) for code, nodes in where.items()})
        return offer, said

    def _refusal(self, command: Schedule, decision: Decision, names: Sequence[str]) -> tuple[Offer, Decision | None]:
        """Refuse a pod on all nodes. kube-scheduler asks again and again, so the same is said once."""
        known = self._refused.get(command.uid) == decision.reason
        self._refused[command.uid] = decision.reason
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)
        offer = Offer(refused={f"{decision.reason}: {decision.message}": tuple(names)})
        return offer, None if known else decision

    def remember(self, command: Schedule, best: tuple[str, ...]) -> None:
        """Know of a pod what this or another allocator has offered for it."""
        self._known[command.uid] = (command, best)
        self._known.move_to_end(command.uid)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def known(self, uid: str) -> tuple[Schedule, tuple[str, ...]] | None:
        """Return the pod and the nodes that were offered for it, best first; None if nobody has asked about it lately."""
        return self._known.get(uid)

    def take(self, uid: str, node: str) -> Kept | None:
        """Return the place that was kept free for a pod if it is on ``node``; it is the caller's from now on."""
        kept = self._kept.get(uid)
        if kept is None or kept.decision.node != node:
            self.drop(uid)
            return None
        return self._kept.pop(uid)

    def drop(self, uid: str) -> None:
        """Keep no place free for the pod any more."""
        kept = self._kept.pop(uid, None)
        if kept is not None:
            node = kept.decision.node
            self._cluster.snapshot.remove(node, uid)
            self._decider.journal.drop(uid, node)
            self._cluster.quotas.withdraw(node, kept.allocation)
            self._cluster.grow_by_ledger(node, self._cluster.ledger_seq)

    def swept(self, node: str) -> None:
        """The node is about to be seen as the ledger has it: nothing is kept free there any more."""
        for uid in [uid for uid, kept in self._kept.items() if kept.decision.node == node]:
            self._cluster.quotas.withdraw(node, self._kept.pop(uid).allocation)

    def uids(self) -> Collection[str]:
        """Return the pods for which something is kept free."""
        return self._kept.keys()

    def nodes(self) -> set[str]:
        """Return where something is kept free."""
        return {kept.decision.node for kept in self._kept.values()}

    def clear(self, node: str) -> None:
        """Keep nothing free on a node."""
        for uid in [uid for uid, kept in self._kept.items() if kept.decision.node == node]:
            self.drop(uid)

    def drop_namespace(self, namespace: str) -> None:
        """Keep nothing free for the pods of a namespace."""
        for uid in [uid for uid, kept in self._kept.items() if kept.allocation.namespace == namespace]:
            self.drop(uid)

    def expire(self, now: float) -> None:
        """Give up places that were kept free long enough."""
        for uid in [uid for uid, kept in self._kept.items() if kept.until <= now]:
            self.drop(uid)

    def forget(self, uid: str) -> None:
        """The pod has ended."""
        self.drop(uid)
        self._known.pop(uid, None)
        self._refused.pop(uid, None)
