"""Making room for pods that fit nowhere: one is looked at at a time, and who has to go for it is evicted."""

from collections.abc import Callable

from consumers.allocator.book import Keep
from consumers.allocator.effects import encode
from consumers.allocator.keeping import Keeping
from consumers.allocator.limits import Weigher
from consumers.allocator.mind import Mind
from consumers.allocator.placing import Placing
from consumers.allocator.room import Room
from consumers.allocator.rooms import KEPT_S
from schemas.journal import Preempt
from schemas.pod import Schedule

AGED_AT_ONCE = 512
"""Nodes looked at anew before room is made."""

LEARNT_AT_ONCE = 256
"""Nodes of which it is learnt at once who could be made to leave: some 20 ms."""


class Making:
    """Makes room for pods of ``mind``."""

    def __init__(self, mind: Mind, keeping: Keeping, placing: Placing) -> None:
        self._mind = mind
        self._keeping = keeping
        self._placing = placing

    def make_room(self, lapsed: Callable[[object], bool]) -> None:
        """Look at one of the pods that fit nowhere and for which others may be evicted; see :meth:`Core.make_room`."""
        mind = self._mind
        if not self._is_ready():
            return
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

    def _is_ready(self) -> bool:
        """Whether all is known of the next pod's pool that the search looks up; if not, learn a part of it."""
        pool, snapshot = self._mind.rooms.next_pool, self._mind.snapshot
        table = snapshot.table(pool)
        return table is None or snapshot.reclaim(table, pool).advance(LEARNT_AT_ONCE)

    def _find(self, command: Schedule) -> Room | None:
        mind, cluster = self._mind, self._mind.cluster
        pool = cluster.snapshot.pools().get(command.request.pool)
        holds = [known.hold for known in mind.rooms] + [keep.hold for keep in mind.keeping.values()]
        limits = Weigher(cluster, pool, command, holds, mind.offers.uids()).weigh() if pool is not None else None
        if limits is None:
            return None
        pod = command.namespace, command.name, command.uid, command.request, command.created_s
        self._learn_ages()
        with mind.quotas.expecting(command.namespace, mind.expected(command.namespace)):
            return mind.decider.make_room(Preempt(*pod, cluster.time_s, cluster.time_s + KEPT_S, *limits))

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
