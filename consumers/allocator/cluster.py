"""What an allocator holds in memory of the cluster: the engine's snapshot, the waiting pods, and what has grown lately."""

from collections.abc import Callable
from itertools import islice

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.allocator.choice import Trial
from consumers.allocator.disruptions import Disruptions
from consumers.allocator.engine import Snapshot
from consumers.allocator.gangs import Gangs
from consumers.allocator.quotas import Quotas
from consumers.allocator.silence import Silence
from consumers.allocator.waiting import WaitingPods
from schemas.cluster import ExpectedPods, GpuInventory, Node, Pool
from schemas.pod import Waiting
from schemas.preemption import DisruptionBudget
from schemas.quota import Quota
from schemas.reasons import GANG_WAITING, QUOTA

STATE_FILTERS = (
    "gpubus.state.pool.*",
    "gpubus.state.expected.*",
    "gpubus.state.node.*",
    "gpubus.state.gpu.*",
    "gpubus.state.quota.*.*",
    "gpubus.state.disruption.*.*",
    "gpubus.state.waiting.>",
    "gpubus.state.allocator.*",
)
RECHECK_AT_ONCE = 16

ALIVE_NS = 10 * 1_000_000_000
"""An allocator that has not been heard of for this long is not counted among those that share the nodes."""


