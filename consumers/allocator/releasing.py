"""Commands to give back what pods hold, and placements that are undone because the pod stood elsewhere first."""

import msgspec

from consumers.allocator.book import Addition, Removal
from consumers.allocator.effects import encode
from consumers.allocator.keeping import Keeping
from consumers.allocator.mind import Mind
from consumers.allocator.placing import Placing
from schemas.ledger import HOLD
from schemas.pod import Release

DUPLICATE = "DuplicatePlacement"


class Releasing:
    """Takes pods of ``mind`` off their nodes."""

    def __init__(self, mind: Mind, keeping: Keeping, placing: Placing) -> None:
        self._mind = mind
        self._keeping = keeping
        self._placing = placing

    def release(self, command: Release, token: object) -> None:
        """Give back what a pod holds."""
        mind = self._mind
        mind.offers.forget(command.uid)
        if (seeker := mind.rooms.take(command.uid)) is not None:
            mind.refuse(*seeker)
        self._keeping.give_up(command.uid, command.reason)
        if command.uid in mind.keeping:
            mind.cluster.waiting.end(command.uid)  # its room is given up once it is seen, and nobody is told to go
        removing = mind.removing.get(command.uid)
        if removing is not None:
            removing.token = token
            return
        pending = mind.pending.get(command.uid)
        place = mind.places.first(command.uid)
        if pending is not None and pending.formation is not None and (left := self._placing.take_back(pending)):
            self._leave(command, token, left)
        elif pending is not None:
            self.remove(pending.decision.node, command, token)
        elif place is not None:
            self.remove(place.node, command, token)
        elif (waiting := mind.cluster.waiting.get(command.uid)) is not None:
            mind.cluster.waiting.end(command.uid)
            decision = mind.decider.release(command, " while waiting")
            mind.announce(f"{command.uid}:{waiting[1]}:unplaced", decision, token)
        elif mind.places.left(command.uid) is not None:
            self.release_nothing(command, token)
        else:
            mind.effects.unknown.append((command, token))

    def _leave(self, command: Release, token: object, members: list[Addition]) -> None:
        """A member ends before its gang has left: the others try without it."""
        mind = self._mind
        mind.cluster.waiting.end(command.uid)
        mine = next((member.token for member in members if member.uid == command.uid), None)
        for place, settled in enumerate((token, mine)):
            if place == 0 or settled is not None:
                decision = mind.decider.release(command, " while its gang was being placed")
                mind.announce(f"{command.uid}:{mind.name}:{decision.basis.ordinal}", decision, settled)
        self._placing.reschedule([member for member in members if member.uid != command.uid])

    def release_nothing(self, command: Release, token: object) -> None:
        """The pod holds nothing, or nothing any more: say so, because whoever asked may never have heard it."""
        mind = self._mind
        left = mind.places.left(command.uid)
        before = f" since ledger record {left.seq} of {left.node}" if left is not None else ""
        decision = mind.decider.release(command, f": holds nothing{before}")
        mind.announce(f"{command.uid}:{mind.name}:{decision.basis.ordinal}", decision, token)

    def remove(self, node: str, command: Release, token: object, *, silent: bool = False) -> None:
        """Take a pod off a node; silently if nobody is to be told."""
        mind = self._mind
        held = {a.pod_uid: a for a in mind.shelf.book(node).expected_allocations()}.get(command.uid)
        if held is None:  # taken back already, as a duplicate
            if not silent:
                self.release_nothing(command, token)
            return
        # The UID says which pod it is. Whose quota it is counted in is what the ledger says, however the command calls it.
        command = msgspec.structs.replace(command, namespace=held.namespace, name=held.name)
        decision = mind.decider.release(command, ": gave back what it held", node, held.gpus)
        removal = Removal(command, token, decision, encode(decision), silent, held.gang)
        if not silent:
            mind.removing[command.uid] = removal
        mind.snapshot.remove(node, command.uid)
        mind.shelf.queue(node, removal)

    def settle(self, item: Removal, node: str, seq: int) -> None:
        """Our record without the pod has been seen in the ledger: say that it gave back what it held."""
        mind = self._mind
        mind.cluster.grow_by_ledger(node, seq)
        if item.uid.startswith(HOLD):
            mind.cluster.recheck(item.uid.removeprefix(HOLD))
            mind.quotas.free(item.namespace)
            return
        mind.places.remove(item.uid, node, seq)
        if item.silent:
            return
        mind.counters.released += 1
        token = item.token
        duplicate = mind.places.first(item.uid)
        if duplicate is not None:  # nobody has undone it yet: the command is done when that is gone too
            self.remove(duplicate.node, item.command, token)
            token = None
        # One record may both add and remove a pod, so the sequence alone does not tell the two decisions apart.
        mind.announce(f"{item.uid}:{seq}:released", item.decision, token, item.encoded)

    def undo_duplicate(self, uid: str, node: str) -> bool:
        """If the pod stood elsewhere first, take back what we gave it here."""
        mind = self._mind
        first = mind.places.first(uid)
        if first is None or first.node == node:
            return False
        mind.counters.duplicates += 1
        held = mind.shelf.book(node).held.get(uid)
        if held is not None:
            command = Release(
                namespace=held.namespace, name=held.name, uid=uid, pool=held.pool, node=node, reason=DUPLICATE
            )
            self.remove(node, command, None, silent=True)
        return True

    def undo_duplicates(self) -> None:
        """Take back every later placement of a pod that stands on two nodes, whoever made it and died over it."""
        shelf = self._mind.shelf
        for uid, place in self._mind.places.later():
            held = shelf.book(place.node).held.get(uid)
            if held is not None and not any(item.uid == uid for item in shelf.book(place.node).queued):
                self.undo_duplicate(uid, place.node)
