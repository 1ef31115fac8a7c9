"""What there is and how things stand, as the REST interface says it under ``/api/v1``.

Compute is in thousandths of a TFLOPS and memory in bytes. Schedulable is physical with the pool's oversubscription applied;
free is what requests may still take of that, and is below 0 where oversubscription was lowered under running pods.
"""

from typing import Generic, TypeVar

import msgspec

from schemas.cluster import Oversubscription, PlacementMode
from schemas.decision import Decision
from schemas.ledger import Allocation
from schemas.pod import GpuRequest
from schemas.units import Amount

Item = TypeVar("Item")


class Sequences(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences of STATE and LEDGER up to which an answer is true."""

    state: Amount
    ledger: Amount


class Held(Allocation, frozen=True, kw_only=True, omit_defaults=True):
    """What one pod holds, and the node that it holds it on."""

    node: str

    @classmethod
    def of(cls, node: str, allocation: Allocation) -> "Held":
        """Return an allocation with its node."""
        return cls(**msgspec.structs.asdict(allocation), node=node)


class CapacityView(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of a node or a pool, and what of them is given out."""

    nodes: Amount
    gpus: Amount
    pods: Amount
    physical_tflops_milli: Amount
    physical_vram_bytes: Amount
    schedulable_tflops_milli: Amount
    schedulable_vram_bytes: Amount
    granted_tflops_milli: Amount
    granted_vram_bytes: Amount


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU; ``status`` is ``healthy``, ``unhealthy``, or who else uses it."""

    uuid: str
    index: Amount
    model: str
    vendor: str
    status: str
    schedulable_tflops_milli: Amount
    free_tflops_milli: int
    schedulable_vram_bytes: Amount
    free_vram_bytes: int


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node with its GPUs and what pods hold there; ``status`` is ``ready``, or all that keeps pods from it."""

    name: str
    pool: str
    status: str
    labels: dict[str, str]
    free_cpu_milli: int
    free_memory_bytes: int
    free_pods: int
    capacity: CapacityView
    gpus: tuple[GpuView, ...]
    pods: tuple[Held, ...]


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool; ``placement`` and ``oversubscription`` are null for one that only nodes name."""

    name: str
    placement: PlacementMode | None
    oversubscription: Oversubscription | None
    capacity: CapacityView


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates that one filter refused; each is counted at the first filter that did.

    Attributes:
        reason: Reason code.
        meaning: What the code says, in words.
        help: What would help.
        node_count: Nodes that it refused.
        gpu_count: GPUs that it refused, those of nodes that remained among them.
        nodes: Names of those nodes, in order, at most a thousand.
        gpus: UUIDs of those GPUs, by node, at most a thousand.
    """

    reason: str
    meaning: str
    help: str
    node_count: Amount
    gpu_count: Amount
    nodes: tuple[str, ...]
    gpus: tuple[str, ...]


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a pod that came now.

    Attributes:
        fits: Whether it would get a place, which ``decision`` names.
        request: What it asks for, with everything that admission adds.
        warnings: What admission would tell its user.
        decision: Where it would go, or why nowhere.
        lost: What each filter refused, in filter order.
        sequences: Up to where the log had been read.
    """

    fits: bool
    request: GpuRequest
    warnings: tuple[str, ...]
    decision: Decision
    lost: tuple[Lost, ...]
    sequences: Sequences


class Listing(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """A part of a list, in order. ``next`` is what to ask for as ``after`` to get the next part; empty at the end."""

    items: tuple[Item, ...]
    next: str
    sequences: Sequences
