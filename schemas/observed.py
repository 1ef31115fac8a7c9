"""What a node shows that others should know of: pods that sit on a failing GPU, and use that the ledger does not explain."""

from typing import Literal

import msgspec

from schemas.event import Timestamp

DriftKind = Literal[
    "UnmanagedUse", "WrongGpu", "OverLimit", "ForeignAllocation", "MissingGpu",
    "PodGone", "PodEnded", "BoundElsewhere", "NotBound", "NotScheduled", "NotInLedger",
]  # fmt: skip
"""How a node differs from its ledger record: a process of a pod that holds nothing there; a pod on a GPU that it was not
given; more VRAM than its limit; another allocator handed out a GPU of ours; a pod holds a GPU that is not there.

How the API server differs from it: there is no such pod; it has ended; it is on another node; it has a place and no node; it
was never decided about; it has a node and holds nothing.
"""


class PodNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something happened to a GPU that a pod holds, or to the eviction that a pod waits for.

    Attributes:
        reason: ``GpuUnhealthy``, ``GpuRecovered`` or ``EvictionBlocked``, as in a Kubernetes Event.
        message: One sentence for the pod's owner.
        uuid: The GPU; empty where it is about an eviction.
        at: When it happened, or up to when room is kept for the pod that waits.
    """

    namespace: str
    name: str
    pod_uid: str
    node: str
    uuid: str
    reason: Literal["GpuUnhealthy", "GpuRecovered", "EvictionBlocked"]
    message: str
    at: Timestamp


class Drift(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the node does differs from what its ledger record says, with both values in words.

    Attributes:
        ledger: What the ledger says.
        observed: What the node shows.
        api: What the API server says, from whoever asks it.
        gpu: UUID of the GPU, if it is about one.
        pod_uid: UID of the pod, if it is about one.
        resolved: It was seen before and is no more.
    """

    node: str
    kind: DriftKind
    ledger: str
    observed: str
    at: Timestamp
    api: str = ""
    gpu: str = ""
    pod_uid: str = ""
    resolved: bool = False
