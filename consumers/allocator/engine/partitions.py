"""Hardware partitions: which template, and where on the GPU.

*Template*: the one that is asked for, or the smallest by VRAM, then slots, that holds the amounts and has room left. A share of
VRAM is one of the largest template's: a GPU in partitions never gives all of its memory. Names are the same whatever their case,
with ``.``, ``_``, ``/`` or a space for ``-``, and with or without ``mig-`` in front (TensorFusion).

*Place*: where most remains of use: as many as possible of the largest template still fit, then of the next, and so on. Among
equal places ``1g`` and ``3g`` take the last, others the first; that is HAMi's order, and what it is for.
"""

from collections import Counter
from functools import lru_cache
from typing import Final, NamedTuple

from schemas.hardware import Partition, PartitionTemplate
from schemas.pod import WHOLE, GpuRequest

Templates = tuple[PartitionTemplate, ...]

_SEPARATORS: Final = str.maketrans("._/ ", "----")
_FROM_THE_END: Final = ("1g-", "3g-")
_REMEMBERED: Final = 65_536


class Portion(NamedTuple):
    """What one partition must hold: a template by name, or amounts of compute and VRAM, each as an amount or a share."""

    template: str
    tflops_milli: int
    compute_milli: int
    vram_bytes: int
    vram_milli: int

    @classmethod
    def of(cls, request: GpuRequest) -> "Portion":
        """Return what a request wants each of its partitions to hold."""
        return cls(
            plain(request.partition_template),
            request.tflops_milli,
            request.compute_milli,
            request.vram_bytes,
            request.vram_milli,
        )

    def held_by(self, template: PartitionTemplate, tflops_milli: int, largest_bytes: int) -> bool:
        """Return whether a template holds it on a GPU of so much compute, the largest template of which has so much VRAM."""
        if self.template and plain(template.id) != self.template:
            return False
        return (
            template.compute_milli >= self.compute_milli
            and tflops_milli * template.compute_milli // WHOLE >= self.tflops_milli
            and template.vram_bytes >= max(self.vram_bytes, largest_bytes * self.vram_milli // WHOLE)
        )


def plain(name: str) -> str:
    """Return a template's name in the one way that all its spellings have in common."""
    return name.lower().translate(_SEPARATORS).removeprefix("mig-")


@lru_cache(maxsize=_REMEMBERED)
def find_place(
    portion: Portion, templates: Templates, tflops_milli: int, held: tuple[Partition, ...]
) -> Partition | None:
    """Return the partition that a pod gets on a GPU, or None if there is none for it.

    Args:
        portion: What it must hold.
        templates: What the GPU can be cut into.
        tflops_milli: The GPU's compute.
        held: The partitions that pods hold on it.
    """
    largest = max((template.vram_bytes for template in templates), default=0)
    fitting = [template for template in templates if portion.held_by(template, tflops_milli, largest)]
    for template in sorted(fitting, key=lambda t: (t.vram_bytes, t.slots, t.compute_milli, t.id)):
        starts = free_starts(template, held)
        if starts:
            start = max(
                starts, key=lambda start: (_remaining(template, start, templates, held), _rank(template, start))
            )
            return Partition(template=template.id, start=start, slots=template.slots)
    return None


def free_starts(template: PartitionTemplate, held: tuple[Partition, ...]) -> list[int]:
    """Return where on a GPU one more partition of a template can start."""
    if template.most and Counter(partition.template for partition in held)[template.id] >= template.most:
        return []
    return [
        start
        for start in sorted(template.starts)
        if all(start + template.slots <= other.start or other.start + other.slots <= start for other in held)
    ]


def _rank(template: PartitionTemplate, start: int) -> int:
    return start if plain(template.id).startswith(_FROM_THE_END) else -start


def _remaining(
    template: PartitionTemplate, start: int, templates: Templates, held: tuple[Partition, ...]
) -> tuple[int, ...]:
    """Return how many partitions of each template would still fit, each template by itself, the largest first."""
    after = (*held, Partition(template=template.id, start=start, slots=template.slots))
    ordered = sorted(templates, key=lambda t: (-t.vram_bytes, -t.slots, -t.compute_milli, t.id))
    return tuple(_room(other, after) for other in ordered)


def _room(template: PartitionTemplate, held: tuple[Partition, ...]) -> int:
    free, count = 0, 0
    for start in free_starts(template, held):
        if start >= free:
            free, count = start + template.slots, count + 1
    left = template.most - sum(partition.template == template.id for partition in held) if template.most else count
    return min(count, left)
