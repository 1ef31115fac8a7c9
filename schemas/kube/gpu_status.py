"""Status of a GPU as its object shows it: physical amounts, and what requests may still take."""

from collections.abc import Sequence

from schemas.cluster import GpuDevice, Node
from schemas.kube.base import Amounts
from schemas.kube.nodes import GPUStatus, PodGpuInfo, RunningApp
from schemas.ledger import Allocation
from schemas.quantity import format_bytes, format_milli


def status_of(node: Node, gpu: GpuDevice, holders: Sequence[Allocation]) -> GPUStatus:
    """Return the status of a GPU on ``node`` that ``holders`` have a part of."""
    grants = [grant for one in holders for grant in one.gpus if grant.uuid == gpu.uuid]
    tflops = gpu.tflops_milli - sum(grant.tflops_milli for grant in grants)
    vram = gpu.vram_bytes - sum(grant.vram_bytes for grant in grants)
    runs = gpu.healthy and node.ready
    return GPUStatus(
        phase="Running" if runs else "Unknown",
        vendor=gpu.vendor,
        model=gpu.model,
        gpu_model=gpu.model,
        capacity=Amounts(tflops=format_milli(gpu.tflops_milli), vram=format_bytes(gpu.vram_bytes)),
        available=Amounts(tflops=format_milli(max(tflops, 0)), vram=format_bytes(max(vram, 0))),
        uuid=gpu.uuid,
        index=gpu.index,
        numa_node=gpu.numa_node,
        node_selector={"kubernetes.io/hostname": node.name},
        used_by=gpu.used_by or "tensor-fusion",
        message="" if runs else "the node is not ready" if gpu.healthy else "the GPU is unhealthy",
        running_apps=tuple(
            RunningApp(name=one.name, namespace=one.namespace, count=1, pods=(pod_info(one, gpu.uuid),))
            for one in holders
        ),
    )


def pod_info(one: Allocation, uuid: str) -> PodGpuInfo:
    """Return what one pod holds of one GPU."""
    grant = next(gpu for gpu in one.gpus if gpu.uuid == uuid)
    requests = Amounts(tflops=format_milli(grant.tflops_milli), vram=format_bytes(grant.vram_bytes))
    return PodGpuInfo(name=one.name, namespace=one.namespace, uid=one.pod_uid, requests=requests, qos=one.qos)
