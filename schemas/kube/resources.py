"""Our custom resources as objects: metadata with their spec."""

from typing import Any

import msgspec

from schemas.kube.core import ObjectMeta
from schemas.kube.pools import GPUPoolSpec, TensorFusionClusterSpec
from schemas.kube.settings import ProviderConfigSpec, SchedulingConfigTemplateSpec
from schemas.kube.workloads import (
    GPUResourceQuotaSpec,
    TensorFusionConnectionSpec,
    TensorFusionConnectionStatus,
    WorkloadProfileSpec,
)


class GPUPool(msgspec.Struct, frozen=True, gc=False):
    """A pool."""

    metadata: ObjectMeta
    spec: GPUPoolSpec


class TensorFusionCluster(msgspec.Struct, frozen=True, gc=False):
    """A cluster of pools."""

    metadata: ObjectMeta
    spec: TensorFusionClusterSpec


class SchedulingConfigTemplate(msgspec.Struct, frozen=True, gc=False):
    """How a pool places."""

    metadata: ObjectMeta
    spec: SchedulingConfigTemplateSpec = SchedulingConfigTemplateSpec()


class WorkloadProfile(msgspec.Struct, frozen=True, gc=False):
    """Defaults of pods that name it."""

    metadata: ObjectMeta
    spec: WorkloadProfileSpec


class TensorFusionWorkload(msgspec.Struct, frozen=True, gc=False):
    """Workers that are kept."""

    metadata: ObjectMeta
    spec: WorkloadProfileSpec


class TensorFusionConnection(msgspec.Struct, frozen=True, gc=False):
    """Which worker a client uses; its status says where that is."""

    metadata: ObjectMeta
    spec: TensorFusionConnectionSpec
    status: TensorFusionConnectionStatus = TensorFusionConnectionStatus()


class GPUResourceQuota(msgspec.Struct, frozen=True, gc=False):
    """Bounds of a namespace."""

    metadata: ObjectMeta
    spec: GPUResourceQuotaSpec


class ProviderConfig(msgspec.Struct, frozen=True, gc=False):
    """A vendor."""

    metadata: ObjectMeta
    spec: ProviderConfigSpec


class CustomResource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What STATE says of a custom resource: what is set, and nothing of its status.

    Attributes:
        plural: Its kind, as in ``gpupools``.
        annotations: Those of our own group.
        spec: As the type of the kind has it.
    """

    plural: str
    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    spec: dict[str, Any]

    def metadata(self) -> ObjectMeta:
        """Return its metadata as the API server would have it."""
        return ObjectMeta(
            name=self.name,
            namespace=self.namespace,
            uid=self.uid,
            labels=self.labels,
            annotations=self.annotations,
        )


class ResourceQuotaSpec(msgspec.Struct, frozen=True, gc=False):
    """``ResourceQuota.spec``; quantities as text."""

    hard: dict[str, str] = {}
    scopes: tuple[str, ...] = ()


class ResourceQuota(msgspec.Struct, frozen=True, gc=False):
    """``core/v1.ResourceQuota``."""

    metadata: ObjectMeta
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
