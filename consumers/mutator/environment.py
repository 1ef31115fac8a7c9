"""What a container finds in its environment: which GPUs it has and how much of them.

Which GPUs a pod gets is not known at admission, so the values come through the downward API from annotations that binding
writes; a kubelet resolves them when the container starts, from the pod itself.
"""

from typing import Any, Final

from schemas.kube import annotations

NVIDIA_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES: Final = "void"
"""As if the runtime were not NVIDIA's: an image that asks for all GPUs, as CUDA's base images do, gets none."""

Variable = dict[str, Any]


def literal(name: str, value: str) -> Variable:
    """Return a variable with a value."""
    return {"name": name, "value": value}


def annotation(name: str, key: str) -> Variable:
    """Return a variable whose value is an annotation of the pod, empty while there is none."""
    return {
        "name": name,
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{key}']"}},
    }


def field(name: str, path: str) -> Variable:
    """Return a variable whose value is a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def visible_devices(container: int | None = None) -> Variable:
    """Return the variable that NVIDIA's runtime reads; of one container, by its place, where each has GPUs of its own."""
    return annotation(NVIDIA_VISIBLE_DEVICES, annotations.visible_devices(container))


def vram_limits(name: str, count: int, container: int | None = None) -> list[Variable]:
    """Return one variable for each of ``count`` GPUs: ``name`` and the GPU's place."""
    return [annotation(f"{name}{gpu}", annotations.vram_limit(gpu, container)) for gpu in range(count)]


def put(container: dict[str, Any], variables: list[Variable]) -> list[str]:
    """Set variables of a container, in front of the others so that those may refer to them.

    Returns:
        The names that had another value before.
    """
    present = container.get("env") or []
    names = {variable["name"] for variable in variables}
    ours = {variable["name"]: variable for variable in variables}
    overridden = [one["name"] for one in present if one["name"] in names and one != ours[one["name"]]]
    container["env"] = [*variables, *(one for one in present if one["name"] not in names)]
    return overridden
