"""``TensorFusionCluster`` and ``GPUPool``: what an operator writes, and what they show."""

from typing import Annotated, ClassVar, Literal

import msgspec

from schemas.kube.base import (
    Condition,
    Contract,
    Count,
    Duration,
    Free,
    Isolation,
    LabelSelector,
    NameRef,
    NodeSelector,
    Qos,
    Quantity,
    Rule,
    Time,
)

Phase = Literal["Pending", "Running", "Updating", "Destroying", "Unknown"]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class ResourceUnit(Contract, frozen=True):
    """Amounts of a pool (``GPUOrCPUResourceUnit``)."""

    tflops: Quantity = 0
    vram: Quantity = 0
    cpu: Quantity = 0
    memory: Quantity = 0


class OversubscriptionSpec(Contract, frozen=True):
    """How far schedulable capacity exceeds the physical one."""

    vram_expand_to_host_mem: Percent = 50
    vram_expand_to_host_disk: Percent = 70
    tflops_oversell_ratio: Annotated[int, msgspec.Meta(ge=100, le=100_000)] = 500


class CapacityConfig(Contract, frozen=True):
    """Bounds of a pool's size, and oversubscription."""

    min_resources: ResourceUnit | None = None
    max_resources: ResourceUnit | None = None
    warm_resources: ResourceUnit | None = None
    oversubscription: OversubscriptionSpec | None = None


class IsolationRule(Contract, frozen=True):
    """Nodes that match take this isolation mode; the first match wins."""

    mode: Isolation
    selector: LabelSelector | None = None


class Requirement(Contract, frozen=True):
    """What a new node must be like."""

    key: str
    operator: Literal["In", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    values: tuple[str, ...] = ()


class Taint(Contract, frozen=True):
    """A taint of new nodes."""

    key: str
    effect: Literal["NoSchedule", "NoExecute", "PreferNoSchedule"] = "NoSchedule"
    value: str = ""


class Budget(Contract, frozen=True):
    """What a pool may cost, in dollars."""

    budget_per_day: Quantity = "100"
    budget_per_month: Quantity = "1000"
    budget_per_quarter: Quantity = "3000"
    budget_exceed_strategy: Literal["AlertOnly", "AlertAndTerminateVM"] = "AlertOnly"


class NodeProvisioner(Contract, frozen=True):
    """How nodes are made."""

    node_class: str = ""
    karpenter_node_class_ref: NameRef | None = None
    gpu_requirements: tuple[Requirement, ...] = ()
    gpu_taints: tuple[Taint, ...] = ()
    gpu_node_labels: dict[str, str] = {}
    gpu_node_annotations: dict[str, str] = {}
    cpu_requirements: tuple[Requirement, ...] = ()
    cpu_taints: tuple[Taint, ...] = ()
    cpu_node_labels: dict[str, str] = {}
    budget: Budget | None = None


class Defrag(Contract, frozen=True):
    """When nodes are emptied by moving pods."""

    timezone: Annotated[str, msgspec.Meta(min_length=1)]
    enabled: bool = False
    schedule: Annotated[str, msgspec.Meta(pattern=r"^\S+ \S+ \S+ \S+ \S+$")] = "0 3 * * *"
    max_duration: Duration = "2h"
    utilization_threshold_percent: Percent = 40
    evicted_pod_marker_ttl: str = msgspec.field(default="never", name="evictedPodMarkerTTL")
    source_node_marker_ttl: str = msgspec.field(default="30m", name="sourceNodeMarkerTTL")


class NodeCompaction(Contract, frozen=True):
    """When empty nodes are given back."""

    period: Duration = "5m"
    defrag: Defrag | None = None


class MaintenanceWindow(Contract, frozen=True):
    """When updates may run: in every minute that one of these cron expressions of five fields matches."""

    rules: ClassVar = (
        Rule(
            r"!has(self.includes) || self.includes.all(w, w.matches('^((TZ|CRON_TZ)=[^ ]+ )?[0-9/]*[*,-]'))",
            "a window covers more than single minutes: write every minute of it, such as '* 3-5 * * *' for three hours",
        ),
    )

    includes: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=r"^((TZ|CRON_TZ)=\S+ )?\S+ \S+ \S+ \S+ \S+$", max_length=256)], ...],
        msgspec.Meta(max_length=16),
    ] = ()


