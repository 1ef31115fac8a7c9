"""From the words of a trace to the words of the bus: nodes, GPU inventories and pods.

Identities are derived from names, so two simulators that replay one trace speak of the same objects.
"""

import uuid
from datetime import datetime
from typing import Final

from producers.simulator.trace import TraceNode, TracePod
from schemas.catalogue import lookup
from schemas.cluster import GpuDevice, GpuInventory, Node
from schemas.pod import GpuRequest, Pod, Qos

MIB: Final = 2**20

NAMESPACE: Final = "default"

_IDENTITIES: Final = uuid.uuid5(uuid.NAMESPACE_OID, "gpubus.simulator")

_QOS: Final[dict[str, Qos]] = {"BE": "low", "": "medium", "Burstable": "medium", "LS": "high", "Guaranteed": "critical"}
"""Class of service in the trace to quality-of-service level; what states none gets the default."""


def build_node(node: TraceNode, *, pool: str) -> Node:
    """Return the Kubernetes node that ``node`` describes, as a member of ``pool``."""
    return Node(name=node.name, pool=pool, cpu_milli=node.cpu_milli, memory_bytes=node.memory_mib * MIB)


def build_inventory(node: TraceNode, *, observed_at: datetime) -> GpuInventory:
    """Return what an agent on ``node`` would report: all its GPUs, healthy and ours.

    Raises:
        UnknownModelError: The node's GPU model is not in the catalogue.
    """
    gpus = [_device(node, index) for index in range(node.gpus)]
    return GpuInventory(node=node.name, gpus=gpus, observed_at=observed_at)


def build_pod(pod: TracePod, *, pool: str, created_at: datetime | None = None) -> Pod:
    """Return the pending pod that ``pod`` describes, asking ``pool``.

    A share of a GPU in the trace is a share of everything on it, so it asks for as much of the compute as of the VRAM.
    """
    return Pod(
        namespace=NAMESPACE,
        name=pod.name,
        uid=pod_uid(pod.name),
        resource_version="1",
        request=GpuRequest(
            pool=pool,
            count=pod.num_gpu,
            compute_milli=pod.gpu_milli,
            vram_milli=pod.gpu_milli,
            cpu_milli=pod.cpu_milli,
            memory_bytes=pod.memory_mib * MIB,
            models=pod.gpu_spec,
            qos=_QOS[pod.qos],
        ),
        created_at=created_at,
    )


def gpu_uuid(node: str, index: int) -> str:
    """Return the UUID of a node's GPU in the form that NVML uses, always the same for the same place."""
    return f"GPU-{uuid.uuid5(_IDENTITIES, f'gpu/{node}/{index}')}"


def pod_uid(name: str) -> str:
    """Return the UID of the pod called ``name``, always the same."""
    return str(uuid.uuid5(_IDENTITIES, f"pod/{NAMESPACE}/{name}"))


def _device(node: TraceNode, index: int) -> GpuDevice:
    model = lookup(node.model)
    return GpuDevice(
        uuid=gpu_uuid(node.name, index),
        index=index,
        model=model.name,
        tflops_milli=model.tflops_milli,
        vram_bytes=model.vram_bytes,
    )
