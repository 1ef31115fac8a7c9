"""What a pool lacks and has to spare, what nodes can be had, and which are on their way."""

from typing import Annotated, Literal

import msgspec

from schemas.event import Timestamp
from schemas.units import Amount, Share

PlanReason = Literal["Missing", "BelowMinimum", "BelowWarm", "Spare", "TimedOut"]
Held = Literal["", "MaxResourceConstraintReached", "NoOffer", "TooManyInFlight", "BackingOff"]
"""Why a pool does not grow as far as it should; the first as upstream's event is called."""


class Size(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GPU amounts summed over some GPUs."""

    gpus: Amount = 0
    tflops_milli: Amount = 0
    vram_bytes: Amount = 0

    def plus(self, other: "Size", times: int = 1) -> "Size":
        """Return this with another one added ``times`` times."""
        return Size(
            gpus=max(self.gpus + times * other.gpus, 0),
            tflops_milli=max(self.tflops_milli + times * other.tflops_milli, 0),
            vram_bytes=max(self.vram_bytes + times * other.vram_bytes, 0),
        )


class Shape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What pods ask for that fit nowhere. Amounts are per GPU, as in :class:`schemas.pod.GpuRequest`."""

    gpus: Annotated[int, msgspec.Meta(ge=0, le=128)] = 1
    tflops_milli: Amount = 0
    compute_milli: Share = 0
    vram_bytes: Amount = 0
    vram_milli: Share = 0
    dedicated: bool = False
    cpu_milli: Amount = 0
    memory_bytes: Amount = 0
    models: tuple[str, ...] = ()
    vendor: str = ""
    other: str = ""
    """What else is asked for that no offer tells, in words: such pods are counted, and no node is ordered for them."""


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """How many pods of one shape wait, why, and for how long."""

    shape: Shape
    pods: Annotated[int, msgspec.Meta(ge=1)]
    reason: str
    since: Timestamp


class Offer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A kind of node that can be had. GPU amounts are those of one GPU.

    Attributes:
        microdollars: What an hour of it costs, in millionths of a dollar.
        labels: What else its nodes are labelled with, for a pool's requirements.
    """

    instance_type: str
    gpus: Annotated[int, msgspec.Meta(ge=1, le=128)]
    model: str
    tflops_milli: Annotated[int, msgspec.Meta(ge=1)]
    vram_bytes: Annotated[int, msgspec.Meta(ge=1)]
    vendor: str = "NVIDIA"
    cpu_milli: Amount = 0
    memory_bytes: Amount = 0
    microdollars: Amount = 0
    region: str = ""
    zone: str = ""
    capacity_type: Literal["OnDemand", "Reserved", "Spot"] = "OnDemand"
    labels: dict[str, str] = {}

    @property
    def key(self) -> str:
        """What tells it from others."""
        return f"{self.instance_type}/{self.region}/{self.zone}/{self.capacity_type}"

    @property
    def size(self) -> Size:
        """All of its GPUs."""
        return Size(gpus=self.gpus, tflops_milli=self.gpus * self.tflops_milli, vram_bytes=self.gpus * self.vram_bytes)


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An offer that did not come, how often in a row, and until when it is left alone.

    Attributes:
        claimed_at: When the last of those that did not come was claimed; one that was claimed later and came ends the row.
        useless: They came, and the pods that they were for waited on. That only time mends.
    """

    offer: str
    claimed_at: Timestamp
    times: Annotated[int, msgspec.Meta(ge=1)]
    until: Timestamp
    useless: bool = False


class PoolCapacity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pool has, lacks and has to spare, and what is done about it.

    Attributes:
        total: Its nodes that take pods.
        available: What is free on them.
        coming: Nodes that were claimed and are not there yet.
        missing: What waits for room, as far as more nodes would help.
        held: Why it does not grow as far as it should; ``message`` says more.
        claims: Since when each of its claims has been known, by our own clock.
        came: Claims whose node has come: they are not given up for being late, whatever becomes of what we hear of the node.
        bare_since: Since when nodes of claims that came have been without known GPUs; as long as they count as coming.
        closed: Nodes that we have closed to pods; nobody else's are opened again.
        given_up: Claims that took too long and are to be deleted.
        failures: Offers that did not come.
        idle_since: Since when each empty node has been empty.
        ended: Nodes whose claim is gone, as long as they are there: they are about to go, and nobody counts on them.
        placeholders: Pods of ours that keep its warm reserve, or are to; what they stand in counts as free.
    """

    pool: str
    total: Size = Size()
    available: Size = Size()
    coming: Size = Size()
    missing: tuple[Shortage, ...] = ()
    held: Held = ""
    message: str = ""
    claims: dict[str, Timestamp] = {}
    came: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    idle_since: dict[str, Timestamp] = {}
    placeholders: Amount = 0
    bare_since: dict[str, Timestamp] = {}
    ended: tuple[str, ...] = ()
