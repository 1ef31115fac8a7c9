"""A worker's pod: the pool's template, what the workload adds, and the request in the words that every pod is read in. Pure.

Admission and allocator see a pod like any other: what keeps it within its share comes from admission.
"""

import copy
from typing import Any, Final

from schemas.dialects import tf_keys as keys
from schemas.dialects.text import RequestError
from schemas.dialects.view import POOL_KEY
from schemas.kube.base import API_VERSION, Amounts, Resources
from schemas.kube.components import TEMPLATE_HASH, WORKER_IMAGE, WORKLOAD_KIND
from schemas.kube.merge import merge
from schemas.kube.resources import TensorFusionWorkload
from schemas.kube.scheduler import SCHEDULERS
from schemas.kube.shape import check_template
from schemas.kube.workloads import WorkloadProfileSpec
from schemas.remote import CLIENT_UID
from schemas.rollout import Template

_SMALLEST_GANG: Final = 2


def worker_pod(
    name: str,
    workload: TensorFusionWorkload,
    template: Template,
    *,
    pool: str,
    vendor: str,
    template_hash: str,
    client: str = "",
) -> dict[str, Any]:
    """Return a worker as it is to be created.

    Args:
        name: The pod's.
        workload: Its workload, which says how many replicas it wants.
        template: The pool's.
        pool: The pool.
        vendor: Vendor of its GPUs.
        template_hash: What the pod is labelled with.
        client: UID of the pod that it is for alone; empty for one that clients share.

    Raises:
        RequestError: Nothing names an image, or a template is none.
    """
    meta, spec = workload.metadata, workload.spec
    base = {"metadata": template.rendered.get("metadata", {}), "spec": copy.deepcopy(template.rendered["spec"])}
    first = base["spec"]["containers"][0]
    if image := template.images.get(f"{vendor}/{WORKER_IMAGE}"):
        first["image"] = image
    made = merge(base, _own_template(spec, first["name"]))
    container = made["spec"]["containers"][0]
    if not container.get("image"):
        fix = f"set spec.componentConfig.worker.image of pool {pool}, or images.remoteWorker of the ProviderConfig"
        raise RequestError("worker image", "", "is named by nobody", fix)
    made["spec"] |= {"schedulerName": SCHEDULERS[0], "restartPolicy": "Always"}
    if spec.node_affinity is not None:
        made["spec"]["affinity"] = {**(made["spec"].get("affinity") or {}), "nodeAffinity": spec.node_affinity}
    owner = {"apiVersion": API_VERSION, "kind": WORKLOAD_KIND, "name": meta.name, "uid": meta.uid, "controller": True}
    labels = {
        keys.ENABLED: "true", keys.COMPONENT: "worker", keys.WORKLOAD: meta.name, POOL_KEY: pool,
        TEMPLATE_HASH: template_hash,
    }  # fmt: skip
    asked = {**_request(spec), POOL_KEY: pool, keys.LOCAL: "true", keys.INJECT: container["name"]}
    if client:
        asked[CLIENT_UID] = client
    stated = made["metadata"]
    made["metadata"] = {
        "name": name,
        "namespace": meta.namespace,
        "labels": {**(stated.get("labels") or {}), **labels},
        "annotations": {**(stated.get("annotations") or {}), **asked},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", **made}


def _request(spec: WorkloadProfileSpec) -> dict[str, str]:
    """Return what a workload asks for one worker, as annotations."""
    resources = spec.resources or Resources()
    count = spec.gpu_count if isinstance(spec.gpu_count, int) else ""
    stated = {
        **_amounts(resources.requests, keys.TFLOPS_REQUEST, keys.COMPUTE_REQUEST, keys.VRAM_REQUEST),
        **_amounts(resources.limits, keys.TFLOPS_LIMIT, keys.COMPUTE_LIMIT, keys.VRAM_LIMIT),
        keys.GPU_COUNT: "" if spec.gpu_indices else count,
        keys.GPU_INDICES: ",".join(map(str, spec.gpu_indices)),
        keys.MODEL: spec.gpu_model,
        keys.VENDOR: spec.vendor,
        keys.QOS: spec.qos if isinstance(spec.qos, str) else "",
        keys.ISOLATION: spec.isolation,
        keys.PARTITION: spec.partition_template_id,
        **_gang(spec),
    }
    return {key: str(value) for key, value in stated.items() if value != ""}


def _amounts(amounts: Amounts | None, tflops: str, compute: str, vram: str) -> dict[str, int | str]:
    stated = amounts or Amounts()
    values = {tflops: stated.tflops, compute: stated.compute, vram: stated.vram}
    return {key: value for key, value in values.items() if isinstance(value, int | str)}


def _gang(spec: WorkloadProfileSpec) -> dict[str, str]:
    """A gang of all waits for as many as there are; one pod alone waits for nobody."""
    gang, replicas = spec.gang_scheduling, spec.replicas if isinstance(spec.replicas, int) else 0
    if gang is None or replicas < _SMALLEST_GANG:
        return {}
    timeout = {keys.GANG_TIMEOUT: gang.timeout} if isinstance(gang.timeout, str) else {}
    return {keys.GANG_ENABLED: "true", keys.GANG_MIN: str(gang.min_members or replicas), **timeout}


def _own_template(spec: WorkloadProfileSpec, first: str) -> dict[str, Any]:
    """Return ``workerPodTemplate``, written with or without a level ``template``; its first container is the pool's first."""
    check_template(spec.worker_pod_template or {}, "workerPodTemplate")
    stated = copy.deepcopy(spec.worker_pod_template or {})
    stated = stated.get("template", stated) or {}
    containers = (stated.get("spec") or {}).get("containers")
    if containers:
        containers[0].setdefault("name", first)
    return {key: stated[key] for key in ("metadata", "spec") if stated.get(key)}
