"""The watcher's view of the API server: which objects may have to be told anew when one changes. No I/O."""

from collections.abc import Callable, Iterable
from datetime import datetime

from bus import subjects
from producers.watcher import volumes
from producers.watcher.budgets import Budgets
from producers.watcher.clients import Clients
from producers.watcher.members import HYPERVISOR, WORKER, Members
from producers.watcher.nodes import Nodes
from producers.watcher.plan import (
    CLIENT,
    COMPONENT,
    CONFIG,
    CONNECTION,
    DISRUPTION,
    KINDS,
    MEMBER,
    NAMESPACE,
    NODE,
    POD,
    POOL,
    QUOTA,
    About,
    Key,
    Stored,
)
from producers.watcher.pods import Pods
from producers.watcher.projection import NATIVE, TENSORFUSION, Projection
from producers.watcher.reading import Reader
from producers.watcher.seats import Seats
from producers.watcher.told import Told
from producers.watcher.told import told as compared
from producers.watcher.volumes import Claims, Volumes
from schemas.cluster import PreemptionScope
from schemas.kube.annotations import read_allocation
from schemas.kube.core import KubePod
from schemas.kube.defaults import SCHEDULER_CONFIG, Settings, Shelf
from schemas.kube.policy import KubeNamespace
from schemas.kube.resources import ResourceQuota, TensorFusionConnection
from schemas.kube.scheduler import SCHEDULERS
from schemas.rollout import COMPONENTS


