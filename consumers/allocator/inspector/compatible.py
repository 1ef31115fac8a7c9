"""What would become of a pod, and what is allocated, in TensorFusion's words; see :mod:`schemas.compatible`. Pure."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from consumers.allocator.choice import choose
from consumers.allocator.engine.rules import FITS, STAGE_CODES
from consumers.allocator.engine.tracing import Fate, trace
from consumers.allocator.inspector.view import View
from schemas import reasons
from schemas.cluster import GpuDevice
from schemas.compatible import (
    AllocationState,
    AllocRequest,
    Diagnosis,
    FilterDetail,
    FilterStageDetail,
    GpuObject,
    GpuSchedulerState,
    GpuWorker,
    NamespacedName,
    NodeStatus,
    NodeToStatus,
    PodMeta,
    ScheduleError,
    ScheduleResult,
    SimulateSchedule,
)
from schemas.decision import Decision
from schemas.kube.annotations import gpu_name
from schemas.kube.base import API_VERSION, Amounts
from schemas.kube.gpu_status import status_of
from schemas.ledger import HOLD, Allocation
from schemas.pod import Schedule
from schemas.quantity import format_bytes, format_milli

NAMES: Final = 1000
"""Names listed of the GPUs before and after a filter; the number beside them counts all."""

UNSCHEDULABLE: Final = 2
"""``framework.Unschedulable``."""


def simulate(view: View, pod: Schedule, warnings: tuple[str, ...]) -> SimulateSchedule:
    """Return what would become of a pod that came now; ``warnings`` are what admission would tell its user."""
    request = pod.request
    policy = view.policy(request.pool)
    decision, _ = choose(view.snapshot, view.quotas, pod, policy)
    # A pool that is not known, or what its quota refuses, has met no filter.
    fates = list(trace(view.snapshot, request, policy)) if decision.node or decision.filters else []
    if request.gang is not None:
        warnings += (f"the pod is looked at alone, and its gang needs {request.gang.min_members} members that all fit",)
    nodes = len(view.snapshot.nodes(request.pool))
    feasible = sum(fate.stage == FITS for fate in fates)
    return SimulateSchedule(
        schedule_result=ScheduleResult(suggested_host=decision.node, evaluated_nodes=nodes, feasible_nodes=feasible),
        filter_detail=FilterDetail(stages=tuple(_stages(fates))),
        error=None if decision.node else _error(decision, nodes, fates),
        cycle_state={},
        gpu_scheduler_state=_state(decision, fates),
        warnings=warnings,
    )


def _stages(fates: list[Fate]) -> Iterator[FilterStageDetail]:
    """Yield what is left of all GPUs filter by filter."""
    left = [(gpu_name(uuid), stage) for fate in fates for uuid, stage in fate.gpus.items()]
    for stage in sorted({stage for _, stage in left} - {FITS}, reverse=True):
        after = [one for one in left if one[1] != stage]
        yield FilterStageDetail(
            filter_name=STAGE_CODES[stage], before=_names(left), after=_names(after), diff=len(left) - len(after)
        )
        left = after


def _names(gpus: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(name for name, _ in islice(gpus, NAMES))


def _error(decision: Decision, nodes: int, fates: list[Fate]) -> ScheduleError:
    refused = {fate.node: STAGE_CODES[fate.stage] for fate in fates if fate.stage != FITS}
    return ScheduleError(
        type="FitError",
        message=f"{decision.message}. {decision.help}".strip(),
        num_all_nodes=nodes,
        diagnosis=Diagnosis(
            pre_filter_msg="" if fates else decision.message,
            post_filter_msg="",
            unschedulable_plugins=tuple(dict.fromkeys(refused.values())) or (decision.reason,),
            pending_plugins=(),
            node_to_status=NodeToStatus(
                nodes={
                    node: NodeStatus(
                        code=UNSCHEDULABLE,
                        plugin=code,
                        reasons=(code,),
                        message=reasons.CODES[code].meaning,
                    )
                    for node, code in refused.items()
                }
            ),
        ),
    )


def _state(decision: Decision, fates: list[Fate]) -> GpuSchedulerState:
    fitting = {
        fate.node: tuple(gpu_name(uuid) for uuid, stage in fate.gpus.items() if stage == FITS)
        for fate in fates
        if fate.stage == FITS
    }
    final = tuple(gpu_name(gpu.uuid) for gpu in decision.gpus)
    scores = {one.node: dict.fromkeys(fitting.get(one.node, ()), one.score) for one in decision.candidates}
    return GpuSchedulerState(
        node_gpus=fitting,
        valid_node_gpu_score=scores,
        valid_node_not_matching_gpu_score={},
        final_gpus=final,
        preempt_pods={},
        is_preemption=False,
        scoring_strategy=decision.policy,
    )


def allocation_state(view: View) -> AllocationState:
    """Return everything that is allocated, and all GPUs."""
    store: dict[str, GpuObject] = {}
    workers: dict[str, dict[str, bool]] = {}
    held: dict[str, AllocRequest] = {}
    on_gpu: dict[str, tuple[GpuWorker, ...]] = {}
    for name in view.snapshot.nodes():
        host = view.snapshot.host(name)
        if host is None or host.node is None:
            continue
        here = [one for one in view.snapshot.allocations(name) if not one.pod_uid.startswith(HOLD)]
        devices = {device.uuid: device for device in host.devices or ()}
        if here:
            workers[name] = {f"{one.namespace}/{one.name}": True for one in here}
        for one in here:
            held[one.pod_uid] = _request(one, devices)
        for uuid, device in devices.items():
            holders = [one for one in here if any(gpu.uuid == uuid for gpu in one.gpus)]
            key = gpu_name(uuid)
            store[f"/{key}"] = GpuObject(
                api_version=API_VERSION,
                kind="GPU",
                metadata={"name": key},
                status=status_of(host.node, device, holders),
            )
            if holders:
                on_gpu[key] = tuple(_worker(one, uuid) for one in holders)
    return AllocationState(gpu_store=store, node_worker_store=workers, allocation=held, gpu_to_worker_map=on_gpu)


def _request(one: Allocation, devices: dict[str, GpuDevice]) -> AllocRequest:
    count = max(len(one.gpus), 1)
    first = devices.get(one.gpus[0].uuid) if one.gpus else None
    cut = next((gpu.partition.template for gpu in one.gpus if gpu.partition is not None), "")
    return AllocRequest(
        pool_name=one.pool,
        workload=NamespacedName(name="", namespace=one.namespace),
        request=_amounts(
            sum(gpu.tflops_milli for gpu in one.gpus) // count, sum(gpu.vram_bytes for gpu in one.gpus) // count
        ),
        limit=_amounts(one.tflops_limit_milli // count, one.vram_limit_bytes // count),
        gpu_indices=tuple(gpu.index for gpu in one.gpus),
        count=len(one.gpus),
        gpu_model=first.model if first is not None else "",
        gpu_vendor=first.vendor if first is not None else "",
        gpu_names=tuple(gpu_name(gpu.uuid) for gpu in one.gpus),
        pod_meta=PodMeta(name=one.name, namespace=one.namespace, uid=one.pod_uid),
        qos=one.qos,
        isolation=one.gpus[0].isolation if one.gpus else "",
        partition_template_id=cut,
    )


def _worker(one: Allocation, uuid: str) -> GpuWorker:
    count = max(len(one.gpus), 1)
    grant = next(gpu for gpu in one.gpus if gpu.uuid == uuid)
    return GpuWorker(
        request=_amounts(grant.tflops_milli, grant.vram_bytes),
        limit=_amounts(one.tflops_limit_milli // count, one.vram_limit_bytes // count),
        pod_name=one.name,
        pod_uid=one.pod_uid,
        namespace=one.namespace,
    )


def _amounts(tflops_milli: int, vram_bytes: int) -> Amounts:
    return Amounts(tflops=format_milli(tflops_milli), vram=format_bytes(vram_bytes))
