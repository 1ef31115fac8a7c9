"""The twelve kinds of the contract: names, scopes, columns of ``kubectl get``, and the types of their parts.

Source: TensorFusion 2.17, ``api/v1``. Short names and the rules in CEL are ours.
"""

from typing import Final, Literal

import msgspec

from schemas.kube import nodes, pools, settings, workloads


class Column(msgspec.Struct, frozen=True):
    """A column of ``kubectl get``; those with a ``priority`` show with ``-o wide`` only."""

    name: str
    path: str
    type: Literal["string", "integer", "date"] = "string"
    priority: int = 0


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of custom resource; ``status`` None means that it has none.

    ``replicas`` has the paths of how many are wanted and how many there are. By it ``kubectl scale`` works, and disruption
    budgets know of how many pods they speak: without it one that says ``maxUnavailable`` forbids every eviction.
    """

    name: str
    plural: str
    short: str
    scope: Literal["Cluster", "Namespaced"]
    spec: type[msgspec.Struct] | None
    status: type[msgspec.Struct] | None
    columns: tuple[Column, ...] = ()
    replicas: tuple[str, str] | None = None


AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")
PHASE: Final = Column("Phase", ".status.phase")
READY: Final = Column("Ready", ".status.conditions[?(@.type=='Ready')].status")


def _capacity() -> tuple[Column, ...]:
    return (
        Column("TFlops", ".status.totalTFlops"),
        Column("Free", ".status.availableTFlops"),
        Column("VRAM", ".status.totalVRAM"),
        Column("Free VRAM", ".status.availableVRAM"),
    )


KINDS: Final = (
    Kind(
        name="TensorFusionCluster",
        plural="tensorfusionclusters",
        short="tfc",
        scope="Cluster",
        spec=pools.TensorFusionClusterSpec,
        status=pools.TensorFusionClusterStatus,
        columns=(
            PHASE,
            Column("Pools", ".status.totalPools", "integer"),
            Column("Nodes", ".status.totalNodes", "integer"),
            Column("GPUs", ".status.totalGPUs", "integer"),
            *_capacity(),
            AGE,
        ),
    ),
    Kind(
        name="GPUPool",
        plural="gpupools",
        short="gpool",
        scope="Cluster",
        spec=pools.GPUPoolSpec,
        status=pools.GPUPoolStatus,
        columns=(
            PHASE,
            Column("Nodes", ".status.totalNodes", "integer"),
            Column("Ready", ".status.readyNodes", "integer"),
            Column("GPUs", ".status.totalGPUs", "integer"),
            *_capacity(),
            Column("Apps", ".status.runningAppsCnt", "integer"),
            AGE,
        ),
    ),
    Kind(
        name="GPUNode",
        plural="gpunodes",
        short="gnode",
        scope="Cluster",
        spec=nodes.GPUNodeSpec,
        status=nodes.GPUNodeStatus,
        columns=(
            PHASE,
            Column("GPUs", ".status.totalGPUs", "integer"),
            *_capacity(),
            Column("Pods", ".status.totalGPUPods", "integer"),
            AGE,
        ),
    ),
    Kind(
        name="GPU",
        plural="gpus",
        short="gpu",
        scope="Cluster",
        spec=None,
        status=nodes.GPUStatus,
        columns=(
            PHASE,
            Column("Model", ".status.gpuModel"),
            Column("TFlops", ".status.capacity.tflops"),
            Column("Free", ".status.available.tflops"),
            Column("VRAM", ".status.capacity.vram"),
            Column("Free VRAM", ".status.available.vram"),
            Column("Node", ".status.nodeSelector.kubernetes\\.io/hostname"),
            Column("Index", ".status.index", "integer", 1),
            AGE,
        ),
    ),
    Kind(
        name="GPUNodeClaim",
        plural="gpunodeclaims",
        short="gclaim",
        scope="Cluster",
        spec=nodes.GPUNodeClaimSpec,
        status=nodes.GPUNodeClaimStatus,
        columns=(PHASE, Column("Instance", ".status.instanceID"), AGE),
    ),
    Kind(
        name="GPUNodeClass",
        plural="gpunodeclasses",
        short="gclass",
        scope="Cluster",
        spec=nodes.GPUNodeClassSpec,
        status=nodes.GPUNodeClassStatus,
        columns=(AGE,),
    ),
    Kind(
        name="TensorFusionWorkload",
        plural="tensorfusionworkloads",
        short="tfw",
        scope="Namespaced",
        spec=workloads.WorkloadProfileSpec,
        status=workloads.TensorFusionWorkloadStatus,
        columns=(
            PHASE,
            Column("Pool", ".spec.poolName"),
            Column("Replicas", ".spec.replicas", "integer"),
            Column("Workers", ".status.workerCount", "integer"),
            Column("Ready", ".status.readyWorkers", "integer"),
            AGE,
        ),
        replicas=(".spec.replicas", ".status.workerCount"),
    ),
    Kind(
        name="TensorFusionConnection",
        plural="tensorfusionconnections",
        short="tfconn",
        scope="Namespaced",
        spec=workloads.TensorFusionConnectionSpec,
        status=workloads.TensorFusionConnectionStatus,
        columns=(
            PHASE,
            Column("Workload", ".spec.workloadName"),
            Column("Worker", ".status.workerName"),
            Column("URL", ".status.connectionURL", "string", 1),
            AGE,
        ),
    ),
    Kind(
        name="WorkloadProfile",
        plural="workloadprofiles",
        short="wprof",
        scope="Namespaced",
        spec=workloads.WorkloadProfileSpec,
        status=workloads.WorkloadProfileStatus,
        columns=(
            Column("Pool", ".spec.poolName"),
            Column("TFlops", ".spec.resources.requests.tflops"),
            Column("VRAM", ".spec.resources.requests.vram"),
            Column("GPUs", ".spec.gpuCount", "integer"),
            AGE,
        ),
    ),
    Kind(
        name="GPUResourceQuota",
        plural="gpuresourcequotas",
        short="gquota",
        scope="Namespaced",
        spec=workloads.GPUResourceQuotaSpec,
        status=workloads.GPUResourceQuotaStatus,
        columns=(
            Column("TFlops", ".status.used.requests.tflops"),
            Column("Max TFlops", ".spec.total.requests.tflops"),
            Column("VRAM", ".status.used.requests.vram"),
            Column("Max VRAM", ".spec.total.requests.vram"),
            Column("Workers", ".status.used.workers", "integer"),
            READY,
            AGE,
        ),
    ),
    Kind(
        name="SchedulingConfigTemplate",
        plural="schedulingconfigtemplates",
        short="sct",
        scope="Cluster",
        spec=settings.SchedulingConfigTemplateSpec,
        status=settings.SchedulingConfigTemplateStatus,
        columns=(Column("Mode", ".spec.placement.mode"), AGE),
    ),
    Kind(
        name="ProviderConfig",
        plural="providerconfigs",
        short="gprov",
        scope="Cluster",
        spec=settings.ProviderConfigSpec,
        status=None,
        columns=(Column("Vendor", ".spec.vendor"), AGE),
    ),
)
