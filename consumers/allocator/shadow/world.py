"""A cluster that is as large as the true one, gets the same pods, and decides by other rules. Pure.

One mind decides at once, in the order in which the commands were taken by any allocator. A pod ends when it ended in truth;
one that never ran has no end, so it holds what it gets for good. Pods that fit nowhere wait, and are tried again when a
place falls free: higher priority first, then who came first.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from bus.errors import UndecodableError
from bus.follower import Record
from consumers.allocator.cluster import Cluster
from consumers.allocator.decider import Decider
from consumers.allocator.engine import Snapshot, fits_on
from consumers.allocator.learning import Learner
from consumers.allocator.shadow.rules import Alter
from schemas.decision import Decision
from schemas.journal import Free, Place, Turn
from schemas.ledger import Allocation
from schemas.pod import GpuRequest, Schedule
from schemas.quota import Usage

ENDED: Final = 1 << 17
"""Pods that are known to have ended: their commands may still come, and come too late."""


class Made(msgspec.Struct, frozen=True):
    """A decision. ``waited_ns`` is how long the pod had waited, None when it had just come."""

    uid: str
    decision: Decision
    waited_ns: int | None = None


class OtherWorld:
    """Fed with what happens.

    Args:
        name: By which its decisions are signed.
        alter: Called with every record of STATE; returns it as it would be.

    Attributes:
        held: Node and allocation by pod UID.
        waiting: Command, and since when, by pod UID.
        granted: What all pods hold together.
    """

    def __init__(self, name: str, alter: Alter) -> None:
        self.held: dict[str, tuple[str, Allocation]] = {}
        self.waiting: dict[str, tuple[Schedule, int]] = {}
        self.granted = Usage()
        self._alter = alter
        self._cluster = Cluster()
        self._decider = Decider(name, self._cluster, lambda: 0)
        self._learner = Learner()
        self._ended: dict[str, None] = {}

    @property
    def snapshot(self) -> Snapshot:
        """What there is, and what is left of it."""
        return self._cluster.snapshot

    def on_state(self, record: Record) -> None:
        """STATE said something."""
        with contextlib.suppress(UndecodableError):  # as the allocators did
            self._cluster.on_state(self._alter(record))
        self._cluster.take_newly_bound()
        self._cluster.forget_growth()  # here, pods are tried again when others end

    def adopt(self, node: str, allocations: Iterable[Allocation]) -> None:
        """These pods stand on a node already, whatever the rules are."""
        for allocation in allocations:
            if allocation.pod_uid not in self.held:
                self._hold(node, allocation)

    def play(self, turn: Turn, time_ns: int) -> Iterator[Made]:
        """Take in what an allocator was asked at a time; yield what is decided here."""
        for step in turn.steps:
            if isinstance(step, Place):
                yield from self._arrive(step, time_ns)
            elif isinstance(step, Free):
                yield from self._end(step.pod_uid, time_ns)

    def _arrive(self, step: Place, time_ns: int) -> Iterator[Made]:
        uid = step.pod_uid
        if uid in self.held or uid in self.waiting or uid in self._ended:
            return
        command = Schedule(namespace=step.namespace, name=step.name, uid=uid, request=step.request)
        learnt = self._learner.take(command, self._cluster)
        decision = self._place(command)
        if learnt is not None:  # STATE would say so a moment later
            self._cluster.expected[learnt.pool] = learnt
        if not decision.node:
            self.waiting[uid] = command, time_ns
        yield Made(uid, decision)

    def _place(self, command: Schedule) -> Decision:
        decision, allocation = self._decider.place(command)
        self._decider.journal.take()
        if allocation is not None:
            self._hold(decision.node, allocation)
        return decision

    def _hold(self, node: str, allocation: Allocation) -> None:
        self._cluster.snapshot.add(node, allocation)
        self._cluster.quotas.promise(node, allocation)
        self.held[allocation.pod_uid] = node, allocation
        self.granted += allocation.usage()

    def _end(self, uid: str, time_ns: int) -> Iterator[Made]:
        self._ended[uid] = None
        if len(self._ended) > ENDED:
            del self._ended[next(iter(self._ended))]
        self.waiting.pop(uid, None)
        entry = self.held.pop(uid, None)
        if entry is None:
            return
        node, allocation = entry
        self.granted -= allocation.usage()
        self._cluster.snapshot.remove(node, uid)
        self._cluster.quotas.withdraw(node, allocation, quietly=True)
        yield from self._try_again(node, time_ns)

    def _try_again(self, node: str, time_ns: int) -> Iterator[Made]:
        hopeless: set[GpuRequest] = set()
        for uid, (command, since) in sorted(self.waiting.items(), key=_by_priority):
            request = command.request
            if request in hopeless:
                continue
            policy = self._decider.policy(request.pool)
            decision = self._place(command) if fits_on(self.snapshot, request, node, policy) else None
            if decision is None or not decision.node:
                hopeless.add(request)
                continue
            del self.waiting[uid]
            yield Made(uid, decision, time_ns - since)


def stranded_percent(snapshot: Snapshot) -> float:
    """Return which part of the free compute is on GPUs that are in use already, in percent."""
    free = partly = 0
    for name in snapshot.nodes():
        host = snapshot.host(name)
        for left, whole in zip(host.tflops_free, host.tflops_cap, strict=True) if host is not None else ():
            free += max(left, 0)
            partly += max(left, 0) if left < whole else 0
    return 100 * partly / free if free else 0.0


def _by_priority(entry: tuple[str, tuple[Schedule, int]]) -> tuple[int, int, str]:
    uid, (command, since) = entry
    return -command.request.priority, since, uid
