"""A request as the filters see it: the numbers to compare, and which columns to compare them with."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.crew import Crew, loosest
from consumers.allocator.engine.eligibility import SCREENED
from consumers.allocator.engine.host import Host
from consumers.allocator.engine.manner import Manner
from consumers.allocator.engine.partitions import Portion, find_place
from consumers.allocator.engine.rules import (
    COMPUTE,
    COMPUTE_SHIFT,
    CONFLICT,
    CPU,
    EXCLUSIVE,
    FITS,
    MAX_AMOUNT,
    MEMORY,
    NOT_IDLE,
    PARTITION,
    PODS,
    REFUSAL,
    SAME_NODE,
    SLOTS,
    STAGE_SHIFT,
    TOGETHER,
    VRAM,
    WORKERS,
)
from consumers.allocator.engine.screen import count_per_row
from consumers.allocator.engine.tenancy import ALONE, FULL, HELD, conflicts, wants_alone
from consumers.allocator.engine.together import Together
from schemas.decision import GpuGrant
from schemas.pod import WHOLE, GpuRequest

ShapeKey = tuple[Any, ...]

SHORT: Final = np.array([COMPUTE, VRAM, SAME_NODE, WORKERS, PODS, CPU, MEMORY, FITS], dtype=np.int64) << STAGE_SHIFT
"""The verdict's stage when that column of ``limits`` is the first that falls short."""

SIFTS: Final = (CONFLICT, NOT_IDLE, EXCLUSIVE, SLOTS)
"""The filters that look at who is on a GPU."""

_SIFT_SHIFTS: Final = {CONFLICT: 0, NOT_IDLE: 0, EXCLUSIVE: 20, SLOTS: 40}
_SIFT_MASK: Final = (1 << 20) - 1
_NEVER_SHORT: Final = -MAX_AMOUNT
_SHORT_OF_PARTITIONS: Final = np.where(SHORT == VRAM << STAGE_SHIFT, PARTITION << STAGE_SHIFT, SHORT)


def sifted(packed: int, stage: int) -> int:
    """Return how many GPUs fell to one of :data:`SIFTS`, out of a packed count of one request."""
    return (packed >> _SIFT_SHIFTS[stage]) & _SIFT_MASK


_ABOUT_GPUS: Final = (
    *SCREENED,
    *("tflops_milli", "compute_milli", "vram_bytes", "vram_milli", "dedicated", "dialect"),
    *("node_policy", "gpu_policies", "scoring_weights", "numa_bind", "topology", "containers", "partition_template"),
)

shape_key: Final[Callable[[GpuRequest], ShapeKey]] = attrgetter("cpu_milli", "memory_bytes", *_ABOUT_GPUS)
"""Return what two requests must share to fit the same nodes: all but pool, quality of service and priority."""

kin_key: Final[Callable[[GpuRequest], ShapeKey]] = attrgetter(*_ABOUT_GPUS)
"""Return what two requests must share to fit the same GPUs of any node: their shape but for CPU and memory."""


