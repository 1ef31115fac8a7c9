"""Room that is kept for pods while others leave: when it is given up, and what is told once it is in the ledger."""

from consumers.allocator.book import Keep, Removal
from consumers.allocator.effects import Announcement, Recovery, encode
from consumers.allocator.mind import Mind
from consumers.allocator.room import overdue_eviction, still_leaving
from consumers.allocator.rooms import KEPT_S, UNCLAIMED_S
from schemas import reasons
from schemas.decision import Decision
from schemas.ledger import HOLD, Hold
from schemas.pod import Release, Schedule
from schemas.preemption import Evict


class Keeping:
    """The room that ``mind`` knows of, and what becomes of it."""

    def __init__(self, mind: Mind) -> None:
        self._mind = mind

    def still_waits(self, command: Schedule, refused: Decision) -> Decision:
        """Tell a pod that room is kept for whom it waits, and see to it that they have been told to go."""
        mind, known = self._mind, self._mind.rooms.first(command.uid)
        if known is None:
            return refused
        held = mind.shelf.book(known.node).held
        left = [victim for victim in known.hold.victims if victim.uid in held]
        mind.effects.recoveries.append(Recovery(command, known.hold.allocation.since, None, None, room=True))
        return mind.decider.tell(still_leaving(known.node, known.hold, left, refused), command)

    def give_up(self, uid: str, why: str, but: str = "") -> None:
        """Keep room for a pod no more, on any node or any but one."""
        for known in self._mind.rooms.all_of(uid):
            if known.node != but:
                self._lift(known.node, known.hold, why)

    def _lift(self, node: str, hold: Hold, why: str) -> None:
        mind = self._mind
        if mind.shelf.book(node).expected_hold(hold.key) is None:
            return
        kept, pod = mind.snapshot.held(node, hold.key), hold.allocation
        command = Release(namespace=pod.namespace, name=pod.name, uid=hold.key, pool=pod.pool, node=node, reason=why)
        decision = mind.decider.release(command, ": room is kept no more", node, kept.gpus if kept is not None else ())
        mind.snapshot.remove(node, hold.key)
        mind.shelf.queue(node, Removal(command, None, decision, encode(decision), silent=True))

    def settle(self, item: Keep, node: str, seq: int) -> None:
        """Our record that keeps room has been seen in the ledger: tell the pod to wait, and the others to go."""
        mind, uid = self._mind, item.command.uid
        first = mind.rooms.first(uid)
        said = Announcement(f"{uid}:{seq}:room", item.decision, item.encoded, item.token, refused=item.command)
        if mind.places.first(uid) is not None:
            self.give_up(uid, "Placed")
            mind.recover(item.command, item.token)
        elif first is None or first.node != node or mind.cluster.waiting.ended(uid) or self._over_quota(item, seq):
            # Another allocator has made room before, for this pod or all that its quota allows, or nobody needs it any more.
            self._lift(node, item.hold, "Superseded")
            mind.effects.announcements.append(said)
        else:
            mind.effects.announcements += [
                Announcement(f"{told.pod_uid}:{seq}:evicted", told, encoded, None) for told, encoded in item.evicted
            ]
            if item.decision.preemption is not None:
                said.evict = Evict(preemption=item.decision.preemption, since=seq)
            mind.effects.announcements.append(said)
            mind.counters.rooms += 1
            mind.counters.evicted += len(item.evicted)
        for key in item.displaced:
            mind.cluster.recheck(key.removeprefix(HOLD))
        mind.cluster.grow_by_ledger(node, seq)  # what it displaced may have been all that had to go

    def _over_quota(self, item: Keep, seq: int) -> bool:
        """Whether the quota of its namespace has no room for it beside what has been kept for longer."""
        quotas, expected = self._mind.quotas, self._mind.expected(item.namespace, {item.command.uid})
        kept = [held for held in expected if 0 < held.since < seq]
        with quotas.expecting(item.namespace, kept):
            refused = quotas.refuse(item.namespace, item.command.request, item.hold.allocation.usage())
        return refused is not None

    def sweep(self) -> None:
        """Give up room that nobody waits for, or that was kept long enough."""
        mind, now_s = self._mind, self._mind.cluster.time_s
        for node, hold in list(mind.rooms):
            uid = hold.allocation.pod_uid
            waiting = mind.cluster.waiting.get(uid)
            if mind.places.first(uid) is not None or mind.cluster.waiting.ended(uid):
                self._lift(node, hold, "NotNeeded")
            elif self._is_out(node):
                self._lift(node, hold, reasons.NODE_NOT_READY)  # it is sought anew, elsewhere
            elif now_s > hold.until_s:
                self._lift(node, hold, reasons.EVICTION_OVERDUE)
                if waiting is not None:
                    held = mind.shelf.book(node).held
                    left = [victim for victim in hold.victims if victim.uid in held]
                    member = waiting[0].command()
                    mind.tell(member, mind.decider.tell(overdue_eviction(node, hold, left), member))
            elif waiting is None and uid not in mind.pending and now_s > hold.until_s - KEPT_S + UNCLAIMED_S:
                self._lift(node, hold, "Unclaimed")

    def _is_out(self, node: str) -> bool:
        """Whether the node takes no pods at all, as far as it is known and its record can be written."""
        host = self._mind.snapshot.host(node)
        return (host is None or host.stage != 0) and not self._mind.shelf.book(node).frozen
