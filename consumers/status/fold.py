"""What STATE and the ledger say of nodes, GPUs and pools, as far as their status shows it. No I/O."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from bus import codec, subjects
from bus.follower import Record
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.kube.annotations import gpu_name
from schemas.kube.defaults import Settings
from schemas.kube.resources import CustomResource
from schemas.ledger import Allocation, NodeRecord
from schemas.quota import Quota, Usage

STATE_FILTERS = (
    "gpubus.state.node.*",
    "gpubus.state.gpu.*",
    "gpubus.state.pool.*",
    "gpubus.state.quota.*.*",
    "gpubus.state.config.*.*.*",
)

OURS = "GPUResourceQuota"
"""How the name of such a quota begins in STATE; the others are Kubernetes' own."""


class Shown(NamedTuple):
    """A custom resource that is to be written: its kind (plural), name, and namespace if it is in one."""

    plural: str
    name: str
    namespace: str = ""


class Fold:
    """The fold; ``changed`` is called with every resource whose status may be another now."""

    def __init__(self, changed: Callable[[Shown], None]) -> None:
        self._changed = changed
        self.nodes: dict[str, Node] = {}
        self.inventories: dict[str, GpuInventory] = {}
        self.pools: dict[str, Pool] = {}
        self.held: dict[str, tuple[Allocation, ...]] = {}
        self.settings = Settings(self._on_settings)
        self.quotas: dict[tuple[str, str], Quota] = {}
        """Quotas of ours by namespace and name of their object."""
        self._used: dict[str, Usage] = {}
        self._gpus: dict[str, str] = {}

    def on_state(self, record: Record) -> None:
        """Apply one record of STATE.

        Raises:
            UndecodableError: It cannot be read; what was known stays.
        """
        _, kind, *names = subjects.names(record.subject)
        name = names[-1]
        match kind:
            case "node":
                before = self.nodes.get(name)
                _put(self.nodes, name, record, Node)
                after = self.nodes.get(name)
                self._node(name, {node.pool for node in (before, after) if node is not None})
            case "gpu":
                before_gpus = self._devices(name)
                _put(self.inventories, name, record, GpuInventory)
                gpus = self._devices(name)
                if gpus == before_gpus:
                    return  # a heartbeat
                for uuid in {gpu.uuid for gpu in (*before_gpus, *gpus)}:
                    self._gpus[gpu_name(uuid)] = name
                    self._changed(Shown("gpus", gpu_name(uuid)))
                self._node(name)
            case "pool":
                _put(self.pools, name, record, Pool)
                self._pool(name)
                for node in self.members(name):
                    self._node(node.name)
            case "quota":
                self._quota(names[0], name, record)
            case "config":
                plural, namespace, _ = names
                resource = None if record.deleted else codec.decode_as(CustomResource, record.payload).data
                self.settings.apply(plural, namespace, name, resource)

    def on_ledger(self, record: Record) -> None:
        """Apply one record of the ledger's nodes.

        Raises:
            UndecodableError: It cannot be read; what was known stays.
        """
        name = subjects.names(record.subject)[-1]
        before = self.held.get(name, ())
        if record.deleted:
            self.held.pop(name, None)
        else:
            self.held[name] = codec.decode_as(NodeRecord, record.payload).data.allocations
        now = self.held.get(name, ())
        touched = {gpu.uuid for one in {*before} ^ {*now} for gpu in one.gpus}
        for uuid in touched:
            self._changed(Shown("gpus", gpu_name(uuid)))
        self._count({*before} - {*now}, {*now} - {*before})
        self._node(name)

    def used(self, namespace: str) -> Usage:
        """Return what the pods of a namespace hold together."""
        return self._used.get(namespace, Usage())

    def _count(self, gone: Iterable[Allocation], come: Iterable[Allocation]) -> None:
        touched = set()
        for held, comes in (*((one, False) for one in gone), *((one, True) for one in come)):
            before, more = self.used(held.namespace), held.usage()
            self._used[held.namespace] = before + more if comes else before - more
            touched.add(held.namespace)
        for namespace, name in self.quotas:
            if namespace in touched:
                self._changed(Shown("gpuresourcequotas", name, namespace))

    def _quota(self, namespace: str, name: str, record: Record) -> None:
        kind, _, own = name.partition("/")
        if kind != OURS:
            return  # its status is the API server's business
        if record.deleted:
            self.quotas.pop((namespace, own), None)
        else:
            self.quotas[namespace, own] = codec.decode_as(Quota, record.payload).data
        self._changed(Shown("gpuresourcequotas", own, namespace))

    def members(self, pool: str) -> list[Node]:
        """Return the nodes of a pool, by name."""
        return sorted((node for node in self.nodes.values() if node.pool == pool), key=lambda node: node.name)

    def device(self, name: str) -> tuple[Node, GpuDevice] | None:
        """Return the GPU whose object has this name, and its node; None if there is none."""
        node = self.nodes.get(self._gpus.get(name, ""))
        found = next((gpu for gpu in self._devices(node.name) if gpu_name(gpu.uuid) == name), None) if node else None
        return (node, found) if node is not None and found is not None else None

    def on_gpu(self, node: str, uuid: str) -> list[Allocation]:
        """Return what pods hold of one GPU."""
        return [one for one in self.held.get(node, ()) if any(gpu.uuid == uuid for gpu in one.gpus)]

    def clusters_of(self, pool: str) -> Iterable[str]:
        """Return the clusters that keep a pool."""
        for (_, name), item in self.settings.clusters.items.items():
            if any(f"{name}-{kept.name}" == pool for kept in item.spec.gpu_pools):
                yield name

    def _devices(self, node: str) -> list[GpuDevice]:
        inventory = self.inventories.get(node)
        return inventory.gpus if inventory is not None else []

    def _node(self, name: str, pools: Iterable[str] | None = None) -> None:
        self._changed(Shown("gpunodes", name))
        node = self.nodes.get(name)
        if pools is not None:  # the node itself has changed, so whether its GPUs run may have too
            for gpu in self._devices(name):
                self._changed(Shown("gpus", gpu_name(gpu.uuid)))
        for pool in pools if pools is not None else [node.pool] if node is not None else []:
            self._pool(pool)

    def _pool(self, name: str) -> None:
        self._changed(Shown("gpupools", name))
        for cluster in self.clusters_of(name):
            self._changed(Shown("tensorfusionclusters", cluster))

    def _on_settings(self, plural: str, namespace: str, name: str) -> None:
        del namespace
        if plural in ("gpupools", "tensorfusionclusters"):
            self._changed(Shown(plural, name))


def _put(items: dict, name: str, record: Record, struct: type) -> None:  # type: ignore[type-arg]
    if record.deleted:
        items.pop(name, None)
    else:
        items[name] = codec.decode_as(struct, record.payload).data
