"""Disruption budgets, and which pods of ours each of them covers at present. No I/O."""

from collections.abc import Callable
from typing import NamedTuple

from schemas.kube.core import KubePod
from schemas.kube.policy import PodDisruptionBudget
from schemas.kube.selectors import selects_labels
from schemas.preemption import DisruptionBudget

Key = tuple[str, ...]
"""Namespace and name."""


class Covered(NamedTuple):
    """A pod that has a node, as far as selectors look at it."""

    uid: str
    labels: dict[str, str]


class Budgets:
    """Budgets and pods; ``changed`` is called with the key of a budget that may have to be told anew."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._budgets: dict[str, dict[str, PodDisruptionBudget]] = {}
        self._pods: dict[str, dict[str, Covered]] = {}
        self._versions: dict[Key, int] = {}
        self._listed_at = 0

    def put(self, item: PodDisruptionBudget) -> None:
        """The budget is so."""
        meta = item.metadata
        self._budgets.setdefault(meta.namespace, {})[meta.name] = item
        self._touch((meta.namespace, meta.name), meta.version)

    def gone(self, namespace: str, name: str, version: int) -> None:
        """The budget is no more."""
        self._budgets.get(namespace, {}).pop(name, None)
        self._touch((namespace, name), version)

    def complete(self, version: int) -> None:
        """A list has ended."""
        self._listed_at = version

    def version(self, key: Key) -> int:
        """Return the version since which a budget, with the pods it covers, is as it is."""
        return self._versions.get(key, self._listed_at)

    def on_pod(self, item: KubePod) -> None:
        """A pod of ours is so."""
        meta = item.metadata
        runs = bool(item.spec.node_name) and not item.ended
        self._place((meta.namespace, meta.name), Covered(meta.uid, meta.labels) if runs else None, meta.version)

    def on_pod_gone(self, namespace: str, name: str, version: int) -> None:
        """There is no pod of ours of that name."""
        self._place((namespace, name), None, version)

    def _place(self, key: Key, pod: Covered | None, version: int) -> None:
        namespace, name = key
        pods = self._pods.setdefault(namespace, {})
        before = pods.get(name)
        if before == pod:
            return
        if pod is None:
            del pods[name]
        else:
            pods[name] = pod
        for budget, item in self._budgets.get(namespace, {}).items():
            if any(one is not None and _covers(item, one) for one in (before, pod)):
                self._touch((namespace, budget), version)

    def project(self, key: Key) -> DisruptionBudget | None:
        """Return what STATE says of a budget; None if there is no such budget."""
        namespace, name = key
        item = self._budgets.get(namespace, {}).get(name)
        if item is None:
            return None
        pods = self._pods.get(namespace, {}).values()
        return DisruptionBudget(
            namespace=namespace,
            name=name,
            allowed=item.allowed,
            pods=tuple(sorted(pod.uid for pod in pods if _covers(item, pod))),
        )

    def _touch(self, key: Key, version: int) -> None:
        self._versions[key] = max(version, self._versions.get(key, 0))
        self._changed(key)


def _covers(item: PodDisruptionBudget, pod: Covered) -> bool:
    return item.spec.selector is not None and selects_labels(item.spec.selector, pod.labels)
