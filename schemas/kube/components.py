"""A pool's components as templates: what agents, workers and clients are made from, and how changes reach them. Pure."""

import copy
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from schemas.kube.pools import Client, GPUPoolSpec, Hypervisor, Worker
from schemas.rollout import Component, ComponentSpec
from schemas.rollout_template import make_template
from schemas.update_policy import parse_policy

DOMAIN: Final = "tensor-fusion.ai"
COMPONENT: Final = f"{DOMAIN}/component"
POOL: Final = f"{DOMAIN}/gpupool"
WORKLOAD: Final = f"{DOMAIN}/workload"
TEMPLATE_HASH: Final = f"{DOMAIN}/pod-template-hash"
VENDOR: Final = f"{DOMAIN}/hardware-vendor"
ISOLATION: Final = f"{DOMAIN}/isolation"

_AGENT: Final[dict[str, Any]] = {
    "hostNetwork": True,
    "hostPID": True,
    "priorityClassName": "system-node-critical",
    "tolerations": [{"operator": "Exists"}],
}
"""What a pool's template need not say of an agent: it watches its node's GPUs and processes, whatever is wrong with the node."""


def component_specs(name: str, spec: GPUPoolSpec, revisions: Mapping[str, str]) -> dict[Component, ComponentSpec]:
    """Return what a pool wants of those of its components that it configures.

    Args:
        name: The pool.
        spec: Its specification.
        revisions: Revision of each vendor's provider configuration, which names images too.

    Raises:
        RequestError: The pool's update policy cannot be followed.
    """
    config = spec.component_config
    rendered: dict[Component, dict[str, Any]] = {}
    if config is not None:
        if config.hypervisor is not None:
            rendered["hypervisor"] = render_hypervisor(config.hypervisor)
        if config.worker is not None:
            rendered["worker"] = _pod("worker", config.worker)
        if config.client is not None:
            rendered["client"] = _client(config.client)
    policy = spec.node_manager_config.node_pool_rolling_update_policy
    stated = msgspec.to_builtins(policy) if policy is not None else None
    return {
        component: ComponentSpec(
            pool=name,
            component=component,
            template=make_template(template, revisions),
            policy=parse_policy(stated, component),
        )
        for component, template in rendered.items()
    }


def render_hypervisor(config: Hypervisor) -> dict[str, Any]:
    """Return the pod template of a pool's agents."""
    rendered = _pod("hypervisor", config)
    spec = rendered["spec"]
    for key, value in _AGENT.items():
        spec.setdefault(key, copy.deepcopy(value))
    first = spec["containers"][0]
    first.setdefault("ports", [{"name": "http", "containerPort": config.port_number}])
    if config.enable_vector and config.vector_image:
        spec["containers"].append({"name": "vector", "image": config.vector_image})
    return rendered


def _pod(component: str, config: Hypervisor | Worker) -> dict[str, Any]:
    """Render ``podTemplate``, written with or without a level ``template``; the image stated beside it counts."""
    stated = copy.deepcopy(config.pod_template or {})
    stated = stated.get("template", stated)
    metadata, spec = stated.get("metadata") or {}, stated.get("spec") or {}
    containers = spec.get("containers") or [{}]
    containers[0].setdefault("name", component)
    if config.image:
        containers[0]["image"] = config.image
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {"metadata": kept, "spec": {**spec, "containers": containers}}


def _client(config: Client) -> dict[str, Any]:
    rendered = msgspec.to_builtins(config)
    assert isinstance(rendered, dict)  # noqa: S101  for mypy: a Struct becomes an object
    return rendered
