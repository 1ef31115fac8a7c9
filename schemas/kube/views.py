"""A pod as its request is read from it. Admission and the watcher read one pod the same way, because they read it here."""

from functools import lru_cache
from typing import Final

import msgspec

from schemas.dialects import ContainerView, PodSpecView, host_amounts
from schemas.kube.core import Container, KubePod
from schemas.node_rules import NodeRules, Toleration

_EVERY_POD: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints whose ``NoExecute`` the API server has every pod tolerate for a while. A node that has them is not ready either."""

_written = msgspec.msgpack.Encoder()
_containers = msgspec.msgpack.Decoder(tuple[tuple[ContainerView, ...], tuple[ContainerView, ...]])


def view_of(pod: KubePod) -> PodSpecView:
    """Return the part of a pod that its request is read from."""
    spec = pod.spec
    return PodSpecView(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        labels=pod.metadata.labels,
        annotations=pod.metadata.annotations,
        containers=tuple(map(_container, spec.containers)),
        init_containers=tuple(map(_container, spec.init_containers)),
        scheduler_name=spec.scheduler_name,
        priority=spec.priority,
        priority_class_name=spec.priority_class_name,
        preempts=spec.preemption_policy != "Never",
        owner=controller(pod),
        nodes=_node_rules(pod),
    )


def controller(pod: KubePod) -> str:
    """Return the name of the controller that made a pod; empty for a bare one."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            return owner.name
    return ""


def amounts_of(pod: KubePod) -> tuple[int, int]:
    """Return the CPU in thousandths of a core and the memory in bytes that a pod takes.

    Raises:
        RequestError: They cannot be read; the API server lets no such pod in.
    """
    return _amounts(_written.encode((_host(pod.spec.containers), _host(pod.spec.init_containers))))


def _host(containers: tuple[Container, ...]) -> list[ContainerView]:
    return [
        ContainerView(
            name=one.name,
            requests=one.resources.requests,
            limits=one.resources.limits,
            restarts=one.restart_policy == "Always",
        )
        for one in containers
    ]


@lru_cache(maxsize=4096)
def _amounts(written: bytes) -> tuple[int, int]:
    """Return what containers take, written as they are: those of one controller all write the same."""
    containers, first = _containers.decode(written)
    return host_amounts(PodSpecView(containers=containers, init_containers=first))


def _node_rules(pod: KubePod) -> NodeRules | None:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    return NodeRules.of(
        selector=pod.spec.node_selector,
        required=affinity.required.node_selector_terms
        if affinity is not None and affinity.required is not None
        else None,
        preferred=affinity.preferred if affinity is not None else (),
        tolerations=tuple(one for one in pod.spec.tolerations if not _common(one)),
    )


def _common(one: Toleration) -> bool:
    return one.key in _EVERY_POD and one.effect == "NoExecute" and one.operator == "Exists"


def _container(container: Container) -> ContainerView:
    return ContainerView(
        name=container.name,
        requests=container.resources.requests,
        limits=container.resources.limits,
        privileged=container.security_context is not None and container.security_context.privileged is True,
        env={variable.name: variable.value for variable in container.env},
        restarts=container.restart_policy == "Always",
    )
