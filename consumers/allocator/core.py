"""The allocator without I/O: events and answers go in, commits and outcomes come out.

Everything that could race is decided here, in one thread, on values: which pod goes where, what becomes of it when
another allocator's record comes first, and when it is safe to tell the world. The shell in
:mod:`consumers.allocator.service` carries the effects out.

A pod is announced only when its record has been *seen* in the ledger, in stream order. Commits are compare-and-set per
node, so no GPU is given twice; but a command that was redelivered while its first taker was merely slow can be placed on
two nodes. All followers see both records in the same order, so the maker of the later one knows, announces nothing and
takes it back.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from bus import codec
from bus.chain import link
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.allocator.book import Addition, Book, Commit, Formation, Item, Keep, Removal, kept_since
from consumers.allocator.bundle import Bundle
from consumers.allocator.cluster import Cluster
from consumers.allocator.decider import Decider
from consumers.allocator.effects import Announcement, Counters, Effects, Recovery, encode
from consumers.allocator.former import Former, gang_of
from consumers.allocator.gangs import being_placed, overdue
from consumers.allocator.learning import Learner
from consumers.allocator.offers import Offers
from consumers.allocator.places import Places
from consumers.allocator.room import overdue_eviction, still_leaving
from consumers.allocator.rooms import KEPT_S, UNCLAIMED_S, Rooms, Seeker
from consumers.allocator.sealing import Sealer
from consumers.allocator.shelf import Shelf
from schemas import reasons
from schemas.decision import Decision
from schemas.extender import Offer
from schemas.journal import Preempt
from schemas.ledger import HOLD, Allocation, Hold, NodeRecord
from schemas.pod import Release, Schedule, Waiting
from schemas.preemption import Evict
from schemas.requirements import Gang

DUPLICATE = "DuplicatePlacement"
SEEKERS_PER_SWEEP = 16
AGED_AT_ONCE = 512
OVER_QUOTA = frozenset({reasons.QUOTA, reasons.QUOTA_SINGLE})


class Core:
    """One allocator's mind.

    Args:
        name: Identity of this allocator.
        clock_us: Elapsed microseconds, for the duration noted in decisions and for nothing else.
    """

    def __init__(self, name: str, clock_us: Callable[[], int]) -> None:
        self.name = name
        self.cluster = Cluster()
        self.snapshot = self.cluster.snapshot
        self.quotas = self.cluster.quotas
        self.effects = Effects()
        self.counters = Counters()
        self.decider = Decider(name, self.cluster, clock_us)
        self.journal = self.decider.journal
        self._shelf = Shelf(name)
        self._sealer = Sealer(self._shelf, self.quotas, self.cluster.gangs)
        self._former = Former(self.cluster, self.decider)
        self._places = Places()
        self._learner = Learner()
        self.offers = Offers(self.cluster, self.decider)
        self._pending: dict[str, Addition] = {}
        self._removing: dict[str, Removal] = {}
        self._keeping: dict[str, Keep] = {}
        self._ageless: dict[str, None] = {}
        """Nodes that pods of ours have come to of which decisions do not know yet since when they stand."""
        self.rooms = Rooms(self.cluster)

    # Commands

    def schedule(self, command: Schedule, token: object) -> None:
        """Find a place for a pod."""
        waiting_for = self._pending.get(command.uid) or self._keeping.get(command.uid)
        if waiting_for is not None:  # redelivered while we are at it: only the newest delivery can be acknowledged
            waiting_for.token = token
            return
        if (seeker := self.rooms.seeking(command.uid)) is not None:
            if seeker.command.request == command.request:
                self.rooms.seek(seeker._replace(token=token))
                return
            self.rooms.take(command.uid)  # it asks for something else by now
            self._refuse(*seeker)
        if self._places.first(command.uid) is None:
            self._place(command, token)
            return
        self._recover(command, token)
        if command.request.gang is not None:  # whoever formed the gang may have died before it said so
            self._recover_gang(command)

    def offer(self, command: Schedule, names: Sequence[str], now: float) -> Offer:
        """Say where a pod may go of the nodes that kube-scheduler asks about; see :meth:`Offers.make`."""
        place, pending = self._places.first(command.uid), self._pending.get(command.uid)
        node = place.node if place is not None else pending.decision.node if pending is not None else ""
        if not node:
            offer, decision = self.offers.make(command, names, now)
            if decision is not None:
                self._announce(f"{command.uid}:{self.name}:{decision.basis.ordinal}", decision, None)
            return offer
        self.offers.remember(command, (node,))
        if node not in names:
            return Offer(error=f"the pod has its place on {node} and is being bound there")
        others = tuple(name for name in names if name != node)
        return Offer(refused={f"the pod has its place on {node} already": others} if others else {}, best=(node,))

    def reserve(self, uid: str, node: str, token: object) -> str:
        """Have a pod that was asked about placed where kube-scheduler has chosen; return why not, empty if it is under way."""
        known, pending, place = self.offers.known(uid), self._pending.get(uid), self._places.first(uid)
        if known is None:
            return "no allocator was asked about this pod lately: filter comes first"
        stands = pending.decision.node if pending is not None else place.node if place is not None else node
        if stands != node:
            return f"the pod has its place on {stands} already"
        if uid in self._removing:
            return "what the pod held is being given back"
        command = msgspec.structs.replace(known[0], node=node)
        kept = None if pending is not None or place is not None else self.offers.take(uid, node)
        if kept is None:
            self.schedule(command, token)
            return ""
        self.counters.decided += 1
        self._put(Addition(command, token, kept.allocation, kept.decision, encode(kept.decision)))
        return ""

    def release(self, command: Release, token: object) -> None:
        """Give back what a pod holds."""
        self.offers.forget(command.uid)
        if (seeker := self.rooms.take(command.uid)) is not None:
            self._refuse(*seeker)
        self._give_up_room(command.uid, command.reason)
        if command.uid in self._keeping:
            self.cluster.waiting.end(command.uid)  # its room is given up once it is seen, and nobody is told to go
        removing = self._removing.get(command.uid)
        if removing is not None:
            removing.token = token
            return
        pending = self._pending.get(command.uid)
        place = self._places.first(command.uid)
        if pending is not None and pending.formation is not None and (left := self._take_back(pending)):
            self._leave(command, token, left)
        elif pending is not None:
            self._remove(pending.decision.node, command, token)
        elif place is not None:
            self._remove(place.node, command, token)
        elif (waiting := self.cluster.waiting.get(command.uid)) is not None:
            self.cluster.waiting.end(command.uid)
            self._announce(
                f"{command.uid}:{waiting[1]}:unplaced", self.decider.release(command, " while waiting"), token
            )
        elif self._places.left(command.uid) is not None:
            self.release_nothing(command, token)
        else:
            self.effects.unknown.append((command, token))

    def _leave(self, command: Release, token: object, members: list[Addition]) -> None:
        """A member ends before its gang has left: the others try without it."""
        self.cluster.waiting.end(command.uid)
        mine = next((member.token for member in members if member.uid == command.uid), None)
        for place, settled in enumerate((token, mine)):
            if place == 0 or settled is not None:
                decision = self.decider.release(command, " while its gang was being placed")
                self._announce(f"{command.uid}:{self.name}:{decision.basis.ordinal}", decision, settled)
        self._reschedule([member for member in members if member.uid != command.uid])

    def release_nothing(self, command: Release, token: object) -> None:
        """The pod holds nothing, or nothing any more: say so, because whoever asked may never have heard it."""
        left = self._places.left(command.uid)
        before = f" since ledger record {left.seq} of {left.node}" if left is not None else ""
        decision = self.decider.release(command, f": holds nothing{before}")
        self._announce(f"{command.uid}:{self.name}:{decision.basis.ordinal}", decision, token)

    def _recover(self, command: Schedule, token: object) -> None:
        """The pod has its place: only the announcement may be missing."""
        place = self._places.first(command.uid)
        if place is not None:
            self.counters.recovered += 1
            self.decider.settled(command.uid)
            waiting = self.cluster.waiting.get(command.uid)
            self.effects.recoveries.append(Recovery(command, place.seq, token, waiting))

    def _recover_gang(self, command: Schedule) -> None:
        """One command stands for all members, some of which may have ended since and have nobody else to tell of them."""
        gang = command.request.gang
        for uid in self.cluster.gangs.standing(gang.key) if gang is not None else ():
            place = self._places.first(uid)
            held = self._shelf.book(place.node).held.get(uid) if place is not None else None
            if held is not None and uid != command.uid:
                member = Schedule(namespace=held.namespace, name=held.name, uid=uid, request=command.request)
                self._recover(member, None)

    def _place(self, command: Schedule, token: object) -> None:
        learnt = self._learner.take(command, self.cluster)
        if learnt is not None and self.decider.first:
            self.effects.learnt.append(learnt)
        gang = gang_of(self.cluster.gangs, command, self._removing.keys())
        if gang is not None:
            self._form(gang, command, token)
            return
        decision = self._try(command, token)
        if decision is None:
            return
        if self.rooms.first(command.uid) is None and self.rooms.may(command, decision.reason):
            self.rooms.seek(Seeker(command, decision, token))
        else:
            self._refuse_or_wait(command, decision, token)

    def _refuse_or_wait(self, command: Schedule, decision: Decision, token: object) -> None:
        """Tell a pod that it fits nowhere, or for whom it waits if room is kept for it."""
        if self.rooms.first(command.uid) is None:
            self._refuse(command, decision, token)
        elif decision.reason in OVER_QUOTA:  # others would go in vain
            self._give_up_room(command.uid, decision.reason)
            self._refuse(command, decision, token)
        else:
            self._refuse(command, self._still_waits(command, decision), token)

    def _try(self, command: Schedule, token: object) -> Decision | None:
        """Place a pod if it fits somewhere; return the refusal if not."""
        decision, allocation = self.decider.place(command)
        self.counters.decided += 1
        if allocation is None:
            return decision
        self.snapshot.add(decision.node, allocation)
        self.quotas.promise(decision.node, allocation)
        self._put(Addition(command, token, allocation, decision, encode(decision)))
        return None

    # Room for pods that others go for

    def make_room(self, lapsed: Callable[[object], bool] = lambda _: False) -> None:
        """Look at one of the pods that fit nowhere and for which others may be evicted. It takes long: do other work between.

        Args:
            lapsed: Tells of a token whether its command has gone to somebody else by now, who will look at the pod.
        """
        seeker = self.rooms.take()
        if seeker is None or lapsed(seeker.token):
            return
        command, _, token = seeker
        if self._places.first(command.uid) is not None:  # another allocator has placed it meanwhile
            self.schedule(command, token)
            return
        decision = self._try(command, token)
        if decision is None:
            return
        # Another allocator may have made room for it meanwhile, or nobody could be evicted for one of its like.
        if self.rooms.first(command.uid) is not None or not self.rooms.may(command, decision.reason):
            self._refuse_or_wait(command, decision, token)
            return
        budgets = self.rooms.budgets(command)
        now_s = self.cluster.time_s
        room = None
        if budgets is not None:
            pod = command.namespace, command.name, command.uid, command.request, command.created_s
            self._learn_ages()
            with self.quotas.expecting(command.namespace, self._kept(command.namespace)):
                room = self.decider.make_room(Preempt(*pod, now_s, now_s + KEPT_S, budgets))
        if room is None:
            self.rooms.in_vain(command)
            self._refuse(command, decision, token)
            return
        self.counters.decided += 1 + len(room.evicted)
        evicted = [(told, encode(told)) for told in room.evicted]
        self._keeping[command.uid] = keep = Keep(
            command, token, room.hold, room.decision, encode(room.decision), evicted, room.displaced
        )
        self._shelf.queue(room.node, keep)

    def _learn_ages(self) -> None:
        """Have decisions see since when pods stand that we have placed, on nodes where nothing is on its way."""
        offered = self.offers.nodes()
        for node in list(self._ageless)[:AGED_AT_ONCE]:
            del self._ageless[node]
            book = self._shelf.book(node)
            if book.quiet and node not in offered:
                self._show_held(book)
            else:
                self._ageless[node] = None

    def _kept(self, namespace: str) -> Iterable[Allocation]:
        """Return what is kept, or about to be, for pods of a namespace that do not stand yet."""
        holds = [keep.hold for keep in self._keeping.values()] + [known.hold for known in self.rooms]
        kept = {hold.key: hold.allocation for hold in holds if hold.allocation.namespace == namespace}
        return [
            held
            for held in kept.values()
            if held.pod_uid not in self._pending and self._places.first(held.pod_uid) is None
        ]

    def _still_waits(self, command: Schedule, refused: Decision) -> Decision:
        """Tell a pod that room is kept for whom it waits, and see to it that they have been told to go."""
        known = self.rooms.first(command.uid)
        if known is None:
            return refused
        held = self._shelf.book(known.node).held
        left = [victim for victim in known.hold.victims if victim.uid in held]
        self.effects.recoveries.append(Recovery(command, known.hold.allocation.since, None, None, room=True))
        return self.decider.tell(still_leaving(known.node, known.hold, left, refused), command)

    def _give_up_room(self, uid: str, why: str, but: str = "") -> None:
        """Keep room for a pod no more, on any node or any but one."""
        for known in self.rooms.all_of(uid):
            if known.node != but:
                self._lift(known.node, known.hold, why)

    def _lift(self, node: str, hold: Hold, why: str) -> None:
        if self._shelf.book(node).expected_hold(hold.key) is None:
            return
        kept, pod = self.snapshot.held(node, hold.key), hold.allocation
        command = Release(namespace=pod.namespace, name=pod.name, uid=hold.key, pool=pod.pool, node=node, reason=why)
        decision = self.decider.release(command, ": room is kept no more", node, kept.gpus if kept is not None else ())
        self.snapshot.remove(node, hold.key)
        self._shelf.queue(node, Removal(command, None, decision, encode(decision), silent=True))

    def _settle_room(self, item: Keep, node: str, seq: int) -> None:
        """Our record that keeps room has been seen in the ledger: tell the pod to wait, and the others to go."""
        uid, first = item.command.uid, self.rooms.first(item.command.uid)
        said = Announcement(f"{uid}:{seq}:room", item.decision, item.encoded, item.token, refused=item.command)
        if self._places.first(uid) is not None:
            self._give_up_room(uid, "Placed")
            self._recover(item.command, item.token)
        elif first is None or first.node != node or self.cluster.waiting.ended(uid) or self._over_quota(item, seq):
            # Another allocator has made room before, for this pod or all that its quota allows, or nobody needs it any more.
            self._lift(node, item.hold, "Superseded")
            self.effects.announcements.append(said)
        else:
            self.effects.announcements += [
                Announcement(f"{told.pod_uid}:{seq}:evicted", told, encoded, None) for told, encoded in item.evicted
            ]
            if item.decision.preemption is not None:
                said.evict = Evict(preemption=item.decision.preemption, since=seq)
            self.effects.announcements.append(said)
            self.counters.rooms += 1
            self.counters.evicted += len(item.evicted)
        for key in item.displaced:
            self.cluster.recheck(key.removeprefix(HOLD))
        self.cluster.grow_by_ledger(node, seq)  # what it displaced may have been all that had to go

    def _over_quota(self, item: Keep, seq: int) -> bool:
        """Whether the quota of its namespace has no room for it beside what has been kept for longer."""
        kept = [
            held for held in self._kept(item.namespace) if 0 < held.since < seq and held.pod_uid != item.command.uid
        ]
        with self.quotas.expecting(item.namespace, kept):
            refused = self.quotas.refuse(item.namespace, item.command.request, item.hold.allocation.usage())
        return refused is not None

    def _sweep_rooms(self) -> None:
        """Give up room that nobody waits for, or that was kept long enough."""
        now_s = self.cluster.time_s
        for node, hold in list(self.rooms):
            uid = hold.allocation.pod_uid
            waiting = self.cluster.waiting.get(uid)
            if self._places.first(uid) is not None or self.cluster.waiting.ended(uid):
                self._lift(node, hold, "NotNeeded")
            elif self._is_out(node):
                self._lift(node, hold, reasons.NODE_NOT_READY)  # it is sought anew, elsewhere
            elif now_s > hold.until_s:
                self._lift(node, hold, reasons.EVICTION_OVERDUE)
                if waiting is not None:
                    held = self._shelf.book(node).held
                    left = [victim for victim in hold.victims if victim.uid in held]
                    member = waiting[0].command()
                    self._tell(member, self.decider.tell(overdue_eviction(node, hold, left), member))
            elif waiting is None and uid not in self._pending and now_s > hold.until_s - KEPT_S + UNCLAIMED_S:
                self._lift(node, hold, "Unclaimed")

    def _is_out(self, node: str) -> bool:
        """Whether the node takes no pods at all, as far as it is known and its record can be written."""
        host = self.snapshot.host(node)
        return (host is None or host.stage != 0) and not self._shelf.book(node).frozen

    def _form(self, gang: Gang, command: Schedule, token: object) -> None:
        """Place a gang that does not stand, ``command`` and all members that wait, or none of them."""
        if any(item.gang == gang.key for item in self._pending.values()):
            self._refuse(command, self.decider.tell(being_placed(gang, command.request), command), token)
            return
        if gang.timeout_s and not self.cluster.waiting.of_gang(gang.key):
            self.effects.timers.append((gang, None))
        found = self._former.form(gang, command)
        self.counters.decided += len(found.placed) + len(found.refused)
        for member, decision in found.refused:
            if member is command:
                self._refuse(member, decision, token)
            else:
                self._tell(member, decision)
        formation = Formation()
        for member, decision, allocation in found.placed:
            mine = token if member is command else None
            formation.additions.append(Addition(member, mine, allocation, decision, encode(decision), formation))
        for addition in formation.additions:
            self._put(addition)

    def gang_overdue(self, key: str, token: object) -> bool:
        """The time that a gang was given is over. Return whether its members are told; else there is nothing to say."""
        waiting = [pod for pod, _ in self.cluster.waiting.of_gang(key)]
        gang = waiting[0].request.gang if waiting else None
        if gang is None or len(waiting) >= gang.min_members or self.cluster.gangs.standing(key):
            return False
        for pod in waiting:
            member = pod.command()
            self._tell(
                member,
                self.decider.tell(overdue(gang, len(waiting), pod.request), member),
                token if pod is waiting[-1] else None,
            )
        return True

    def _tell(self, member: Schedule, decision: Decision, token: object = None) -> None:
        """Tell of a member that goes on waiting, under the record that it has."""
        event_id = f"{member.uid}:{self.name}:{decision.basis.ordinal}"
        self.effects.announcements.append(Announcement(event_id, decision, encode(decision), token, waits=True))

    def _put(self, addition: Addition) -> None:
        """Have a pod committed that is booked in the snapshot."""
        self._pending[addition.uid] = addition
        self._shelf.queue(addition.decision.node, addition)

    def _refuse(self, command: Schedule, decision: Decision, token: object) -> None:
        self.counters.refused += 1
        self.decider.settled(command.uid)
        waits = None if command.way == "extender" else command  # kube-scheduler has a queue of its own
        self._announce(f"{command.uid}:{self.name}:{decision.basis.ordinal}", decision, token, refused=waits)

    def _remove(self, node: str, command: Release, token: object, *, silent: bool = False) -> None:
        held = {a.pod_uid: a for a in self._shelf.book(node).expected_allocations()}.get(command.uid)
        if held is None:  # taken back already, as a duplicate
            if not silent:
                self.release_nothing(command, token)
            return
        decision = self.decider.release(command, ": gave back what it held", node, held.gpus)
        removal = Removal(command, token, decision, encode(decision), silent, held.gang)
        if not silent:
            self._removing[command.uid] = removal
        self.snapshot.remove(node, command.uid)
        self._shelf.queue(node, removal)

    def flush(self) -> None:
        """Turn queued changes into commits, at most one per node in flight, and those that need other keys into a bundle."""
        if not self.quotas and not self._shelf.knows_gangs:
            self.effects.commits += self._shelf.begin()
            return
        for namespace in self.quotas.overdrawn():
            self.offers.drop_namespace(namespace)
            promised = [item for item in self._pending.values() if item.namespace == namespace]
            while promised and self.quotas.is_overdrawn(namespace):
                self._reschedule(self._take_back(promised.pop()))
        self.effects.commits += self._shelf.begin(self._sealer.joins)
        bundle = self._shelf.bundle_up()
        if bundle is None:
            return
        if self._sealer.seal(bundle, self.cluster.ledger_seq):
            self.effects.commits.append(bundle)
        else:
            self._retry(self._lose(bundle))

    def _take_back(self, ours: Addition) -> list[Addition]:
        """Undo a placement that has not left yet, with all that was to leave with it, and return what that was."""
        if ours not in self._shelf.book(ours.decision.node).queued:
            return []
        members = ours.formation.additions if ours.formation is not None else [ours]
        for member in members:
            book = self._shelf.book(member.decision.node)
            book.queued.remove(member)
            self.snapshot.remove(book.node, member.uid)
            self.journal.drop(member.uid, book.node)
            self._forget(member)
            self._give_up_room(member.uid, "NotNeeded")  # what was kept for it counts as its own since it was placed
        return members

    def _reschedule(self, additions: list[Addition]) -> None:
        """Decide anew what was taken back or lost: one pod, or a formation, for which the command of one member stands."""
        if not additions:
            return
        lead = next((addition for addition in additions if addition.token is not None), additions[0])
        self.effects.again += [a.token for a in additions if a is not lead and a.token is not None]
        self.schedule(lead.command, lead.token)

    def tokens(self) -> list[object]:
        """Return the tokens of everything on its way."""
        ours: tuple[Iterable[Item], ...] = (self._pending.values(), self._removing.values(), self._keeping.values())
        return [item.token for items in ours for item in items] + self.rooms.tokens()

    @property
    def busy(self) -> int:
        """Number of nodes with a commit in flight or changes queued."""
        return self._shelf.busy

    @property
    def pending(self) -> int:
        """Number of pods placed but not yet seen in the ledger."""
        return len(self._pending)

    # Answers to commits

    def stored(self, flight: Commit | Bundle, seq: int) -> None:
        """The server stored our record at ``seq``, or all of a bundle from there on."""
        for at, commit in enumerate(flight.commits, seq):
            book = self._shelf.book(commit.node)
            if book.flying is commit:  # or else the ledger showed it to us before the acknowledgement came
                book.unseen.append((at, self._landed(book, at)))
        if flight is self._shelf.bundle:
            for at, seal in enumerate(flight.seals, seq + len(flight.commits)):
                self._shelf.put_key(seal.subject, at)
                self._sealer.heard(seal.name, seal.record)
            self._shelf.bundle_won()

    def is_flying(self, flight: Commit | Bundle) -> bool:
        """Whether the core still waits to learn what became of the commit."""
        return any(self._shelf.book(commit.node).flying is commit for commit in flight.commits)

    def given_up(self, flight: Commit | Bundle) -> None:
        """No answer came and the ledger, read to its end, does not hold the record: let others have the pods."""
        for commit in flight.commits:
            book = self._shelf.book(commit.node)
            if book.flying is commit:
                for item in self._overtaken(book):
                    self._forget(item)
                    self.effects.again.append(item.token)
                self._show_held(book)

    def _overtaken(self, book: Book) -> list[Item]:
        """Somebody else's record came before ours: return all that must be decided anew, on other nodes too."""
        bundle = self._shelf.bundle if book.flying is not None and self._shelf.is_joint(book.flying) else None
        items = book.overtaken()
        items += self._lose(bundle) if bundle is not None else []
        return items + self._others(items)

    def _lose(self, bundle: Bundle) -> list[Item]:
        """The bundle will never land: return what it was to change."""
        self._shelf.bundle_lost()
        items = []
        for commit in bundle.commits:
            book = self._shelf.book(commit.node)
            if book.flying is commit:
                items += book.overtaken()
                self._show_held(book)
        return items + self._others(items)

    def _others(self, items: list[Item]) -> list[Item]:
        """Pull the rest of the formations of which some members are lost, and return it."""
        formations = {
            id(i.formation): i.formation for i in items if isinstance(i, Addition) and i.formation is not None
        }
        others: list[Item] = []
        for formation in formations.values():
            for member in formation.additions:
                book = self._shelf.book(member.decision.node)
                if member in book.queued:
                    book.queued.remove(member)
                    self.snapshot.remove(book.node, member.uid)
                    self.journal.drop(member.uid, book.node)
                    others.append(member)
        return others

    def _show_held(self, book: Book) -> None:
        """Have decisions see the node as the ledger has it, without anything of ours that is on its way."""
        self.offers.swept(book.node)
        self._ageless.pop(book.node, None)
        self.snapshot.set_allocations(book.node, book.charges())
        self.journal.adopt(book.node, book.seq)

    def _landed(self, book: Book, seq: int) -> Commit:
        before, kept = book.held, book.holds
        commit = self._shelf.landed(book, seq)
        self.rooms.note(book.node, kept, book.holds)
        if self.quotas or self._shelf.knows_gangs:
            gone, come = before.keys() - book.held.keys(), book.held.keys() - before.keys()
            self._sealer.settle(book.node, [before[uid] for uid in gone], [book.held[uid] for uid in come])
        return commit

    # What the bus says

    def on_ledger(self, node: str, record: Record) -> None:
        """A ledger record of ``node``, in stream order.

        Raises:
            UndecodableError: The record cannot be read. The node is frozen: it takes nothing more until a good one comes.
        """
        self.cluster.ledger_seq = max(self.cluster.ledger_seq, record.seq)
        book = self._shelf.book(node)
        while book.unseen and book.unseen[0][0] <= record.seq:
            seq, mine = book.unseen.pop(0)
            self._settle(mine, seq)
        if record.seq <= book.seq:
            return
        if book.flying is not None and record.payload == book.flying.payload:
            self._land_seen(book, record.seq)
            return
        newest = link(record.payload)
        try:
            data = None if record.deleted else codec.decode_as(NodeRecord, record.payload).data
            if data is not None:
                codec.check_name(data.node, node)
        except UndecodableError:
            self._freeze(book, record.seq)
            book.newest = newest
            raise
        if data is not None and book.flying is not None and data.txn == book.flying.txn:
            self._land_seen(book, record.seq)
        else:
            self._adopt(book, record.seq, data)
        book.newest = newest

    def on_key(self, kind: str, name: str, record: Record) -> None:
        """A ledger record of a key that is no node, in stream order: a quota's or a gang's.

        Raises:
            UndecodableError: The record cannot be read. The next batch replaces it with what the nodes' records add up to.
        """
        self.cluster.ledger_seq = max(self.cluster.ledger_seq, record.seq)
        if record.seq <= self._shelf.key(record.subject):
            return
        self._shelf.put_key(record.subject, record.seq)
        bundle = self._shelf.bundle
        sealed = [seal.subject for seal in bundle.seals] if bundle is not None else []
        txn = ""
        try:
            txn = self._sealer.read(kind, name, record)
        finally:
            if bundle is not None and txn == bundle.txn:
                if record.subject == sealed[-1]:  # its nodes' records came before
                    self._shelf.bundle_won()
            else:
                if bundle is not None and record.subject in sealed:
                    self._retry(self._lose(bundle))
                if kind == "gang":
                    for item in [item for item in self._pending.values() if item.gang == name]:
                        self._reschedule(self._take_back(item))

    def _land_seen(self, book: Book, seq: int) -> None:
        """The ledger shows our record before its acknowledgement came."""
        self._settle(self._landed(book, seq), seq)

    def _adopt(self, book: Book, seq: int, data: NodeRecord | None) -> None:
        """Take over a record that somebody else wrote, and decide anew what it overtook."""
        before, kept = book.held, book.holds
        if book.frozen:
            self.cluster.grow_by_ledger(book.node, seq)
        book.seq, book.frozen = seq, False
        book.held = {a.pod_uid: a.known_since(seq) for a in (data.allocations if data is not None else ())}
        book.holds = {hold.key: kept_since(hold, seq) for hold in (data.holds if data is not None else ())}
        self.rooms.note(book.node, kept, book.holds)
        for key in kept.keys() - book.holds.keys():
            self.cluster.grow_by_ledger(book.node, seq)
            self.cluster.recheck(key.removeprefix(HOLD))
        items = self._overtaken(book)
        gone, come = before.keys() - book.held.keys(), book.held.keys() - before.keys()
        self._sealer.settle(book.node, [before[uid] for uid in gone], [book.held[uid] for uid in come])
        self.quotas.node_readable(book.node, readable=True)
        for uid in gone:
            self._places.remove(uid, book.node, seq)
            self.cluster.grow_by_ledger(book.node, seq)
        for change in data.changes if data is not None else ():  # tells a new allocator who left just before it came
            if change.op == "remove" and change.pod_uid not in book.held:
                self._places.remove(change.pod_uid, book.node, seq)
        for uid in come:
            self._places.add(uid, book.node, book.held[uid].since)
            self._withdraw(uid)
        self._show_held(book)
        self._retry(items)
        if data is not None and self._shelf.wrote(data.txn):
            # A commit of ours that we had given up landed after all.
            for uid in come:
                self._undo_duplicate(uid, book.node)

    def _withdraw(self, uid: str) -> None:
        """Another allocator has placed the pod: if ours has not left yet, let it not leave."""
        self.offers.drop(uid)
        ours = self._pending.get(uid)
        if ours is not None:
            self._reschedule(self._take_back(ours))

    def _retry(self, items: list[Item]) -> None:
        self.counters.overtaken += len(items)
        additions = [item for item in items if isinstance(item, Addition)]
        for addition in additions:
            self._forget(addition)
            self.decider.overtaken(addition.decision)
        for item in items:
            if not isinstance(item, Removal):
                continue
            book = self._shelf.book(item.decision.node)
            if item.uid in book.held or item.uid in book.holds:
                self.snapshot.remove(book.node, item.uid)
                self.journal.drop(item.uid, book.node)
                self._shelf.queue(book.node, item)
            else:
                self._forget(item)
                self.effects.again.append(item.token)  # it is gone from here, or was never here and goes elsewhere
        self._again(items)

    def _again(self, items: list[Item]) -> None:
        """Decide anew what was lost, each formation by its first member, and whether there is room to make."""
        additions = [item for item in items if isinstance(item, Addition)]
        keeps = [item for item in items if isinstance(item, Keep)]
        for keep in keeps:
            self._forget(keep)
        formations: dict[int, list[Addition]] = {}
        for addition in additions:
            formations.setdefault(id(addition.formation or addition), []).append(addition)
        for members in formations.values():
            self._reschedule(members)
        for keep in keeps:
            self.schedule(keep.command, keep.token)

    def _freeze(self, book: Book, seq: int) -> None:
        book.seq, book.frozen = seq, True
        items = self._overtaken(book)
        self.offers.clear(book.node)
        self.quotas.node_readable(book.node, readable=False)
        self.snapshot.freeze(book.node)
        self.journal.freeze(book.node)
        for item in items:
            self._forget(item)
            if isinstance(item, Removal):
                self.effects.again.append(item.token)
        self._again(items)

    def _settle(self, commit: Commit, seq: int) -> None:
        """Our record has been seen in the ledger: announce what it changed."""
        for item in commit.items:
            self._forget(item)
            if isinstance(item, Addition):
                self.decider.settled(item.uid)
                self._ageless[commit.node] = None
                self._places.add(item.uid, commit.node, seq)
                self._give_up_room(item.uid, "Placed", commit.node)
                if self._undo_duplicate(item.uid, commit.node):
                    self._recover(item.command, item.token)  # whoever placed it first may have died over it
                    if item.formation is not None:
                        self.effects.announcements += item.formation.settled(None)
                    continue
                self.counters.placed += 1
                said = Announcement(f"{item.uid}:{seq}", item.decision, item.encoded, item.token)
                self.effects.announcements += [said] if item.formation is None else item.formation.settled(said)
            elif isinstance(item, Keep):
                self._settle_room(item, commit.node, seq)
            else:
                self.cluster.grow_by_ledger(commit.node, seq)
                if item.uid.startswith(HOLD):
                    self.cluster.recheck(item.uid.removeprefix(HOLD))
                    continue
                self._places.remove(item.uid, commit.node, seq)
                if item.silent:
                    continue
                self.counters.released += 1
                token = item.token
                duplicate = self._places.first(item.uid)
                if duplicate is not None:  # nobody has undone it yet: the command is done when that is gone too
                    self._remove(duplicate.node, item.command, token)
                    token = None
                # One record may both add and remove a pod, so the sequence alone does not tell the two decisions apart.
                self._announce(f"{item.uid}:{seq}:released", item.decision, token, item.encoded)

    def _forget(self, item: Item) -> None:
        """The item is on its way no more."""
        if isinstance(item, Addition):
            self._pending.pop(item.uid, None)
            self.quotas.withdraw(item.decision.node, item.allocation)
        elif isinstance(item, Keep):
            self._keeping.pop(item.command.uid, None)
        elif self._removing.get(item.uid) is item:
            del self._removing[item.uid]

    def _undo_duplicate(self, uid: str, node: str) -> bool:
        """If the pod stood elsewhere first, take back what we gave it here."""
        first = self._places.first(uid)
        if first is None or first.node == node:
            return False
        self.counters.duplicates += 1
        held = self._shelf.book(node).held.get(uid)
        if held is not None:
            command = Release(
                namespace=held.namespace, name=held.name, uid=uid, pool=held.pool, node=node, reason=DUPLICATE
            )
            self._remove(node, command, None, silent=True)
        return True

    def _announce(
        self,
        event_id: str,
        decision: Decision,
        token: object,
        encoded: msgspec.Raw | None = None,
        *,
        refused: Schedule | None = None,
    ) -> None:
        said = Announcement(event_id, decision, encoded or encode(decision), token, refused)
        self.effects.announcements.append(said)

    def ledger_recreated(self) -> None:
        """The LEDGER stream is another one than before: its sequences start anew."""
        self.cluster.ledger_seq = 0
        self._shelf.recreated()
        for book in self._shelf.books():
            for _, commit in book.unseen:
                for item in commit.items:
                    self._forget(item)
                    self.effects.again.append(item.token)
            book.unseen.clear()

    def sweep(self) -> None:
        """Look at everything again that events or their readers may have missed."""
        self.cluster.sweep()
        self.undo_duplicates()
        self._sweep_rooms()
        self.effects.timers += [(gang, since) for gang, since in self.cluster.waiting.gangs() if gang.timeout_s]
        self.effects.wakes += self.rooms.to_wake(SEEKERS_PER_SWEEP)
        for uid in self.cluster.waiting.all():
            entry = self.cluster.waiting.get(uid)
            if entry is not None:
                self._settle_waiting(entry[0])

    def undo_duplicates(self) -> None:
        """Take back every later placement of a pod that stands on two nodes, whoever made it and died over it."""
        for uid, place in self._places.later():
            held = self._shelf.book(place.node).held.get(uid)
            if held is not None and not any(item.uid == uid for item in self._shelf.book(place.node).queued):
                self._undo_duplicate(uid, place.node)

    def on_state(self, record: Record) -> None:
        """A record of STATE, in stream order.

        Raises:
            UndecodableError: It cannot be read; see :meth:`Cluster.on_state`.
        """
        try:
            waiting = self.cluster.on_state(record)
        finally:
            for namespace in self.cluster.take_newly_bound():
                held = ((book.node, a) for book in self._shelf.books() for a in book.held.values())
                promised = ((item.decision.node, item.allocation) for item in self._pending.values())
                self.quotas.fill(namespace, held, promised)
        self.decider.settle_home()
        if waiting is not None and self.cluster.waiting.ended(waiting.uid):
            self.effects.ended.append((waiting, record.seq))
        elif waiting is not None:
            self._settle_waiting(waiting)

    def _settle_waiting(self, pod: Waiting) -> None:
        """A pod that stands somewhere waits no more: one allocator refused it while another placed it, and may have died."""
        self._recover(pod.command(), None)

    def wake(self) -> list[tuple[Waiting, int]]:
        """Return the waiting pods to try again after what has grown; see :meth:`Cluster.wake`."""
        return self.cluster.wake(
            self.decider.trial(), lambda uid: uid in self._pending or self._places.first(uid) is not None
        )

    def take_effects(self) -> Effects:
        """Return what is to be done and start a new list."""
        effects, self.effects = self.effects, Effects()
        return effects
