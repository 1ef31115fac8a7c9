"""Any interleaving of two or three allocator cores, a network and a compare-and-set log keeps every promise of the ledger.

The machine below owns all time: it decides which commit the server takes next, which answer is lost, how far behind each
core reads, who is killed and what is delivered twice. No I/O; the streams are lists.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bus import codec, subjects
from bus.capacity import limits_of
from bus.chain import link
from bus.errors import UndecodableError
from bus.follower import Record
from bus.invariants import LedgerChecker
from consumers.allocator.announcer import Announcer, waiting_subject
from consumers.allocator.book import Commit
from consumers.allocator.bundle import Bundle
from consumers.allocator.core import Core
from consumers.allocator.effects import Recovery
from consumers.allocator.engine import Snapshot
from consumers.allocator.replay import Replay, completed
from consumers.allocator.room import Room
from consumers.allocator.service import UNKNOWN_RELEASE_TRIES
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.decision import Decision
from schemas.event import Event
from schemas.journal import Preempt, Turn
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import GpuRequest, Release, Schedule, Waiting
from schemas.preemption import DisruptionBudget, Evict
from schemas.quota import Budget, Quota
from schemas.registry import TYPE_NAMES, Presence
from schemas.requirements import Gang

NOW = datetime(2026, 11, 30, tzinfo=UTC)
POOL = Pool(name="p", preemption="cluster")
NODES = ("a", "b", "c")
GPUS = 2
START_S = int(NOW.timestamp())
ROUNDS = 80
"""Rounds in which a world that is left alone must come to rest."""

SHAPES = {
    "small": GpuRequest(pool="p", compute_milli=400, vram_milli=400),
    "urgent": GpuRequest(pool="p", compute_milli=600, vram_milli=600, priority=5),
    "critical": GpuRequest(pool="p", compute_milli=900, vram_milli=900, priority=9),
    "alone": GpuRequest(pool="p", dedicated=True, compute_milli=100, vram_milli=100, priority=7),
    "protected": GpuRequest(pool="p", compute_milli=700, vram_milli=700, eviction_protection_s=1000),
    "whole": GpuRequest(pool="p", compute_milli=1000, vram_milli=1000),
    "pair": GpuRequest(pool="p", compute_milli=700, vram_milli=700, count=2),
}

BOUND = "q"
"""The namespace that has a quota, now and then."""

QUOTAS = {
    "none": None,
    "nothing": Budget(workers=0),
    "two pods": Budget(workers=2),
    "three GPUs": Budget(gpus=3),
    "little VRAM": Budget(vram_bytes=1500),
    "many pods": Budget(workers=9, tflops_milli=99_000),
}


def encoded(data: msgspec.Struct, event_id: str) -> bytes:
    kind = TYPE_NAMES[type(data)]
    return codec.encode(Event(id=event_id, source="/test", type=kind, subject="s", time=NOW, data=data))


def inventory(node: str) -> GpuInventory:
    gpus = [
        GpuDevice(uuid=f"{node}{index}", index=index, model="m", tflops_milli=1000, vram_bytes=1000)
        for index in range(GPUS)
    ]
    return GpuInventory(node=node, gpus=gpus, observed_at=NOW)


class Stream:
    """A JetStream stream: one order of records, compare-and-set per subject, one copy per message id."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.newest: dict[str, Record] = {}
        self._ids: set[str] = set()
        self.now_s = START_S

    def publish(self, subject: str, payload: bytes, *, msg_id: str = "", expected: int | None = None) -> int | None:
        """Return the sequence of the new record, or None when it is refused or a copy."""
        before = self.newest.get(subject)
        if expected is not None and expected != (before.seq if before else 0):
            return None
        if msg_id and msg_id in self._ids:
            return None
        self._ids.add(msg_id)
        record = Record(
            subject, len(self.records) + 1, payload, deleted=not payload, time_ns=self.now_s * 1_000_000_000
        )
        self.records.append(record)
        self.newest[subject] = record
        return record.seq

    def publish_all(self, writes: list[tuple[str, bytes, int]]) -> int | None:
        """Publish all as one atomic batch, or none; return the sequence of the first."""
        for subject, _, expected in writes:
            before = self.newest.get(subject)
            if expected != (before.seq if before else 0):
                return None
        return min(self.publish(subject, payload) or 0 for subject, payload, _ in writes)

    def last_per_subject(self) -> list[Record]:
        return sorted(self.newest.values(), key=lambda record: record.seq)


