"""``SchedulingConfigTemplate`` and ``ProviderConfig``: how to place, and what vendors bring."""

from typing import Annotated, Literal

import msgspec

from schemas.kube.base import Contract, Count, Duration, Free, Int32, LabelSelector, Qos, Quantity
from schemas.kube.workloads import AutoScalingConfig, Decimal


class GpuFilter(Contract, frozen=True):
    """Kept so that older templates are accepted; not used."""

    type: str
    params: Free | None = None


class Placement(Contract, frozen=True):
    """Which node and which GPU a pod gets; the last two modes are ours."""

    mode: Literal["CompactFirst", "LowLoadFirst", "NodeCompactGPULowLoad", "FragmentationGradient", "PackingValue"] = (
        "NodeCompactGPULowLoad"
    )
    allow_using_local_gpu: bool = True
    gpu_filters: tuple[GpuFilter, ...] = ()


class VerticalScalingRule(Contract, frozen=True):
    """Pods that match are scaled so; the first match wins."""

    name: str
    selector: LabelSelector | None = None
    auto_scaling: AutoScalingConfig | None = None


class AutoFreeze(Contract, frozen=True):
    """When an idle worker's memory is moved away."""

    qos: Qos
    enable: bool = False
    freeze_to_mem_ttl: Duration | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="freezeToMemTTL")
    freeze_to_disk_ttl: Duration | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="freezeToDiskTTL")


class AutoFreezeAndResume(Contract, frozen=True):
    """Freezing and resuming workers."""

    auto_freeze: tuple[AutoFreeze, ...] = ()
    intelligence_warmup: Free | None = None


class ElasticRateLimit(Contract, frozen=True):
    """Parameters of the compute limiter."""

    max_refill_rate: Decimal | msgspec.UnsetType = msgspec.UNSET
    min_refill_rate: Decimal | msgspec.UnsetType = msgspec.UNSET
    filter_alpha: Decimal | msgspec.UnsetType = msgspec.UNSET
    ki: Decimal | msgspec.UnsetType = msgspec.UNSET
    kd: Decimal | msgspec.UnsetType = msgspec.UNSET
    kp: Decimal | msgspec.UnsetType = msgspec.UNSET
    burst_window: Decimal | msgspec.UnsetType = msgspec.UNSET
    capacity_min: Decimal | msgspec.UnsetType = msgspec.UNSET
    capacity_max: Decimal | msgspec.UnsetType = msgspec.UNSET
    integral_decay_factor: Decimal | msgspec.UnsetType = msgspec.UNSET


class HypervisorScheduling(Contract, frozen=True):
    """What the node component is told."""

    auto_freeze_and_resume: AutoFreezeAndResume | None = None
    elastic_rate_limit_parameters: ElasticRateLimit | None = None
    multi_process_queuing_parameters: Free | None = None


class SchedulingConfigTemplateSpec(Contract, frozen=True):
    """``SchedulingConfigTemplate.spec``."""

    placement: Placement = Placement()
    vertical_scaling_rules: tuple[VerticalScalingRule, ...] = ()
    re_balancer: Free | None = None
    hypervisor: HypervisorScheduling | None = None


class SchedulingConfigTemplateStatus(Contract, frozen=True):
    """``SchedulingConfigTemplate.status``: nothing is said in it."""


class ProviderImages(Contract, frozen=True):
    """Images of a vendor; they win over the pool's."""

    middleware: Annotated[str, msgspec.Meta(min_length=1)]
    remote_client: str = ""
    remote_worker: str = ""


class HostPathMount(Contract, frozen=True):
    """A directory of the node."""

    host_path: str
    mount_path: str
    name: str = ""
    read_only: bool = False


class DeviceMount(Contract, frozen=True):
    """Device files of a GPU, as CEL expressions."""

    device_mount_rule: str = ""
    partitioned_device_mount_rule: str = ""
    shared_devices: tuple[str, ...] = ()


class ProviderHypervisor(Contract, frozen=True):
    """What the node component of a vendor needs."""

    privileged_hypervisor: bool = False
    ld_library_path: str = ""
    extra_env: tuple[Free, ...] = ()
    host_path_mounts: tuple[HostPathMount, ...] = ()
    device_mount: DeviceMount | None = None


class HardwareModel(Contract, frozen=True):
    """A GPU model."""

    model: str
    full_model_name: str = ""
    cost_per_hour: str | int = ""
    fp16_tflops: Quantity = 0
    max_partitions: Count = 0
    max_placement_slots: Count = 0
    max_isolation_groups: Count = 0
    total_extended_resources: dict[str, Int32] = {}
    partition_template_refs: tuple[str, ...] = ()
    device_mount: DeviceMount | None = None


class VirtualizationTemplate(Contract, frozen=True):
    """A hardware partition."""

    id: str
    nvml_profile_id: Int32 | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="nvmlProfileId")
    name: str = ""
    memory_gigabytes: Count = 0
    compute_percent: str = ""
    description: str = ""
    max_instances: Count = 0
    placement_limit: tuple[Count, ...] = ()
    placement_offset: Count = 0
    extended_resources: dict[str, Int32] = {}
    isolation_group_sharing: Literal["exclusive", "shared"] | msgspec.UnsetType = msgspec.UNSET
    max_partitions_per_isolation_group: Count = 0
    isolation_group_slots: Count = 0


class DevicePluginDetection(Contract, frozen=True):
    """How other allocators are recognised."""

    resource_name_prefixes: tuple[str, ...] = ()
    used_by_system_name: str = ""


class ProviderConfigSpec(Contract, frozen=True):
    """``ProviderConfig.spec``: one per vendor."""

    vendor: str
    images: ProviderImages
    hypervisor: ProviderHypervisor | None = None
    hardware_metadata: tuple[HardwareModel, ...] = ()
    virtualization_templates: tuple[VirtualizationTemplate, ...] = ()
    in_use_resource_names: tuple[str, ...] = ()
    device_plugin_detection: DevicePluginDetection | None = None
