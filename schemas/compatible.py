"""Answers in the words of TensorFusion's HTTP interface, for tools that read it.

Contract: TensorFusion 2.17, ``internal/server/router``: ``POST /api/simulate-schedule`` and ``GET /api/allocation``. Where the
names of its JSON are those of its Go fields they are so here. We differ on purpose: a pod is treated as admission would
treat it, ``FinalGPUs`` names the GPUs, and the lists of a filter name at most a thousand GPUs, which ``Diff`` counts all.
"""

from typing import Any

import msgspec

from schemas.kube.base import Amounts
from schemas.kube.nodes import GPUStatus
from schemas.units import Amount


class _Pascal(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    pass


class _Camel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class ScheduleResult(_Pascal, frozen=True):
    """``framework.ScheduleResult``: the node, how many were looked at, and how many would do."""

    suggested_host: str
    evaluated_nodes: Amount
    feasible_nodes: Amount


class FilterStageDetail(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs by the names of their objects, before and after one filter, and how many it refused."""

    filter_name: str = msgspec.field(name="FilterName")
    before: tuple[str, ...] = msgspec.field(name="Before")
    after: tuple[str, ...] = msgspec.field(name="After")
    diff: Amount = msgspec.field(name="Diff")


class FilterDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What each filter refused, in filter order."""

    stages: tuple[FilterStageDetail, ...] = msgspec.field(name="FilterStageDetails")


class NodeStatus(_Camel, frozen=True):
    """``framework.Status`` of a node that was refused; code 2 is ``Unschedulable``."""

    code: Amount
    plugin: str
    reasons: tuple[str, ...]
    message: str


class NodeToStatus(_Camel, frozen=True):
    """The refused nodes by name."""

    nodes: dict[str, NodeStatus]
    absent_nodes_status: NodeStatus | None = None


class Diagnosis(_Camel, frozen=True):
    """``framework.Diagnosis``: why each node was refused."""

    pre_filter_msg: str
    post_filter_msg: str
    unschedulable_plugins: tuple[str, ...]
    pending_plugins: tuple[str, ...]
    node_to_status: NodeToStatus


class ScheduleError(_Camel, frozen=True):
    """Why the pod fits nowhere; ``type`` is ``FitError`` as of kube-scheduler."""

    type: str
    message: str
    num_all_nodes: Amount
    diagnosis: Diagnosis


class GpuSchedulerState(msgspec.Struct, frozen=True, kw_only=True):
    """What the GPU scheduler came to.

    Attributes:
        node_gpus: GPUs that fit, by node.
        valid_node_gpu_score: Scores of the best nodes; ours are of nodes, so all GPUs of one have its score.
        final_gpus: The GPUs that the pod would be given.
        scoring_strategy: The placement mode.
    """

    node_gpus: dict[str, tuple[str, ...]] = msgspec.field(name="NodeGPUs")
    valid_node_gpu_score: dict[str, dict[str, int]] = msgspec.field(name="ValidNodeGPUScore")
    valid_node_not_matching_gpu_score: dict[str, dict[str, int]] = msgspec.field(name="ValidNodeNotMatchingGPUScore")
    final_gpus: tuple[str, ...] = msgspec.field(name="FinalGPUs")
    preempt_pods: dict[str, Any] = msgspec.field(name="PreemptPods")
    is_preemption: bool = msgspec.field(name="IsPreemption")
    scoring_strategy: str = msgspec.field(name="ScoringStrategy")
    gang_waiting_info: None = msgspec.field(name="GangWaitingInfo", default=None)


class SimulateSchedule(_Camel, frozen=True):
    """Answer of ``POST /api/simulate-schedule``; also of a pod that fits nowhere, which ``error`` then says.

    Attributes:
        cycle_state: Always empty: what plugins of kube-scheduler tell each other has no counterpart here.
        warnings: What admission would tell the pod's user; not TensorFusion's.
    """

    schedule_result: ScheduleResult
    filter_detail: FilterDetail
    error: ScheduleError | None
    cycle_state: dict[str, Any]
    gpu_scheduler_state: GpuSchedulerState
    progressive_node_names: None = None
    warnings: tuple[str, ...] = ()


class NamespacedName(msgspec.Struct, frozen=True, kw_only=True):
    """Whose it is."""

    name: str
    namespace: str


class PodMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``metav1.ObjectMeta``, what the ledger knows."""

    name: str
    namespace: str
    uid: str


class AllocRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod holds. ``Request`` and ``Limit`` are per GPU: the mean where containers have GPUs of their own."""

    pool_name: str = msgspec.field(name="PoolName")
    workload: NamespacedName = msgspec.field(name="WorkloadNameNamespace")
    request: Amounts = msgspec.field(name="Request")
    limit: Amounts = msgspec.field(name="Limit")
    gpu_indices: tuple[Amount, ...] = msgspec.field(name="GPUIndices")
    count: Amount = msgspec.field(name="Count")
    gpu_model: str = msgspec.field(name="GPUModel")
    gpu_vendor: str = msgspec.field(name="GPUVendor")
    node_affinity: None = msgspec.field(name="NodeAffinity", default=None)
    gpu_names: tuple[str, ...] = msgspec.field(name="GPUNames")
    pod_meta: PodMeta = msgspec.field(name="PodMeta")
    qos: str = msgspec.field(name="QoS")
    isolation: str = msgspec.field(name="Isolation")
    partition_template_id: str = msgspec.field(name="PartitionTemplateID")


class GpuObject(_Camel, frozen=True):
    """A ``GPU`` object."""

    api_version: str
    kind: str
    metadata: dict[str, str]
    status: GPUStatus


class GpuWorker(_Camel, frozen=True):
    """A pod on a GPU."""

    request: Amounts
    limit: Amounts
    pod_name: str
    pod_uid: str = msgspec.field(name="podUID")
    namespace: str


class AllocationState(_Camel, frozen=True):
    """Answer of ``GET /api/allocation``.

    Attributes:
        gpu_store: GPUs by ``/<name>``: the namespace before the slash is empty.
        node_worker_store: For each node the pods on it, as ``namespace/name``.
        allocation: What each pod holds, by UID.
        gpu_to_worker_map: Pods by the name of the GPU.
    """

    gpu_store: dict[str, GpuObject]
    node_worker_store: dict[str, dict[str, bool]]
    allocation: dict[str, AllocRequest]
    gpu_to_worker_map: dict[str, tuple[GpuWorker, ...]]
