"""A request as the filters see it: the numbers to compare, and which columns to compare them with."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.manner import Manner
from consumers.allocator.engine.rules import (
    COMPUTE,
    COMPUTE_SHIFT,
    CPU,
    FITS,
    MAX_AMOUNT,
    MEMORY,
    PODS,
    SAME_NODE,
    STAGE_SHIFT,
    VRAM,
)
from consumers.allocator.engine.together import Together
from schemas.cluster import GpuDevice
from schemas.decision import GpuGrant
from schemas.placement import GpuPolicy, NodePolicy, ScoringWeights, Topology
from schemas.pod import WHOLE, GpuRequest

ShapeKey = tuple[
    int, int, int, int, int, int, int, tuple[str, ...], str,
    NodePolicy, tuple[GpuPolicy, ...], ScoringWeights | None, bool, Topology | None,
]  # fmt: skip

SHORT: Final = np.array([COMPUTE, VRAM, SAME_NODE, PODS, CPU, MEMORY, FITS], dtype=np.int64) << STAGE_SHIFT
"""The verdict's stage when that column of ``limits`` is the first that falls short."""

_NEVER_SHORT: Final = -MAX_AMOUNT


def shape_key(request: GpuRequest) -> ShapeKey:
    """Return what two requests must share to fit the same nodes: all but pool, quality of service and priority."""
    return (
        request.count,
        request.tflops_milli,
        request.compute_milli,
        request.vram_bytes,
        request.vram_milli,
        request.cpu_milli,
        request.memory_bytes,
        request.models,
        request.vendor,
        request.node_policy,
        request.gpu_policies,
        request.scoring_weights,
        request.numa_bind,
        request.topology,
    )


class Need:
    """The comparisons that a request comes down to.

    Compute is compared with the free amount, or for a share with the largest share that fits (see
    :class:`~consumers.allocator.engine.host.Host`); VRAM likewise. So a share costs no more than an amount, though it
    means another amount on each kind of GPU.

    Attributes:
        compute_column: ``tflops_free`` or ``tflops_share``, in a table as in a host.
        vram_column: ``vram_free`` or ``vram_share``.
        limits: Least values of the columns of a table's ``limits``.
        together: What is asked of the GPUs of the pod as a whole, if anything is.
    """

    __slots__ = (
        "compute", "compute_column", "count", "cpu", "limits", "memory", "request", "together", "vram", "vram_column",
    )  # fmt: skip

    def __init__(self, request: GpuRequest, manner: Manner | None = None) -> None:
        self.request = request
        self.together = Together(manner, request.count) if manner is not None and manner.as_a_whole else None
        self.count = request.count
        self.compute_column = "tflops_share" if request.compute_milli else "tflops_free"
        self.compute = min(request.compute_milli or request.tflops_milli, MAX_AMOUNT + 1)
        self.vram_column = "vram_share" if request.vram_milli else "vram_free"
        self.vram = min(request.vram_milli or request.vram_bytes, MAX_AMOUNT + 1)
        self.cpu = min(request.cpu_milli, MAX_AMOUNT + 1) or _NEVER_SHORT
        self.memory = min(request.memory_bytes, MAX_AMOUNT + 1) or _NEVER_SHORT
        some = 1 if self.count else 0
        self.limits: NDArray[np.int64] = np.array([some, some, self.count, 1, self.cpu, self.memory, 0], dtype=np.int64)

    def accepts(self, device: GpuDevice) -> bool:
        """Return whether the GPU is one the request may have at all, whatever is free on it."""
        models, vendor = self.request.models, self.request.vendor
        return (
            device.healthy
            and not device.used_by
            and (not vendor or device.vendor == vendor)
            and (not models or device.model in models)
        )

    def fitting(self, host: Host, slots: list[int]) -> tuple[int, list[int]]:
        """Return how many of the slots have enough compute, and those of them that have enough VRAM too."""
        free, need = getattr(host, self.compute_column), self.compute
        standing = [slot for slot in slots if free[slot] >= need]
        free, need = getattr(host, self.vram_column), self.vram
        return len(standing), [slot for slot in standing if free[slot] >= need]

    def judge(self, host: Host, slots: list[int]) -> tuple[int, list[int]]:
        """Return the verdict on a node that no earlier filter refuses, and the slots that the request fits on.

        Args:
            host: The node.
            slots: The GPUs standing.
        """
        compute, fitting = self.fitting(host, slots) if self.count else (0, [])
        fits, stage = len(fitting), FITS
        if fits >= self.count and self.together is not None:
            stage, fitting = self.together.narrow(host, fitting)
        if fits < self.count:
            stage = COMPUTE if not compute else SAME_NODE if fitting else VRAM
        elif stage:
            pass
        elif host.pods_free < 1:
            stage = PODS
        elif host.cpu_free < self.cpu:
            stage = CPU
        elif host.memory_free < self.memory:
            stage = MEMORY
        return (stage << STAGE_SHIFT) | (compute << COMPUTE_SHIFT) | fits, fitting

    def grant(self, device: GpuDevice) -> GpuGrant:
        """Return what the request gets of a GPU. Shares are of its physical amounts, rounded down."""
        request = self.request
        tflops = device.tflops_milli * request.compute_milli // WHOLE if request.compute_milli else request.tflops_milli
        vram = device.vram_bytes * request.vram_milli // WHOLE if request.vram_milli else request.vram_bytes
        return GpuGrant(uuid=device.uuid, index=device.index, tflops_milli=tflops, vram_bytes=vram)
