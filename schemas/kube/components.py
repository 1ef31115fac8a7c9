"""A pool's components as templates: what agents, workers and clients are made from, and how changes reach them. Pure."""

import copy
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from schemas.dialects.text import RequestError
from schemas.kube.pools import Client, ComponentConfig, GPUPoolSpec, Hypervisor, Worker
from schemas.kube.shape import check_client, check_template
from schemas.kube.workloads import WorkloadProfileSpec
from schemas.rollout import Component, ComponentSpec, UpdatePolicy
from schemas.rollout_template import make_template
from schemas.update_policy import parse_policy

Configured = TypeVar("Configured", Hypervisor, Worker)

DOMAIN: Final = "tensor-fusion.ai"
COMPONENT: Final = f"{DOMAIN}/component"
POOL: Final = f"{DOMAIN}/gpupool"
WORKLOAD: Final = f"{DOMAIN}/workload"
TEMPLATE_HASH: Final = f"{DOMAIN}/pod-template-hash"
VENDOR: Final = f"{DOMAIN}/hardware-vendor"
ISOLATION: Final = f"{DOMAIN}/isolation"

WORKLOAD_KIND: Final = "TensorFusionWorkload"
DEFAULT_VENDOR: Final = "NVIDIA"
"""Vendor of a pod that names none."""

WORKER_IMAGE: Final = "remoteWorker"
"""Key of a provider's image of workers; without one, and without a pool's, a pool has none."""

WORKER_PORT: Final[dict[str, Any]] = {"name": "remote-vgpu", "containerPort": 8000}
"""Where a worker listens. Source: upstream's workers."""

_AGENT: Final[dict[str, Any]] = {
    "hostNetwork": True,
    "hostPID": True,
    "priorityClassName": "system-node-critical",
    "tolerations": [{"operator": "Exists"}],
}
"""What a pool's template need not say of an agent: it watches its node's GPUs and processes, whatever is wrong with the node."""


def component_specs(
    name: str, spec: GPUPoolSpec, revisions: Mapping[str, str], images: Mapping[str, str] | None = None
) -> dict[Component, ComponentSpec]:
    """Return what a pool wants of those of its components that it, or a provider, configures.

    Args:
        name: The pool.
        spec: Its specification.
        revisions: Revision of each vendor's provider configuration, which names images too: those of clients, and with them
            what runs in pods of every pool.
        images: Images that the providers name, by vendor and use, such as ``NVIDIA/remoteWorker``. They take precedence over
            the pool's.

    A policy or a ``podTemplate`` that cannot be followed says so in what the policy becomes, and updates nothing.
    """
    config, images = spec.component_config or ComponentConfig(), images or {}
    used: dict[Component, dict[str, str]] = {"client": dict(images)}
    used["worker"] = {key: image for key, image in images.items() if key.endswith(f"/{WORKER_IMAGE}")}
    rendered: dict[Component, dict[str, Any]] = {}
    refused: dict[Component, str] = {}
    if config.hypervisor is not None:
        hypervisor, refused["hypervisor"] = _sound("hypervisor", config.hypervisor)
        rendered["hypervisor"] = render_hypervisor(hypervisor)
    if config.worker is not None or used["worker"]:
        worker, refused["worker"] = _sound("worker", config.worker or Worker())
        rendered["worker"] = _worker(worker, config.hypervisor)
    if config.client is not None or revisions:
        rendered["client"] = _client(config.client or Client())
        refused["client"] = _unsound(rendered["client"])
    policy = spec.node_manager_config.node_pool_rolling_update_policy
    stated = msgspec.to_builtins(policy) if policy is not None else None
    return {
        component: ComponentSpec(
            pool=name,
            component=component,
            template=make_template(template, revisions, used.get(component)),
            policy=UpdatePolicy(refused=refused[component]) if refused.get(component) else _policy(stated, component),
        )
        for component, template in rendered.items()
    }


def _sound(component: Component, config: Configured) -> tuple[Configured, str]:
    """Return what a component is rendered from, without a template that is none, and what is wrong with that."""
    try:
        check_template(config.pod_template or {}, f"componentConfig.{component}.podTemplate")
    except RequestError as error:
        return msgspec.structs.replace(config, pod_template=None), str(error)
    return config, ""


def _unsound(client: Mapping[str, Any]) -> str:
    """Return what is wrong with what is put into pods, which get what they got before; empty if nothing is."""
    try:
        check_client(client, "componentConfig.client")
    except RequestError as error:
        return f"{error}; new pods get what they got before"
    return ""


def _policy(stated: Mapping[str, Any] | None, component: Component) -> UpdatePolicy:
    try:
        return parse_policy(stated, component)
    except RequestError as error:
        return UpdatePolicy(refused=str(error))


def worker_overrides(spec: WorkloadProfileSpec) -> dict[str, Any]:
    """Return what a workload adds to its pool's workers.

    How many there are is not of them, and requests that follow use are changed in place.
    """
    stated = msgspec.to_builtins(spec)
    return {key: value for key, value in stated.items() if key not in ("replicas", "autoScalingConfig")}


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


def _worker(config: Worker, hypervisor: Hypervisor | None) -> dict[str, Any]:
    rendered = _pod("worker", config)
    first = rendered["spec"]["containers"][0]
    first.setdefault("ports", [dict(WORKER_PORT)])
    port = {"name": "HYPERVISOR_PORT", "value": str((hypervisor or Hypervisor()).port_number)}
    first["env"] = [*(one for one in first.get("env") or () if one.get("name") != port["name"]), port]
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
