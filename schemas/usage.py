"""What is used: one NVML sample of all GPUs of a node."""

from typing import Annotated

import msgspec

from schemas.event import Timestamp

Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""What a column of the metrics store can hold: what is measured is decimals and 64-bit whole numbers there."""
Celsius = Annotated[int, msgspec.Meta(ge=-1_000, le=10_000)]


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Use of one GPU, or of one MIG device on it, by one container of a pod. A pod with several has several entries.

    Attributes:
        pod_uid: UID of the pod; empty for processes of the host itself.
        vram_bytes: VRAM that its processes hold.
        sm_percent: Compute of the GPU that they use; a MIG device does not tell.
        container: Name of the container; empty where the node does not tell it.
        container_id: The runtime's ID of the container.
        instance: UUID of the MIG device; empty for the whole GPU.
        pids: How many processes there are; 0 for a pod all of whose processes have given up their VRAM and live on.
        foreign: The pod is not in the ledger on this node, or these are processes of the host itself.
        throttled_count: In how many samples a container of the pod used all the compute of this GPU that its limit allows, since
            the pod came here; None where no limit below the whole GPU is known. This count and the next two are the pod's on
            this GPU: all its entries there say the same.
        vram_frozen_count: How often a process of the pod gave up its VRAM and lived on; None where no process can be seen.
        vram_resumed_count: How often such a process took VRAM again.
    """

    pod_uid: str
    vram_bytes: Amount = 0
    sm_percent: Percent = 0.0
    container: str = ""
    container_id: str = ""
    instance: str = ""
    pids: Amount = 0
    foreign: bool = False
    throttled_count: Amount | None = None
    vram_frozen_count: Amount | None = None
    vram_resumed_count: Amount | None = None


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One GPU at one instant. Temperature in degrees Celsius, power in milliwatts.

    What the GPU does not tell is left out, and reads as 0.

    Attributes:
        sm_percent: Part of the last sample period in which a kernel ran.
        memory_percent: Part of it in which memory was read or written.
        graphics_clock_mhz: Clocks; ``sm``, ``memory`` and ``video`` likewise.
        pcie_rx_bytes: Bytes per second from the host; ``tx`` to it.
        nvlink_rx_bytes: Bytes per second over all NVLinks; ``tx`` likewise.
        throttle: Why its clocks are lower than they could be, such as ``SwPowerCap``.
        absent: It could not be read: nothing else here is known.
    """

    uuid: str
    sm_percent: Percent = 0.0
    vram_used_bytes: Amount = 0
    temperature_c: Celsius = 0
    power_mw: Amount = 0
    processes: tuple[ProcessUsage, ...] = ()
    memory_percent: Percent = 0.0
    graphics_clock_mhz: Amount = 0
    sm_clock_mhz: Amount = 0
    memory_clock_mhz: Amount = 0
    video_clock_mhz: Amount = 0
    pcie_rx_bytes: Amount = 0
    pcie_tx_bytes: Amount = 0
    nvlink_rx_bytes: Amount = 0
    nvlink_tx_bytes: Amount = 0
    throttle: tuple[str, ...] = ()
    absent: bool = False


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All GPUs of one node at one tick."""

    node: str
    at: Timestamp
    gpus: tuple[GpuSample, ...]
