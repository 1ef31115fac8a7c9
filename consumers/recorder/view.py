"""What a recorder holds in memory of the cluster, folded from STATE and LEDGER."""

from typing import TypeVar

import msgspec

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import Pod
from schemas.quota import Quota

T = TypeVar("T", bound=msgspec.Struct)

STATE_FILTERS = (
    "gpubus.state.node.*", "gpubus.state.gpu.*", "gpubus.state.pool.*", "gpubus.state.pod.*.*.*", "gpubus.state.quota.*.*",
)  # fmt: skip
LEDGER_FILTERS = ("gpubus.ledger.node.*",)


class View:
    """The newest of every object. What cannot be decoded is left as it was last known: metrics decide nothing."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.inventories: dict[str, GpuInventory] = {}
        self.pools: dict[str, Pool] = {}
        self.pods: dict[str, Pod] = {}
        self.quotas: dict[str, dict[str, Quota]] = {}
        """Quotas by namespace and name."""
        self.held: dict[str, dict[str, Allocation]] = {}
        self._devices: dict[str, dict[str, GpuDevice]] = {}
        self._uids: dict[str, str] = {}
        self.undecodable = 0

    def on_state(self, record: Record) -> None:
        """Apply one record of STATE."""
        try:
            _, kind, *rest = subjects.names(record.subject)
            name = rest[0]
            if kind == "pod":
                self._on_pod(record)
            elif kind == "node":
                _put(self.nodes, name, record, Node)
            elif kind == "pool":
                _put(self.pools, name, record, Pool)
            elif kind == "quota":
                _put(self.quotas.setdefault(name, {}), rest[1], record, Quota)
            elif kind == "gpu":
                _put(self.inventories, name, record, GpuInventory)
                inventory = self.inventories.get(name)
                self._devices[name] = {gpu.uuid: gpu for gpu in inventory.gpus} if inventory else {}
        except (UndecodableError, ValueError):
            self.undecodable += 1

    def _on_pod(self, record: Record) -> None:
        if record.deleted:
            self.pods.pop(self._uids.pop(record.subject, ""), None)
            return
        pod = codec.decode_as(Pod, record.payload).data
        self._uids[record.subject] = pod.uid
        self.pods[pod.uid] = pod

    def on_ledger(self, record: Record) -> None:
        """Apply one record of LEDGER."""
        try:
            node = subjects.names(record.subject)[-1]
            if record.deleted:
                self.held.pop(node, None)
                return
            allocations = codec.decode_as(NodeRecord, record.payload).data.allocations
        except (UndecodableError, ValueError):
            self.undecodable += 1
        else:
            self.held[node] = {allocation.pod_uid: allocation for allocation in allocations}

    def pool_of(self, node: str) -> str:
        """Return the pool of a node, empty when it is not known."""
        found = self.nodes.get(node)
        return found.pool if found is not None else ""

    def device(self, node: str, uuid: str) -> GpuDevice | None:
        """Return a GPU of a node."""
        return self._devices.get(node, {}).get(uuid)


def _put(into: dict[str, T], name: str, record: Record, struct: type[T]) -> None:
    if record.deleted:
        into.pop(name, None)
    else:
        into[name] = codec.decode_as(struct, record.payload).data
