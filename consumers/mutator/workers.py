"""What a pod that uses GPUs of other nodes wants of workers: the name of their workload, and what that is to be. Pure."""

import re
from typing import Any, Final

import msgspec

from schemas.dialects import PodSpecView, RequestError
from schemas.dialects import tf_keys as keys
from schemas.dialects.text import boolean
from schemas.kube.resources import TensorFusionWorkload
from schemas.kube.selectors import selects_labels
from schemas.kube.shape import check_template
from schemas.kube.workloads import WorkloadProfileSpec
from schemas.makers import Made
from schemas.plain import decode_yaml
from schemas.pod import GpuRequest
from schemas.quantity import format_bytes, format_milli
from schemas.remote import WORKLOAD_MAKER, Owner, maker_of

POD_TEMPLATE_HASH: Final = "pod-template-hash"
"""Label that a Deployment puts on its pods; the name of their ReplicaSet ends with its value."""

LONGEST_NAME: Final = 63
"""Characters of a workload's name: it becomes a label of its workers."""

LONGEST_TEMPLATE: Final = 8 << 10
"""Characters of ``worker-pod-template``: reading it holds up other admissions."""

_OWN: Final = ("isLocalGPU", "sidecarWorker")
"""What a profile says of the pods that name it, and not of workers."""


def controller_of(metadata: dict[str, Any]) -> Owner | None:
    """Return the controller that a pod names, which anybody may write; None for a bare pod."""
    found = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
    if found is None:
        return None
    return Owner(
        api_version=found.get("apiVersion", ""), kind=found["kind"], name=found["name"], uid=found.get("uid", "")
    )


def assumed(metadata: dict[str, Any], owner: Owner) -> Made:
    """Return what a pod's controller is if all is as the pod says: its Deployment, for one of a Deployment's ReplicaSets."""
    ending = "-" + (metadata.get("labels") or {}).get(POD_TEMPLATE_HASH, "")
    if owner.kind == "ReplicaSet" and ending != "-" and owner.name.endswith(ending):
        owner = msgspec.structs.replace(owner, kind="Deployment", name=owner.name[: -len(ending)], uid="")
    return Made(top=owner)


def checked(made: Made, metadata: dict[str, Any]) -> Made:
    """Return what is known of a pod's controller: nothing if it does not take such a pod for its own."""
    if made.selector is None or selects_labels(made.selector, metadata.get("labels") or {}):
        return made
    return Made(problem="the controller that it names selects other pods than this by their labels")


def workload_name(metadata: dict[str, Any], admission: str, made: Made | None = None) -> tuple[str, str]:
    """Return the name of the workload whose workers a pod uses, and who calls for it: all pods of one Deployment share one.

    A pod of whose controller nothing is known counts as its own.

    Args:
        metadata: The pod's, as JSON.
        admission: UID of the admission request, from which a bare pod without a name gets one.
        made: What is known of its controller; None if it has none.

    Raises:
        RequestError: The name is too long.
    """
    generated = metadata.get("generateName", "")
    if made is not None and made.top is not None:
        name, maker = made.top.name, maker_of(made.top)
    elif metadata.get("name"):
        name, maker = metadata["name"], f"Pod/{metadata['name']}"
    else:
        before = (metadata.get("annotations") or {}).get(keys.SELECTED_WORKLOAD, "")
        stem = generated.rstrip("-.") or "pod"
        # One that comes a second time, after another webhook has changed it, keeps its name.
        kept = re.fullmatch(rf"{re.escape(stem)}-[0-9a-f]{{8}}", before)
        name, maker = before if kept else f"{stem}-{admission[:8]}", ""
    if len(name) > LONGEST_NAME:
        fix = "give the pod or its controller a shorter name"
        raise RequestError(
            "metadata.name", name, f"is over {LONGEST_NAME} characters, and its workers are labelled so", fix
        )
    return str(name), maker


