"""What becomes of a pod in TensorFusion's words: who places it, what is put into it, and what its labels say. Pure."""

from collections.abc import Collection
from typing import Any

import msgspec

from consumers.mutator.client import Client
from consumers.mutator.context import Context
from consumers.mutator.environment import Variable
from consumers.mutator.isolation import isolate
from consumers.mutator.options import Images, Options
from consumers.mutator.ports import PORT_LABEL, port_of
from consumers.mutator.remote import make_client, mount_library
from schemas.dialects import PodSpecView
from schemas.dialects import tf_keys as keys
from schemas.dialects.tensorfusion import PRIORITIES, PRIORITY_CLASSES
from schemas.dialects.text import boolean
from schemas.dialects.view import POOL_KEY
from schemas.kube.components import DEFAULT_VENDOR, TEMPLATE_HASH, WORKLOAD_KIND
from schemas.kube.merge import merge
from schemas.kube.occupied import TOLERATION
from schemas.makers import Made
from schemas.pod import GpuRequest


def tensorfusion(
    pod: dict[str, Any],
    names: Collection[str],
    view: PodSpecView,
    request: GpuRequest,
    context: Context,
    *,
    admission: str,
    made: Made | None = None,
) -> tuple[list[Variable], list[str]]:
    """Change a pod in TensorFusion's words, in place.

    Args:
        pod: The pod as JSON, without native GPU limits.
        names: Its containers with GPUs.
        view: The pod as it was written.
        request: What it asks for.
        context: What operators have set.
        admission: UID of the admission request.
        made: What is known of its controller; None if it has none.

    Returns:
        Variables of every container with GPUs, and what the pod's user should know.

    Raises:
        RequestError: It needs something that is not set.
    """
    options, vendor = context.options, request.vendor or DEFAULT_VENDOR
    client = context.clients(request.pool, vendor)
    images = client.images if client is not None else context.images.get(vendor, Images())
    told: list[str] = []
    if request.remote:
        known = client or Client(hash="", images=images)
        known = msgspec.structs.replace(known, endpoint=known.endpoint or options.operator_endpoint)
        profile = context.profiles(view.namespace, view.annotation(keys.PROFILE))
        variables, told = make_client(
            pod, view, request, known, profile=profile, admission=admission, made=made, workload=context.workload
        )
    else:
        spec = pod["spec"]
        spec["schedulerName"] = scheduler_of(pod, options, options.scheduler)
        variables = isolate(spec, containers(spec, names), request, images, worker=_is_worker(pod))
        told = _sidecar(view, request, context)
    for container in containers(pod["spec"], names):
        if request.remote:
            mount_library(container)
        if client is not None:
            patch = {key: value for key, value in client.patch.items() if key != "name"}
            container.update(merge(container, patch))
    _words(pod, view, request, client)
    return variables, told


def containers(spec: dict[str, Any], names: Collection[str]) -> list[dict[str, Any]]:
    """Return those of a pod's containers, init containers first, that have one of these names."""
    present = (one for kind in ("initContainers", "containers") for one in spec.get(kind) or ())
    return [one for one in present if one["name"] in names]


def scheduler_of(pod: dict[str, Any], options: Options, ours: str) -> str:
    """Return who is to place the pod: a kube-scheduler that asks us, where there is one and only it can promise all."""
    own = port_of((pod["metadata"].get("labels") or {}).get(PORT_LABEL, ""))
    needed = options.extender_scheduler and needs_kube_scheduler(pod["spec"], own)
    return options.extender_scheduler if needed else ours


def needs_kube_scheduler(spec: dict[str, Any], own_port: int = 0) -> bool:
    """Whether a pod's ``spec`` asks for what only kube-scheduler can promise, or may: a volume claim may be bound already.

    So does a port of its node, unless it is ``own_port``, which admission has given it and no other pod in the cluster.
    """
    present = (one for kind in ("initContainers", "containers") for one in spec.get(kind) or ())
    ports = (port for container in present for port in container.get("ports") or ())
    affinity = spec.get("affinity") or {}
    volumes = spec.get("volumes") or ()
    return bool(
        affinity.get("podAffinity")
        or affinity.get("podAntiAffinity")
        or spec.get("topologySpreadConstraints")
        or spec.get("resourceClaims")
        or any(port.get("hostPort") not in (None, 0, own_port) for port in ports)
        or any("persistentVolumeClaim" in volume or "ephemeral" in volume for volume in volumes)
    )


def _sidecar(view: PodSpecView, request: GpuRequest, context: Context) -> list[str]:
    """Say that a worker beside the container comes with hard isolation only: TensorFusion adds it to the others on demand."""
    written, name = view.annotation(keys.SIDECAR), view.annotation(keys.PROFILE)
    profile = context.profiles(view.namespace, name) if name else None
    asked = boolean(written, field=keys.SIDECAR) if written else profile is not None and profile.sidecar_worker
    if not asked or request.isolation == "hard":
        return []
    fix = f"{keys.ISOLATION}: hard gives it one"
    return [f"{keys.SIDECAR}: the pod uses GPUs of its node, without a worker beside it ({request.isolation}); {fix}"]


def _is_worker(pod: dict[str, Any]) -> bool:
    """Return whether a pod is a worker itself: its workload's controller says what it is made from."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(one.get("controller") and one.get("kind") == WORKLOAD_KIND for one in owners)


def _words(pod: dict[str, Any], view: PodSpecView, request: GpuRequest, client: Client | None) -> None:
    """Write what TensorFusion's tools read: what was decided for the pod in its own words, and whose it is."""
    meta, spec = pod["metadata"], pod["spec"]
    meta["annotations"] = {
        **(meta.get("annotations") or {}),
        POOL_KEY: request.pool,
        keys.QOS: request.qos,
        keys.ISOLATION: request.isolation,
        keys.LOCAL: "false" if request.remote else "true",
        keys.INJECT: ",".join(request.container_names),
        **({keys.VENDOR: request.vendor} if request.vendor else {}),
    }
    extra = {keys.WORKLOAD: view.owner} if view.owner and not request.remote else {}
    if client is not None and not _is_worker(pod):
        extra[TEMPLATE_HASH] = client.hash
    meta["labels"] = {
        **(meta.get("labels") or {}), keys.ENABLED: "true", keys.COMPONENT: "client" if request.remote else "worker",
        POOL_KEY: request.pool, **extra,
    }  # fmt: skip
    if not request.remote:
        tolerate(spec)
    wanted = PRIORITY_CLASSES[request.qos] if request.qos in PRIORITIES else ""
    if wanted and not spec.get("priorityClassName"):
        spec["priorityClassName"] = wanted
        spec.pop("priority", None)


def tolerate(spec: dict[str, Any]) -> None:
    """Have a pod share nodes with others of ours; see :mod:`schemas.kube.occupied`."""
    tolerations = spec.get("tolerations") or []
    if TOLERATION not in tolerations:
        spec["tolerations"] = [*tolerations, TOLERATION]
