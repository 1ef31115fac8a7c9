"""What runs of the pools' components: pods of agents, workers and clients, as members of rollouts. No I/O.

An agent is a member as long as its node is in the pool, whether or not it has a pod; a workload as long as it wants workers,
or has any. Pods whose controllers are none of ours are clients: admission has put the template into them.
"""

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from schemas.dialects.tf_keys import VENDOR
from schemas.kube.components import COMPONENT, DEFAULT_VENDOR, POOL, TEMPLATE_HASH, WORKLOAD_KIND, worker_overrides
from schemas.kube.core import KubePod, OwnerReference
from schemas.kube.resources import TensorFusionWorkload
from schemas.remote import WORKLOAD_MODE
from schemas.rollout import COMPONENTS, Component, Member

Key = tuple[str, ...]
"""Pool, component, and the member's name. The pool is left out of a worker, which is in that of its workload, and of an agent,
which is in that of its node, whichever made it.
"""

HYPERVISOR: Final = "hypervisor"
WORKER: Final = "worker"
CLIENT: Final = "client"
CRASH_LOOP: Final = "CrashLoopBackOff"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Part(NamedTuple):
    """One pod of a member; ``owner`` is the UID of its controller, ``maker`` what that is, as ``apiVersion/kind/name``."""

    uid: str
    pool: str
    owner: str
    maker: str
    hash: str
    vendor: str
    created_at: datetime
    ready: bool
    crash_looping: bool


class Members:
    """Pods by the member they belong to; ``changed`` is called with the key of one that may have to be told anew."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._parts: dict[Key, dict[tuple[str, str], Part]] = {}
        self._homes: dict[tuple[str, str], Key] = {}
        self._versions: dict[Key, int] = {}

    def version(self, key: Key) -> int:
        """Return the version since which a member's pods are as they are; 0 if it never had any."""
        return self._versions.get(key, 0)

    def away(self, key: Key) -> bool:
        """Return whether a member has pods of which one is not ready; one without pods may be kept by somebody else."""
        return any(not part.ready for part in self._parts.get(key, {}).values())

    def put(self, item: KubePod) -> None:
        """The pod is so."""
        pod = (item.metadata.namespace, item.metadata.name)
        home = None if item.ended else _home(item)
        if self._homes.get(pod, home) != home:
            self.gone(*pod, item.metadata.version)
        if home is not None:
            self._homes[pod] = home
            self._parts.setdefault(home, {})[pod] = _part(item)
            self._touch(home, item.metadata.version)

    def gone(self, namespace: str, name: str, version: int) -> None:
        """The pod is no more."""
        home = self._homes.pop((namespace, name), None)
        if home is not None:
            parts = self._parts[home]
            del parts[namespace, name]
            if not parts:
                del self._parts[home]
            self._touch(home, version)

    def _touch(self, key: Key, version: int) -> None:
        self._versions[key] = max(version, self.version(key))
        self._changed(key)

    def project(self, key: Key) -> Member | None:
        """Return a member of one pod, or of several that claim to be the same, as STATE says it; None if nothing runs of it."""
        parts = list(self._parts.get(key, {}).values())
        if not parts:
            return None
        oldest = _oldest(parts)
        pool, component, name = key
        return Member(
            pool=pool,
            component=_component(component),
            name=name,
            uid=oldest.uid,
            hash=_hash(parts),
            created_at=oldest.created_at,
            ready=all(part.ready for part in parts),
            crash_looping=any(part.crash_looping for part in parts),
            owned=all(part.owner for part in parts),
            owner=oldest.maker if component == CLIENT else "",
            vendor=oldest.vendor,
        )

    def project_worker(self, pool: str, workload: TensorFusionWorkload, vendor: str) -> Member | None:
        """Return the workers of a workload as STATE says them, or None if there are none and none are wanted.

        Args:
            pool: Where they are wanted.
            workload: Theirs. One that neither says how many workers it wants nor is its clients' has none made, nor made anew.
            vendor: Vendor of its GPUs.
        """
        meta, wanted = workload.metadata, workload.spec.replicas
        name = f"{meta.namespace}/{meta.name}"
        parts = [one for one in self._parts.get(("", WORKER, name), {}).values() if one.owner == meta.uid]
        if not parts and not wanted:
            return None
        ready = sum(part.ready for part in parts)
        return Member(
            pool=pool,
            component=WORKER,
            name=name,
            uid=meta.uid if parts else "",
            hash=_hash(parts),
            created_at=_oldest(parts).created_at if parts else _time(meta.creation_timestamp),
            ready=ready == len(parts) >= (wanted if isinstance(wanted, int) else 0),
            crash_looping=any(part.crash_looping for part in parts),
            owned=isinstance(wanted, int) or WORKLOAD_MODE in meta.annotations,
            vendor=vendor,
            overrides=worker_overrides(workload.spec),
            wanted=wanted if isinstance(wanted, int) else 0,
            pods=len(parts),
            pods_ready=ready,
        )

    def project_agent(self, pool: str, name: str, *, isolation: str, vendor: str, since: str) -> Member:
        """Return the agent of a node in the pool as STATE says it, whether or not it has a pod.

        One that another pool has made, before the node came to this, is out of date whatever it was made from.

        Args:
            pool: Where the node is.
            name: The node.
            isolation: Isolation mode of its node.
            vendor: Vendor of the GPUs there.
            since: When the node was made.
        """
        key = agent_key(name)
        known = self.project(key) or Member(
            pool=pool, component=HYPERVISOR, name=name, uid="", hash="", created_at=_time(since)
        )
        ours = all(part.pool == pool for part in self._parts.get(key, {}).values())
        return msgspec.structs.replace(
            known, pool=pool, hash=known.hash if ours else "", isolation=isolation, vendor=vendor, owned=True
        )


