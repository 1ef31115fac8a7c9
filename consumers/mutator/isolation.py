"""What keeps a TensorFusion container within its share of a GPU: a limiter that it preloads, or a worker beside it.

Source: TensorFusion 2.17, ``internal/utils/compose.go``: names of volumes, paths and variables are those that its images expect.
"""

from typing import Any, Final

from consumers.mutator.environment import (
    NO_DEVICES,
    NVIDIA_VISIBLE_DEVICES,
    Variable,
    annotation,
    field,
    literal,
    visible_devices,
)
from consumers.mutator.options import Images
from schemas.dialects import RequestError
from schemas.dialects.tf_keys import ISOLATION
from schemas.kube.annotations import EFFECTIVE_SM_PERCENT
from schemas.pod import GpuRequest

ADDED: Final = frozenset({"init-soft-limiter", "inject-lib", "tensorfusion-worker"})
"""Names of the containers that isolation adds to a pod."""

_LIMITER: Final = "/tensor-fusion-limiter"
_LIBRARY: Final = "/tensor-fusion"
_SHARED_MEMORY: Final = "/run/tensor-fusion/shm"
_SMALL: Final = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
_MB: Final = 1_000_000


def isolate(
    spec: dict[str, Any], managed: list[dict[str, Any]], request: GpuRequest, images: Images, *, worker: bool = False
) -> list[Variable]:
    """Add to a pod what its isolation needs.

    Args:
        spec: The pod's spec, changed in place.
        managed: Its containers with GPUs.
        request: What it asks for.
        images: Images of the vendor's provider.
        worker: Whether the pod is a worker itself, which keeps to hard limits and needs none beside it.

    Returns:
        Variables of every container with GPUs.

    Raises:
        RequestError: The isolation needs an image that no ProviderConfig names.
    """
    if request.isolation == "soft":
        return _soft(spec, managed, images)
    if request.isolation == "hard" and worker:
        return [*_identity(), literal("TF_ISOLATION_MODE", "hard"), *_hard_limits(request)]
    if request.isolation == "hard":
        return _hard(spec, managed, request, images)
    return []


def _soft(spec: dict[str, Any], managed: list[dict[str, Any]], images: Images) -> list[Variable]:
    if not images.limiter:
        return []  # then the GPU is shared by agreement alone, which is what soft isolation without a limiter means
    volume(spec, {"name": "tf-soft-limiter", "emptyDir": {}})
    volume(spec, {"name": "tf-data", "hostPath": {"path": "/run/tensor-fusion", "type": "DirectoryOrCreate"}})
    first(
        spec,
        {
            "name": "init-soft-limiter",
            "image": images.limiter,
            "command": ["sh", "-c", f"cp -a /build/. {_LIMITER}/"],
            "resources": _SMALL,
            "volumeMounts": [{"name": "tf-soft-limiter", "mountPath": _LIMITER}],
        },
    )
    for container in managed:
        mount(container, {"name": "tf-soft-limiter", "mountPath": _LIMITER, "readOnly": True})
        mount(
            container,
            {"name": "tf-data", "mountPath": _SHARED_MEMORY, "subPathExpr": "shm/$(POD_NAMESPACE)/$(POD_NAME)"},
        )
    return [
        *_identity(),
        literal("TF_ISOLATION_MODE", "soft"),
        literal("TF_SHM_PATH", f"{_SHARED_MEMORY}/shm"),
        literal("LD_PRELOAD", f"{_LIMITER}/libcuda_limiter.so"),
    ]


def _hard(spec: dict[str, Any], managed: list[dict[str, Any]], request: GpuRequest, images: Images) -> list[Variable]:
    if not images.worker or not images.client:
        fix = "set images.remoteWorker and images.remoteClient of the vendor's ProviderConfig, or use soft"
        raise RequestError(ISOLATION, "hard", "needs a worker beside the container, and no image for it is known", fix)
    volume(spec, {"name": "tf-transport-shm", "emptyDir": {"medium": "Memory"}})
    volume(spec, {"name": "tf-libs", "emptyDir": {}})
    first(
        spec,
        {
            "name": "inject-lib",
            "image": images.client,
            "command": ["sh", "-c", f"cp -a /build/. {_LIBRARY}/"],
            "resources": _SMALL,
            "volumeMounts": [{"name": "tf-libs", "mountPath": _LIBRARY}],
        },
    )
    worker = {
        "name": "tensorfusion-worker",
        "image": images.worker,
        "env": [visible_devices(), *_identity(), literal("TF_ISOLATION_MODE", "hard"), *_hard_limits(request)],
        "volumeMounts": [{"name": "tf-transport-shm", "mountPath": "/dev/shm"}],  # noqa: S108  a mount, in the container
    }
    if all(one["name"] != worker["name"] for one in spec["containers"]):
        spec["containers"].append(worker)
    for container in managed:
        mount(container, {"name": "tf-libs", "mountPath": _LIBRARY, "readOnly": True})
        mount(container, {"name": "tf-transport-shm", "mountPath": "/dev/shm"})  # noqa: S108
    return [
        literal(
            NVIDIA_VISIBLE_DEVICES, NO_DEVICES
        ),  # the worker has them: whoever reached them past it would know no limit
        *_identity(),
        literal("TF_ISOLATION_MODE", "hard"),
        literal("TENSOR_FUSION_OPERATOR_CONNECTION_INFO", "shmem+tf_shm+1024+1"),
        literal("TF_USE_IVSHMEM", "0"),
        literal("TF_PREPEND_PATH", _LIBRARY),
        literal("TF_LD_LIBRARY_PATH", _LIBRARY),
    ]


def _hard_limits(request: GpuRequest) -> list[Variable]:
    limits = [annotation("TF_CUDA_SM_PERCENT_LIMIT", EFFECTIVE_SM_PERCENT)]
    if request.vram_limit_bytes:
        limits.append(literal("TF_GPU_MEMORY_LIMIT", str(request.vram_limit_bytes // _MB)))
    return limits


def _identity() -> list[Variable]:
    return [
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("HYPERVISOR_IP", "status.hostIP"),
    ]


def volume(spec: dict[str, Any], added: dict[str, Any]) -> None:
    """Add a volume to a pod that has none of its name."""
    volumes = spec.setdefault("volumes", [])
    if all(one["name"] != added["name"] for one in volumes):
        volumes.append(added)


def first(spec: dict[str, Any], container: dict[str, Any]) -> None:
    """Put an init container before all others, unless the pod has one of its name."""
    before = spec.get("initContainers") or []
    if all(one["name"] != container["name"] for one in before):
        spec["initContainers"] = [container, *before]


def mount(container: dict[str, Any], added: dict[str, Any]) -> None:
    """Mount something in a container that has nothing there."""
    mounts = container.setdefault("volumeMounts", [])
    if all(one["mountPath"] != added["mountPath"] for one in mounts):
        mounts.append(added)