class World:
    """Pods, nodes and settings.

    Args:
        on_news: Called after every change; must only schedule work.
        preemption: Whose pods may be evicted for others, in every pool.
    """

    def __init__(self, on_news: Callable[[], None], *, preemption: PreemptionScope = "never") -> None:
        self._on_news = on_news
        self.dirty: dict[tuple[str, Key], bool] = {}
        """Objects that may have to be told anew, by kind and name, in order of their change.

        False for those that only STATE has changed: they are told if what somebody else said of them is older.
        """
        self.settings = Settings(self._on_settings, preemption=preemption)
        self.nodes = Nodes(self._on_node)
        self.budgets = Budgets(lambda key: self._mark(DISRUPTION, key))
        self.namespaces: Shelf[KubeNamespace] = Shelf(NAMESPACE, lambda _, __, name: self._mark(NAMESPACE, (name,)))
        self.claims = Claims(self._on_asking)
        self.volumes = Volumes(self._on_asking)
        self.native_quotas: Shelf[ResourceQuota] = Shelf(NATIVE, self._on_settings)
        self.members = Members(self._on_member)
        self.agents_in: set[str] = set()
        """Pools that have, or had, agents."""
        self._workload_pools: dict[str, str] = {}
        self.reader = Reader(self.settings, lambda *names: volumes.problem(self.claims, self.volumes, *names))
        self.pods = Pods(self.reader, lambda key: self._mark(POD, key))
        self.clients = Clients(lambda key: self._mark(CLIENT, key))
        self.connections: Shelf[TensorFusionConnection] = Shelf(
            CONNECTION, lambda _, namespace, name: self._mark(CONNECTION, (namespace, name))
        )
        self.projection = Projection(self)
        self._seats = Seats(self.nodes)

    # The view of pods

    def put(self, item: KubePod) -> None:
        """The pod is so."""
        meta = item.metadata
        key = (meta.namespace, meta.name)
        ours = item.spec.scheduler_name in SCHEDULERS or _placed_by_us(item)
        self._seats.sit(key, item, ours=ours)
        self.members.put(item)
        self.clients.put(item)
        if ours:
            self.budgets.on_pod(item)
            self.pods.put(key, item)
        else:
            self.budgets.on_pod_gone(*key, meta.version)
            self.pods.foreign(key, meta.version)

    def gone(self, namespace: str, name: str, version: int) -> None:
        """The pod is no more."""
        key = (namespace, name)
        self.members.gone(namespace, name, version)
        self.clients.gone(namespace, name, version)
        self.budgets.on_pod_gone(namespace, name, version)
        self._seats.gone(key, version)
        self.pods.gone(key, version)

    def complete(self, version: int) -> None:
        """A list has ended."""
        self.pods.complete(version)
        self.clients.complete(version)

    def holders(self, node: str, uids: frozenset[str]) -> None:
        """The ledger says which pods hold something on a node."""
        self._seats.holders(node, uids)

    # News

    def _on_node(self, name: str) -> None:
        self._mark(NODE, (name,))
        for pool in self.agents_in:
            self._mark(MEMBER, (pool, HYPERVISOR, name))

    def _on_member(self, key: Key) -> None:
        match key:
            case (_, "worker", name):
                self._on_workload(name)
            case (_, "hypervisor", name):
                self._on_node(name)
            case _:
                self._mark(MEMBER, key)

    def _on_workload(self, name: str) -> None:
        """A workload, its pool or its workers have changed: it is a member of the pool that it is in, and of no other."""
        pool = self.settings.workload_pool(*name.split("/", 1))
        for one in {pool, self._workload_pools.get(name, "")} - {""}:
            self._mark(MEMBER, (one, WORKER, name))
        if pool:
            self._workload_pools[name] = pool
        else:
            self._workload_pools.pop(name, None)

    def _on_settings(self, plural: str, namespace: str, name: str) -> None:
        """An object has changed, and what depends on it may be another now: nodes, pools, pods that still wait."""
        if plural == NATIVE:
            self._mark(QUOTA, (namespace, f"{NATIVE}/{name}"))
            return
        if plural == SCHEDULER_CONFIG:
            self._on_pools()
            self._on_news()
            return
        self.reader.forget()
        self._mark(CONFIG, (plural, namespace, name))
        match plural:
            case "gpupools":
                self._mark(POOL, (name,))
                self.dirty |= dict.fromkeys(((NODE, (node,)) for node in self.nodes.names()), True)
                self._on_components([name])
                for namespace_of, workload in self.settings.workloads.items:
                    self._on_workload(f"{namespace_of}/{workload}")
            case "tensorfusionworkloads":
                self._on_workload(f"{namespace}/{name}")
            case "schedulingconfigtemplates":
                self._on_pools()
            case "gpuresourcequotas":
                self._mark(QUOTA, (namespace, f"{TENSORFUSION}/{name}"))
            case "providerconfigs":
                self._on_components([pool for _, pool in self.settings.pools.items])
        self._on_asking()

    def _on_pools(self) -> None:
        """What all pools do for their pods may be another now."""
        self.dirty |= dict.fromkeys(((POOL, (pool,)) for _, pool in self.settings.pools.items), True)

    def _on_components(self, pools: Iterable[str]) -> None:
        """What pools want of their components, or which nodes have their agents, may be another now."""
        for pool in pools:
            self.dirty |= dict.fromkeys(((COMPONENT, (pool, component)) for component in COMPONENTS), True)
            if self.settings.has_agents(pool):
                self.agents_in.add(pool)
        for pool in self.agents_in:
            nodes = self.nodes.names()
            self.dirty |= dict.fromkeys(((MEMBER, (pool, HYPERVISOR, node)) for node in nodes), True)

    def _on_asking(self) -> None:
        """What pods that still wait ask for may be read otherwise now."""
        self.dirty |= dict.fromkeys(((POD, key) for key in self.pods.asking), True)
        self._on_news()

    def _mark(self, kind: str, key: Key) -> None:
        self.dirty[kind, key] = True
        self._on_news()

    def review(self, subject: str) -> None:
        """STATE was changed by somebody else: see whether they knew better."""
        found = place(subject)
        if found is not None:
            self.dirty.setdefault(found, False)
            self._on_news()

    def compare(self, stored: Iterable[str]) -> None:
        """Mark what STATE holds on the subjects ``stored`` and the API server may not have, now that it has been listed."""
        for subject in stored:
            found = place(subject)
            if found is not None and not (found[0] == POD and found[1] in self.pods.there):
                self.dirty[found] = True
        self._on_news()

    # What to say

    def tell(
        self, kind: str, key: Key, stored: Stored | None, at: datetime, seq: int, *, news: bool = True
    ) -> Told | None:
        """Return what is to be said about one object; None if STATE says it already, or something newer.

        Without ``news`` of our own something as new is left alone too: replicas of different make must not quarrel.
        """
        told = self._tell(kind, key, stored, at, seq)
        if told is None or news or stored is None or stored.version < told.version:
            return told
        return None

    def _tell(self, kind: str, key: Key, stored: Stored | None, at: datetime, seq: int) -> Told | None:
        if kind == POD:
            return self.pods.tell(subject_of(kind, key), key, stored, at, seq)
        if kind == POOL and self.settings.scheduling is None and ("", key[0]) in self.settings.pools.items:
            return None  # what nobody can read changes no pool
        value, version = self.projection.of(kind, key)
        return compared(About(subject_of(kind, key), key, "/".join(key), version, at), value, stored)

    def done(self, kind: str, key: Key, version: int) -> None:
        """STATE says of an object what it was at ``version``, or something newer: forget what is needed no more."""
        if kind == POD:
            self.pods.done(key, version)
        elif kind == CLIENT:
            self.clients.done(key, version)

    def again(self, kind: str, key: Key, told: Told) -> None:
        """What was to be said of an object could not be; its commands were given."""
        if kind == POD:
            self.pods.again(key, told)
        self._mark(kind, key)


def _placed_by_us(pod: KubePod) -> bool:
    """Whether a kube-scheduler had us bind the pod."""
    meta = pod.metadata
    return bool(pod.spec.node_name) and read_allocation(meta.annotations, meta.uid) is not None


def place(subject: str) -> tuple[str, Key] | None:
    """Return the kind and names of the object that a STATE subject is about; None if it is none of ours."""
    try:
        _, kind, *names = subjects.names(subject)
    except ValueError:
        return None
    return (kind, tuple(names)) if KINDS.get(kind) == len(names) else None


def subject_of(kind: str, key: Key) -> str:
    """Return the STATE subject of an object."""
    return subjects.state(kind, *key)
