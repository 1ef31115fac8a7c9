"""Thinks again what an allocator thought: the same engine over the same snapshot, step by step through its journal.

Pure: turns, records of STATE and the allocations of ledger records go in, decisions come out.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from bus.errors import UndecodableError
from bus.follower import Record
from consumers.allocator.cluster import Cluster
from consumers.allocator.decider import Decider
from consumers.allocator.gangs import verdict
from schemas.decision import Attempt, Basis, Decision, Outcome, Way
from schemas.journal import Adopt, Count, Drop, Free, Freeze, Place, Preempt, Restore, Saw, Step, Tell, Turn
from schemas.ledger import Allocation
from schemas.pod import GpuRequest, Release, Schedule


class JournalGapError(Exception):
    """A turn is missing, or says what none does: what follows cannot be thought again."""


class Replay:
    """One allocator.

    Args:
        name: The allocator.
        state: What STATE has said of pools, nodes and GPUs, in its order, or the beginning of it; see :meth:`hear`.
        held: What counts as taken by the ledger record of a node at a sequence.

    Attributes:
        turns: Number of the turn played last.
    """

    def __init__(self, name: str, state: Iterable[Record], held: Callable[[str, int], Iterable[Allocation]]) -> None:
        self.name = name
        self.cluster = Cluster()
        self.snapshot = self.cluster.snapshot
        self._decider = Decider(name, self.cluster, lambda: 0)
        self._ahead = deque(state)
        self._held = held
        self.turns = 0

    def hear(self, records: Iterable[Record]) -> None:
        """STATE goes on with these records: each is taken in when a decision had seen it."""
        self._ahead += records

    def play(self, turn: Turn) -> Iterator[Decision]:
        """Yield the decisions of the next turn, in order, complete but for what only the clock and commands know.

        Duration and earlier attempts are blank, and of a pod that gives back what it held only UID, node and GPUs are told.

        Raises:
            JournalGapError: It is not the next turn.
        """
        if turn.number != self.turns + 1 or turn.decided != self._decider.ordinal:
            raise JournalGapError(
                f"turn {turn.number} of {self.name} follows turn {self.turns}: the journal does not hold all in between"
            )
        self.turns = turn.number
        for step in turn.steps:
            yield from self._take(step)
        self._decider.journal.take()  # it has been written

    def _take(self, step: Step) -> tuple[Decision, ...]:
        match step:
            case Saw():
                self._see(step)
            case Count(namespace, held, promised):
                self.cluster.quotas.assume(namespace, held, promised)
            case Place():
                return (self._place(step),)
            case Tell():
                return (self._tell(step),)
            case Free(uid, node):
                return (self._free(uid, node),)
            case Preempt():
                return self._preempt(step)
            case _:
                self._hold(step)
        return ()

    def _hold(self, step: Step) -> None:
        """What counts as taken is another, without a decision."""
        match step:
            case Drop(uid, node):
                self.snapshot.remove(node, uid)
            case Restore(uid, node, seq):
                self._restore(uid, node, seq)
            case Adopt(node, seq):
                # Since when each pod stands there says whom to evict first; a record cannot know its own sequence.
                listed = self._held(node, seq) if seq else ()
                self.snapshot.set_allocations(node, [one.known_since(seq) for one in listed])
            case Freeze(node):
                self.snapshot.freeze(node)

    def _restore(self, uid: str, node: str, seq: int) -> None:
        self.snapshot.remove(node, uid)
        for one in self._held(node, seq):
            if one.pod_uid == uid:
                self.snapshot.add(node, one.known_since(seq))

    def read_state(self, seq: int) -> None:
        """Take in what STATE had said up to a sequence."""
        ahead = self._ahead
        while ahead and ahead[0].seq <= seq:
            with contextlib.suppress(UndecodableError):  # what cannot be read counts as the allocator counted it
                self.cluster.on_state(ahead.popleft())

    def _see(self, saw: Saw) -> None:
        if not saw.part < saw.parts:
            raise JournalGapError(
                f"a turn of {self.name} decides for part {saw.part} of {saw.parts} parts of the nodes"
            )
        self.read_state(saw.state)
        self.cluster.pass_time(saw.now_ns)  # of the records that told the time, some are gone
        self.cluster.state_seq, self.cluster.ledger_seq = saw.state, saw.ledger
        self._decider.move((saw.part, saw.parts))

    def _place(self, step: Place) -> Decision:
        command = Schedule(
            namespace=step.namespace,
            name=step.name,
            uid=step.pod_uid,
            request=step.request,
            node=step.node,
            created_s=step.created_s,
        )
        decision, held = self._decider.place(command)
        if held is not None:
            self.snapshot.add(decision.node, held)
        return decision

    def _preempt(self, step: Preempt) -> tuple[Decision, ...]:
        room = self._decider.make_room(step)
        if room is None:
            raise JournalGapError(f"room was made for {step.namespace}/{step.name}, and there is nobody to make it")
        return (room.decision, *room.evicted)

    def _tell(self, step: Tell) -> Decision:
        command = Schedule(
            namespace=step.namespace, name=step.name, uid=step.pod_uid, request=GpuRequest(pool=step.pool)
        )
        return self._decider.tell(verdict(step.pool, step.reason, step.message), command)

    def _free(self, uid: str, node: str) -> Decision:
        held = self.snapshot.held(node, uid)
        command = Release(namespace="", name="", uid=uid, pool="", reason="")
        decision = self._decider.release(command, "", node, held.gpus if held is not None else ())
        self.snapshot.remove(node, uid)
        return decision


class Said(msgspec.Struct, gc=False):
    """Of a decision on record: which it is, and what a replay takes on trust. The rest need not be decoded to be compared."""

    allocator: str
    basis: Basis
    outcome: Outcome
    namespace: str
    name: str
    pod_uid: str
    pool: str
    node: str = ""
    reason: str = ""
    message: str = ""
    attempts: tuple[Attempt, ...] = ()
    duration_us: int = 0
    way: Way = "native"


def completed(replayed: Decision, said: Decision | Said) -> Decision:
    """Return a replayed decision with what a replay takes on trust: duration, earlier attempts, and whose command it was."""
    if said.outcome != "released" or replayed.outcome != "released":
        return msgspec.structs.replace(replayed, attempts=said.attempts, duration_us=said.duration_us, way=said.way)
    return msgspec.structs.replace(
        replayed,
        attempts=said.attempts,
        duration_us=said.duration_us,
        way=said.way,
        namespace=said.namespace,
        name=said.name,
        pool=said.pool,
        reason=said.reason,
        message=said.message,
    )


def bare(said: Decision) -> Decision:
    """Return a recorded decision as a replay comes to it, without what that takes on trust."""
    bare = msgspec.structs.replace(said, attempts=(), duration_us=0, way="native")
    if said.outcome != "released":
        return bare
    return msgspec.structs.replace(bare, namespace="", name="", pool="", reason="", message="")
