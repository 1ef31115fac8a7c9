"""How a workload is, as its status shows it. Pure. Source of phases and reasons: the contract's ``TensorFusionWorkload``."""

from collections.abc import Collection
from typing import Final, Literal, NamedTuple

from consumers.workload.plan import Worker
from consumers.workload.refused import Refused, refusal
from schemas.kube.base import Condition
from schemas.kube.workloads import TensorFusionWorkloadStatus, WorkloadPhase

READY: Final = "Ready"
SERVED: Final = "ClientsServed"
OURS: Final = (READY, SERVED)
"""Conditions that say how a workload is; others are other roles'."""


class _Standing(NamedTuple):
    phase: WorkloadPhase
    ready: Literal["True", "False"]
    reason: str
    message: str


def workload_status(
    replicas: int | None,
    workers: Collection[Worker],
    template_hash: str,
    problem: str,
    refused: Collection[Refused] = (),
) -> TensorFusionWorkloadStatus:
    """Return the status of a workload; the time of its condition is the writer's to add.

    Args:
        replicas: Workers that it wants; None for as many as it has clients.
        workers: Those that there are.
        template_hash: What new ones are made from; empty if nothing is known to make them from.
        problem: Why a worker could not be made; empty if nothing is in the way.
        refused: Pods that call for it and get no worker.
    """
    there = [one for one in workers if not one.ended]
    ready = sum(one.ready for one in there)
    ended = sorted(one.name for one in workers if one.ended)
    text = f"{ready} of {len(there) if replicas is None else replicas} workers are ready"
    if problem or ended:
        found = _Standing("Failed", "False", "WorkerFailed", problem or f"{text}; ended: {', '.join(ended[:3])}")
    elif replicas == 0:
        found = _Standing("Pending", "False", "ScaledToZero", "no workers are wanted")
    elif replicas is None and refused and not there:
        found = _Standing("Pending", "False", "NoClientServed", "no pod that calls for it gets a worker")
    elif replicas is None or ready >= replicas:
        found = _Standing("Running", "True", "WorkloadReady", text)
    else:
        found = _Standing("Pending", "False", "WaitingForWorkers", text)
    conditions = [Condition(type=READY, status=found.ready, reason=found.reason, message=found.message)]
    if refused:
        reason, message = refusal(refused)
        conditions.append(Condition(type=SERVED, status="False", reason=reason, message=message))
    return TensorFusionWorkloadStatus(
        phase=found.phase,
        conditions=tuple(conditions),
        worker_count=len(there),
        ready_workers=ready,
        pod_template_hash=template_hash,
    )