def check_free(name: str, maker: str, known: TensorFusionWorkload | None) -> None:
    """Refuse a pod that calls for a workload of somebody else: it would wait for a worker that it never gets.

    Raises:
        RequestError: It does.
    """
    whose = known.metadata.annotations.get(WORKLOAD_MAKER, "") if known is not None else maker
    if whose == maker:
        return
    by = f"is called for by {whose.replace('/', ' ')}" if whose else "was written by hand"
    fix = "give the pod, or what makes it, another name"
    raise RequestError("TensorFusionWorkload", name, f"{by}, and its workers are not this pod's", fix)


def workload_spec(view: PodSpecView, request: GpuRequest, profile: WorkloadProfileSpec | None) -> dict[str, Any]:
    """Return ``TensorFusionWorkload.spec`` of a pod's workers: its profile's, and what the pod itself says above that.

    Whole GPUs are asked for by isolation ``shared``, which is the one word for them that a workload has.

    Raises:
        RequestError: The pod's template for workers cannot be read.
    """
    base = msgspec.to_builtins(profile) if profile is not None else {}
    whole = request.dedicated or bool(request.vram_milli)
    model = view.annotation(keys.MODEL) or (profile.gpu_model if profile is not None else "")
    spec = {
        **{key: value for key, value in base.items() if key not in (*_OWN, "resources", "isolation")},
        "poolName": request.pool,
        "isLocalGPU": False,
        "qos": request.qos,
        "isolation": "shared" if whole else request.isolation,
        "gpuCount": request.count,
        "gpuIndices": list(request.gpu_indices),
        "gpuModel": model,
        "vendor": request.vendor,
        "partitionTemplateId": request.partition_template,
        "resources": {} if whole else _resources(request),
    }
    if template := view.annotation(keys.WORKER_TEMPLATE):
        spec["workerPodTemplate"] = _template(template)
        check_template(spec["workerPodTemplate"], keys.WORKER_TEMPLATE)
    elif spec.get("workerPodTemplate"):
        check_template(spec["workerPodTemplate"], f"workerPodTemplate of profile {view.annotation(keys.PROFILE)}")
    if (scales := view.annotation(keys.AUTOSCALE)) and boolean(scales, field=keys.AUTOSCALE):
        target = view.annotation(keys.AUTOSCALE_TARGET) or "all"
        scaling = spec.get("autoScalingConfig") or {}
        spec["autoScalingConfig"] = {
            **scaling,
            "autoSetResources": {**(scaling.get("autoSetResources") or {}), "enable": True, "targetResource": target},
        }
    return {key: value for key, value in spec.items() if value not in ("", [], {}, None)}


def _resources(request: GpuRequest) -> dict[str, Any]:
    asked = _amounts(request.tflops_milli, request.compute_milli, request.vram_bytes)
    limits = _amounts(request.tflops_limit_milli, request.compute_limit_milli, request.vram_limit_bytes)
    return {key: value for key, value in (("requests", asked), ("limits", limits)) if value}


def _amounts(tflops_milli: int, compute_milli: int, vram_bytes: int) -> dict[str, str]:
    return {
        **({"tflops": format_milli(tflops_milli)} if tflops_milli else {}),
        **({"compute": format_milli(compute_milli * 100)} if compute_milli else {}),
        **({"vram": format_bytes(vram_bytes)} if vram_bytes else {}),
    }


def _template(text: str) -> dict[str, Any]:
    fix = "write a pod template, such as {spec: {containers: [{resources: …}]}}"
    if len(text) > LONGEST_TEMPLATE:
        raise RequestError(keys.WORKER_TEMPLATE, f"{text[:32]}…", f"is over {LONGEST_TEMPLATE} characters", fix)
    template = decode_yaml(text, field=keys.WORKER_TEMPLATE, fix=fix)
    if not isinstance(template, dict):
        raise RequestError(keys.WORKER_TEMPLATE, text[:100], "is no pod template", fix)
    try:
        return dict(
            msgspec.json.decode(msgspec.json.encode(template))
        )  # a date, or a key that is no text, is none either
    except (TypeError, ValueError) as error:
        raise RequestError(keys.WORKER_TEMPLATE, text[:100], f"is no pod template: {error}", fix) from None
