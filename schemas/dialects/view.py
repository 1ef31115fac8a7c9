"""What of a Kubernetes pod a request is read from, and the CPU and memory it takes beside GPUs."""

from collections.abc import Callable
from typing import Final

import msgspec

from schemas.dialects import text
from schemas.node_rules import NodeRules

TF_PREFIX: Final = "tensor-fusion.ai/"
POOL_KEY: Final = "tensor-fusion.ai/gpupool"
"""Annotation (or label) that names the pool; it says nothing of the dialect, which is why both read it."""


class ContainerView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One container.

    Attributes:
        requests: Resource requests, as Kubernetes quantities.
        limits: Resource limits, likewise.
        privileged: ``securityContext.privileged``: it sees every GPU of its node whatever it is given.
        env: Environment variables with literal values.
        restarts: For an init container, restart policy ``Always``: it runs on beside the others (a native sidecar).
    """

    name: str
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    privileged: bool = False
    env: dict[str, str] = {}
    restarts: bool = False

    def resource(self, name: str) -> str | None:
        """Return the limit, else the request, of a resource, or None when it has neither.

        Kubernetes wants the two equal for extended resources, and writes the limit where the request is missing.
        """
        return self.limits.get(name, self.requests.get(name))


class PodSpecView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pod, stored or only proposed: at admission it has no UID and, under ``generateName``, no name.

    Attributes:
        owner: Name of the topmost controller, such as the Deployment above a ReplicaSet; empty for a bare pod.
        owner_replicas: How many pods that controller wants; None when it does not say.
        nodes: Node selector, node affinity and tolerations; None when it has none.
        priority: ``spec.priority``, which the API server fills in from the priority class.
        preempts: Whether others may be evicted for it: ``spec.preemptionPolicy`` is not ``Never``.
    """

    namespace: str = ""
    name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    containers: tuple[ContainerView, ...] = ()
    init_containers: tuple[ContainerView, ...] = ()
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preempts: bool = True
    owner: str = ""
    owner_replicas: int | None = None
    nodes: NodeRules | None = None

    def annotation(self, key: str) -> str:
        """Return an annotation without the white space around it; empty when it is missing."""
        return self.annotations.get(key, "").strip()


def host_amounts(pod: PodSpecView) -> tuple[int, int]:
    """Return the CPU in thousandths of a core and the memory in bytes that the pod's containers take.

    Init containers run one after the other before the rest, so the larger of their largest and the others' sum counts; a
    native sidecar counts among the others, and beside every init container after it. Source: KEP-753, sidecar containers.

    Raises:
        RequestError: A request or limit is no quantity of 0 or more.
    """
    return _effective(pod, "cpu", text.milli), _effective(pod, "memory", text.size)


def _effective(pod: PodSpecView, name: str, read: Callable[..., int]) -> int:
    peak = sidecars = 0
    for container in pod.init_containers:
        amount = _request(container, name, read)
        if container.restarts:
            sidecars += amount
        peak = max(peak, sidecars if container.restarts else sidecars + amount)
    return max(peak, sidecars + sum(_request(container, name, read) for container in pod.containers))


def _request(container: ContainerView, name: str, read: Callable[..., int]) -> int:
    # A missing CPU or memory request means the limit, unlike extended resources, which are read from limits first.
    written = container.requests.get(name, container.limits.get(name))
    return 0 if written is None else read(written, field=f"container {container.name} {name}")
