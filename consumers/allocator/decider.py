"""Makes decisions: asks the engine under this allocator's policy and signs the answer with what it had seen."""

from collections.abc import Callable

import msgspec

from consumers.allocator.choice import Expected, Trial, choose, lift, nothing
from consumers.allocator.cluster import Cluster
from consumers.allocator.engine import Policy, Workload, decide
from consumers.allocator.journal import Journal
from consumers.allocator.room import Room, keep, plan
from schemas.cluster import ExpectedPods, Pool
from schemas.decision import Attempt, Basis, Decision, GpuGrant
from schemas.journal import Preempt
from schemas.ledger import Allocation
from schemas.pod import GpuRequest, Release, Schedule


class Decider:
    """Decisions of one allocator, numbered.

    Args:
        name: The allocator.
        cluster: What it holds in memory.
        clock_us: Elapsed microseconds, for the duration noted in decisions and for nothing else.
        expected: Returns what is kept for pods of a namespace, but for some by UID: their quota counts it as promised.
    """

    def __init__(self, name: str, cluster: Cluster, clock_us: Callable[[], int], expected: Expected = nothing) -> None:
        self.name = name
        self._cluster = cluster
        self._clock_us = clock_us
        self._expected = expected
        self.journal = Journal(name)
        self._ordinal = 0
        self._attempts: dict[str, tuple[Attempt, ...]] = {}
        self._home = (0, 1)
        self._policies: dict[str, tuple[Pool | None, ExpectedPods | None, Policy]] = {}

    @property
    def ordinal(self) -> int:
        """Number of the newest decision."""
        return self._ordinal

    def place(self, command: Schedule) -> tuple[Decision, Allocation | None]:
        """Decide where a pod goes, or why nowhere, and what it will hold there."""
        started = self._clock_us()
        policy = self.policy(command.request.pool)
        basis = self._basis()
        snapshot, quotas = self._cluster.snapshot, self._cluster.quotas
        kept = lift(snapshot, command.uid)
        with quotas.expecting(command.namespace, self._expected(command.namespace, {command.uid})):
            self.journal.placing(command, quotas.counted(command.namespace))
            found, held = choose(snapshot, quotas, command, policy)
        if kept is not None and (held is None or found.node != kept.node):
            snapshot.add(*kept)
        return self._sign(found, command, basis, self._clock_us() - started), held

    def make_room(self, step: Preempt) -> Room | None:
        """Decide who is evicted for a pod that fits nowhere, and keep what it is to get; None if nobody is."""
        started = self._clock_us()
        snapshot, quotas, command = self._cluster.snapshot, self._cluster.quotas, step.command()
        room = plan(snapshot, quotas, step, self.policy(command.request.pool))
        if room is None:
            return None
        bases = [self._basis() for _ in (room.decision, *room.evicted)]
        self.journal.preempting(step, quotas.counted(command.namespace), len(bases))
        keep(snapshot, room)
        decision = self._sign(room.decision, command, bases[0], self._clock_us() - started)
        evicted = tuple(
            msgspec.structs.replace(told, allocator=self.name, basis=basis)
            for told, basis in zip(room.evicted, bases[1:], strict=True)
        )
        return room._replace(decision=decision, evicted=evicted)

    def tell(self, found: Decision, command: Schedule) -> Decision:
        """Return a verdict that no engine came to as a decision about this pod: that its gang is not there, for example."""
        basis = self._basis()
        self.journal.telling(command, found)
        return self._sign(found, command, basis)

    def _sign(self, found: Decision, command: Schedule, basis: Basis, duration_us: int = 0) -> Decision:
        return msgspec.structs.replace(
            found,
            namespace=command.namespace,
            name=command.name,
            pod_uid=command.uid,
            allocator=self.name,
            basis=basis,
            attempts=self._attempts.get(command.uid, ()),
            duration_us=duration_us,
            way=command.way,
        )

    def trial(self) -> Trial:
        """Return a way to ask what would fit, under the policies that this allocator decides by."""
        snapshot, quotas, gangs = self._cluster.snapshot, self._cluster.quotas, self._cluster.gangs
        return Trial(snapshot, quotas, gangs, self.policy, expected=self._expected)

    def release(self, command: Release, message: str, node: str = "", gpus: tuple[GpuGrant, ...] = ()) -> Decision:
        """State that a pod gives back what it holds, if it holds something."""
        basis = self._basis()
        self.journal.freeing(command, node)
        return Decision(
            outcome="released",
            namespace=command.namespace,
            name=command.name,
            pod_uid=command.uid,
            pool=command.pool,
            allocator=self.name,
            basis=basis,
            node=node,
            gpus=gpus,
            reason=command.reason,
            message=f"{command.reason}{message}",
        )

    def _basis(self) -> Basis:
        self._ordinal += 1
        state, ledger = self._cluster.state_seq, self._cluster.ledger_seq
        self.journal.saw(state, ledger, self._home, self._cluster.now_ns)
        return Basis(state=state, ledger=ledger, ordinal=self._ordinal)

    def overtaken(self, decision: Decision) -> None:
        """Another allocator's record came before the one that was to carry out ``decision``: the next one tells of it."""
        attempt = Attempt(
            node=decision.node, gpus=decision.gpus, decided=decision.basis.ordinal, dropped=self._ordinal + 1
        )
        self._attempts[decision.pod_uid] = (*self._attempts.get(decision.pod_uid, ()), attempt)

    def settled(self, uid: str) -> None:
        """The pod's last decision stands: what was tried before it is told."""
        self._attempts.pop(uid, None)

    def policy(self, pool: str) -> Policy:
        """Return the policy that this allocator decides under for a pool."""
        known, expected = self._cluster.snapshot.pools().get(pool), self._cluster.expected.get(pool)
        cached = self._policies.get(pool)
        if cached is None or cached[0] is not known or cached[1] is not expected:
            stated = known or Pool(name=pool)
            learnt = None if stated.workload or expected is None else Workload(expected.kinds)
            policy = Policy.of(stated, part=self._home[0], parts=self._home[1], workload=learnt)
            cached = self._policies[pool] = (known, expected, policy)
        return cached[2]

    @property
    def first(self) -> bool:
        """Whether this allocator is the one that speaks for all where one is enough."""
        return self._home[0] == 0

    def settle_home(self) -> None:
        """Take the part of the nodes that falls to us among the allocators that are alive."""
        alive = self._cluster.allocators()
        self.move((alive.index(self.name), len(alive)) if self.name in alive else (0, 1))

    def move(self, home: tuple[int, int]) -> None:
        """Prefer one part of the nodes among so many parts."""
        if home != self._home:
            self._home = home
            self._policies.clear()

    def warm(self) -> None:
        """Have the engine build what it keeps per pool, so that the first pod need not wait for it."""
        for pool in self._cluster.snapshot.pools():
            for count in (0, 1):
                decide(self._cluster.snapshot, GpuRequest(pool=pool, count=count), self.policy(pool))
