"""Commands to place pods: which is decided now, which is known already, and what is decided anew once it is lost."""

from consumers.allocator.book import Addition, Formation
from consumers.allocator.effects import encode
from consumers.allocator.former import Former, gang_of
from consumers.allocator.gangs import being_placed, overdue
from consumers.allocator.keeping import Keeping
from consumers.allocator.learning import Learner
from consumers.allocator.mind import Mind
from consumers.allocator.offers import Kept
from consumers.allocator.rooms import Seeker
from schemas import reasons
from schemas.decision import Decision
from schemas.pod import Schedule
from schemas.requirements import Gang

OVER_QUOTA = frozenset({reasons.QUOTA, reasons.QUOTA_SINGLE})


class Placing:
    """Places pods for ``mind``."""

    def __init__(self, mind: Mind, keeping: Keeping) -> None:
        self._mind = mind
        self._keeping = keeping
        self._former = Former(mind.cluster, mind.decider)
        self._learner = Learner()

    def schedule(self, command: Schedule, token: object) -> None:
        """Find a place for a pod."""
        mind = self._mind
        if command.way == "resize":  # it did not come to that, and whoever wants it sees to it again
            mind.decider.settled(command.uid)
            mind.effects.again.append(token)
            return
        waiting_for = mind.pending.get(command.uid) or mind.keeping.get(command.uid)
        if waiting_for is not None:  # redelivered while we are at it: only the newest delivery can be acknowledged
            waiting_for.token = token
            return
        if (seeker := mind.rooms.seeking(command.uid)) is not None:
            if seeker.command.request == command.request:
                mind.rooms.seek(seeker._replace(token=token))
                return
            mind.rooms.take(command.uid)  # it asks for something else by now
            mind.refuse(*seeker)
        if mind.places.first(command.uid) is None:
            self._place(command, token)
            return
        mind.recover(command, token)
        if command.request.gang is not None:  # whoever formed the gang may have died before it said so
            self._recover_gang(command)

    def settle_offer(self, command: Schedule, kept: Kept, token: object) -> None:
        """A pod goes where a place was kept free for it."""
        self._mind.counters.decided += 1
        self._mind.put(Addition(command, token, kept.allocation, kept.decision, encode(kept.decision)))

    def _recover_gang(self, command: Schedule) -> None:
        """One command stands for all members, some of which may have ended since and have nobody else to tell of them."""
        mind, gang = self._mind, command.request.gang
        for uid in mind.cluster.gangs.standing(gang.key) if gang is not None else ():
            place = mind.places.first(uid)
            held = mind.shelf.book(place.node).held.get(uid) if place is not None else None
            if held is not None and uid != command.uid:
                member = Schedule(namespace=held.namespace, name=held.name, uid=uid, request=command.request)
                mind.recover(member, None)

    def _place(self, command: Schedule, token: object) -> None:
        mind = self._mind
        learnt = self._learner.take(command, mind.cluster)
        if learnt is not None and mind.decider.first:
            mind.effects.learnt.append(learnt)
        gang = gang_of(mind.cluster.gangs, command, mind.removing.keys())
        if gang is not None:
            self._form(gang, command, token)
            return
        decision = self.attempt(command, token)
        if decision is None:
            return
        if mind.rooms.first(command.uid) is None and mind.rooms.may(command, decision.reason):
            mind.rooms.seek(Seeker(command, decision, token))
        else:
            self.refuse_or_wait(command, decision, token)

    def attempt(self, command: Schedule, token: object) -> Decision | None:
        """Place a pod if it fits somewhere; return the refusal if not."""
        mind = self._mind
        decision, allocation = mind.decider.place(command)
        mind.counters.decided += 1
        if allocation is None:
            return decision
        mind.snapshot.add(decision.node, allocation)
        mind.quotas.promise(decision.node, allocation)
        mind.put(Addition(command, token, allocation, decision, encode(decision)))
        return None

    def refuse_or_wait(self, command: Schedule, decision: Decision, token: object) -> None:
        """Tell a pod that it fits nowhere, or for whom it waits if room is kept for it."""
        mind = self._mind
        if mind.rooms.first(command.uid) is None:
            mind.refuse(command, decision, token)
        elif decision.reason in OVER_QUOTA:  # others would go in vain
            self._keeping.give_up(command.uid, decision.reason)
            mind.refuse(command, decision, token)
        else:
            mind.refuse(command, self._keeping.still_waits(command, decision), token)

    # Gangs

    def _form(self, gang: Gang, command: Schedule, token: object) -> None:
        """Place a gang that does not stand, ``command`` and all members that wait, or none of them."""
        mind = self._mind
        if any(item.gang == gang.key for item in mind.pending.values()):
            mind.refuse(command, mind.decider.tell(being_placed(gang, command.request), command), token)
            return
        if gang.timeout_s and not mind.cluster.waiting.of_gang(gang.key):
            mind.effects.timers.append((gang, None))
        found = self._former.form(gang, command)
        mind.counters.decided += len(found.placed) + len(found.refused)
        for member, decision in found.refused:
            if member is command:
                mind.refuse(member, decision, token)
            else:
                mind.tell(member, decision)
        formation = Formation()
        for member, decision, allocation in found.placed:
            mine = token if member is command else None
            formation.additions.append(Addition(member, mine, allocation, decision, encode(decision), formation))
        for addition in formation.additions:
            mind.put(addition)

    def gang_overdue(self, key: str, token: object) -> bool:
        """The time that a gang was given is over. Return whether its members are told; else there is nothing to say."""
        mind = self._mind
        waiting = [pod for pod, _ in mind.cluster.waiting.of_gang(key)]
        gang = waiting[0].request.gang if waiting else None
        if gang is None or len(waiting) >= gang.min_members or mind.cluster.gangs.standing(key):
            return False
        for pod in waiting:
            member = pod.command()
            mind.tell(
                member,
                mind.decider.tell(overdue(gang, len(waiting), pod.request), member),
                token if pod is waiting[-1] else None,
            )
        return True

    # Anew

    def take_back(self, ours: Addition) -> list[Addition]:
        """Undo a placement that has not left yet, with all that was to leave with it, and return what that was."""
        mind = self._mind
        if ours not in mind.shelf.book(ours.decision.node).queued:
            return []
        members = ours.formation.additions if ours.formation is not None else [ours]
        for member in members:
            mind.pull(member)
            mind.forget(member)
            self._keeping.give_up(member.uid, "NotNeeded")  # what was kept for it counts as its own since it was placed
        return members

    def reschedule(self, additions: list[Addition]) -> None:
        """Decide anew what was taken back or lost: one pod, or a formation, for which the command of one member stands."""
        if not additions:
            return
        lead = next((addition for addition in additions if addition.token is not None), additions[0])
        self._mind.effects.again += [a.token for a in additions if a is not lead and a.token is not None]
        self.schedule(lead.command, lead.token)

    def withdraw(self, uid: str) -> None:
        """Another allocator has placed the pod: if ours has not left yet, let it not leave."""
        self._mind.offers.drop(uid)
        ours = self._mind.pending.get(uid)
        if ours is not None:
            self.reschedule(self.take_back(ours))