@dataclass(eq=False)
class Command:
    """A message of the work queue."""

    what: Schedule | Release
    deliveries: int = 0
    settled: bool = False


@dataclass(eq=False)
class Lease:
    """One delivery of a command; any of them acknowledges it."""

    command: Command
    number: int


@dataclass(eq=False)
class Flight:
    """A commit after it left its allocator. ``seq`` is the server's answer: None for a conflict."""

    owner: "Member"
    commit: Commit | Bundle
    answered: bool = False
    lost: bool = False
    read_to_end: bool = False
    seq: int | None = None


@dataclass(eq=False)
class Post:
    """Messages on their way and the leases to acknowledge once they are stored."""

    messages: list[tuple[str, bytes, str]] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    recovery: Recovery | None = None
    cleared: tuple[Waiting, int] | None = None


class Outbox(Announcer):
    """What the announcer says, kept until the world lets it through."""

    def __init__(self) -> None:
        super().__init__(None, "test", "/test")  # type: ignore[arg-type]  # it never speaks
        self.posts: list[Post] = []

    def _send(self) -> None:
        if self._messages:
            self.posts.append(Post(self._messages, leases(self._tokens)))
            self._messages, self._tokens = [], []

    def clear(self, pod: Waiting, seq: int) -> None:
        self.posts.append(Post(cleared=(pod, seq)))

    def recover(self, recoveries: Iterable[Recovery]) -> None:
        for found in recoveries:
            self.posts.append(Post(recovery=found, cleared=found.waiting, leases=leases([found.token])))

    def give_back(self, tokens: Iterable[object]) -> None:
        """Nothing to do: whatever is not acknowledged may be delivered again at any time."""


def leases(tokens: Iterable[object]) -> list[Lease]:
    return [token for token in tokens if isinstance(token, Lease)]


class Member:
    """One allocator: a core, how far it has read each stream, and what it wants published."""

    def __init__(self, name: str, state: Stream, ledger: Stream) -> None:
        self.core = Core(name, lambda: 0)
        self.outbox = Outbox()
        self.made: list[Decision] = []
        self.turns: list[bytes] = []
        self._remember()
        self._state, self._ledger = state, ledger
        for record in state.last_per_subject():
            self.core.on_state(record)
        for record in ledger.last_per_subject():
            self._apply(record)
        self._state_at, self._ledger_at = len(state.records), len(ledger.records)

    def _remember(self) -> None:
        """Keep every decision that is made, those that nobody ever hears of included."""
        decider = self.core.decider
        place, release, tell, make_room = decider.place, decider.release, decider.tell, decider.make_room

        def placed(command: Schedule) -> tuple[Decision, Allocation | None]:
            decision, held = place(command)
            self.made.append(decision)
            return decision, held

        def released(*args) -> Decision:
            self.made.append(release(*args))
            return self.made[-1]

        def told(*args) -> Decision:
            self.made.append(tell(*args))
            return self.made[-1]

        def made_room(step: Preempt) -> Room | None:
            room = make_room(step)
            self.made += [room.decision, *room.evicted] if room is not None else []
            return room

        decider.place, decider.release, decider.tell, decider.make_room = placed, released, told, made_room

    def hear_state(self, most: int = 1_000_000) -> None:
        for record in self._state.records[self._state_at : self._state_at + most]:
            self._state_at += 1
            self.core.on_state(record)

    def hear_ledger(self, most: int = 1_000_000) -> None:
        for record in self._ledger.records[self._ledger_at : self._ledger_at + most]:
            self._ledger_at += 1
            self._apply(record)

    def _apply(self, record: Record) -> None:
        _, kind, name = subjects.names(record.subject)
        with contextlib.suppress(UndecodableError):
            if kind == "node":
                self.core.on_ledger(name, record)
            else:
                self.core.on_key(kind, name, record)

    def pump(self) -> list[Commit | Bundle]:
        """Do what the service does after every change; return the commits to send."""
        core, outbox = self.core, self.outbox
        outbox.wake(core.wake())
        core.make_room()
        core.flush()
        self.turns += map(codec.encode, core.journal.take())
        effects = core.take_effects()
        core.effects.unknown = effects.unknown
        outbox.announce(effects.announcements, core.cluster.waiting)
        outbox.recover(effects.recoveries)
        outbox.wake(effects.wakes)
        outbox.give_back(effects.again)
        for pod, seq in effects.ended:
            outbox.clear(pod, seq)
        return effects.commits


