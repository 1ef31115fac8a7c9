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
"""UUIDs of the pod's GPUs with commas, for ``NVIDIA_VISIBLE_DEVICES``."""

VRAM_LIMIT: Final = "gpubus.io/vram-limit-"
"""Followed by the place of the GPU among the pod's: granted VRAM such as ``8192m``, for ``CUDA_DEVICE_MEMORY_LIMIT_<i>``."""

GPU_IDS: Final = "tensor-fusion.ai/gpu-ids"
"""Names of the pod's ``GPU`` objects with commas."""

VGPU_NODE: Final = "hami.io/vgpu-node"

CLAIMS: Final = (ALLOCATION, VISIBLE_DEVICES, GPU_IDS)
"""Annotations that say which GPUs a pod holds. Only a binding of ours writes them."""

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
    return written


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
