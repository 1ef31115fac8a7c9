"""What a placed pod takes: the allocation that a decision comes down to."""

from itertools import islice
from typing import Final

from consumers.allocator.engine import Snapshot
from schemas.decision import ContainerGrant, Decision, GpuGrant
from schemas.ledger import Allocation
from schemas.pod import WHOLE, GpuRequest, Schedule, Waiting

FOREVER_S: Final = 1 << 53
"""End of a protection that counts from a moment that nobody has told us."""


def allocation(pod: Schedule | Waiting, decision: Decision, snapshot: Snapshot) -> Allocation:
    """Return what the pod holds once the decision is carried out."""
    request, gpus = pod.request, decision.gpus
    count = len(gpus)
    tflops_limit = request.tflops_limit_milli * count
    if request.compute_limit_milli:
        physical = _physical(decision, snapshot)
        tflops_limit = sum(physical[gpu.uuid] * request.compute_limit_milli // WHOLE for gpu in gpus)
    return Allocation(
        pod_uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        pool=request.pool,
        gpus=gpus,
        containers=decision.containers or _dealt(request, gpus),
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        qos=request.qos,
        priority=request.priority,
        compute_milli=_compute(request, decision, snapshot),
        tflops_limit_milli=tflops_limit,
        vram_limit_bytes=request.vram_limit_bytes * count,
        gang=request.gang.key if request.gang is not None else "",
        protected_until_s=_protected_until_s(pod),
    )


def _protected_until_s(pod: Schedule | Waiting) -> int:
    if not pod.request.eviction_protection_s:
        return 0
    return pod.created_s + pod.request.eviction_protection_s if pod.created_s else FOREVER_S


def _dealt(request: GpuRequest, gpus: tuple[GpuGrant, ...]) -> tuple[ContainerGrant, ...]:
    """Return whose the GPUs are where a pod counts them by container: in order of names, each takes the next ones.

    Source: TensorFusion, annotation ``container-gpus``.
    """
    if not request.container_counts:
        return ()
    counts = sorted(zip(request.container_names, request.container_counts, strict=True))
    rest = iter(gpus)
    return tuple(ContainerGrant(name=name, gpus=tuple(islice(rest, count))) for name, count in counts)


def _compute(request: GpuRequest, decision: Decision, snapshot: Snapshot) -> int:
    """Return the compute granted in thousandths of a whole GPU, as asked for if it was asked for so."""
    if request.compute_milli and not request.containers:
        return request.compute_milli * len(decision.gpus)
    if not any(gpu.tflops_milli for gpu in decision.gpus):
        return 0
    physical = _physical(decision, snapshot)
    # A grant is its share rounded down, so the share is the quotient rounded up.
    return sum(_share(gpu, physical[gpu.uuid]) for gpu in decision.gpus)


def _share(gpu: GpuGrant, physical: int) -> int:
    return -(-gpu.tflops_milli * WHOLE // physical) if physical else 0


def _physical(decision: Decision, snapshot: Snapshot) -> dict[str, int]:
    """Return the physical milli-TFLOPS of the node's GPUs by UUID."""
    host = snapshot.host(decision.node)
    return {device.uuid: device.tflops_milli for device in (host.devices if host is not None else None) or ()}
