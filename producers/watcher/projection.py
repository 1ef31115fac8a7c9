"""What STATE is to say of each object that the watcher sees, joined from all that it depends on. No I/O."""

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from producers.watcher.clients import connection_of
from producers.watcher.members import HYPERVISOR, WORKER, agent_key
from producers.watcher.plan import Key
from schemas.cluster import EVERY_GPU, Namespace, Node
from schemas.kube.components import VENDOR
from schemas.kube.isolation import isolation_of
from schemas.kube.quotas import native_quota, tensorfusion_quota
from schemas.quantity import QuantityError
from schemas.quota import Budget, Quota
from schemas.remote import Connection
from schemas.rollout import Member

if TYPE_CHECKING:
    from producers.watcher.world import World

log = logging.getLogger("gpubus.watcher")

NATIVE: Final = "ResourceQuota"
TENSORFUSION: Final = "GPUResourceQuota"

Projected = tuple[msgspec.Struct | None, int]
"""What is to be said, None for an object that is no more, and the version since which it is so."""


class Projection:
    """What is said of the objects of a world other than pods, whose telling takes commands too.

    Args:
        world: What the API server says.
    """

    def __init__(self, world: "World") -> None:
        self._world = world

    def of(self, kind: str, key: Key) -> Projected:
        """Return what is to be said of an object."""
        world = self._world
        value: msgspec.Struct | None
        match kind:
            case "node":
                value, version = self._node(key[0])
            case "pool":
                value, version = world.settings.pool(key[0]), world.settings.version(key[0])
            case "quota":
                value, version = self._quota(*key)
            case "component":
                value, version = world.settings.component(*key), world.settings.component_version(key[0])
            case "member":
                value, version = self._member(key)
            case "disruption":
                value, version = world.budgets.project(key), world.budgets.version(key)
            case "namespace":
                item = world.namespaces.items.get(("", key[0]))
                value = Namespace(name=key[0], labels=item.metadata.labels) if item is not None else None
                version = world.namespaces.version("", key[0])
            case "client":
                value, version = world.clients.project(key)
            case "connection":
                value, version = self._connection(*key)
            case _:
                plural, namespace, name = key
                value = world.settings.resource(plural, namespace, name)
                version = world.settings.shelves[plural][0].version(namespace, name)
        return value, version

    def _connection(self, namespace: str, name: str) -> tuple[Connection | None, int]:
        item = self._world.connections.items.get((namespace, name))
        return connection_of(item) if item is not None else None, self._world.connections.version(namespace, name)

    def _node(self, name: str) -> tuple[Node | None, int]:
        """Return a node as STATE says it. While its agent is being replaced its GPUs take no new pods; running ones stay."""
        node, version = self._world.nodes.project(name, self._world.settings.pool_of), self._world.nodes.version(name)
        if node is None or node.pool not in self._world.agents_in:
            return node, version
        agent = agent_key(name)
        version = max(version, self._world.members.version(agent))
        if self._world.members.away(agent):
            node = msgspec.structs.replace(node, cordoned_gpus=(EVERY_GPU,))
        return node, version

    def _quota(self, namespace: str, name: str) -> tuple[Quota | None, int]:
        kind, _, own = name.partition("/")
        try:
            if kind == NATIVE:
                native = self._world.native_quotas.items.get((namespace, own))
                value = native_quota(native) if native is not None else None
                return value, self._world.native_quotas.version(namespace, own)
            item = self._world.settings.quotas.items.get((namespace, own))
            value = tensorfusion_quota(item) if item is not None else None
        except QuantityError as error:
            log.error("quota %s of namespace %s lets nothing in: %s", name, namespace, error)  # noqa: TRY400
            value = Quota(namespace=namespace, name=name, total=Budget(workers=0))
        return value, self._world.settings.quotas.version(namespace, own)

    def _member(self, key: Key) -> tuple[Member | None, int]:
        pool, component, name = key
        if component == WORKER:
            return self._worker(pool, name)
        if component != HYPERVISOR:
            return self._world.members.project(key), self._world.members.version(key)
        version = max(self._world.members.version(agent_key(name)), self._world.nodes.version(name))
        node = self._world.nodes.get(name)
        manager = self._world.settings.manager(pool, node) if node is not None else None
        if node is None or manager is None:
            return None, version
        meta = node.metadata
        member = self._world.members.project_agent(
            pool,
            name,
            isolation=isolation_of(manager, meta.labels),
            vendor=meta.labels.get(VENDOR, manager.default_vendor),
            since=meta.creation_timestamp,
        )
        return member, version

    def _worker(self, pool: str, name: str) -> tuple[Member | None, int]:
        namespace, _, own = name.partition("/")
        pods = self._world.members.version(("", WORKER, name))
        version = max(pods, self._world.settings.workloads.version(namespace, own))
        workload = self._world.settings.workload(namespace, own)
        if workload is None or self._world.settings.workload_pool(namespace, own) != pool:
            return None, version
        return self._world.members.project_worker(
            pool, workload, self._world.settings.workload_vendor(namespace, own)
        ), version
