"""``GPUNode``, ``GPU``, ``GPUNodeClaim`` and ``GPUNodeClass``: hardware as it is, and as it is ordered."""

from typing import Annotated, Literal

import msgspec

from schemas.kube.base import Amounts, Condition, Contract, Count, Int32, Isolation, NameRef, Quantity, Time
from schemas.kube.pools import CapacityStatus

NodePhase = Literal["Pending", "Provisioning", "Migrating", "Running", "Succeeded", "Failed", "Unknown", "Destroying"]
GpuPhase = Literal["Pending", "Provisioning", "Running", "Unknown", "Destroying", "Migrating"]


class PodGpuInfo(Contract, frozen=True):
    """A pod on a GPU."""

    name: str
    namespace: str
    uid: str
    requests: Amounts | None = None
    limits: Amounts | None = None
    qos: str = ""
    is_external: bool = False


class GPUNodeSpec(Contract, frozen=True):
    """``GPUNode.spec``."""

    manage_mode: Literal["Manual", "AutoSelect", "Provisioned"] = "AutoSelect"
    cost_per_hour: str = ""
    gpu_card_indices: tuple[Int32, ...] = ()
    cloud_vendor_param: str = ""


class HypervisorStatus(Contract, frozen=True):
    """The node component."""

    hypervisor_state: str = ""
    hypervisor_version: str = ""
    last_heartbeat_time: Time | msgspec.UnsetType = msgspec.UNSET


class NodeInfo(Contract, frozen=True):
    """What the node has beside GPUs."""

    ram_size: Quantity = "0"
    data_disk_size: Quantity = "0"


class GPUNodeStatus(CapacityStatus, frozen=True, omit_defaults=False):
    """``GPUNode.status``."""

    phase: NodePhase = "Pending"
    conditions: tuple[Condition, ...] = ()
    hypervisor_status: HypervisorStatus | msgspec.UnsetType = msgspec.UNSET
    node_info: NodeInfo | msgspec.UnsetType = msgspec.UNSET
    loaded_models: tuple[str, ...] = ()
    total_gpus: Count = 0
    managed_gpus: Count = 0
    managed_gpu_device_ids: tuple[str, ...] = ()
    observed_generation: int = 0
    total_gpu_pods: Count = 0
    allocated_pods: dict[str, tuple[PodGpuInfo, ...]] = {}


class RunningApp(Contract, frozen=True):
    """Pods of one workload on the GPU."""

    name: str
    namespace: str
    count: Count = 0
    pods: tuple[PodGpuInfo, ...] = ()


class NvLinkPeer(Contract, frozen=True):
    """A GPU at the other end of links."""

    peer_uuid: str
    link_count: Count = 0
    link_version: Count = 0
    bandwidth_mbps: Count = 0


class NvLink(Contract, frozen=True):
    """NVLink of a GPU."""

    peer_count: Count = 0
    total_link_count: Count = 0
    total_bandwidth_mbps: Count = 0
    peers: tuple[NvLinkPeer, ...] = ()


class AllocatedPartition(Contract, frozen=True):
    """A hardware partition in use; the slot range excludes its end."""

    template_id: str = msgspec.field(name="templateId")
    pod_uid: str = msgspec.field(name="podUid")
    pod_name: str = ""
    namespace: str = ""
    allocated_at: Time | msgspec.UnsetType = msgspec.UNSET
    allocated_slot_start: Int32 | msgspec.UnsetType = msgspec.UNSET
    allocated_slot_end: Int32 | msgspec.UnsetType = msgspec.UNSET
    isolation_group_id: str = msgspec.field(default="", name="isolationGroupId")


class TopologyPeer(Contract, frozen=True):
    """How near another GPU is."""

    peer_gpu_uuid: str
    tier: Int32 = 0
    link_type: str = ""
    bandwidth: Int32 = 0


class GpuTopology(Contract, frozen=True):
    """How near the node's other GPUs are."""

    peers: tuple[TopologyPeer, ...] = ()