class RollingUpdatePolicy(Contract, frozen=True):
    """How a changed component reaches running pods."""

    auto_update_hypervisor: bool = False
    auto_update_worker: bool = False
    auto_update_client: bool = False
    batch_percentage: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    batch_interval: Duration = "1s"
    max_duration: Duration = "10m"
    maintenance_window: MaintenanceWindow | None = None
    canary: bool = True
    ready_within: Duration = "5m"


class NodeManagerConfig(Contract, frozen=True):
    """Which nodes are the pool's, and how they are kept."""

    provisioning_mode: Literal["Provisioned", "AutoSelect", "Karpenter"] = "AutoSelect"
    default_isolation_mode: Isolation = "soft"
    isolation_mode_rules: tuple[IsolationRule, ...] = ()
    default_vendor: str = "NVIDIA"
    node_provisioner: NodeProvisioner | None = None
    node_selector: NodeSelector | None = None
    multi_vendor_node_selector: dict[str, NodeSelector] = {}
    node_compaction: NodeCompaction | None = None
    node_pool_rolling_update_policy: RollingUpdatePolicy | None = None


class QosDefinition(Contract, frozen=True):
    """A quality-of-service level."""

    name: Qos
    description: str = ""
    priority: int = 0


class QosPrices(Contract, frozen=True):
    """Dollars per hour."""

    per_fp16_tflops_per_hour: str = "$0.0069228"
    per_gb_of_vram_per_hour: str = "$0.01548"


class QosPricing(Contract, frozen=True):
    """What a level costs."""

    qos: Qos
    requests: QosPrices | None = None
    limits_over_requests: str = "1"


class QosConfig(Contract, frozen=True):
    """Quality-of-service levels of a pool."""

    definitions: tuple[QosDefinition, ...] = ()
    default_qos: Qos | msgspec.UnsetType = msgspec.UNSET
    pricing: tuple[QosPricing, ...] = ()
    eviction_protection_price_ratio: str = "1.2"


class Worker(Contract, frozen=True):
    """The worker component."""

    image: str = ""
    pod_template: Free | None = None


class Hypervisor(Contract, frozen=True):
    """The node component."""

    image: str = ""
    vector_image: str = ""
    port_number: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 8000
    pod_template: Free | None = None
    enable_vector: bool = False


class NodeDiscovery(Contract, frozen=True):
    """Kept so that older pools are accepted; not used."""

    image: str = ""
    pod_template: Free | None = None


class Client(Contract, frozen=True):
    """What is injected into pods."""

    image: str = ""
    remote_mode_image: str = ""
    embedded_mode_image: str = ""
    operator_endpoint: str = ""
    patch_to_pod: Free | None = None
    patch_to_container: Free | None = None
    patch_to_embedded_worker_container: Free | None = None
    patch_embedded_worker_to_pod: Free | None = None


class ComponentConfig(Contract, frozen=True):
    """Images and templates."""

    worker: Worker | None = None
    hypervisor: Hypervisor | None = None
    node_discovery: NodeDiscovery | None = None
    client: Client | None = None


class GPUPoolSpec(Contract, frozen=True):
    """``GPUPool.spec``."""

    node_manager_config: NodeManagerConfig
    default_using_local_gpu: bool | None = None
    capacity_config: CapacityConfig | None = None
    qos_config: QosConfig | None = None
    component_config: ComponentConfig | None = None
    scheduling_config_template: str = ""


class ComponentStatus(Contract, frozen=True):
    """How far rollouts are; versions are template hashes."""

    worker: str = ""
    worker_config_synced: bool = False
    worker_update_progress: Count = 0
    hypervisor: str = ""
    hypervisor_config_synced: bool = False
    hypervisor_update_progress: Count = 0
    client: str = ""
    client_config_synced: bool = False
    client_update_progress: Count = 0


