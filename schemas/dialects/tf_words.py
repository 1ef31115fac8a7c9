"""Words of a TensorFusion pod: how its GPUs are kept apart, where they are used, and switches checked but not stored here."""

from typing import Final, Literal

from schemas.cluster import Isolation
from schemas.dialects import text
from schemas.dialects import tf_keys as keys
from schemas.dialects.text import RequestError
from schemas.dialects.tf_defaults import TensorFusionDefaults, WorkloadProfile
from schemas.dialects.view import PodSpecView

Placement = Literal["local", "remote"]

FEATURES: Final = ("gpu-opt", "gpu-limiter", "mem-manager", "start-worker")
"""Features that ``disable-features`` can switch off."""

AUTOSCALE_TARGETS: Final = ("compute", "vram", "all")
_ISOLATIONS: Final[tuple[Isolation, ...]] = ("shared", "soft", "hard", "partitioned")


def isolation(pod: PodSpecView, profile: WorkloadProfile) -> tuple[Isolation, str]:
    """Return how the GPUs are kept apart, ``soft`` unless said otherwise, and the partition template.

    Raises:
        RequestError: The word is unknown, or a template is named for GPUs that are not partitioned.
    """
    written = pod.annotation(keys.ISOLATION)
    mode = text.word(written, field=keys.ISOLATION, words=_ISOLATIONS) if written else profile.isolation or "soft"
    template = pod.annotation(keys.PARTITION)
    if mode == "partitioned":
        return mode, template or profile.partition_template
    if template:
        fix = f"set {keys.ISOLATION}: partitioned, or drop the template"
        raise RequestError(keys.PARTITION, template, f"is a partition, and isolation is {mode}", fix)
    return mode, ""


def placement(pod: PodSpecView, profile: WorkloadProfile, defaults: TensorFusionDefaults) -> Placement:
    """Return whether the pod itself takes the GPUs, or a worker pod elsewhere does for it.

    A sidecar worker is in the pod and so makes it local; a worker pod takes what its annotations ask for.

    Raises:
        RequestError: A switch is no truth value, or a local pod states a template for a worker pod.
    """
    written, sidecar = pod.annotation(keys.LOCAL), pod.annotation(keys.SIDECAR)
    local = text.boolean(written, field=keys.LOCAL) if written else profile.is_local
    with_sidecar = text.boolean(sidecar, field=keys.SIDECAR) if sidecar else profile.sidecar_worker
    if with_sidecar or pod.labels.get(keys.COMPONENT) == "worker":
        local = True
    elif local is None:
        local = defaults.local
    template = pod.annotation(keys.WORKER_TEMPLATE)
    if template and local:
        fix = f'drop it, or set {keys.LOCAL}: "false" without a sidecar worker'
        raise RequestError(keys.WORKER_TEMPLATE, template, "is for a worker pod, and the GPUs are used locally", fix)
    return "local" if local else "remote"


def check_features(pod: PodSpecView) -> None:
    """Refuse switches that would be ignored because they say nothing known.

    Raises:
        RequestError: ``autoscale`` is no truth value, or ``autoscale-target`` or ``disable-features`` has an unknown word.
    """
    autoscale, target = pod.annotation(keys.AUTOSCALE), pod.annotation(keys.AUTOSCALE_TARGET)
    if autoscale:
        text.boolean(autoscale, field=keys.AUTOSCALE)
    if target:
        text.word(target, field=keys.AUTOSCALE_TARGET, words=AUTOSCALE_TARGETS)
    for feature in text.names(pod.annotation(keys.DISABLED_FEATURES)):
        text.word(feature, field=keys.DISABLED_FEATURES, words=FEATURES)