class Need:
    """The comparisons that a request comes down to.

    Compute is compared with the free amount, or for a share with the largest share that fits (see
    :class:`~consumers.allocator.engine.host.Host`); VRAM likewise. So a share costs no more than an amount, though it
    means another amount on each kind of GPU. A HAMi pod that states no compute needs a GPU with some left, and is not counted
    against it (HAMi's ``CardComputeUnitsExhausted``). Where partitions are asked for, their filter stands in for both.

    Attributes:
        compute_column: ``tflops_free`` or ``tflops_share``, in a table as in a host.
        vram_column: ``vram_free`` or ``vram_share``.
        limits: Least values of the columns of a table's ``limits``.
        sieves: The filters of :data:`SIFTS` that concern the request, each with the marks of GPUs that it refuses.
        marks: All of these marks.
        sieve_stages: These filters.
        stages: The filters after them that the request can fall to, in their order.
        crew: The containers, where they ask for GPUs of their own; all else is then about what any GPU of theirs must be.
        together: What is asked of the GPUs of the pod as a whole, if anything is.
        narrowing: The same if it refuses any GPU, and not merely prefers some.
        portion: What a partition must hold, for a pod that takes partitions.
        amounts: The filters that compute and VRAM, or partitions, stand for.
        short: The verdict's stage when a column of ``limits`` is the first that falls short.
    """

    __slots__ = (
        "alone", "amounts", "compute", "compute_column", "count", "cpu", "crew", "limits", "marks", "memory", "narrowing",
        "portion", "request", "short", "sieve_stages", "sieves", "stages", "together", "vram", "vram_column", "workers",
    )  # fmt: skip

    def __init__(self, request: GpuRequest, manner: Manner | None = None, *, stack: bool = False) -> None:
        self.crew = Crew(request, manner, stack=stack) if request.containers else None
        request = loosest(request)
        self.request = request
        self.together: Together | Crew | None = self.crew
        if self.crew is None and manner is not None and manner.as_a_whole:
            self.together = Together(manner, request.count)
        self.narrowing = self.together if self.together is not None and self.together.narrows else None
        self.count = request.count
        self.compute_column = "tflops_share" if request.compute_milli else "tflops_free"
        some = 1 if self.count else 0
        self.compute = min(request.compute_milli or request.tflops_milli, MAX_AMOUNT + 1)
        if not self.compute and request.dialect == "hami":
            self.compute = some
        self.vram_column = "vram_share" if request.vram_milli else "vram_free"
        self.vram = min(request.vram_milli or request.vram_bytes, MAX_AMOUNT + 1)
        self.portion = Portion.of(request) if request.isolation == "partitioned" and some else None
        self.amounts, self.short = (COMPUTE, VRAM), SHORT
        if self.portion is not None:
            self.compute = self.vram = _NEVER_SHORT
            self.amounts, self.short = (COMPUTE, PARTITION), _SHORT_OF_PARTITIONS
        self.workers = some or _NEVER_SHORT
        self.cpu = min(request.cpu_milli, MAX_AMOUNT + 1) or _NEVER_SHORT
        self.memory = min(request.memory_bytes, MAX_AMOUNT + 1) or _NEVER_SHORT
        self.limits: NDArray[np.int64] = np.array(
            [some, some, self.count, self.workers, 1, self.cpu, self.memory, 0], dtype=np.int64
        )
        self.alone = wants_alone(request)
        if not self.count:
            self.sieves: tuple[tuple[int, int], ...] = ()
        elif self.alone or (manner is not None and manner.idle):
            self.sieves = ((NOT_IDLE, HELD),)
        else:
            self.sieves = ((CONFLICT, conflicts(request.isolation)), (EXCLUSIVE, ALONE), (SLOTS, FULL))
        self.marks = 0
        for _, mask in self.sieves:
            self.marks |= mask
        self.sieve_stages = tuple(stage for stage, _ in self.sieves)
        of_gpus = (*self.amounts, SAME_NODE, *(TOGETHER if self.together is not None else ()), WORKERS)
        self.stages = (*(of_gpus if self.count else ()), PODS, CPU, MEMORY)

    def sift(self, host: Host, slots: list[int]) -> tuple[list[int], int, int]:
        """Return the slots on which those who are there can be joined, the GPUs that fell, packed, and the stage if all did."""
        packed, marks, stage = 0, host.marks, 0
        for code, mask in self.sieves:
            left = [slot for slot in slots if not marks[slot] & mask]
            packed += (len(slots) - len(left)) << _SIFT_SHIFTS[code]
            if slots and not left:
                stage = code
            slots = left
        return slots, packed, stage

    def sift_rows(
        self, marks: NDArray[np.uint8], fitting: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Take out of ``fitting`` what :meth:`sift` takes out, for several rows; return the packed counts and the stages."""
        packed = np.zeros(len(fitting), dtype=np.int64)
        stages = np.zeros(len(fitting), dtype=np.int64)
        for code, mask in self.sieves:
            out = (marks & mask).astype(np.bool_)
            out &= fitting
            fell: NDArray[Any] = count_per_row(out)
            fitting &= ~out
            packed += fell.astype(np.int64) << _SIFT_SHIFTS[code]
            stages[(fell > 0) & (count_per_row(fitting) == 0)] = code
        return packed, stages << STAGE_SHIFT

    def fitting(self, host: Host, slots: list[int]) -> tuple[int, list[int]]:
        """Return how many of the slots have enough compute, and those of them that have enough VRAM, or a partition, too."""
        if self.portion is not None:
            return len(slots), [slot for slot in slots if self.partition(host, slot) is not None]
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
        verdict, fitting = self.judge_gpus(host, slots)
        if verdict < REFUSAL:
            verdict |= self.shortage(host) << STAGE_SHIFT
        return verdict, fitting

    def fits(self, host: Host, standing: list[int]) -> bool:
        """Return whether a node that no static filter refuses has enough free, given the GPUs standing."""
        return self.judge(host, self.sift(host, standing)[0])[0] >> STAGE_SHIFT == FITS

    def judge_gpus(self, host: Host, slots: list[int]) -> tuple[int, list[int]]:
        """Return :meth:`judge` by the filters of GPUs alone."""
        count = self.count
        if not count:
            return FITS, []
        compute, fitting = self.fitting(host, slots)
        fits, stage = len(fitting), FITS
        if fits < count:
            stage = COMPUTE if not compute else SAME_NODE if fits else self.amounts[1]
        elif self.narrowing is not None:
            stage, fitting = self.narrowing.narrow(host, fitting)
        return (stage << STAGE_SHIFT) | (compute << COMPUTE_SHIFT) | fits, fitting

    def shortage(self, host: Host) -> int:
        """Return the first filter that refuses a node for what it has left beside its GPUs, or ``FITS``."""
        if host.workers_free < self.workers:
            return WORKERS
        if host.pods_free < 1:
            return PODS
        if host.cpu_free < self.cpu:
            return CPU
        return MEMORY if host.memory_free < self.memory else FITS

    def partition(self, host: Host, slot: int) -> GpuGrant | None:
        """Return the partition that the request gets of a GPU, or None if there is none."""
        assert self.portion is not None  # noqa: S101
        assert host.devices is not None  # noqa: S101
        device, templates = host.devices[slot], host.templates(slot)
        found = find_place(self.portion, templates, device.tflops_milli, host.cuts.get(slot, ()))
        if found is None:
            return None
        template = next(template for template in templates if template.id == found.template)
        tflops = device.tflops_milli * template.compute_milli // WHOLE
        if tflops > host.tflops_free[slot] or template.vram_bytes > host.vram_free[slot]:
            return None
        return GpuGrant(
            uuid=device.uuid,
            index=device.index,
            tflops_milli=tflops,
            vram_bytes=template.vram_bytes,
            partition=found,
            exclusive=self.alone,
            isolation=self.request.isolation,
        )

    def grant(self, host: Host, slot: int) -> GpuGrant:
        """Return what the request gets of a GPU that it fits on. Shares are of its physical amounts, rounded down."""
        assert host.devices is not None  # noqa: S101
        device = host.devices[slot]
        if self.portion is not None:
            found = self.partition(host, slot)
            assert found is not None  # noqa: S101
            return found
        request = self.request
        tflops = device.tflops_milli * request.compute_milli // WHOLE if request.compute_milli else request.tflops_milli
        vram = device.vram_bytes * request.vram_milli // WHOLE if request.vram_milli else request.vram_bytes
        return GpuGrant(
            uuid=device.uuid,
            index=device.index,
            tflops_milli=tflops,
            vram_bytes=vram,
            exclusive=self.alone,
            isolation=request.isolation,
        )
