"""Our custom resources as objects: metadata with their spec."""

import msgspec

from schemas.kube.core import ObjectMeta
from schemas.kube.pools import GPUPoolSpec, TensorFusionClusterSpec
from schemas.kube.settings import ProviderConfigSpec, SchedulingConfigTemplateSpec
from schemas.kube.workloads import GPUResourceQuotaSpec, WorkloadProfileSpec


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


class GPUResourceQuota(msgspec.Struct, frozen=True, gc=False):
    """Bounds of a namespace."""

    metadata: ObjectMeta
    spec: GPUResourceQuotaSpec


class ProviderConfig(msgspec.Struct, frozen=True, gc=False):
    """A vendor."""

    metadata: ObjectMeta
    spec: ProviderConfigSpec
