"""GPU resources that admission has moved from containers into an annotation, and how they are read back.

A container that keeps ``nvidia.com/gpumem`` among its limits would need a device plugin that grants it. So admission takes
such resources out and keeps what was written under :data:`MOVED`; whoever reads the pod reads both as one.
"""

from typing import Final

import msgspec

from schemas.dialects.text import RequestError
from schemas.dialects.view import ContainerView, PodSpecView

MOVED: Final = "gpubus.io/moved-resources"

Moved = dict[str, dict[str, str]]
"""Amounts by container and resource."""

_moved = msgspec.json.Decoder(Moved)
_encoder = msgspec.json.Encoder(order="sorted")


def encode(moved: Moved) -> str:
    """Return the annotation's value."""
    return _encoder.encode(moved).decode()


def read(annotations: dict[str, str]) -> Moved:
    """Return what was moved; nothing when there is no annotation.

    Raises:
        RequestError: It is not what admission writes.
    """
    written = annotations.get(MOVED, "")
    if not written:
        return {}
    try:
        return _moved.decode(written)
    except msgspec.DecodeError as error:
        fix = "drop it and state the resources as limits of the containers"
        raise RequestError(MOVED, written[:100], f"is not what admission writes ({error})", fix) from None


def with_moved(pod: PodSpecView) -> PodSpecView:
    """Return the pod as it was before admission took its GPU resources out.

    Raises:
        RequestError: The annotation is not what admission writes, or names a container that the pod has not.
    """
    moved = read(pod.annotations)
    if not moved:
        return pod
    known = {container.name for container in (*pod.init_containers, *pod.containers)}
    for name in moved:
        if name not in known:
            fix = "drop the annotation, or create the pod anew from its own template"
            raise RequestError(MOVED, name, "names a container that the pod has not", fix)

    def back(container: ContainerView) -> ContainerView:
        held = moved.get(container.name)
        # What stands in the container is newer than what was moved: somebody else has put it there since.
        return msgspec.structs.replace(container, limits={**held, **container.limits}) if held else container

    return msgspec.structs.replace(
        pod, containers=tuple(map(back, pod.containers)), init_containers=tuple(map(back, pod.init_containers))
    )
