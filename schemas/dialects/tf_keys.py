"""The label and annotation keys of the TensorFusion dialect, and what to think of one that is not among them.

Source: TensorFusion, ``pkg/constants/constants.go``.
"""

from typing import Final

from schemas.dialects.text import RequestError, closest
from schemas.dialects.view import POOL_KEY, TF_PREFIX, PodSpecView

ENABLED: Final = "tensor-fusion.ai/enabled"
HOST_PORT: Final = "tensor-fusion.ai/host-port"
PORT_NAME: Final = "tensor-fusion.ai/port-name"
PORT_NUMBER: Final = "tensor-fusion.ai/port-number"
"""Annotation that says which port of its node a pod was given."""

COMPONENT: Final = "tensor-fusion.ai/component"
WORKLOAD: Final = "tensor-fusion.ai/workload"
SELECTED_WORKLOAD: Final = "tensor-fusion.ai/selected-workload"

TFLOPS_REQUEST: Final = "tensor-fusion.ai/tflops-request"
TFLOPS_LIMIT: Final = "tensor-fusion.ai/tflops-limit"
VRAM_REQUEST: Final = "tensor-fusion.ai/vram-request"
VRAM_LIMIT: Final = "tensor-fusion.ai/vram-limit"
COMPUTE_REQUEST: Final = "tensor-fusion.ai/compute-percent-request"
COMPUTE_LIMIT: Final = "tensor-fusion.ai/compute-percent-limit"
GPU_COUNT: Final = "tensor-fusion.ai/gpu-count"
GPU_INDICES: Final = "tensor-fusion.ai/gpu-indices"
PROFILE: Final = "tensor-fusion.ai/workload-profile"
DEDICATED: Final = "tensor-fusion.ai/dedicated-gpu"
PARTITION: Final = "tensor-fusion.ai/partition-id"
ISOLATION: Final = "tensor-fusion.ai/isolation"
VENDOR: Final = "tensor-fusion.ai/vendor"
MODEL: Final = "tensor-fusion.ai/gpu-model"
QOS: Final = "tensor-fusion.ai/qos"
LOCAL: Final = "tensor-fusion.ai/is-local-gpu"
SIDECAR: Final = "tensor-fusion.ai/sidecar-worker"
INJECT: Final = "tensor-fusion.ai/inject-container"
ENABLED_REPLICAS: Final = "tensor-fusion.ai/enabled-replicas"
WORKER_TEMPLATE: Final = "tensor-fusion.ai/worker-pod-template"
AUTOSCALE: Final = "tensor-fusion.ai/autoscale"
AUTOSCALE_TARGET: Final = "tensor-fusion.ai/autoscale-target"
DISABLED_FEATURES: Final = "tensor-fusion.ai/disable-features"
EVICTION_PROTECTION: Final = "tensor-fusion.ai/eviction-protection"
GANG_ENABLED: Final = "tensor-fusion.ai/gang-enabled"
GANG_MIN: Final = "tensor-fusion.ai/gang-min-members"
GANG_TIMEOUT: Final = "tensor-fusion.ai/gang-timeout"
TOPOLOGY_REQUIRED: Final = "tensor-fusion.ai/require-gpu-topology"
TOPOLOGY_TIER: Final = "tensor-fusion.ai/gpu-topology-max-tier"
TOPOLOGY_SOURCE: Final = "tensor-fusion.ai/gpu-topology-source"

AMOUNTS: Final = (TFLOPS_REQUEST, TFLOPS_LIMIT, VRAM_REQUEST, VRAM_LIMIT, COMPUTE_REQUEST, COMPUTE_LIMIT)
ASKING: Final = (*AMOUNTS, GPU_COUNT, GPU_INDICES, PROFILE, DEDICATED, PARTITION)
"""Annotations that ask for GPUs: a pod that has one means this dialect, with or without the label."""

ANNOTATIONS: Final = (
    *ASKING, POOL_KEY, ISOLATION, VENDOR, MODEL, QOS, LOCAL, SIDECAR, INJECT, ENABLED_REPLICAS, WORKER_TEMPLATE, AUTOSCALE,
    AUTOSCALE_TARGET, DISABLED_FEATURES, EVICTION_PROTECTION, GANG_ENABLED, GANG_MIN, GANG_TIMEOUT, TOPOLOGY_REQUIRED,
    TOPOLOGY_TIER, TOPOLOGY_SOURCE,
)  # fmt: skip
"""Annotations that users write on pods."""

OFF: Final = ("false", "0")
"""Values of label ``enabled`` that keep us away from a pod, whatever else it says."""

LABELS: Final = (ENABLED, HOST_PORT, PORT_NAME)
"""Labels that users write on pods."""

SYSTEM: Final = frozenset(
    TF_PREFIX + name
    for name in (
        "client-pod", "cluster", "component", "container-gpu-count", "container-gpus", "dedicated-worker",
        "defrag-evict-skip", "defrag-evicted", "defrag-source", "do-not-disrupt", "effective-hard-sm-percent",
        "embedded-worker", "gang-desired-members", "gang-group-key", "gang-required-members", "gpu-ids", "gpu-released",
        "gpupool", "index", "managed-by", "partition-uuids", "pending-owned-workload", "pod-counter-key",
        "pod-template-hash", "port-number", "selected-workload", "tf-pod-count", "worker-name", "workload", "workload-mode",
    )
)  # fmt: skip
"""Keys that the system writes on pods. They resemble those of users and are none of a request's business."""


def speaks(pod: PodSpecView) -> bool:
    """Return whether the pod is written in this dialect: it has the label, or asks in an annotation.

    Raises:
        RequestError: The label neither enables nor disables, or a key looks like a mistyped one.
    """
    enabled = _enabled(pod)
    if enabled in OFF:
        return False
    _check(pod.annotations, ANNOTATIONS, "annotation")
    _check(pod.labels, LABELS, "label")
    return enabled == "true" or any(pod.annotation(key) for key in ASKING)


def opted_out(pod: PodSpecView) -> bool:
    """Return whether label ``enabled: "false"``, or ``"0"``, keeps us away from the pod.

    Raises:
        RequestError: The label neither enables nor disables.
    """
    return _enabled(pod) in OFF


def _enabled(pod: PodSpecView) -> str:
    enabled = pod.labels.get(ENABLED, "")
    if enabled not in {"", "true", *OFF}:
        raise RequestError(f"label {ENABLED}", enabled, "neither enables nor disables", 'write "true" or "false"')
    return enabled


def _check(written: dict[str, str], known: tuple[str, ...], kind: str) -> None:
    for key, value in written.items():
        if not key.startswith(TF_PREFIX) or key in known or key in SYSTEM:
            continue
        meant = closest(key.removeprefix(TF_PREFIX), [name.removeprefix(TF_PREFIX) for name in known])
        if meant:
            raise RequestError(f"{kind} {key}", value, "is under an unknown key", f"did you mean {TF_PREFIX}{meant}?")
