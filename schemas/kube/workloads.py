"""What users of a namespace write: workloads, profiles, connections and quotas."""

from typing import Annotated, ClassVar, Literal

import msgspec

from schemas.kube.base import (
    Amounts,
    Condition,
    Contract,
    Count,
    Duration,
    Free,
    Isolation,
    Qos,
    Resource,
    Resources,
    Rule,
)
from schemas.kube.base import Time as Timestamp

WorkloadPhase = Literal["Pending", "Running", "Failed", "Unknown"]
Decimal = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?$")]


class AutoSetResources(Contract, frozen=True):
    """Requests that follow use; fractions are written as text."""

    enable: bool = False
    target_resource: Literal["compute", "vram", "all"] | msgspec.UnsetType = msgspec.UNSET
    target_compute_percentile: Decimal | msgspec.UnsetType = msgspec.UNSET
    lower_bound_compute_percentile: Decimal | msgspec.UnsetType = msgspec.UNSET
    upper_bound_compute_percentile: Decimal | msgspec.UnsetType = msgspec.UNSET
    target_vram_percentile: Decimal | msgspec.UnsetType = msgspec.UNSET
    lower_bound_vram_percentile: Decimal | msgspec.UnsetType = msgspec.UNSET
    upper_bound_vram_percentile: Decimal | msgspec.UnsetType = msgspec.UNSET
    margin_fraction: Decimal | msgspec.UnsetType = msgspec.UNSET
    update_threshold: Decimal | msgspec.UnsetType = msgspec.UNSET
    history_data_period: Duration | msgspec.UnsetType = msgspec.UNSET
    min_vram_resources_ratio: Decimal | msgspec.UnsetType = msgspec.UNSET
    max_vram_resources_ratio: Decimal | msgspec.UnsetType = msgspec.UNSET
    min_compute_resources_ratio: Decimal | msgspec.UnsetType = msgspec.UNSET
    max_compute_resources_ratio: Decimal | msgspec.UnsetType = msgspec.UNSET
    initial_delay_period: Duration | msgspec.UnsetType = msgspec.UNSET
    interval: Duration | msgspec.UnsetType = msgspec.UNSET


class CronScalingRule(Contract, frozen=True):
    """Requests by the clock."""

    name: str
    start: str = ""
    end: str = ""
    enable: bool = False
    desired_resources: Resources | None = None


class ExternalScaler(Contract, frozen=True):
    """Requests that somebody else recommends."""

    url: str
    enable: bool = False
    api_key_secret_ref: Free | None = None
    initial_delay_period: Duration | msgspec.UnsetType = msgspec.UNSET
    interval: Duration | msgspec.UnsetType = msgspec.UNSET


class AutoScalingConfig(Contract, frozen=True):
    """What may change a workload's requests."""

    auto_set_resources: AutoSetResources | None = None
    cron_scaling_rules: tuple[CronScalingRule, ...] = ()
    external_scaler: ExternalScaler | None = None


class GangScheduling(Contract, frozen=True):
    """All members or none."""

    rules: ClassVar = (
        Rule("!has(self.minMembers) || self.minMembers != 1", "minMembers is 0, for all, or at least 2"),
    )

    min_members: Count = 0
    timeout: Duration | msgspec.UnsetType = msgspec.UNSET
    mode: Literal["Strict"] = "Strict"


class WorkloadProfileSpec(Contract, frozen=True):
    """``WorkloadProfile.spec`` and ``TensorFusionWorkload.spec``."""

    rules: ClassVar = (
        Rule(
            "!has(self.gangScheduling) || !has(self.gangScheduling.minMembers) || !has(self.replicas) "
            "|| self.gangScheduling.minMembers <= self.replicas",
            "gangScheduling.minMembers is at most replicas",
        ),
    )

    replicas: Count | msgspec.UnsetType = msgspec.UNSET
    pool_name: str = ""
    resources: Resources | None = None
    qos: Qos | msgspec.UnsetType = msgspec.UNSET
    is_local_gpu: bool | msgspec.UnsetType = msgspec.UNSET
    sidecar_worker: bool = False
    isolation: Isolation = "soft"
    partition_template_id: str = ""
    gpu_model: str = ""
    gpu_count: Annotated[int, msgspec.Meta(ge=1, le=128)] | msgspec.UnsetType = msgspec.UNSET
    gpu_indices: tuple[Count, ...] = ()
    vendor: str = ""
    auto_scaling_config: AutoScalingConfig | None = None
    node_affinity: Free | None = None
    worker_pod_template: Free | None = None
    gang_scheduling: GangScheduling | None = None


class WorkloadProfileStatus(Contract, frozen=True):
    """``WorkloadProfile.status``: nothing is said in it."""


class GangStatus(Contract, frozen=True):
    """How far a gang is."""

    phase: Literal["Pending", "Waiting", "Scheduling", "Running", "TimedOut", "Failed"] = "Pending"
    group_key: str = ""
    desired_members: Count = 0
    waiting_members: Count = 0
    scheduled_members: Count = 0
    ready_members: Count = 0
    last_transition_time: Timestamp | msgspec.UnsetType = msgspec.UNSET
    reason: str = ""
    message: str = ""
    backoff_until: Timestamp | msgspec.UnsetType = msgspec.UNSET


class TensorFusionWorkloadStatus(Contract, frozen=True):
    """``TensorFusionWorkload.status``."""

    phase: WorkloadPhase = "Pending"
    conditions: tuple[Condition, ...] = ()
    worker_count: Count = 0
    ready_workers: Count = 0
    pod_template_hash: str = ""
    recommendation: Resources | None = None
    applied_recommended_replicas: Count = 0
    active_cron_scaling_rule: CronScalingRule | None = None
    gang: GangStatus | None = None


class TensorFusionConnectionSpec(Contract, frozen=True):
    """``TensorFusionConnection.spec``."""

    workload_name: str
    client_pod: str = ""


class TensorFusionConnectionStatus(Contract, frozen=True):
    """``TensorFusionConnection.status``."""

    phase: Literal["Pending", "Running", "Failed"] = "Pending"
    connection_url: str = ""
    worker_name: str = ""


class QuotaTotal(Contract, frozen=True):
    """Bounds of a namespace."""

    requests: Resource | None = None
    limits: Resource | None = None
    max_workers: Count = 32_768
    alert_threshold_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 95


class QuotaSingle(Contract, frozen=True):
    """Bounds and defaults of one pod, per GPU."""

    max_requests: Resource | None = None
    max_limits: Resource | None = None
    max_gpu_count: Annotated[int, msgspec.Meta(ge=1, le=128)] | msgspec.UnsetType = msgspec.UNSET
    default_requests: Resource | None = None
    default_limits: Resource | None = None


class GPUResourceQuotaSpec(Contract, frozen=True):
    """``GPUResourceQuota.spec``."""

    total: QuotaTotal | None = None
    single: QuotaSingle | None = None


class QuotaUsed(Contract, frozen=True):
    """What is in use."""

    requests: Amounts | None = None
    limits: Amounts | None = None
    workers: Count = 0


class GPUResourceQuotaStatus(Contract, frozen=True):
    """``GPUResourceQuota.status``."""

    used: QuotaUsed | None = None
    available_percent: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    last_update_time: Timestamp | msgspec.UnsetType = msgspec.UNSET
