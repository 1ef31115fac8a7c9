"""What a node's GPUs are beside their size: how they reach each other, and into which partitions they can be cut."""

from typing import Annotated, Literal

import msgspec

from schemas.units import Amount, Share

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
