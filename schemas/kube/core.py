"""The parts that we read of Kubernetes' own kinds. What is left out is skipped while decoding, which is most of the cost."""

from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from schemas.node_rules import NodeTerm, PreferredTerm, Taint, Toleration


class OwnerReference(msgspec.Struct, frozen=True, gc=False):
    """Who made an object."""

    kind: str
    name: str
    uid: str = ""
    controller: bool = False
    api_version: str = msgspec.field(default="", name="apiVersion")


class ObjectMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """What every object has; at admission a pod under ``generateName`` has no name yet."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = "0"
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: str = ""
    deletion_timestamp: str = ""

    @property
    def version(self) -> int:
        """The resource version as a number: larger is later. Source: KEP-5504, comparable resource version."""
        return int(self.resource_version)

    @property
    def created_at(self) -> datetime | None:
        """When it was created; None for what is only proposed."""
        created = self.creation_timestamp
        return datetime.fromisoformat(created).astimezone(UTC) if created else None


def same(before: Any, after: Any) -> bool:
    """Return whether of two states of an object, Structs with metadata, all that we read is the same but for the version."""
    meta = msgspec.structs.replace(after.metadata, resource_version=before.metadata.resource_version)
    return bool(before == msgspec.structs.replace(after, metadata=meta))


class _Read(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    pass


class Amounts(_Read, frozen=True):
    """``ResourceRequirements``; quantities as text."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class EnvVar(_Read, frozen=True):
    """A variable; one whose value comes from elsewhere has none."""

    name: str
    value: str = ""


class SecurityContext(_Read, frozen=True):
    """What of it concerns GPUs."""

    privileged: bool | None = None


class ContainerPort(_Read, frozen=True):
    """A port of a container; 0 where it takes none of its node's."""

    host_port: int = 0


class Container(_Read, frozen=True):
    """A container or init container."""

    name: str
    resources: Amounts = Amounts()
    env: tuple[EnvVar, ...] = ()
    security_context: SecurityContext | None = None
    restart_policy: str = ""
    ports: tuple[ContainerPort, ...] = ()


class RequiredTerms(_Read, frozen=True):
    """``core/v1.NodeSelector``."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class NodeAffinity(_Read, frozen=True):
    """Which nodes a pod wants."""

    required: RequiredTerms | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[PreferredTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Read, frozen=True):
    """Whether a pod has affinity to other pods is all we need to know of that."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: dict[str, Any] | None = None
    pod_anti_affinity: dict[str, Any] | None = None


class ClaimSource(_Read, frozen=True):
    """A volume that a claim stands behind."""

    claim_name: str = ""


class Volume(_Read, frozen=True):
    """A volume, as far as it may bind a pod to nodes."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None


class PodSpec(_Read, frozen=True):
    """``Pod.spec``."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[dict[str, Any], ...] = ()
    volumes: tuple[Volume, ...] = ()
    scheduling_gates: tuple[dict[str, Any], ...] = ()
    resource_claims: tuple[dict[str, Any], ...] = ()


class PodCondition(_Read, frozen=True):
    """One condition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Waiting(_Read, frozen=True):
    """Why a container does not run yet, or again."""

    reason: str = ""


class ContainerState(_Read, frozen=True):
    """The state of a container, as far as it is waiting."""

    waiting: Waiting | None = None


class ContainerStatus(_Read, frozen=True):
    """One container's status."""

    state: ContainerState = ContainerState()


class PodStatus(_Read, frozen=True):
    """``Pod.status``."""

    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown", ""] = "Pending"
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


ENDED: Final = ("Succeeded", "Failed")
"""Phases of a pod whose containers run no more."""


class KubePod(_Read, frozen=True):
    """``core/v1.Pod``."""

    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def ended(self) -> bool:
        """Whether its containers run no more, so that it holds nothing."""
        return self.status.phase in ENDED


class NodeSpec(_Read, frozen=True):
    """``Node.spec``."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(_Read, frozen=True):
    """``Node.status``."""

    allocatable: dict[str, str] = {}
    conditions: tuple[PodCondition, ...] = ()


class KubeNode(_Read, frozen=True):
    """``core/v1.Node``."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
