"""Pods in either dialect as one :class:`~schemas.pod.GpuRequest`. Pure: a pod and settings in, a request or a refusal out.

:mod:`schemas.dialects.tensorfusion` and :mod:`schemas.dialects.hami` list what they do differently from their originals.
"""

from typing import Final

from schemas.dialects import hami, tensorfusion, tf_keys
from schemas.dialects.hami_config import HamiConfig
from schemas.dialects.moved import MOVED, with_moved
from schemas.dialects.text import RequestError
from schemas.dialects.tf_defaults import GangProfile, GpuAmounts, GpuResources, TensorFusionDefaults, WorkloadProfile
from schemas.dialects.view import TF_PREFIX, ContainerView, PodSpecView, host_amounts
from schemas.pod import GpuRequest

__all__ = [
    "PREFIXES",
    "ContainerView",
    "GangProfile",
    "GpuAmounts",
    "GpuResources",
    "HamiConfig",
    "PodSpecView",
    "RequestError",
    "TensorFusionDefaults",
    "WorkloadProfile",
    "host_amounts",
    "parse_pod",
]

PREFIXES: Final = (TF_PREFIX, *hami.PREFIXES, MOVED)
"""Beginnings of the labels and annotations that a request is read from; those of other people are none of its business."""


def parse_pod(
    pod: PodSpecView, *, tensorfusion_defaults: TensorFusionDefaults, hami_config: HamiConfig
) -> GpuRequest | None:
    """Return what the pod asks for, in whichever dialect it speaks, or None when it asks for no GPU or opts out.

    A pod speaks TensorFusion when it has the label ``tensor-fusion.ai/enabled: "true"`` or an annotation that asks for
    GPUs. Its ``nvidia.com/gpu`` limits are then taken over, as of a pod that moves from the native device plugin. All else
    of HAMi beside it is refused, for the two could contradict each other. The label ``"false"`` keeps us away altogether.
    A pod that admission has changed is read as it was before.

    Raises:
        RequestError: The request cannot be understood or granted as written, or is made in both dialects.
    """
    if tf_keys.opted_out(pod):
        return None
    pod = with_moved(pod)
    if not tf_keys.speaks(pod):
        return hami.parse(pod, hami_config)
    for container in (*pod.init_containers, *pod.containers):
        for name in hami_config.own_names:
            written = container.resource(name)
            if written is not None:
                raise _both(f"container {container.name} {name}", written)
    for key in hami.ANNOTATIONS:
        if key in pod.annotations:
            raise _both(key, pod.annotations[key])
    return tensorfusion.parse(pod, tensorfusion_defaults)


def _both(field: str, value: str) -> RequestError:
    fix = f'drop it, or drop the tensor-fusion.ai annotations and the label {tf_keys.ENABLED}: "true"'
    return RequestError(field, value, "is HAMi's, and the pod asks in TensorFusion's words too", fix)
