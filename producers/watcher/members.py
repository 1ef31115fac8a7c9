"""What runs of the pools' components: pods of agents, workers and clients, as members of rollouts. No I/O.

An agent is a member as long as its node is in the pool, whether or not it has a pod; a workload as long as it has workers.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from schemas.kube.components import COMPONENT, POOL, TEMPLATE_HASH, WORKLOAD
from schemas.kube.core import KubePod
from schemas.rollout import COMPONENTS, Component, Member

Key = tuple[str, ...]
"""Pool, component, and the member's name."""

HYPERVISOR: Final = "hypervisor"
CRASH_LOOP: Final = "CrashLoopBackOff"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Part(NamedTuple):
    """One pod of a member."""

    uid: str
    owner: str
    hash: str
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
        """Return a worker or client as STATE says it, or None if nothing runs of it."""
        parts = list(self._parts.get(key, {}).values())
        if not parts:
            return None
        # Several pods stand for one member: it is what the one is that is least so.
        oldest = min(parts, key=lambda part: (part.created_at, part.uid))
        hashes = {part.hash for part in parts}
        pool, component, name = key
        return Member(
            pool=pool,
            component=_component(component),
            name=name,
            uid=oldest.owner if component == "worker" else oldest.uid,
            hash=hashes.pop() if len(hashes) == 1 else "",
            created_at=oldest.created_at,
            ready=all(part.ready for part in parts),
            crash_looping=any(part.crash_looping for part in parts),
            owned=all(part.owner for part in parts),
        )

    def project_agent(self, key: Key, *, isolation: str, vendor: str, since: str) -> Member:
        """Return the agent of a node in the pool as STATE says it, whether or not it has a pod.

        Args:
            key: Which one.
            isolation: Isolation mode of its node.
            vendor: Vendor of the GPUs there.
            since: When the node was made.
        """
        pool, _, name = key
        known = self.project(key) or Member(
            pool=pool, component=HYPERVISOR, name=name, uid="", hash="", created_at=_time(since)
        )
        return msgspec.structs.replace(known, isolation=isolation, vendor=vendor, owned=True)


def _component(name: str) -> Component:
    return next(known for known in COMPONENTS if known == name)


def _home(item: KubePod) -> Key | None:
    meta = item.metadata
    component = meta.labels.get(COMPONENT, "")
    pool = meta.labels.get(POOL) or meta.annotations.get(POOL, "")
    name = {
        "hypervisor": item.spec.node_name,
        "worker": f"{meta.namespace}/{workload}" if (workload := meta.labels.get(WORKLOAD)) else "",
        "client": f"{meta.namespace}/{meta.name}",
    }.get(component, "")
    return (pool, component, name) if pool and name else None


def _part(item: KubePod) -> Part:
    meta, status = item.metadata, item.status
    ready = any(one.type == "Ready" and one.status == "True" for one in status.conditions)
    waiting = [one.state.waiting for one in status.container_statuses]
    return Part(
        uid=meta.uid,
        owner=next((owner.uid for owner in meta.owner_references if owner.controller), ""),
        hash=meta.labels.get(TEMPLATE_HASH, ""),
        created_at=_time(meta.creation_timestamp),
        ready=ready and not meta.deletion_timestamp,
        crash_looping=any(one is not None and one.reason == CRASH_LOOP for one in waiting),
    )


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return _EPOCH
