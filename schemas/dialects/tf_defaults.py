"""What stands behind a TensorFusion pod's own words: its profile, its pool and the quota of its namespace.

Whoever calls the parser has looked them up; see ``WorkloadProfile.spec``, ``GPUPool.spec`` and ``GPUResourceQuota.spec`` of
API group ``tensor-fusion.ai/v1``.
"""

from typing import Annotated, Literal

import msgspec

from schemas.cluster import Amount, Isolation, Vendor
from schemas.pod import Qos
from schemas.units import Share


class GpuAmounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Amounts per GPU; 0 leaves one unstated. Compute is stated in one of its two ways."""

    tflops_milli: Amount = 0
    compute_milli: Share = 0
    vram_bytes: Amount = 0


class GpuResources(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked for, and what may be used."""

    requests: GpuAmounts = GpuAmounts()
    limits: GpuAmounts = GpuAmounts()


class GangProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``gangScheduling`` of a profile. ``min_members`` 0 means all; ``timeout_s`` is in seconds and 0 waits without end."""

    min_members: Amount = 0
    timeout_s: Amount = 0


class WorkloadProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ``WorkloadProfile``: what annotations of the pod override, field by field. Empty, 0 and None leave one unstated."""

    pool: str = ""
    resources: GpuResources = GpuResources()
    qos: Qos | Literal[""] = ""
    is_local: bool | None = None
    sidecar_worker: bool = False
    isolation: Isolation = ""
    partition_template: str = ""
    model: str = ""
    vendor: Vendor = ""
    count: Annotated[int, msgspec.Meta(ge=0, le=128)] = 0
    indices: tuple[Amount, ...] = ()
    replicas: int | None = None
    gang: GangProfile | None = None


class TensorFusionDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds where neither the pod nor its profile says otherwise.

    Attributes:
        pool: The pool annotated ``is-default-pool``; empty when there is none.
        qos: ``qosConfig.defaultQoS`` of the pool.
        local: ``defaultUsingLocalGPU`` of the pool.
        quota: ``single.defaultRequests`` and ``single.defaultLimits`` of the namespace's first ``GPUResourceQuota``.
        profile: The profile that the pod names; None when it names none or there is no such profile.
        models: GPU models that the operator lists (``hardwareMetadata``), each with all its names.
        native_resources: Extended resources that stand for whole GPUs, with the vendor of each (``inUseResourceNames``).
        vendors: Vendor words.
        vendors_without_soft: Vendors for which there is no soft limiter.
    """

    pool: str = ""
    qos: Qos = "medium"
    local: bool = True
    quota: GpuResources = GpuResources()
    profile: WorkloadProfile | None = None
    models: tuple[tuple[str, ...], ...] = ()
    native_resources: tuple[tuple[str, Vendor], ...] = (("nvidia.com/gpu", "NVIDIA"), ("amd.com/gpu", "AMD"))
    vendors: tuple[Vendor, ...] = (
        "NVIDIA", "AMD", "Intel", "Ascend", "Hygon", "MetaX", "MooreThreads", "Biren", "THead", "PPU", "Cambricon",
        "Enflame", "KunlunXin", "Horizon", "Qualcomm", "AWSNeuron", "Google", "Cerebras",
    )  # fmt: skip
    vendors_without_soft: tuple[Vendor, ...] = ("AMD", "Hygon", "MetaX")
