"""What a binding writes on a pod: its allocation, for containers, for people, and to rebuild a lost ledger from.

The API server merges a Binding's annotations into the pod in the write that gives it its node, so a kubelet never sees one
without the other. Environment variables of the containers take their values from here through the downward API.
"""

from typing import Final

import msgspec

from schemas.ledger import Allocation

ALLOCATION: Final = "gpubus.io/allocation"
"""The ledger's record of the pod, in JSON. It names the pod's UID, so a copied annotation is known for one."""

VISIBLE_DEVICES: Final = "gpubus.io/visible-devices"
"""UUIDs of the pod's GPUs with commas, for ``NVIDIA_VISIBLE_DEVICES``. Where containers have GPUs of their own, the place of each
among those that have, as in ``gpubus.io/visible-devices-0``, says which those are: in order of the request, init containers
first, or of names where the pod counts its GPUs by container.
"""

VRAM_LIMIT: Final = "gpubus.io/vram-limit-"
"""Followed by the place of the GPU among the pod's: granted VRAM such as ``8192m``, for ``CUDA_DEVICE_MEMORY_LIMIT_<i>``. Where
containers have GPUs of their own the place of the container comes before, as in ``gpubus.io/vram-limit-0-1``.
"""

EFFECTIVE_SM_PERCENT: Final = "tensor-fusion.ai/effective-hard-sm-percent"
"""Share of a GPU's compute that the pod may use, in percent from 1 to 100: what a limit in TFLOPS comes to on that GPU."""

CONTAINER_GPUS: Final = "tensor-fusion.ai/container-gpus"
"""Names of the ``GPU`` objects of each container, in JSON."""

GPU_IDS: Final = "tensor-fusion.ai/gpu-ids"
"""Names of the pod's ``GPU`` objects with commas."""

VGPU_NODE: Final = "hami.io/vgpu-node"

CLAIMS: Final = (ALLOCATION, VISIBLE_DEVICES, GPU_IDS)
"""Annotations that say which GPUs a pod holds. Only a binding of ours writes them."""

_NAMES: Final = frozenset((ALLOCATION, GPU_IDS, VGPU_NODE, CONTAINER_GPUS, EFFECTIVE_SM_PERCENT))
_MIB: Final = 2**20

_allocation = msgspec.json.Decoder(Allocation)


def allocation_annotations(node: str, allocation: Allocation) -> dict[str, str]:
    """Return the annotations that go with binding the pod of ``allocation`` to ``node``."""
    written = {
        ALLOCATION: msgspec.json.encode(allocation).decode(),
        VISIBLE_DEVICES: ",".join(gpu.uuid for gpu in allocation.gpus),
        GPU_IDS: ",".join(gpu_name(gpu.uuid) for gpu in allocation.gpus),
        VGPU_NODE: node,
    }
    for place, gpu in enumerate(allocation.gpus):
        written[f"{VRAM_LIMIT}{place}"] = f"{gpu.vram_bytes // _MIB}m"
    for place, container in enumerate(allocation.containers):
        written[visible_devices(place)] = ",".join(gpu.uuid for gpu in container.gpus)
        for number, gpu in enumerate(container.gpus):
            written[vram_limit(number, place)] = f"{gpu.vram_bytes // _MIB}m"
    if allocation.containers:
        theirs = {one.name: [gpu_name(gpu.uuid) for gpu in one.gpus] for one in allocation.containers}
        written[CONTAINER_GPUS] = msgspec.json.encode(theirs).decode()
    if percent := _sm_percent(allocation):
        written[EFFECTIVE_SM_PERCENT] = str(percent)
    return written


def written_by_us(key: str) -> bool:
    """Return whether a binding of ours writes an annotation of this name, which says nothing of what the pod asks for."""
    return key in _NAMES or key.startswith((VISIBLE_DEVICES, VRAM_LIMIT))


def visible_devices(container: int | None = None) -> str:
    """Return the annotation with the GPUs of the pod, or of the container at that place among those with GPUs of their own."""
    return VISIBLE_DEVICES if container is None else f"{VISIBLE_DEVICES}-{container}"


def vram_limit(gpu: int, container: int | None = None) -> str:
    """Return the annotation with the VRAM of one of the pod's GPUs, or of one of a container's."""
    return f"{VRAM_LIMIT}{gpu}" if container is None else f"{VRAM_LIMIT}{container}-{gpu}"


def _sm_percent(allocation: Allocation) -> int:
    """Return the limit as a share of a GPU, rounded up; 100 without a limit, 0 where nothing of compute was granted."""
    granted = sum(gpu.tflops_milli for gpu in allocation.gpus)
    if not granted or not allocation.compute_milli:
        return 0
    if not allocation.tflops_limit_milli:
        return 100
    # The grants are `compute_milli` thousandths of whole GPUs, so the limit is that many times limit / granted.
    whole = 1000 * len(allocation.gpus) * granted
    return min(max(-(-100 * allocation.compute_milli * allocation.tflops_limit_milli // whole), 1), 100)


def read_allocation(annotations: dict[str, str], uid: str) -> Allocation | None:
    """Return the allocation that a binding of ours wrote on the pod ``uid``; None if there is none that is the pod's own."""
    written = annotations.get(ALLOCATION)
    if written is None:
        return None
    try:
        allocation = _allocation.decode(written)
    except msgspec.DecodeError:
        return None
    return allocation if allocation.pod_uid == uid else None


def claimed_gpus(annotations: dict[str, str]) -> tuple[str, ...]:
    """Return the UUIDs, as far as they can be told, of GPUs that annotations not of ours claim for a pod."""
    claimed = annotations.get(VISIBLE_DEVICES) or annotations.get(GPU_IDS) or ""
    return tuple(sorted({one.strip() for one in claimed.split(",") if one.strip()}))


def gpu_name(uuid: str) -> str:
    """Return the name of a GPU's object: Kubernetes names are in lower case."""
    return uuid.lower()
