"""Making room for pods that fit nowhere: one is looked at at a time, and who has to go for it is evicted."""

from collections.abc import Callable

from consumers.allocator.book import Keep
from consumers.allocator.effects import encode
from consumers.allocator.keeping import Keeping
from consumers.allocator.mind import Mind
from consumers.allocator.placing import Placing
from consumers.allocator.room import Room
from consumers.allocator.rooms import KEPT_S
from schemas.journal import Preempt
from schemas.pod import Schedule

AGED_AT_ONCE = 512
"""Nodes looked at anew before room is made."""


class Making:
    """Makes room for pods of ``mind``."""

    def __init__(self, mind: Mind, keeping: Keeping, placing: Placing) -> None:
        self._mind = mind
        self._keeping = keeping
        self._placing = placing

    def make_room(self, lapsed: Callable[[object], bool]) -> None:
        """Look at one of the pods that fit nowhere and for which others may be evicted; see :meth:`Core.make_room`."""
        mind = self._mind
        seeker = mind.rooms.take()
        if seeker is None or lapsed(seeker.token):
            return
        command, _, token = seeker
        if mind.places.first(command.uid) is not None:  # another allocator has placed it meanwhile
            self._placing.schedule(command, token)
            return
        decision = self._placing.attempt(command, token)
        if decision is None:
            return
        # Another allocator may have made room for it meanwhile, or nobody could be evicted for one of its like.
        if mind.rooms.first(command.uid) is not None or not mind.rooms.may(command, decision.reason):
            self._placing.refuse_or_wait(command, decision, token)
            return
        room = self._find(command)
        if room is None:
            mind.rooms.in_vain(command)
            mind.refuse(command, decision, token)
            return
        mind.counters.decided += 1 + len(room.evicted)
        evicted = [(told, encode(told)) for told in room.evicted]
        mind.keeping[command.uid] = keep = Keep(
            command, token, room.hold, room.decision, encode(room.decision), evicted, room.displaced
        )
        mind.shelf.queue(room.node, keep)

    def _find(self, command: Schedule) -> Room | None:
        mind, now_s = self._mind, self._mind.cluster.time_s
        budgets = mind.rooms.budgets(command)
        if budgets is None:
            return None
        pod = command.namespace, command.name, command.uid, command.request, command.created_s
        self._learn_ages()
        with mind.quotas.expecting(command.namespace, self._keeping.promised(command.namespace)):
            return mind.decider.make_room(Preempt(*pod, now_s, now_s + KEPT_S, budgets))

    def _learn_ages(self) -> None:
        """Have decisions see since when pods stand that we have placed, on nodes where nothing is on its way."""
        mind = self._mind
        offered = mind.offers.nodes()
        for node in list(mind.ageless)[:AGED_AT_ONCE]:
            del mind.ageless[node]
            book = mind.shelf.book(node)
            if book.quiet and node not in offered:
                mind.show_held(book)
            else:
                mind.ageless[node] = None
