"""The target workload: which pods are expected, so that what is left of the GPUs stays of use to them.

A pod's share of a GPU is the larger of its shares of compute and of VRAM, as the scarcer of the two decides what else fits.
"""

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Final, Self

import msgspec

from schemas.cluster import PodKind
from schemas.pod import WHOLE, GpuRequest

COVERAGE_PERCENT: Final = 95
"""Kinds are kept, most frequent first, until they make up so much of all pods (Weng et al., USENIX ATC 2023)."""

HEAVY_PERCENT: Final = 1
"""A kind that asks for so much of all GPU is kept where heavy ones are wanted, however few pods it has, and is *heavy*."""

MOST_KINDS: Final = 512
"""Kinds kept at most: a policy's tables grow by 8 kB with each."""

Reference = tuple[int, int]
"""TFLOPS (thousandths) and VRAM (bytes) of the GPU that amounts are turned into shares of; 0 where not known."""


def share_of(amount: int, whole: int) -> int:
    """Return an amount as a share of a whole in thousandths, rounded up; 0 where the whole is not known."""
    return -(-WHOLE * amount // whole) if whole > 0 else 0


def share_asked(request: GpuRequest, reference: Reference) -> int:
    """Return the share of each GPU that a request asks for, within 0..1000."""
    if request.dedicated:
        return WHOLE
    compute = request.compute_milli or share_of(request.tflops_milli, reference[0])
    vram = request.vram_milli or share_of(request.vram_bytes, reference[1])
    return min(max(compute, vram), WHOLE)


def kind_of(request: GpuRequest, reference: Reference = (0, 0)) -> PodKind:
    """Return the kind of pod that a request stands for."""
    return PodKind(
        cpu_milli=request.cpu_milli,
        gpus=request.count,
        share_milli=share_asked(request, reference) if request.count else 0,
        models=tuple(sorted(set(request.models))),
    )


def demand_of(kind: PodKind) -> int:
    """Return how much GPU the pods of a kind ask for, in thousandths."""
    return kind.pods * kind.gpus * kind.share_milli


class Workload(msgspec.Struct, frozen=True, dict=True):
    """Kinds of pods with how many there are of each: a frequency is that number over :attr:`pods`.

    Whole numbers instead of frequencies keep every sum over the workload exact, whatever its order.

    Attributes:
        kinds: Each kind once, the most frequent first.
    """

    kinds: tuple[PodKind, ...] = ()

    @classmethod
    def of(cls, requests: Iterable[GpuRequest], reference: Reference = (0, 0), *, heavy: bool = False) -> Self:
        """Return the workload that a number of requests amount to, by the rule of the paper.

        Args:
            requests: All pods that are known, those without GPUs included. Their order does not matter.
            reference: What amounts are turned into shares of. Where it is not known, an amount counts for nothing.
            heavy: See :meth:`counted`.
        """
        return cls.counted(Counter(kind_of(request, reference) for request in requests), heavy=heavy)

    @classmethod
    def counted(cls, counts: Counter[PodKind], *, heavy: bool = False) -> Self:
        """Return the workload of kinds that are counted already: the most frequent, up to 95 % of the pods.

        With ``heavy`` those are kept too that ask for at least a hundredth of all GPU, though they be few pods, and then all that
        ask for as many GPUs as the widest of these: a mode that keeps nodes free for the widest pods has to know of each.
        """

        def order(entry: tuple[PodKind, int]) -> tuple[int, int, int, int, tuple[str, ...]]:
            kind, pods = entry
            return pods, kind.cpu_milli, kind.share_milli, kind.gpus, kind.models

        total, covered = sum(counts.values()), 0
        ordered = [
            msgspec.structs.replace(kind, pods=pods) for kind, pods in sorted(counts.items(), key=order, reverse=True)
        ]
        least = sum(map(demand_of, ordered)) * HEAVY_PERCENT
        kept: set[PodKind] = set()
        for kind in ordered:
            if 100 * covered < COVERAGE_PERCENT * total or (heavy and 0 < least <= 100 * demand_of(kind)):
                kept.add(kind)
            covered += kind.pods
        widest = max((kind.gpus for kind in kept), default=0)
        if heavy and widest > 1:
            kept.update(kind for kind in ordered if kind.gpus == widest)
        return cls(tuple(kind for kind in ordered if kind in kept)[:MOST_KINDS])

    @cached_property
    def valued(self) -> Self:
        """What free GPU is worth something to: all but the widest kinds that ask for less than a hundredth of all GPU.

        Nodes are kept for those all the same (:mod:`.yard`). So few pods say nothing of what a share is worth, and one kind more
        among the samples that prices come from (:mod:`.prices`) moves all of them.
        """
        widest = max((kind.gpus for kind in self.kinds), default=0)
        least = sum(map(demand_of, self.kinds)) * HEAVY_PERCENT
        if widest <= 1:
            return self
        return type(self)(tuple(kind for kind in self.kinds if kind.gpus < widest or 100 * demand_of(kind) >= least))

    @cached_property
    def pods(self) -> int:
        """How many pods the kinds stand for."""
        return sum(kind.pods for kind in self.kinds)


VAGUE: Final = Workload(
    (
        PodKind(cpu_milli=8_000, gpus=1, share_milli=1000, pods=6),
        PodKind(cpu_milli=4_000, gpus=1, share_milli=500, pods=3),
        PodKind(cpu_milli=4_000, gpus=1, share_milli=250, pods=2),
        PodKind(cpu_milli=64_000, gpus=8, share_milli=1000, pods=1),
    )
)
"""What is expected as long as nothing is known: mostly whole GPUs, some halves and quarters, now and then a whole node."""