def agent_key(node: str) -> Key:
    """Return the key of a node's agent."""
    return "", HYPERVISOR, node


def _oldest(parts: Iterable[Part]) -> Part:
    return min(parts, key=lambda part: (part.created_at, part.uid))


def _hash(parts: Collection[Part]) -> str:
    """Return what several pods were made from: one that crash loops counts more than the others, different ones are none."""
    looping = [part for part in parts if part.crash_looping]
    if looping:
        return max(looping, key=lambda part: (part.created_at, part.uid)).hash
    hashes = {part.hash for part in parts}
    return hashes.pop() if len(hashes) == 1 else ""


def _component(name: str) -> Component:
    return next(known for known in COMPONENTS if known == name)


def _home(item: KubePod) -> Key | None:
    meta = item.metadata
    component = meta.labels.get(COMPONENT, "")
    pool = meta.labels.get(POOL) or meta.annotations.get(POOL, "")
    owner = _controller(item)
    if component == HYPERVISOR:
        return agent_key(item.spec.node_name) if pool and item.spec.node_name else None
    if component not in (WORKER, CLIENT):
        return None
    if owner is not None and owner.kind == WORKLOAD_KIND:
        return "", WORKER, f"{meta.namespace}/{owner.name}"
    return (pool, CLIENT, f"{meta.namespace}/{meta.name}") if pool else None


def _controller(item: KubePod) -> OwnerReference | None:
    return next((owner for owner in item.metadata.owner_references if owner.controller), None)


def _part(item: KubePod) -> Part:
    meta, status = item.metadata, item.status
    ready = any(one.type == "Ready" and one.status == "True" for one in status.conditions)
    waiting = [one.state.waiting for one in status.container_statuses]
    owner = _controller(item)
    return Part(
        uid=meta.uid,
        pool=meta.labels.get(POOL) or meta.annotations.get(POOL, ""),
        owner=owner.uid if owner is not None else "",
        maker=f"{owner.api_version}/{owner.kind}/{owner.name}" if owner is not None else "",
        hash=meta.labels.get(TEMPLATE_HASH, ""),
        vendor=meta.annotations.get(VENDOR) or DEFAULT_VENDOR,
        created_at=_time(meta.creation_timestamp),
        ready=ready and not meta.deletion_timestamp,
        crash_looping=any(one is not None and one.reason == CRASH_LOOP for one in waiting),
    )


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return _EPOCH
