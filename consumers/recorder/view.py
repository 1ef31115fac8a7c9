"""What a recorder holds in memory of the cluster, folded from STATE and LEDGER."""

import logging
from typing import TypeVar

import msgspec

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.metrics.tables import OF_WORKERS, TAKEN
from consumers.recorder.pricing import UNKNOWN, PoolPrices, PriceError, model_prices, pool_prices
from schemas.alert import RuleSet
from schemas.capacity import PoolCapacity
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.decision import Decision
from schemas.kube.defaults import Settings
from schemas.kube.resources import CustomResource
from schemas.ledger import Allocation, NodeRecord
from schemas.placement import TopologyRules, rules_for
from schemas.pod import Pod
from schemas.quota import Quota

log = logging.getLogger("gpubus.recorder")

T = TypeVar("T", bound=msgspec.Struct)

STATE_FILTERS = (
    "gpubus.state.node.*", "gpubus.state.gpu.*", "gpubus.state.pool.*", "gpubus.state.pod.*.*", "gpubus.state.quota.*.*",
    "gpubus.state.config.gpupools.*.*", "gpubus.state.config.providerconfigs.*.*", "gpubus.state.rules.active",
    "gpubus.state.capacity.*",
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
        self.capacities: dict[str, PoolCapacity] = {}
        """The last look at each pool's size."""
        self.prices: dict[str, PoolPrices] = {}
        """What workers pay, by pool; pools that are not here set no prices."""
        self.worker_resources, self.gpu_allocation, self.worker_usage = OF_WORKERS
        """The tables of workers, with the tags that labels of pods give them."""
        self._extra: tuple[tuple[str, str], ...] = ()
        self._model_prices: dict[str, float] = {}
        self.settings = Settings(self._on_settings)
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
            elif kind == "capacity":
                _put(self.capacities, name, record, PoolCapacity)
            elif kind == "quota":
                _put(self.quotas.setdefault(name, {}), rest[1], record, Quota)
            elif kind == "gpu":
                _put(self.inventories, name, record, GpuInventory)
                inventory = self.inventories.get(name)
                self._devices[name] = {gpu.uuid: gpu for gpu in inventory.gpus} if inventory else {}
            elif kind == "rules" and not record.deleted:
                self._on_rules(codec.decode_as(RuleSet, record.payload).data)
            elif kind == "config":
                resource = None if record.deleted else codec.decode_as(CustomResource, record.payload).data
                self.settings.apply(name, rest[1], rest[2], resource)
        except (UndecodableError, ValueError, msgspec.DecodeError):
            self.undecodable += 1

    def _on_rules(self, rules: RuleSet) -> None:
        extra = tuple(sorted((tag, label) for label, tag in rules.extra_pod_labels.items() if tag not in TAKEN))
        if extra != self._extra:
            self._extra, tags = extra, [tag for tag, _ in extra]
            found = (table.with_tags(tags) for table in OF_WORKERS)
            self.worker_resources, self.gpu_allocation, self.worker_usage = found

    @property
    def extra_names(self) -> tuple[str, ...]:
        """Names of the tags that labels of pods give."""
        return tuple(tag for tag, _ in self._extra)

    def extra_tags(self, uid: str) -> tuple[str, ...]:
        """Return the values of a pod's labels that are tags, in the order of their columns."""
        if not self._extra:
            return ()
        pod = self.pods.get(uid)
        return tuple(pod.labels.get(label, "") if pod is not None else "" for _, label in self._extra)

    def topology(self, decision: Decision) -> TopologyRules | None:
        """Return what the pod of a decision, or its pool, asks of how near its GPUs are; of a pod that is gone its pool alone."""
        pod, pool = self.pods.get(decision.pod_uid), self.pools.get(decision.pool)
        return rules_for(pod.request.topology if pod is not None else None, pool.topology if pool is not None else None)

    def _on_settings(self, plural: str, namespace: str, name: str) -> None:
        """Prices may be others now."""
        if plural == "gpupools":
            item = self.settings.pools.items.get((namespace, name))
            if item is None:
                self.prices.pop(name, None)
                return
            try:
                self.prices[name] = pool_prices(item.spec.qos_config)
            except PriceError as error:
                log.warning("costs of pool %s are not recorded: %s", name, error)
                self.prices[name] = UNKNOWN
        elif plural == "providerconfigs":
            providers = self.settings.providers.items.values()
            try:
                self._model_prices = model_prices(model for one in providers for model in one.spec.hardware_metadata)
            except PriceError as error:
                log.warning("costs of nodes are not recorded: %s", error)
                self._model_prices = {}

    def node_price(self, inventory: GpuInventory) -> float | None:
        """Return dollars per hour of all GPUs of a node; None where one of them has no price."""
        prices = [self._model_prices.get(gpu.model) for gpu in inventory.gpus]
        known = [price for price in prices if price is not None]
        return sum(known) if known and len(known) == len(prices) else None

    def _on_pod(self, record: Record) -> None:
        if record.deleted:
            self.pods.pop(self._uids.pop(record.subject, ""), None)
            return
        pod = codec.decode_as(Pod, record.payload).data
        if (before := self._uids.get(record.subject, pod.uid)) != pod.uid:  # made anew under its name
            self.pods.pop(before, None)
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
