"""The allocator without I/O: events and answers go in, commits and outcomes come out.

Everything that could race is decided here, in one thread, on values: which pod goes where, what becomes of it when
another allocator's record comes first, and when it is safe to tell the world. The shell in
:mod:`consumers.allocator.service` carries the effects out; :mod:`consumers.allocator.mind` names the parts.

A pod is announced only when its record has been *seen* in the ledger, in stream order. Commits are compare-and-set per
node, so no GPU is given twice; but a command that was redelivered while its first taker was merely slow can be placed on
two nodes. All followers see both records in the same order, so the maker of the later one knows, announces nothing and
takes it back.
"""

from collections.abc import Callable, Sequence

import msgspec

from bus.follower import Record
from consumers.allocator.book import Commit, Removal
from consumers.allocator.bundle import Bundle
from consumers.allocator.effects import Effects
from consumers.allocator.keeping import Keeping
from consumers.allocator.landing import Landing
from consumers.allocator.losing import Losing
from consumers.allocator.making import Making
from consumers.allocator.mind import Mind
from consumers.allocator.placing import Placing
from consumers.allocator.releasing import Releasing
from consumers.allocator.resizing import Resizing
from schemas.extender import Offer
from schemas.ledger import Allocation
from schemas.pod import Release, Schedule, Waiting

SEEKERS_PER_SWEEP = 16


