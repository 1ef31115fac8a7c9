"""The policy: which of the nodes that fit is taken, and which of its GPUs."""

from functools import cached_property
from hashlib import blake2b
from typing import Final, Self, get_args

import msgspec

from schemas.cluster import PlacementMode, Pool

COMPACT: Final = "CompactFirst"
SPREAD: Final = "LowLoadFirst"
MODES: Final[tuple[str, ...]] = get_args(PlacementMode)


class Policy(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A placement mode with its weights and its tie-break order.

    Modes and weights are TensorFusion's (``SchedulingConfigTemplate.spec.placement.mode`` and the scheduler's
    ``vramWeight`` and ``tflopsWeight``):

    * ``NodeCompactGPULowLoad``: the most used node, on it the least used GPUs.
    * ``CompactFirst``: the most used node, on it the most used GPUs.
    * ``LowLoadFirst``: the least used node, on it the least used GPUs.

    Equal nodes are taken by name, one fixed order for all time: a fresh random draw per pod would scatter equal pods over
    empty nodes. Equal GPUs are taken by index, then UUID.

    Allocators that run side by side would all choose the same node and overtake each other. So of ``parts`` allocators
    each is at home on its own part of the nodes, by a digest of the node's name, and takes the best node there; only if
    none fits at home does it look elsewhere. It packs within its part, and nothing depends on the parts being right.

    Attributes:
        name: Placement mode.
        vram_weight: Weight of VRAM in a GPU's score, in percent.
        tflops_weight: Weight of compute in a GPU's score, in percent.
        parts: Number of parts that the nodes are divided into.
        part: The one that is preferred, from 0.

    Raises:
        ValueError: ``name`` is no placement mode, a weight is not within 0..100, or there is no such part.
    """

    name: PlacementMode = "NodeCompactGPULowLoad"
    vram_weight: int = 70
    tflops_weight: int = 30
    parts: int = 1
    part: int = 0

    def __post_init__(self) -> None:
        if self.name not in MODES:
            raise ValueError(f"unknown placement mode {self.name!r}: use one of {', '.join(MODES)}")
        for field in ("vram_weight", "tflops_weight"):
            weight = getattr(self, field)
            if not 0 <= weight <= 100:  # noqa: PLR2004
                raise ValueError(f"{field} is {weight}: a weight is a percentage within 0..100")
        if not 0 <= self.part < self.parts:
            raise ValueError(f"part is {self.part} of {self.parts}: parts count from 0")

    @classmethod
    def of(cls, pool: Pool, *, part: int = 0, parts: int = 1) -> Self:
        """Return the policy that a pool asks for, for an allocator that is at home on ``part`` of ``parts``."""
        return cls(
            name=pool.placement,
            vram_weight=pool.vram_weight,
            tflops_weight=pool.tflops_weight,
            parts=parts,
            part=part,
        )

    @cached_property
    def hash(self) -> str:
        """Hex digest of everything in the policy that can change a decision (BLAKE2b, 8 bytes, of canonical JSON)."""
        return blake2b(msgspec.json.encode(self, order="deterministic"), digest_size=8).hexdigest()

    def at_home(self, node: str) -> bool:
        """Whether the node belongs to the preferred part."""
        if self.parts == 1:
            return True
        digest = blake2b(node.encode(), digest_size=8).digest()
        return int.from_bytes(digest) % self.parts == self.part