class CapacityStatus(Contract, frozen=True, omit_defaults=False):
    """Totals over GPUs: physical, schedulable (``virtual``) and free."""

    total_tflops: Quantity | msgspec.UnsetType = msgspec.UNSET
    total_vram: Quantity | msgspec.UnsetType = msgspec.UNSET
    virtual_tflops: Quantity | msgspec.UnsetType = msgspec.UNSET
    virtual_vram: Quantity | msgspec.UnsetType = msgspec.UNSET
    available_tflops: Quantity | msgspec.UnsetType = msgspec.UNSET
    available_vram: Quantity | msgspec.UnsetType = msgspec.UNSET
    virtual_available_tflops: Quantity | msgspec.UnsetType = msgspec.UNSET
    virtual_available_vram: Quantity | msgspec.UnsetType = msgspec.UNSET


class GPUPoolStatus(CapacityStatus, frozen=True, omit_defaults=False):
    """``GPUPool.status``."""

    cluster: str | msgspec.UnsetType = msgspec.UNSET
    phase: Phase = "Pending"
    conditions: tuple[Condition, ...] = ()
    total_nodes: Count = 0
    total_gpus: Count = 0
    ready_nodes: Count = 0
    not_ready_nodes: Count = 0
    running_apps_cnt: Count = 0
    component_status: ComponentStatus | msgspec.UnsetType = msgspec.UNSET
    saved_costs_per_month: str | msgspec.UnsetType = msgspec.UNSET
    potential_savings_per_month: str | msgspec.UnsetType = msgspec.UNSET
    budget_exceeded: str | msgspec.UnsetType = msgspec.UNSET
    provisioning_phase: Literal["None", "Initializing", "Provisioning", "Completed"] | msgspec.UnsetType = msgspec.UNSET
    last_compaction_time: Time | msgspec.UnsetType = msgspec.UNSET
    last_defrag_time: Time | msgspec.UnsetType = msgspec.UNSET


class PoolDefinition(Contract, frozen=True):
    """A pool that the cluster keeps: its name becomes ``<cluster>-<name>``."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    spec_template: GPUPoolSpec
    is_default: bool = False


class VendorParams(Contract, frozen=True):
    """How to reach a cloud vendor."""

    default_region: str = ""
    access_key_path: str = ""
    secret_key_path: str = ""
    iam_role: str = ""
    config_file: str = ""
    extra_params: dict[str, str] = {}


class ComputingVendor(Contract, frozen=True):
    """The cloud that nodes come from."""

    name: str
    type: Literal[
        "aws", "lambda-labs", "gcp", "azure", "oracle-oci", "ibm", "openshift", "vultr", "together-ai", "alibaba", "nvidia",
        "tencent", "runpod", "karpenter", "mock",
    ]  # fmt: skip
    auth_type: Literal["accessKey", "serviceAccountRole"] | msgspec.UnsetType = msgspec.UNSET
    enable: bool = True
    params: VendorParams | None = None


class TensorFusionClusterSpec(Contract, frozen=True):
    """``TensorFusionCluster.spec``."""

    rules: ClassVar = (
        Rule("self.gpuPools.filter(p, has(p.isDefault) && p.isDefault).size() <= 1", "at most one pool is the default"),
    )

    gpu_pools: Annotated[tuple[PoolDefinition, ...], msgspec.Meta(max_length=64)]
    computing_vendor: ComputingVendor | None = None


class TensorFusionClusterStatus(CapacityStatus, frozen=True, omit_defaults=False):
    """``TensorFusionCluster.status``."""

    phase: Phase = "Pending"
    conditions: tuple[Condition, ...] = ()
    total_pools: Count = 0
    total_nodes: Count = 0
    total_gpus: Count = 0
    ready_gpu_pools: tuple[str, ...] = ()
    not_ready_gpu_pools: tuple[str, ...] = ()
    retry_count: Count = 0
    allocated_tflops_percent: str | msgspec.UnsetType = msgspec.UNSET
    allocated_vram_percent: str | msgspec.UnsetType = msgspec.UNSET
    utilized_tflops_percent: str | msgspec.UnsetType = msgspec.UNSET
    utilized_vram_percent: str | msgspec.UnsetType = msgspec.UNSET
    saved_costs_per_month: str | msgspec.UnsetType = msgspec.UNSET
    potential_savings_per_month: str | msgspec.UnsetType = msgspec.UNSET
    cloud_vendor_config_hash: str | msgspec.UnsetType = msgspec.UNSET
