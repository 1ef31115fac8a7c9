"""What is used: one NVML sample of all GPUs of a node."""

from typing import Annotated

import msgspec

from schemas.cluster import Amount
from schemas.event import Timestamp

Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Use of one GPU by one pod."""

    pod_uid: str
    vram_bytes: Amount = 0
    sm_percent: Percent = 0.0


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One GPU at one instant. Temperature in degrees Celsius, power in milliwatts."""

    uuid: str
    sm_percent: Percent = 0.0
    vram_used_bytes: Amount = 0
    temperature_c: int = 0
    power_mw: Amount = 0
    processes: tuple[ProcessUsage, ...] = ()


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All GPUs of one node at one tick."""

    node: str
    at: Timestamp
    gpus: tuple[GpuSample, ...]