class Cluster:
    """The fold of STATE, as far as allocation is concerned."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.waiting = WaitingPods()
        self.quotas = Quotas()
        self.disruptions = Disruptions()
        self.time_s = 0
        """The server's time as far as STATE has told it, in seconds since the epoch."""
        self.expected: dict[str, ExpectedPods] = {}
        self.gangs = Gangs()
        self._newly_bound: list[str] = []
        self._complete: dict[str, None] = {}
        self.state_seq = 0
        self.ledger_seq = 0
        self._heard: dict[str, int] = {}
        self._silence = Silence()
        self._grown: dict[str, None] = {}
        self._recheck: dict[str, None] = {}
        self._grew_at_state = 0
        self._grew_at_ledger = 0
        self._freed_at: dict[str, int] = {}

    def on_state(self, record: Record) -> Waiting | None:
        """Apply one record of STATE, in stream order, and return the pod that it says is waiting, if it does.

        Raises:
            UndecodableError: The record cannot be read. Nothing is given out on its word: a node or inventory that
                cannot be read counts as absent, a pool keeps its last good settings.
        """
        self.state_seq = max(self.state_seq, record.seq)
        self.pass_time(record.time_ns)
        self.time_s = max(self.time_s, record.time_ns // 1_000_000_000)
        try:
            _, kind, *name = subjects.names(record.subject)
        except ValueError as error:
            raise UndecodableError(str(error)) from None
        match kind, name:
            case "node", [node]:
                self._on_node(node, record)
            case "gpu", [node]:
                self._on_inventory(node, record)
            case "pool", [pool]:
                self._on_pool(pool, record)
            case "expected", [pool]:
                self._on_expected(pool, record)
            case "quota", [namespace, quota]:
                self._on_quota(namespace, quota, record)
            case "disruption", [namespace, _]:
                self._on_disruption(namespace, record)
            case "allocator", [allocator]:
                self._on_presence(allocator, record)
            case "waiting", [_, _, _]:
                return self._on_waiting(tuple(name), record)
            case _:
                raise UndecodableError(f"subject {record.subject} has no place in STATE")
        return None

    @property
    def now_ns(self) -> int:
        """The server's time that decisions are based on; 0 as long as none depends on it."""
        return self._silence.now_ns

    def pass_time(self, now_ns: int) -> None:
        """It is that late by the server's clock: agents that have promised to speak until then and have not are silent."""
        for node in self._silence.advance(now_ns):
            self.snapshot.set_silent(node, silent=True)

    def _on_node(self, name: str, record: Record) -> None:
        if record.deleted:
            self.snapshot.remove_node(name)
            return
        try:
            node = codec.decode_as(Node, record.payload).data
            codec.check_name(node.name, name)
        except UndecodableError:
            self.snapshot.remove_node(name)
            raise
        if self.snapshot.put_node(node):
            self._grow_by_state(name, record.seq)

    def _on_inventory(self, name: str, record: Record) -> None:
        self._silence.forget(name)
        speaks_again = self.snapshot.set_silent(name, silent=False)
        if record.deleted:
            self.snapshot.remove_inventory(name)
            return
        try:
            inventory = codec.decode_as(GpuInventory, record.payload).data
            codec.check_name(inventory.node, name)
            changed = self.snapshot.put_inventory(inventory)
        except (UndecodableError, ValueError) as error:
            self.snapshot.remove_inventory(name)
            raise UndecodableError(str(error)) from None
        self._silence.heard(name, record.time_ns, inventory.valid_s)
        self.pass_time(record.time_ns)  # it may have been stored long ago
        if changed or speaks_again:  # most only say that the agent is alive
            self._grow_by_state(name, record.seq)

    def _on_pool(self, name: str, record: Record) -> None:
        if record.deleted:
            self.snapshot.remove_pool(name)
            return
        pool = codec.decode_as(Pool, record.payload).data
        codec.check_name(pool.name, name)
        self.snapshot.put_pool(pool)
        for node in self.snapshot.nodes(name):
            self._grow_by_state(node, record.seq)
        self._recheck_all()

    def _on_expected(self, name: str, record: Record) -> None:
        if record.deleted:
            self.expected.pop(name, None)
            return
        expected = codec.decode_as(ExpectedPods, record.payload).data
        codec.check_name(expected.pool, name)
        self.expected[name] = expected

    def _on_quota(self, namespace: str, name: str, record: Record) -> None:
        quota, error = None, None
        if not record.deleted:
            try:
                quota = codec.decode_as(Quota, record.payload).data
                codec.check_name(f"{quota.namespace}/{quota.name}", f"{namespace}/{name}")
            except UndecodableError as found:
                error = found
        if error is not None:
            first = self.quotas.unreadable(namespace, record.subject, name)
        else:
            first = self.quotas.put(namespace, record.subject, quota)
        if first:
            self._newly_bound.append(namespace)
        if error is not None:
            raise error

    def _on_disruption(self, namespace: str, record: Record) -> None:
        if record.deleted:
            self.disruptions.drop(record.subject)
            return
        try:
            budget = codec.decode_as(DisruptionBudget, record.payload).data
            codec.check_name(budget.namespace, namespace)
        except UndecodableError:
            self.disruptions.unreadable(record.subject, namespace)
            raise
        self.disruptions.put(record.subject, budget)

    def take_newly_bound(self) -> list[str]:
        """Return the namespaces whose first quota has come: what their pods hold is still to be counted."""
        names, self._newly_bound = self._newly_bound, []
        return names

    def _on_presence(self, name: str, record: Record) -> None:
        if record.deleted:
            self._heard.pop(name, None)
        else:
            self._heard[name] = record.time_ns

    def allocators(self) -> list[str]:
        """Return the names of the allocators that are alive, in order, by the server's clock alone."""
        newest = max(self._heard.values(), default=0)
        return sorted(name for name, heard in self._heard.items() if newest - heard < ALIVE_NS)

    def _on_waiting(self, name: tuple[str, ...], record: Record) -> Waiting | None:
        if record.deleted:
            self.waiting.drop(record.subject)
            return None
        pod = codec.decode_as(Waiting, record.payload).data
        codec.check_name(f"{pod.request.pool}/{pod.namespace}/{pod.name}", "/".join(name))
        self.waiting.put(record.subject, pod, record.seq)
        if pod.state_seq < self._grew_at_state or pod.ledger_seq < self._grew_at_ledger:
            # Capacity came between the decision that refused it and this record: nobody else will try it.
            self._recheck[pod.uid] = None
        elif pod.reason == QUOTA and pod.ledger_seq <= self._freed_at.get(pod.namespace, -1):
            self._recheck[pod.uid] = None
        if pod.reason == GANG_WAITING and (gang := pod.request.gang) is not None:
            (self.gangs.formed if self.gangs.standing(gang.key) else self._complete)[gang.key] = None
        return pod

    def _grow_by_state(self, node: str, seq: int) -> None:
        self._grown[node] = None
        self._grew_at_state = seq

    def grow_by_ledger(self, node: str, seq: int) -> None:
        """The ledger record at ``seq`` gave something back on ``node``."""
        self._grown[node] = None
        self._grew_at_ledger = max(self._grew_at_ledger, seq)

    @property
    def has_grown(self) -> bool:
        """Whether something has changed that may help a waiting pod."""
        return bool(self._grown or self._recheck or self.quotas.freed or self.gangs.formed or self._complete)

    def forget_growth(self) -> None:
        """Forget what has grown, for who looks and wakes nobody."""
        for grown in (self._grown, self._recheck, self._complete, self._freed_at, self.quotas.freed, self.gangs.formed):
            grown.clear()

    def sweep(self) -> None:
        """Look at every waiting pod again, whatever happened: catches what events missed."""
        self.waiting.forget_wakes()
        self._recheck_all()

    def recheck(self, uid: str) -> None:
        """Try a pod again if it waits."""
        self._recheck[uid] = None

    def _recheck_all(self) -> None:
        self._recheck.update(dict.fromkeys(self.waiting.all()))

    def wake(self, trial: Trial, busy: Callable[[str], bool]) -> list[tuple[Waiting, int]]:
        """Return waiting pods that what has grown could help, each with its record's sequence.

        Looks at one gang that has become complete or stands now, at one node that has grown, at the pods of one namespace
        whose quota has room again, or at a few pods to be looked at again, so that a call takes about a millisecond; call it
        as long as :attr:`has_grown`.
        """
        grown, recheck, retell = [], [], False
        if self._complete:
            key = next(iter(self._complete))
            del self._complete[key]
            return [] if self.gangs.standing(key) else self.waiting.lead(key, busy)
        if self._grown:
            grown = [next(iter(self._grown))]
            del self._grown[grown[0]]
        elif self.quotas.freed:
            namespace = next(iter(self.quotas.freed))
            del self.quotas.freed[namespace]
            self._freed_at[namespace] = self.ledger_seq
            recheck, retell = self.waiting.for_quota(namespace), True
        elif self.gangs.formed:
            key = next(iter(self.gangs.formed))
            del self.gangs.formed[key]
            recheck = [pod.uid for pod, _ in self.waiting.of_gang(key)]
        else:
            recheck = list(islice(self._recheck, RECHECK_AT_ONCE))
            for uid in recheck:
                del self._recheck[uid]
        if not self.waiting:
            self._grown.clear()
            self._recheck.clear()
            return []
        return self.waiting.wake(trial, grown=grown, recheck=recheck, busy=busy, retell=retell)