class Core:
    """One allocator's decisions, as the shell asks for them.

    Args:
        name: Identity of this allocator.
        clock_us: Elapsed microseconds, for the duration noted in decisions and for nothing else.
    """

    def __init__(self, name: str, clock_us: Callable[[], int]) -> None:
        self.name = name
        self.mind = mind = Mind(name, clock_us)
        self.cluster, self.snapshot, self.quotas = mind.cluster, mind.snapshot, mind.quotas
        self.counters, self.decider, self.journal = mind.counters, mind.decider, mind.journal
        self.offers, self.rooms = mind.offers, mind.rooms
        self._keeping = Keeping(mind)
        self._resizing = Resizing(mind)
        self._placing = Placing(mind, self._keeping)
        self._making = Making(mind, self._keeping, self._placing)
        self._releasing = Releasing(mind, self._keeping, self._placing)
        self._losing = Losing(mind, self._placing)
        self._landing = Landing(mind, self._keeping, self._placing, self._releasing, self._losing)

    # Commands

    def schedule(self, command: Schedule, token: object) -> None:
        """Find a place for a pod."""
        self._placing.schedule(command, token)

    def offer(self, command: Schedule, names: Sequence[str], now: float) -> Offer:
        """Say where a pod may go of the nodes that kube-scheduler asks about; see :meth:`Offers.make`."""
        place, pending = self.mind.places.first(command.uid), self.mind.pending.get(command.uid)
        node = place.node if place is not None else pending.decision.node if pending is not None else ""
        if not node:
            offer, decision = self.offers.make(command, names, now)
            if decision is not None:
                self.mind.announce(f"{command.uid}:{self.name}:{decision.basis.ordinal}", decision, None)
            return offer
        self.offers.remember(command, (node,))
        if node not in names:
            return Offer(error=f"the pod has its place on {node} and is being bound there")
        others = tuple(name for name in names if name != node)
        return Offer(refused={f"the pod has its place on {node} already": others} if others else {}, best=(node,))

    def reserve(self, uid: str, node: str, token: object) -> str:
        """Have a pod that was asked about placed where kube-scheduler has chosen; return why not, empty if it is under way."""
        known, pending, place = self.offers.known(uid), self.mind.pending.get(uid), self.mind.places.first(uid)
        if known is None:
            return "no allocator was asked about this pod lately: filter comes first"
        stands = pending.decision.node if pending is not None else place.node if place is not None else node
        if stands != node:
            return f"the pod has its place on {stands} already"
        if uid in self.mind.removing:
            return "what the pod held is being given back"
        command = msgspec.structs.replace(known[0], node=node)
        kept = None if pending is not None or place is not None else self.offers.take(uid, node)
        if kept is None:
            self.schedule(command, token)
        else:
            self._placing.settle_offer(command, kept, token)
        return ""

    def resize(self, command: Schedule, token: object) -> str:
        """Have a pod hold other amounts where it stands; see :meth:`Resizing.resize`."""
        return self._resizing.resize(command, token)

    def held(self, uid: str, node: str) -> Allocation | None:
        """Return what a pod holds on a node by the ledger."""
        return self.mind.shelf.book(node).held.get(uid)

    def release(self, command: Release, token: object) -> None:
        """Give back what a pod holds."""
        self._releasing.release(command, token)

    def release_nothing(self, command: Release, token: object) -> None:
        """The pod holds nothing, or nothing any more: say so, because whoever asked may never have heard it."""
        self._releasing.release_nothing(command, token)

    def make_room(self, lapsed: Callable[[object], bool] = lambda _: False) -> None:
        """Look at one of the pods that fit nowhere and for which others may be evicted. It takes long: do other work between.

        Args:
            lapsed: Tells of a token whether its command has gone to somebody else by now, who will look at the pod.
        """
        self._making.make_room(lapsed)

    def gang_overdue(self, key: str, token: object) -> bool:
        """The time that a gang was given is over. Return whether its members are told; else there is nothing to say."""
        return self._placing.gang_overdue(key, token)

    # What is to be done

    def flush(self) -> None:
        """Turn queued changes into commits, at most one per node in flight, and those that need other keys into a bundle."""
        mind, shelf = self.mind, self.mind.shelf
        if not self.quotas and not shelf.knows_gangs:
            mind.effects.commits += shelf.begin()
            return
        for namespace in self.quotas.overdrawn():
            self.offers.drop_namespace(namespace)
            promised = [item for item in mind.pending.values() if item.namespace == namespace]
            while promised and self.quotas.is_overdrawn(namespace):
                self._placing.reschedule(self._placing.take_back(promised.pop()))
        mind.effects.commits += shelf.begin(mind.sealer.joins)
        bundle = shelf.bundle_up()
        if bundle is None:
            return
        if mind.sealer.seal(bundle, self.cluster.ledger_seq):
            mind.effects.commits.append(bundle)
        else:
            self._losing.retry(bundle)

    @property
    def effects(self) -> Effects:
        """What is to be done so far."""
        return self.mind.effects

    def take_effects(self) -> Effects:
        """Return what is to be done and start a new list."""
        return self.mind.take_effects()

    def tokens(self) -> list[object]:
        """Return the tokens of everything on its way."""
        return self.mind.tokens()

    @property
    def busy(self) -> int:
        """Number of nodes with a commit in flight or changes queued."""
        return self.mind.shelf.busy

    @property
    def pending(self) -> int:
        """Number of pods placed but not yet seen in the ledger."""
        return len(self.mind.pending)

    # Answers to commits

    def stored(self, flight: Commit | Bundle, seq: int) -> None:
        """The server stored our record at ``seq``, or all of a bundle from there on."""
        self._landing.stored(flight, seq)

    def is_flying(self, flight: Commit | Bundle) -> bool:
        """Whether the core still waits to learn what became of the commit."""
        return any(self.mind.shelf.book(commit.node).flying is commit for commit in flight.commits)

    def given_up(self, flight: Commit | Bundle) -> None:
        """No answer came and the ledger, read to its end, does not hold the record: let others have the pods."""
        self._losing.given_up(flight)
        if any(isinstance(item, Removal) and item.silent for commit in flight.commits for item in commit.items):
            self._releasing.undo_duplicates()  # nobody else has been asked to

    # What the bus says

    def on_ledger(self, node: str, record: Record) -> None:
        """A ledger record of ``node``, in stream order.

        Raises:
            UndecodableError: The record cannot be read. The node is frozen: it takes nothing more until a good one comes.
        """
        self._landing.on_node(node, record)

    def on_key(self, kind: str, name: str, record: Record) -> None:
        """A ledger record of a key that is no node, in stream order: a quota's or a gang's.

        Raises:
            UndecodableError: The record cannot be read. The next batch replaces it with what the nodes' records add up to.
        """
        self._landing.on_key(kind, name, record)

    def ledger_recreated(self) -> None:
        """The LEDGER stream is another one than before: its sequences start anew."""
        self._landing.recreated()

    def on_state(self, record: Record) -> None:
        """A record of STATE, in stream order.

        Raises:
            UndecodableError: It cannot be read; see :meth:`Cluster.on_state`.
        """
        mind = self.mind
        try:
            waiting = self.cluster.on_state(record)
        finally:
            for namespace in self.cluster.take_newly_bound():
                held = ((book.node, a) for book in mind.shelf.books() for a in book.held.values())
                promised = ((item.decision.node, item.allocation) for item in mind.pending.values())
                self.quotas.fill(namespace, held, promised)
        self.decider.settle_home()
        if waiting is not None and self.cluster.waiting.ended(waiting.uid):
            mind.effects.ended.append((waiting, record.seq))
        elif waiting is not None:
            self._settle_waiting(waiting)

    # Looking again

    def sweep(self) -> None:
        """Look at everything again that events or their readers may have missed."""
        effects = self.mind.effects
        self.cluster.sweep()
        self._releasing.undo_duplicates()
        self._keeping.sweep()
        effects.timers += [(gang, since) for gang, since in self.cluster.waiting.gangs() if gang.timeout_s]
        effects.wakes += self.rooms.to_wake(SEEKERS_PER_SWEEP)
        for uid in self.cluster.waiting.all():
            entry = self.cluster.waiting.get(uid)
            if entry is not None:
                self._settle_waiting(entry[0])

    def _settle_waiting(self, pod: Waiting) -> None:
        """A pod that stands somewhere waits no more: one allocator refused it while another placed it, and may have died."""
        self.mind.recover(pod.command(), None)

    def wake(self) -> list[tuple[Waiting, int]]:
        """Return the waiting pods to try again after what has grown; see :meth:`Cluster.wake`."""
        mind = self.mind
        return self.cluster.wake(
            self.decider.trial(), lambda uid: uid in mind.pending or mind.places.first(uid) is not None
        )