class GPUStatus(Contract, frozen=True, omit_defaults=False):
    """``GPU.status``: capacity is physical, available is what requests may still take."""

    phase: GpuPhase = "Pending"
    vendor: str = "NVIDIA"
    model: str | msgspec.UnsetType = msgspec.UNSET
    capacity: Amounts | msgspec.UnsetType = msgspec.UNSET
    available: Amounts | msgspec.UnsetType = msgspec.UNSET
    uuid: str | msgspec.UnsetType = msgspec.UNSET
    isolation_mode: Isolation = "soft"
    isolation_policy: Literal["Static", "Dynamic"] | msgspec.UnsetType = msgspec.UNSET
    active_isolation_mode: Literal["shared", "soft", "hard"] | msgspec.UnsetType = msgspec.UNSET
    dynamic_isolation_conflict: bool = False
    index: Int32 | msgspec.UnsetType = msgspec.UNSET
    numa_node: Int32 | msgspec.UnsetType = msgspec.UNSET
    node_selector: dict[str, str] = {}
    gpu_model: str | msgspec.UnsetType = msgspec.UNSET
    used_by: str | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET
    running_apps: tuple[RunningApp, ...] = ()
    nv_link: NvLink | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="nvLink")
    allocated_partitions: dict[str, AllocatedPartition] = {}
    topology: GpuTopology | msgspec.UnsetType = msgspec.UNSET


class GPUNodeClaimSpec(Contract, frozen=True):
    """``GPUNodeClaim.spec``."""

    node_name: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    node_class_ref: NameRef | None = None
    capacity_type: Literal["OnDemand", "Reserved", "Spot"] | msgspec.UnsetType = msgspec.UNSET
    tflops_offered: Quantity = 0
    vram_offered: Quantity = msgspec.field(default=0, name="vramOffered")
    gpu_device_offered: Count = 0
    extra_params: dict[str, str] = {}


class GPUNodeClaimStatus(Contract, frozen=True):
    """``GPUNodeClaim.status``."""

    phase: Literal["Pending", "Creating", "Bound"] = "Pending"
    instance_id: str = ""
    conditions: tuple[Condition, ...] = ()


class LaunchTemplate(Contract, frozen=True):
    """A template of the cloud vendor."""

    id: str = ""
    name: str = ""
    tags: dict[str, str] = {}


class ImageTerm(Contract, frozen=True):
    """An image by id, name or tags."""

    id: str = ""
    name: str = ""
    owner: str = ""
    tags: dict[str, str] = {}


class MetadataOptions(Contract, frozen=True):
    """The instance metadata service."""

    http_endpoint: bool = True
    http_protocol_ipv6: bool = msgspec.field(default=False, name="httpProtocolIPv6")
    http_put_response_hop_limit: Annotated[int, msgspec.Meta(ge=1, le=64)] = msgspec.field(
        default=1, name="httpPutResponseHopLimit"
    )
    http_tokens: Literal["required", "optional"] = "required"


class BlockDevice(Contract, frozen=True):
    """A disk."""

    volume_size: str = ""
    volume_type: str = ""
    delete_on_termination: bool = True
    encrypted: bool = True


class BlockDeviceMapping(Contract, frozen=True):
    """Where a disk appears."""

    device_name: str = ""
    ebs: BlockDevice | None = None


class GPUNodeClassSpec(Contract, frozen=True):
    """``GPUNodeClass.spec``."""

    launch_template: LaunchTemplate | None = None
    os_image_type: Literal["Private", "Public", "System"] = "Private"
    os_image_selector_terms: tuple[ImageTerm, ...] = ()
    instance_profile: str = ""
    metadata_options: MetadataOptions | None = None
    security_group_selector_terms: tuple[ImageTerm, ...] = ()
    subnet_selector_terms: tuple[ImageTerm, ...] = ()
    block_device_mappings: tuple[BlockDeviceMapping, ...] = ()
    tags: dict[str, str] = {}
    user_data: str = ""


class GPUNodeClassStatus(Contract, frozen=True):
    """``GPUNodeClass.status``."""

    conditions: tuple[Condition, ...] = ()
