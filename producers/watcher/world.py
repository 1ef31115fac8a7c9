"""The watcher's view of the API server, joined: which objects may have to be told anew, and as what. No I/O."""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec

from bus import subjects
from producers.watcher import volumes
from producers.watcher.budgets import Budgets
from producers.watcher.members import HYPERVISOR, WORKER, Members
from producers.watcher.nodes import Nodes, Seat
from producers.watcher.plan import Known, Outgoing, Stored, commands, digest, fact, known, refusal, release
from producers.watcher.reading import Refusal, project, read_request
from producers.watcher.volumes import Claims, Volumes
from schemas.cluster import EVERY_GPU, Namespace, Node
from schemas.dialects import RequestError
from schemas.kube.annotations import claimed_gpus, read_allocation
from schemas.kube.components import VENDOR
from schemas.kube.core import KubePod
from schemas.kube.defaults import SCHEDULERS, Settings, Shelf
from schemas.kube.isolation import isolation_of
from schemas.kube.policy import KubeNamespace
from schemas.kube.quotas import native_quota, tensorfusion_quota
from schemas.kube.resources import ResourceQuota
from schemas.kube.views import amounts_of
from schemas.pod import Pod
from schemas.quantity import QuantityError
from schemas.quota import Budget, Quota
from schemas.rollout import COMPONENTS, Member

log = logging.getLogger("gpubus.watcher")

Key = tuple[str, ...]
"""Names of an object, as in its STATE subject behind the kind."""

POD: Final = "pod"
NODE: Final = "node"
POOL: Final = "pool"
QUOTA: Final = "quota"
CONFIG: Final = "config"
COMPONENT: Final = "component"
MEMBER: Final = "member"
DISRUPTION: Final = "disruption"
NAMESPACE: Final = "namespace"

KINDS: Final = {
    POD: 2, NODE: 1, POOL: 1, QUOTA: 2, CONFIG: 3, COMPONENT: 2, MEMBER: 3, DISRUPTION: 2, NAMESPACE: 1,
}  # fmt: skip
"""What is told, and how many names each has: a custom resource those of its kind, namespace and itself."""

NATIVE: Final = "ResourceQuota"
TENSORFUSION: Final = "GPUResourceQuota"


class Told(msgspec.Struct, frozen=True, gc=False):
    """What is to be said about one object: commands first, then the content of its subject, empty for nothing."""

    subject: str
    version: int
    commands: list[Outgoing]
    payload: bytes
    stored: Stored | None


