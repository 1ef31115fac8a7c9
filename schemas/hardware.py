"""What a node's GPUs are beside their size: how they reach each other, and into which partitions they can be cut."""

from typing import Annotated, Literal

import msgspec

from schemas.event import Timestamp
from schemas.units import Amount, Share

GpuProblem = Literal[
    "Xid", "Lost", "RowRemap", "EccErrors", "DriverHung", "DriverError", "InvalidReading", "RecoveryRequired", "MpsDown"
]
"""Why a GPU takes no new pods: a fatal XID, off the bus, memory rows to be remapped or gone, uncorrectable memory errors, a
driver that does not answer or answers with errors, readings that cannot be true, a reset that the driver asks for, no MPS
server on a node that shares by MPS."""

GpuPath = Literal["", "system", "node", "hostbridge", "multiple", "single", "internal"]
"""The nearest common part of two GPUs' ways to the CPU, in NVML's words (``nvmlGpuTopologyLevel_t``), the nearest last: the link
between CPUs, one NUMA node, one host bridge, several PCIe switches, one switch, one board. Empty is unknown.
"""


class GpuLink(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How two GPUs of one node reach each other. Written as an array, such as ``[0, 1, "node", 12]``: nodes have many pairs.

    A pair whose two GPUs do not tell the same is not to be listed: then nothing is known of it.

    Attributes:
        first: Place of one GPU in the inventory's list, from 0.
        second: Place of the other, larger than ``first``.
        path: The way through the host.
        nvlinks: NVLinks (or xGMI links) between them; where they meet in a switch, the fewest of either GPU to it.
    """

    first: Amount
    second: Amount
    path: GpuPath = ""
    nvlinks: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0


class Trouble(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One reason why a GPU is unhealthy.

    Attributes:
        problem: What kind.
        detail: In words for people, with the numbers, such as ``XID 79``.
        since: When it was seen first, RFC 3339.
        xid: The driver's error number; 0 for none.
    """

    problem: GpuProblem
    detail: str
    since: Timestamp
    xid: Amount = 0


class MigInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A MIG device that exists on a GPU.

    Attributes:
        uuid: ``MIG-…``, what a container names it by.
        profile: NVML's name of the profile, such as ``1g.10gb``.
        gpu_instance: GPU instance ID.
        compute_instance: Compute instance ID inside it.
        start: First placement slot of the GPU instance.
        slots: How many slots it takes.
        vram_bytes: Its VRAM.
    """

    uuid: str
    profile: str
    gpu_instance: Amount
    compute_instance: Amount
    start: Amount
    slots: Amount
    vram_bytes: Amount = 0


class PartitionTemplate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A hardware partition that a GPU can be cut into, such as a MIG profile.

    Attributes:
        id: What a pod names it by (``partition-id``), such as ``1g.10gb``.
        model: The GPU model it is for; empty for every GPU of the node.
        vram_bytes: VRAM of one partition.
        compute_milli: Compute of one partition, as a share of the GPU. Round it down: seven sevenths are no more than a GPU.
        slots: Placement slots that one takes, side by side (NVML's placement ``size``).
        starts: Slots that one may start at.
        most: How many of them one GPU holds at most; 0 leaves that to the slots.
    """

    id: Annotated[str, msgspec.Meta(min_length=1)]
    vram_bytes: Amount
    compute_milli: Share
    slots: Annotated[int, msgspec.Meta(ge=1, le=64)]
    starts: tuple[Annotated[int, msgspec.Meta(ge=0, le=63)], ...]
    model: str = ""
    most: Amount = 0


class Partition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One partition that a pod holds.

    Attributes:
        template: Id of its template.
        start: Its first slot.
        slots: How many slots it takes.
    """

    template: str
    start: Amount
    slots: Annotated[int, msgspec.Meta(ge=1)]