class World:
    """The bus, the members, the network between them, and what the pods' owners know."""

    def __init__(self, members: int) -> None:
        self.state, self.ledger = Stream(), Stream()
        self.checker = LedgerChecker({n: limits_of(self.node(n), inventory(n), POOL) for n in NODES})
        self.commands: dict[str, Command] = {}
        self.decisions: dict[str, Decision] = {}
        self.verdicts: defaultdict[str, list[Decision]] = defaultdict(list)
        self.wire: list[Flight] = []
        self.pods: dict[str, Schedule] = {}
        self.gone: set[str] = set()
        self.cordoned: set[str] = set()
        self.poisoned: dict[str, NodeRecord | None] = {}
        self.good: dict[str, NodeRecord] = {}
        self.holders: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.came_first: set[str] = set()
        self.deliveries: defaultdict[str, int] = defaultdict(int)
        self._names = 0
        self._repairs = 0
        self._quotas = 0
        self._gangs = 0
        self._budgets = 0
        self.evicted: set[str] = set()
        self.missing: list[tuple[GpuRequest, str]] = []
        self._publish_state("pool", "p", POOL)
        for name in NODES:
            self._publish_state("node", name, self.node(name))
            self._publish_state("gpu", name, inventory(name))
        self.flights: list[Flight] = []
        self.members = [self._member() for _ in range(members)]

    def node(self, name: str, *, cordoned: bool = False) -> Node:
        return Node(name=name, pool="p", cpu_milli=1000, memory_bytes=1000, unschedulable=cordoned)

    def _publish_state(self, kind: str, name: str, data: msgspec.Struct) -> None:
        self.state.publish(subjects.state(kind, name), encoded(data, f"{kind}:{name}"))

    def _member(self) -> Member:
        """Start an allocator, which tells the others that it is there."""
        self._names += 1
        name = f"m{self._names}"
        self._publish_state("allocator", name, Presence(role="allocator", name=name))
        return Member(name, self.state, self.ledger)

    # The owners of pods

    def create_gang(self, size: int, missing: int, shape: str, namespace: str) -> list[Command]:
        """Create the members of a gang, of which some have yet to come."""
        self._gangs += 1
        gang = Gang(key=f"{namespace}/w{self._gangs}", min_members=size)
        request = msgspec.structs.replace(SHAPES[shape], gang=gang)
        self.missing += [(request, namespace)] * missing
        return [self.create(request, namespace) for _ in range(size - missing)]

    def complete_a_gang(self) -> Command:
        return self.create(*self.missing.pop())

    def create(self, shape: GpuRequest, namespace: str = "d") -> Command:
        uid = f"u{len(self.pods)}"
        command = self.pods[uid] = Schedule(
            namespace=namespace, name=uid, uid=uid, request=shape, created_s=self.state.now_s
        )
        return self._command(f"{uid}:schedule", command)

    def delete(self, uid: str, cause: str = "") -> None:
        self.gone.add(uid)
        namespace = self.pods[uid].namespace
        self._command(f"{uid}:release:{cause}", Release(namespace=namespace, name=uid, uid=uid, pool="p"))

    def allow(self, budget: Budget | None) -> None:
        self._quotas += 1
        subject = subjects.state("quota", BOUND, "it")
        quota = Quota(namespace=BOUND, name="it", total=budget) if budget is not None else None
        self.state.publish(subject, encoded(quota, f"quota:{self._quotas}") if quota is not None else b"")

    def cover(self, allowed: int, pods: tuple[str, ...]) -> None:
        """Have a disruption budget cover some pods."""
        self._budgets += 1
        budget = DisruptionBudget(namespace="d", name="b", allowed=allowed, pods=pods)
        self.state.publish(subjects.state("disruption", "d", "b"), encoded(budget, f"budget:{self._budgets}"))

    def pass_time(self, seconds: int) -> None:
        """Let time pass, in which allocators say that they are there."""
        self.state.now_s += seconds
        for member in self.members:
            self._publish_state("allocator", member.core.name, Presence(role="allocator", name=member.core.name))

    def evict(self, command: Evict) -> None:
        """Play the actuator: have the victims go unless the command is void."""
        said = command.preemption
        record = self.ledger.newest[subjects.ledger_node(said.node)]
        try:
            data = codec.decode_as(NodeRecord, record.payload).data
        except UndecodableError:
            return
        if any(hold.allocation.pod_uid == said.preemptor.uid for hold in data.holds):
            for victim in said.victims:
                assert victim.uid in self.pods
                self.evicted.add(victim.uid)
                self.delete(victim.uid, "evicted")

    def resize(self, which: int, member: Member, share: int) -> None:
        """Ask a member to have one of the pods that it knows to stand somewhere hold another share of its GPUs."""
        place_of = member.core.mind.places.first
        standing = [(pod, place) for pod in self.pods.values() if (place := place_of(pod.uid)) is not None]
        if standing:
            pod, place = standing[which % len(standing)]
            request = msgspec.structs.replace(pod.request, compute_milli=share, vram_milli=0, vram_bytes=share)
            member.core.resize(msgspec.structs.replace(pod, request=request, node=place.node), None)

    def cordon(self, name: str) -> None:
        self.cordoned ^= {name}
        self._publish_state("node", name, self.node(name, cordoned=name in self.cordoned))

    def _command(self, msg_id: str, what: Schedule | Release) -> Command:
        return self.commands.setdefault(msg_id, Command(what))

    def unsettled(self) -> list[Command]:
        return [command for command in self.commands.values() if not command.settled]

    # Deliveries of commands

    def deliver(self, command: Command, member: Member) -> None:
        command.deliveries += 1
        lease = Lease(command, command.deliveries)
        core = member.core
        if isinstance(command.what, Schedule):
            self.deliveries[command.what.uid] += 1
            core.schedule(command.what, lease)
            return
        core.release(command.what, lease)
        if self._take_unknown(member):
            member.hear_ledger()
            core.release(command.what, lease)
        for release, token in self._take_unknown(member):
            if token is lease and lease.number >= UNKNOWN_RELEASE_TRIES:
                core.release_nothing(release, token)

    def _take_unknown(self, member: Member) -> list[tuple[Release, object]]:
        unknown, member.core.effects.unknown = member.core.effects.unknown, []
        return unknown

    # Commits

    def pump(self, member: Member) -> None:
        sent = [Flight(member, commit) for commit in member.pump()]
        self.flights += sent
        self.wire += sent

    def say(self, member: Member) -> None:
        """Have what a member has to say published at once, and what it has to commit kept for later."""
        effects = member.core.effects
        said, effects.announcements = effects.announcements, []
        member.outbox.announce(said, member.core.cluster.waiting)
        for post in list(member.outbox.posts):
            self.post(member, post)

    def server_takes(self, flight: Flight) -> None:
        self.wire.remove(flight)
        flight.answered = True
        before_it = {c.node: self.ledger.newest.get(subjects.ledger_node(c.node)) for c in flight.commit.commits}
        for commit in flight.commit.commits:
            commit.payload = encoded(commit.record(), flight.commit.txn)
        flight.seq = self._write_all(flight.commit)
        if flight.seq is not None:
            for seq, commit in enumerate(flight.commit.commits, flight.seq):
                before = before_it[commit.node]
                assert commit.record().previous == link(before.payload if before is not None else b"")
                self._note(commit.node, commit.record(), seq)

    def _write_all(self, flight: Commit | Bundle) -> int | None:
        if isinstance(flight, Commit):
            return self._write(flight.node, encoded(flight.record(), flight.txn), expected=flight.expected)
        writes = [
            (subjects.ledger_node(commit.node), encoded(commit.record(), flight.txn), commit.expected)
            for commit in flight.commits
        ]
        writes += [(seal.subject, encoded(seal.record, flight.txn), seal.expected) for seal in flight.seals]
        seq = self.ledger.publish_all(writes)
        for at, (subject, payload, _) in enumerate(writes, seq) if seq is not None else ():
            self.checker.apply(at, subject, payload)
        return seq

    def _write(self, node: str, payload: bytes, *, expected: int | None = None) -> int | None:
        subject = subjects.ledger_node(node)
        seq = self.ledger.publish(subject, payload, expected=expected)
        if seq is not None:
            self.checker.apply(seq, subject, payload)
        return seq

    def _note(self, node: str, record: NodeRecord, seq: int) -> None:
        """Keep track of who stands where, and of which arrivals found the pod nowhere else."""
        self.good[node] = record
        for change in record.changes:
            holders = self.holders[change.pod_uid]
            if change.op == "remove":
                holders.pop(node, None)
                continue
            if node in holders:
                continue  # it holds something else there, and is as old as before
            if not holders:
                self.came_first.add(f"{change.pod_uid}:{seq}")
            holders[node] = seq

    def hear_answer(self, flight: Flight) -> None:
        self.flights.remove(flight)
        if flight.seq is not None:
            flight.owner.core.stored(flight.commit, flight.seq)
        elif flight.owner.core.is_flying(flight.commit):
            self.flights.append(flight)  # a conflict: settled by the newer record, or by reading the ledger to its end
            flight.lost = True

    def read_to_end(self, flight: Flight) -> None:
        flight.owner.hear_ledger()
        flight.read_to_end = True

    def give_up(self, flight: Flight) -> None:
        self.flights.remove(flight)
        flight.owner.core.given_up(flight.commit)

    # Announcements

    def post(self, member: Member, post: Post, *, acknowledge: bool = True) -> None:
        member.outbox.posts.remove(post)
        for subject, payload, msg_id in post.messages:
            self._publish(subject, payload, msg_id)
        if post.recovery is not None:
            record = codec.decode_as(NodeRecord, self.ledger.records[post.recovery.seq - 1].payload).data
            said = member.outbox.told(record, post.recovery)
            assert said
            for subject, payload, msg_id in said:
                self._publish(subject, payload, msg_id)
        if post.cleared is not None:
            pod, seq = post.cleared
            self.state.publish(waiting_subject(pod), b"", expected=seq)
        for lease in post.leases if acknowledge else ():
            lease.command.settled = True

    def _publish(self, subject: str, payload: bytes, msg_id: str) -> None:
        data = codec.decode(payload).data
        if isinstance(data, Decision):
            self._decided(msg_id, data)
        elif isinstance(data, Waiting):
            self.state.publish(subject, payload, msg_id=msg_id)
        elif isinstance(data, Evict):
            self.evict(data)
        else:
            self._command(msg_id, data)

    def _decided(self, msg_id: str, decision: Decision) -> None:
        if msg_id in self.decisions:
            known = self.decisions[msg_id]
            assert (known.outcome, known.node) == (decision.outcome, decision.node), (
                f"{msg_id} stands for two decisions"
            )
            return
        self.decisions[msg_id] = decision
        uid = decision.pod_uid
        if decision.way == "resize":
            return  # it changes nothing about where the pod stands
        self.verdicts[uid].append(decision)
        if decision.outcome == "allocated":
            assert msg_id in self.came_first, f"{msg_id} names {decision.node}, where the pod did not stand first"
            if uid in self.gone:  # its owner sees a ghost and gives it back once more
                self.delete(uid, msg_id)

    # Replay

    def think_again(self, member: Member) -> None:
        """The journal, the log and nothing else lead to the same decisions."""
        member.core.journal._close()
        turns = [*member.turns, *map(codec.encode, member.core.journal.take())]
        again = Replay(member.core.name, self.state.records, self.listed)
        found = [decision for turn in turns for decision in again.play(msgspec.json.decode(turn, type=Turn))]
        assert [decision.basis for decision in found] == [decision.basis for decision in member.made]
        for replayed, made in zip(found, member.made, strict=True):
            assert completed(replayed, made) == made
        again.read_state(member._state_at)
        assert digest(again.snapshot) == digest(member.core.snapshot)

    def listed(self, node: str, seq: int) -> tuple[Allocation, ...]:
        record = self.ledger.records[seq - 1]
        assert record.subject == subjects.ledger_node(node)
        return codec.decode_as(NodeRecord, record.payload).data.charges()

    # Trouble

    def kill(self, place: int) -> None:
        dead = self.members[place]
        self.flights = [flight for flight in self.flights if flight.owner is not dead]
        self.state.publish(subjects.state("allocator", dead.core.name), b"")
        self.members[place] = self._member()
        self.think_again(dead)

    def poison(self, node: str) -> None:
        self.poisoned[node] = self.good.get(node)
        self._write(node, b"{half a rec")

    def repair(self, node: str) -> None:
        good = self.poisoned.pop(node)
        self._repairs += 1
        record = NodeRecord(
            node=node, txn=f"repair:{self._repairs}", allocations=good.allocations if good else (), changes=()
        )
        self._write(node, encoded(self._stamped(record), record.txn))

    def _stamped(self, record: NodeRecord) -> NodeRecord:
        """Whoever restores a record knows since when each pod stands there."""
        allocations = tuple(
            msgspec.structs.replace(a, since=self.holders[a.pod_uid][record.node]) for a in record.allocations
        )
        return msgspec.structs.replace(record, allocations=allocations)

    # Rest

    def quiesce(self) -> None:
        """Deliver everything, and everything unacknowledged again, until nothing moves."""
        for node in list(self.poisoned):
            self.repair(node)
        extent = None
        for turn in range(ROUNDS):
            self._drain()
            if left := self.unsettled():
                for place, command in enumerate(left):
                    self.deliver(command, self.members[(turn + place) % len(self.members)])
                continue
            if extent == (extent := (len(self.ledger.records), len(self.state.records), len(self.commands))):
                return
            self.members[turn % len(self.members)].core.sweep()
        raise AssertionError(f"not at rest after {ROUNDS} rounds: {self.unsettled()}")

    def _drain(self) -> None:
        for _ in range(ROUNDS):
            said = False
            for flight in list(self.wire):
                self.server_takes(flight)
            for flight in list(self.flights):
                if flight.lost or flight.read_to_end:
                    self.read_to_end(flight)
                    self.give_up(flight)
                else:
                    self.hear_answer(flight)
            for member in self.members:
                member.hear_state()
                member.hear_ledger()
                self.pump(member)
                said |= bool(member.outbox.posts) or member.core.cluster.has_grown or member.core.rooms.sought
                for post in list(member.outbox.posts):
                    self.post(member, post)
            if not (said or self.wire):
                return
        raise AssertionError(f"the members keep each other busy for {ROUNDS} rounds")

    def places(self) -> dict[str, list[str]]:
        """Where each pod stands, by the newest record of each node."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for node in NODES:
            record = self.ledger.newest.get(subjects.ledger_node(node))
            if record is not None:
                for allocation in codec.decode_as(NodeRecord, record.payload).data.allocations:
                    found[allocation.pod_uid].append(node)
        return found


def digest(snapshot: Snapshot) -> str:
    """Return the snapshot's digest, without the sequences that an allocator's own additions cannot know at first."""
    for node in NODES:
        frozen, allocations = snapshot.host(node).frozen, snapshot.allocations(node)
        snapshot.set_allocations(node, [msgspec.structs.replace(a, since=0) for a in allocations])
        if frozen:  # replacing them has thawed it
            snapshot.freeze(node)
    return snapshot.digest()


picks = st.integers(0, 5)


class Allocators(RuleBasedStateMachine):
    """Chooses what happens next. A member mostly acts at once on what it hears, as the service does."""

    @initialize(members=st.integers(2, 3))
    def begin(self, members: int) -> None:
        self.world = World(members)

    def member(self, pick: int) -> Member:
        return self.world.members[pick % len(self.world.members)]

    @rule(shape=st.sampled_from(sorted(SHAPES)), namespace=st.sampled_from(["d", BOUND]), to=picks, act=st.booleans())
    def schedule_a_pod(self, shape: str, namespace: str, to: int, *, act: bool) -> None:
        self.world.deliver(self.world.create(SHAPES[shape], namespace), self.member(to))
        if act:
            self.world.pump(self.member(to))

    @rule(
        size=st.integers(2, 4),
        missing=st.integers(0, 1),
        shape=st.sampled_from(["whole", "whole", "small"]),
        namespace=st.sampled_from(["d", BOUND]),
        to=st.lists(picks, min_size=4, max_size=4),
        act=st.booleans(),
    )
    def schedule_a_gang(self, size: int, missing: int, shape: str, namespace: str, to: list[int], *, act: bool) -> None:
        for command, pick in zip(self.world.create_gang(size, missing, shape, namespace), to, strict=False):
            self.world.deliver(command, self.member(pick))
            if act:
                self.world.pump(self.member(pick))

    @rule(
        size=st.integers(2, 4),
        shape=st.sampled_from(["whole", "whole", "small"]),
        namespace=st.sampled_from(["d", BOUND]),
        to=picks,
        act=st.booleans(),
    )
    def schedule_a_gang_that_one_member_sees_come(
        self, size: int, shape: str, namespace: str, to: int, *, act: bool
    ) -> None:
        world, member = self.world, self.member(to)
        for command in world.create_gang(size, 0, shape, namespace):
            member.hear_state()
            world.deliver(command, member)
            world.say(member)
        if act:
            world.pump(member)

    @precondition(lambda self: self.world.missing)
    @rule(to=picks, act=st.booleans())
    def schedule_the_missing_member_of_a_gang(self, to: int, *, act: bool) -> None:
        self.world.deliver(self.world.complete_a_gang(), self.member(to))
        if act:
            self.world.pump(self.member(to))

    @precondition(lambda self: any(pod.request.gang for pod in self.world.pods.values()))
    @rule(which=st.integers(0, 30), to=picks)
    def restart_a_member_of_a_gang(self, which: int, to: int) -> None:
        world = self.world
        members = [uid for uid, pod in sorted(world.pods.items()) if pod.request.gang and uid not in world.gone]
        if members:
            uid = members[which % len(members)]
            world.delete(uid)
            world.deliver(world.create(world.pods[uid].request, world.pods[uid].namespace), self.member(to))

    @precondition(lambda self: self.world.unsettled())
    @rule(which=st.integers(0, 30), to=picks, catch_up=st.booleans(), act=st.booleans())
    def deliver_an_unacknowledged_command(self, which: int, to: int, *, catch_up: bool, act: bool) -> None:
        left = self.world.unsettled()
        if catch_up:
            self.member(to).hear_ledger()
        self.world.deliver(left[-1 - which % len(left)], self.member(to))
        if act:
            self.world.pump(self.member(to))

    @precondition(lambda self: self.world.pods.keys() - self.world.gone)
    @rule(which=st.integers(0, 30))
    def delete_a_pod(self, which: int) -> None:
        alive = sorted(self.world.pods.keys() - self.world.gone)
        self.world.delete(alive[which % len(alive)])

    @precondition(lambda self: any(len(member.core.mind.places) for member in self.world.members))
    @rule(which=st.integers(0, 30), to=picks, share=st.sampled_from([100, 300, 500, 900]), act=st.booleans())
    def resize_a_pod(self, which: int, to: int, share: int, *, act: bool) -> None:
        self.world.resize(which, self.member(to), share)
        if act:
            self.world.pump(self.member(to))

    @rule(which=picks)
    def let_a_member_act(self, which: int) -> None:
        self.world.pump(self.member(which))

    @precondition(lambda self: self.world.wire)
    @rule(which=picks, lost=st.sampled_from([False, False, False, True]))
    def let_a_commit_arrive(self, which: int, *, lost: bool) -> None:
        flight = self.world.wire[which % len(self.world.wire)]
        if lost:
            self.world.wire.remove(flight)
            flight.lost = True
        else:
            self.world.server_takes(flight)

    def answered(self) -> list[Flight]:
        return [flight for flight in self.world.flights if flight.answered and not flight.lost]

    @precondition(lambda self: self.answered())
    @rule(which=picks, act=st.booleans())
    def hear_an_answer(self, which: int, *, act: bool) -> None:
        flight = self.answered()[which % len(self.answered())]
        self.world.hear_answer(flight)
        if act:
            self.world.pump(flight.owner)

    @precondition(lambda self: self.world.flights)
    @rule(which=picks)
    def lose_an_answer_and_read_the_ledger(self, which: int) -> None:
        flight = self.world.flights[which % len(self.world.flights)]
        flight.lost = True
        self.world.read_to_end(flight)

    def undecided(self) -> list[Flight]:
        return [flight for flight in self.world.flights if flight.read_to_end]

    @precondition(lambda self: self.undecided())
    @rule(which=picks)
    def give_up_a_commit(self, which: int) -> None:
        self.world.give_up(self.undecided()[which % len(self.undecided())])

    @rule(which=picks, most=st.integers(1, 6), act=st.booleans())
    def hear_the_ledger(self, which: int, most: int, *, act: bool) -> None:
        self.member(which).hear_ledger(most)
        if act:
            self.world.pump(self.member(which))

    @rule(which=picks, most=st.integers(1, 6), act=st.booleans())
    def hear_the_state(self, which: int, most: int, *, act: bool) -> None:
        self.member(which).hear_state(most)
        if act:
            self.world.pump(self.member(which))

    def speaking(self) -> list[Member]:
        return [member for member in self.world.members if member.outbox.posts]

    @precondition(lambda self: self.speaking())
    @rule(whose=picks, which=picks, acknowledge=st.booleans())
    def publish_an_announcement(self, whose: int, which: int, *, acknowledge: bool) -> None:
        member = self.speaking()[whose % len(self.speaking())]
        self.world.post(member, member.outbox.posts[which % len(member.outbox.posts)], acknowledge=acknowledge)

    @rule(name=st.sampled_from(NODES))
    def cordon_a_node_or_lift_it(self, name: str) -> None:
        self.world.cordon(name)

    @rule(quota=st.sampled_from(sorted(QUOTAS)))
    def change_the_quota(self, quota: str) -> None:
        self.world.allow(QUOTAS[quota])

    @precondition(lambda self: self.world.pods)
    @rule(allowed=st.integers(0, 2), which=st.lists(st.integers(0, 30), max_size=4))
    def cover_pods_by_a_disruption_budget(self, allowed: int, which: list[int]) -> None:
        pods = sorted(self.world.pods)
        self.world.cover(allowed, tuple(sorted({pods[pick % len(pods)] for pick in which})))

    @rule(seconds=st.sampled_from([1, 70, 700]))
    def let_time_pass(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    @precondition(lambda self: not self.world.poisoned)
    @rule(name=st.sampled_from(NODES))
    def write_nonsense_into_the_ledger(self, name: str) -> None:
        self.world.poison(name)

    @precondition(lambda self: self.world.poisoned)
    @rule()
    def repair_the_ledger(self) -> None:
        self.world.repair(next(iter(self.world.poisoned)))

    @precondition(lambda self: not self.world.poisoned)  # who starts then cannot know what the bad record hides
    @rule(which=picks)
    def kill_a_member(self, which: int) -> None:
        self.world.kill(which % len(self.world.members))

    @rule(which=picks)
    def sweep(self, which: int) -> None:
        self.member(which).core.sweep()

    @invariant()
    def nothing_is_given_twice(self) -> None:
        for found in self.world.checker.violations:
            if found.rule == "PodOnTwoNodes":
                uid = found.detail.split()[1]
                assert self.world.deliveries[uid] > 1, found
            else:
                assert found.rule == "Undecodable", found

    def teardown(self) -> None:
        world = self.world
        world.quiesce()
        self.nothing_is_given_twice()
        places = world.places()
        for uid in world.pods:
            self.check_pod(uid, places.get(uid, []))
        fresh = Member("fresh", world.state, world.ledger).core
        for uid in fresh.cluster.waiting.all():
            pod, _ = fresh.cluster.waiting.get(uid) or (None, 0)
            with fresh.decider.trial() as trial:
                assert pod is not None
                if trial.must_form(pod):
                    gang = pod.request.gang
                    placed = trial.form((p for p, _ in fresh.cluster.waiting.of_gang(gang.key)), gang.min_members)
                else:
                    placed = trial.place(pod)
                assert not placed, f"{uid} waits, for {pod.reason}, and there is room for it"
        for member in world.members:
            core = member.core
            assert digest(core.snapshot) == digest(fresh.snapshot)
            assert (core.pending, core.busy, core.tokens()) == (0, 0, [])
            assert not [uid for uid in core.cluster.waiting.all() if uid in places]
            world.think_again(member)

    def check_pod(self, uid: str, places: list[str]) -> None:
        world = self.world
        verdicts = world.verdicts[uid]
        # A refusal may come late, and a victim may go on if the other pod needs it no more: neither changes anything.
        lasting = [v for v in verdicts if v.outcome not in ("unschedulable", "evicted")]
        assert len(places) <= 1, f"{uid} stands on {places}"
        if uid in world.gone:
            assert not places, f"{uid} is gone and still stands on {places}"
            assert not lasting or lasting[-1].outcome == "released", f"nobody was told that {uid} gave back its place"
        elif places:
            assert [(v.outcome, v.node) for v in lasting] == [("allocated", places[0])], uid
        else:
            assert verdicts[-1].outcome == "unschedulable", uid


Allocators.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestAllocators = Allocators.TestCase


def test_a_pod_that_takes_the_name_of_another_waits_in_its_place() -> None:
    def waiting(uid: str) -> Waiting:
        request = SHAPES["whole"]
        return Waiting(
            namespace="d", name="web-0", uid=uid, request=request, reason="r", state_seq=0, ledger_seq=0, since=NOW
        )

    world = World(1)
    first, second = waiting("first"), waiting("second")
    for pod in (first, second):
        world.state.publish(waiting_subject(pod), encoded(pod, pod.uid))
    (member,) = world.members
    member.hear_state()
    assert member.core.cluster.waiting.all() == ["second"]


def test_a_placement_that_was_taken_back_is_taken_back_when_it_is_thought_again() -> None:
    world = World(2)
    first, second = world.members
    for member in world.members:
        member.hear_state()
    command = world.create(SHAPES["whole"])
    world.deliver(command, first)  # placed in memory, and not on its way yet
    world.deliver(command, second)
    world.pump(second)
    world.server_takes(world.wire[0])
    taken, other = first.made[-1].node, second.made[-1].node
    assert taken != other
    first.hear_ledger()
    assert first.core.pending == 0
    for _ in range(3):
        world.deliver(world.create(SHAPES["whole"]), first)
    assert [decision.node for decision in first.made[1:]].count(taken) == GPUS  # all of it is free again
    world.think_again(first)