class World:
    """Pods, nodes and settings. ``on_news`` is called after every change and must only schedule work."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        self.dirty: dict[tuple[str, Key], bool] = {}
        """Objects that may have to be told anew, by kind and name, in order of their change.

        False for those that only STATE has changed: they are told if what somebody else said of them is older.
        """
        self.settings = Settings(self._on_settings)
        self.nodes = Nodes(self._on_node)
        self.budgets = Budgets(lambda key: self._mark(DISRUPTION, key))
        self.namespaces: Shelf[KubeNamespace] = Shelf(NAMESPACE, lambda _, __, name: self._mark(NAMESPACE, (name,)))
        self.claims = Claims(self._on_asking)
        self.volumes = Volumes(self._on_asking)
        self.native_quotas: Shelf[ResourceQuota] = Shelf(NATIVE, self._on_settings)
        self.members = Members(self._on_member)
        self._agents_in: set[str] = set()
        """Pools that have, or had, agents."""
        self._workload_pools: dict[str, str] = {}
        self._latest = 0  # up to here the view is complete: lists do not come in the order of versions
        self._asking: dict[Key, KubePod] = {}
        self._bound: dict[Key, KubePod] = {}
        self._gone: dict[Key, int] = {}
        self._unsaid: dict[Key, dict[str, Known]] = {}
        """Pods that were told to the allocators, by name and UID, of which STATE did not take our word."""
        self._there: set[Key] = set()
        self._refused: dict[Key, tuple[str, Refusal]] = {}
        self._holders: dict[str, frozenset[str]] = {}
        self._held: dict[str, str] = {}
        self._placed: dict[str, tuple[Key, Seat, int]] = {}
        self._seats: dict[Key, str] = {}

    @property
    def refused(self) -> int:
        """Number of pods that cannot be placed as they are written."""
        return len(self._refused)

    # The view of pods

    def put(self, item: KubePod) -> None:
        """The pod is so."""
        key = (item.metadata.namespace, item.metadata.name)
        ours = item.spec.scheduler_name in SCHEDULERS or _placed_by_us(item)
        self._sit(key, item, ours=ours)
        self.members.put(item)
        self._gone.pop(key, None)
        if ours:
            self.budgets.on_pod(item)
        else:
            self.budgets.on_pod_gone(*key, item.metadata.version)
            if key in self._there:  # a pod of ours was deleted, and another's took its name
                self._forget(key, item.metadata.version)
            return
        self._there.add(key)
        if item.spec.node_name or item.ended:
            self._asking.pop(key, None)
            self._bound[key] = item  # only until it has been told
        else:
            self._asking[key] = item
            self._bound.pop(key, None)
        self._mark(POD, key)

    def gone(self, namespace: str, name: str, version: int) -> None:
        """The pod is no more."""
        key = (namespace, name)
        self._latest = max(self._latest, version)
        self.members.gone(namespace, name, version)
        self.budgets.on_pod_gone(namespace, name, version)
        self._leave(key)
        self.nodes.seat(key, None, version)
        self._forget(key, version)

    def complete(self, version: int) -> None:
        """A list has ended."""
        self._latest = max(self._latest, version)

    def _forget(self, key: Key, version: int) -> None:
        self._there.discard(key)
        self._asking.pop(key, None)
        self._bound.pop(key, None)
        self._refused.pop(key, None)
        self._gone[key] = version
        self._mark(POD, key)

    # Who takes what of a node

    def _sit(self, key: Key, item: KubePod, *, ours: bool) -> None:
        """Count a pod that has a node and is not in the ledger against that node, with the GPUs that it claims."""
        meta = item.metadata
        self._leave(key)
        if not item.spec.node_name or item.ended:
            self.nodes.seat(key, None, meta.version)
            return
        try:
            cpu, memory = amounts_of(item)
        except RequestError:
            cpu = memory = 0
        seat = Seat(item.spec.node_name, cpu, memory, claimed_gpus(meta.annotations))
        if ours:
            self._seats[key] = meta.uid
            self._placed[meta.uid] = (key, seat, meta.version)
        self.nodes.seat(key, None if ours and meta.uid in self._held else seat, meta.version)

    def _leave(self, key: Key) -> None:
        uid = self._seats.pop(key, None)
        if uid is not None:
            self._placed.pop(uid, None)

    def holders(self, node: str, uids: frozenset[str]) -> None:
        """The ledger says which pods hold something on a node."""
        before = self._holders.get(node, frozenset())
        self._holders[node] = uids
        for uid in before - uids:
            if self._held.get(uid) == node:
                del self._held[uid]
        self._held |= dict.fromkeys(uids, node)
        for uid in before ^ uids:
            if uid in self._placed:
                key, seat, version = self._placed[uid]
                self.nodes.seat(key, None if uid in self._held else seat, version)

    # News

    def _on_node(self, name: str) -> None:
        self._mark(NODE, (name,))
        for pool in self._agents_in:
            self._mark(MEMBER, (pool, HYPERVISOR, name))

    def _on_member(self, key: Key) -> None:
        if key[1] == WORKER:
            self._on_workload(key[2])
            return
        self._mark(MEMBER, key)
        if key[1] == HYPERVISOR:
            self._mark(NODE, (key[2],))

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
                self.dirty |= dict.fromkeys(((POOL, (pool,)) for _, pool in self.settings.pools.items), True)
            case "gpuresourcequotas":
                self._mark(QUOTA, (namespace, f"{TENSORFUSION}/{name}"))
            case "providerconfigs":
                self._on_components([pool for _, pool in self.settings.pools.items])
        self._on_asking()

    def _on_components(self, pools: Iterable[str]) -> None:
        """What pools want of their components, or which nodes have their agents, may be another now."""
        for pool in pools:
            self.dirty |= dict.fromkeys(((COMPONENT, (pool, component)) for component in COMPONENTS), True)
            if self.settings.has_agents(pool):
                self._agents_in.add(pool)
        for pool in self._agents_in:
            nodes = self.nodes.names()
            self.dirty |= dict.fromkeys(((MEMBER, (pool, HYPERVISOR, node)) for node in nodes), True)

    def _on_asking(self) -> None:
        """What pods that still wait ask for may be read otherwise now."""
        self.dirty |= dict.fromkeys(((POD, key) for key in self._asking), True)
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
        """Mark everything that STATE holds on the subjects ``stored`` and the API server may not have."""
        for subject in stored:
            found = place(subject)
            if found is not None:
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
            return self._tell_pod(key, stored, at, seq)
        value: msgspec.Struct | None
        uid = "/".join(key)
        match kind:
            case "node":
                value, version = self._node(key[0])
            case "pool":
                value, version = self.settings.pool(key[0]), self.settings.version(key[0])
            case "quota":
                value, version = self._quota(*key)
            case "component":
                value, version = self.settings.component(*key), self.settings.component_version(key[0])
            case "member":
                value, version = self._member(key)
            case "disruption":
                value, version = self.budgets.project(key), self.budgets.version(key)
            case "namespace":
                item = self.namespaces.items.get(("", key[0]))
                value = Namespace(name=key[0], labels=item.metadata.labels) if item is not None else None
                version = self.namespaces.version("", key[0])
            case _:
                plural, namespace, name = key
                value = self.settings.resource(plural, namespace, name)
                version = self.settings.shelves[plural][0].version(namespace, name)
        return _told(key, at, [], about=(subject_of(kind, key), uid, version), value=value, stored=stored)

    def _node(self, name: str) -> tuple[Node | None, int]:
        """Return a node as STATE says it. While its agent is being replaced its GPUs take no new pods; running ones stay."""
        node, version = self.nodes.project(name, self.settings.pool_of), self.nodes.version(name)
        if node is None or node.pool not in self._agents_in:
            return node, version
        agent = (node.pool, HYPERVISOR, name)
        version = max(version, self.members.version(agent))
        if self.members.away(agent):
            node = msgspec.structs.replace(node, cordoned_gpus=(EVERY_GPU,))
        return node, version

    def _quota(self, namespace: str, name: str) -> tuple[Quota | None, int]:
        kind, _, own = name.partition("/")
        try:
            if kind == NATIVE:
                native = self.native_quotas.items.get((namespace, own))
                value = native_quota(native) if native is not None else None
                return value, self.native_quotas.version(namespace, own)
            item = self.settings.quotas.items.get((namespace, own))
            value = tensorfusion_quota(item) if item is not None else None
        except QuantityError as error:
            log.error("quota %s of namespace %s lets nothing in: %s", name, namespace, error)  # noqa: TRY400
            value = Quota(namespace=namespace, name=name, total=Budget(workers=0))
        return value, self.settings.quotas.version(namespace, own)

    def _member(self, key: Key) -> tuple[Member | None, int]:
        pool, component, name = key
        if component == WORKER:
            return self._worker(pool, name)
        version = self.members.version(key)
        if component != HYPERVISOR:
            return self.members.project(key), version
        version = max(version, self.nodes.version(name))
        node = self.nodes.get(name)
        manager = self.settings.manager(pool, node) if node is not None else None
        if node is None or manager is None:
            return None, version
        meta = node.metadata
        member = self.members.project_agent(
            key,
            isolation=isolation_of(manager, meta.labels),
            vendor=meta.labels.get(VENDOR, manager.default_vendor),
            since=meta.creation_timestamp,
        )
        return member, version

    def _worker(self, pool: str, name: str) -> tuple[Member | None, int]:
        namespace, _, own = name.partition("/")
        pods = self.members.version(("", WORKER, name))
        version = max(pods, self.settings.workloads.version(namespace, own))
        workload = self.settings.workload(namespace, own)
        if workload is None or self.settings.workload_pool(namespace, own) != pool:
            return None, version
        return self.members.project_worker(pool, workload, self.settings.workload_vendor(namespace, own)), version

    def done(self, kind: str, key: Key, version: int) -> None:
        """STATE says of an object what it was at ``version``, or something newer: forget what is needed no more."""
        if kind == POD:
            item = self._bound.get(key)
            if item is not None and item.metadata.version <= version:
                del self._bound[key]
            if self._gone.get(key, version + 1) <= version:
                del self._gone[key]

    def again(self, told: Told) -> None:
        """What was to be said of an object could not be; its commands were given."""
        found = place(told.subject)
        if found is None:
            return
        kind, key = found
        if told.stored is not None and told.stored.pod is not None:
            self._unsaid.setdefault(key, {})[told.stored.pod.uid] = told.stored.pod
        self._mark(kind, key)

    def owed(self, key: Key, stored: Stored | None, at: datetime) -> list[Outgoing]:
        """Return releases of pods that were scheduled under this name and that nobody else can know of any more."""
        if key not in self._unsaid:
            return []
        item = self._bound.get(key) or self._asking.get(key)
        if stored is not None and stored.pod is not None:
            self._unsaid[key].pop(stored.pod.uid, None)  # whoever departs from that record gives the command
        if item is None and key in self._there and stored is None:
            return []  # it is there, unreadable, and may be any of them
        left = self._unsaid.pop(key)
        over = {uid: pod for uid, pod in left.items() if item is None or item.metadata.uid != uid}
        if left.keys() - over.keys():
            self._unsaid[key] = {uid: pod for uid, pod in left.items() if uid not in over}
        return [release(key, pod, "Deleted", "overtaken", at) for pod in over.values() if not pod.ended]

    def _tell_pod(self, key: Key, stored: Stored | None, at: datetime, seq: int) -> Told | None:
        subject = subject_of(POD, key)
        item = self._bound.get(key) or self._asking.get(key)
        if item is None:
            if key in self._there:
                return None  # it has its node, and that was told before
            version = self._gone.get(key, self._latest)
            said = commands(key, stored, None, version, at)
            return _told(key, at, said, about=(subject, "", version), value=None, stored=stored)
        version, uid = item.metadata.version, item.metadata.uid
        if item.spec.scheduling_gates:
            return None
        asked = read_request(item, self.settings, self._claim_problem)
        if isinstance(asked, Refusal):
            if item.spec.node_name or item.ended:
                # It has its node. What it holds it keeps until it ends, however it is written.
                return self._tell_unreadable(key, item, stored, at)
            news = self._refused.get(key) != (uid, asked)
            self._refused[key] = (uid, asked)
            said = [refusal(key, uid, asked, at, seq)] if news else []
            said += commands(key, stored, None, version, at)
            return _told(key, at, said, about=(subject, uid, version), value=None, stored=stored)
        self._refused.pop(key, None)
        pod = project(item, asked)
        said = commands(key, stored, pod, version, at)
        return _told(key, at, said, about=(subject, uid, version), value=pod, stored=stored)

    def _tell_unreadable(self, key: Key, item: KubePod, stored: Stored | None, at: datetime) -> Told | None:
        same = stored is not None and stored.pod is not None and stored.pod.uid == item.metadata.uid
        if same and not item.ended:
            return None
        version = item.metadata.version
        said = commands(key, stored, None, version, at)
        if item.ended and not same:
            unknown = Known(item.metadata.uid, "", item.spec.node_name, ended=True, asks=b"")
            said.append(release(key, unknown, item.status.phase, str(version), at))
        return _told(key, at, said, about=(subject_of(POD, key), "", version), value=None, stored=stored)

    def _claim_problem(self, namespace: str, name: str) -> str:
        return volumes.problem(self.claims, self.volumes, namespace, name)


def _placed_by_us(pod: KubePod) -> bool:
    """Whether a kube-scheduler had us bind the pod."""
    meta = pod.metadata
    return bool(pod.spec.node_name) and read_allocation(meta.annotations, meta.uid) is not None


def _told(
    key: Key,
    at: datetime,
    said: list[Outgoing],
    *,
    about: tuple[str, str, int],
    value: msgspec.Struct | None,
    stored: Stored | None,
) -> Told | None:
    """Compare what is with what STATE says. ``about`` is the subject, the object's UID, and the version since which it is so."""
    subject, uid, version = about
    if stored is not None and stored.version > version:
        return None  # another replica knows better, and has given the commands
    if value is None:
        if stored is None and not said:
            return None
        return Told(subject, version, said, b"", None)
    content = digest(value)
    if stored is not None and stored.digest == content and not said:
        return None
    pod = known(value) if isinstance(value, Pod) else None
    return Told(subject, version, said, fact(value, "/".join(key), uid, version, at), Stored(0, version, content, pod))


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
