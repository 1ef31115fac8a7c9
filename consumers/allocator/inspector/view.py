"""What an inspector holds in memory: the fold that allocators decide by, and the ledger's records as they stand."""

from collections.abc import Iterator

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.allocator.cluster import Cluster
from consumers.allocator.decider import Decider
from consumers.allocator.engine import Policy
from schemas.ledger import Allocation, NodeRecord, QuotaRecord

LEDGER_FILTERS = ("gpubus.ledger.node.*", "gpubus.ledger.quota.*")


class View:
    """STATE and LEDGER, folded.

    What cannot be read counts as it does for an allocator: a node without a readable record gives nothing more out.
    """

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.snapshot = self.cluster.snapshot
        self.quotas = self.cluster.quotas
        self._decider = Decider("inspector", self.cluster, lambda: 0)
        self._records: dict[str, tuple[Allocation, ...]] = {}
        self.unreadable = 0

    def on_state(self, record: Record) -> None:
        """Apply one record of STATE."""
        try:
            self.cluster.on_state(record)
        except (UndecodableError, ValueError):
            self.unreadable += 1
        for namespace in self.cluster.take_newly_bound():
            self.quotas.fill(namespace, self._everything(), ())
        self.cluster.forget_growth()

    def on_ledger(self, record: Record) -> None:
        """Apply one record of LEDGER."""
        self.cluster.ledger_seq = max(self.cluster.ledger_seq, record.seq)
        try:
            _, kind, name = subjects.names(record.subject)
        except ValueError:
            self.unreadable += 1
            return
        try:
            if kind == "node":
                self._on_node(name, record)
            elif kind == "quota":
                quota = None if record.deleted else codec.decode_as(QuotaRecord, record.payload).data
                self.quotas.on_record(name, quota)
        except UndecodableError:
            self.unreadable += 1
            if kind == "node":
                self.snapshot.freeze(name)
                self.quotas.node_readable(name, readable=False)

    def recreated(self) -> None:
        """The ledger was deleted and made again: nothing of the old one holds."""
        self.cluster.ledger_seq = 0
        for node in list(self._records):
            self._settle(node, ())

    def _on_node(self, node: str, record: Record) -> None:
        data = None
        if not record.deleted:
            data = codec.decode_as(NodeRecord, record.payload).data
            codec.check_name(data.node, node)
        self._settle(node, data.allocations if data is not None else (), data.charges() if data is not None else ())

    def _settle(self, node: str, allocations: tuple[Allocation, ...], charges: tuple[Allocation, ...] = ()) -> None:
        before = {one.pod_uid: one for one in self._records.get(node, ())}
        after = {one.pod_uid: one for one in allocations}
        for uid in before.keys() - after.keys():
            self.quotas.drop(node, before[uid])
        for uid in after.keys() - before.keys():
            self.quotas.hold(node, after[uid])
        self.quotas.node_readable(node, readable=True)
        self.snapshot.set_allocations(node, charges)
        if allocations:
            self._records[node] = allocations
        else:
            self._records.pop(node, None)

    def _everything(self) -> Iterator[tuple[str, Allocation]]:
        for node, allocations in self._records.items():
            for allocation in allocations:
                yield node, allocation

    def policy(self, pool: str) -> Policy:
        """Return the policy that a pool's pods are placed by."""
        return self._decider.policy(pool)
