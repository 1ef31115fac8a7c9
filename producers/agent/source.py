"""Where the agent's knowledge of GPUs comes from: what a real driver and a simulated one have in common.

All methods block, and are called in a lane. A source keeps no judgement: it says what it sees, and
:mod:`producers.agent.health` decides what that means.
"""

from typing import NamedTuple, Protocol

from schemas.cluster import GpuDevice
from schemas.hardware import GpuLink, GpuProblem, PartitionTemplate
from schemas.usage import GpuSample


class SourceError(Exception):
    """The driver as a whole cannot be used; the message says what it answered."""


class Symptom(NamedTuple):
    """Something about one GPU that is wrong for as long as it is seen."""

    problem: GpuProblem
    detail: str


class Seen(NamedTuple):
    """One GPU as the driver tells it now.

    Attributes:
        device: What it is; its health is left open.
        symptoms: What is wrong with it.
        reset_wanted: Whether the driver wants it reset; None where the driver cannot tell.
    """

    device: GpuDevice
    symptoms: tuple[Symptom, ...] = ()
    reset_wanted: bool | None = None


class Hardware(NamedTuple):
    """All GPUs that answer. ``links`` name them by their place in ``seen``."""

    seen: tuple[Seen, ...]
    links: tuple[GpuLink, ...] = ()
    partitions: tuple[PartitionTemplate, ...] = ()
    driver: str = ""
    cuda: str = ""


class Process(NamedTuple):
    """One process on one GPU.

    Attributes:
        instance: UUID of the MIG device that it runs on; empty for the whole GPU.
        compute: It computes; a display server does not.
        pod_uid: The pod that it stands for, where there is no real process.
    """

    pid: int
    vram_bytes: int
    sm_percent: float = 0.0
    instance: str = ""
    compute: bool = True
    pod_uid: str = ""


class Reading(NamedTuple):
    """One GPU at one instant; ``sample`` has no processes yet, because their pods are not the driver's to know."""

    sample: GpuSample
    processes: tuple[Process, ...] = ()
    symptoms: tuple[Symptom, ...] = ()


class Fault(NamedTuple):
    """The driver reported an error: an XID. ``uuid`` is empty when it does not say of which GPU."""

    uuid: str
    xid: int


class Source(Protocol):
    """GPUs of one node."""

    def open(self) -> None:
        """Begin, or begin again after a failure.

        Raises:
            SourceError: The driver cannot be used.
        """

    def close(self) -> None:
        """End; never raises."""

    def hardware(self) -> Hardware:
        """Return what there is.

        Raises:
            SourceError: The driver cannot be used.
        """

    def readings(self) -> tuple[Reading, ...]:
        """Return what every known GPU does; one that does not answer says so in its reading.

        Raises:
            SourceError: The driver cannot be used.
        """

    def faults(self) -> tuple[Fault, ...]:
        """Return the errors reported since the last call, without waiting.

        Raises:
            SourceError: The driver cannot be used.
        """
