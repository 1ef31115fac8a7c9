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

    Equal nodes are taken in one fixed order: by name, or with a ``tie_salt`` by the digest of salt and name. Allocator
    processes with different salts open different nodes and so collide less, while each still packs: a fresh random draw
    per pod would scatter equal pods over empty nodes. Equal GPUs are taken by index, then UUID.

    Attributes:
        name: Placement mode.
        vram_weight: Weight of VRAM in a GPU's score, in percent.
        tflops_weight: Weight of compute in a GPU's score, in percent.
        tie_salt: Seed of the tie-break order; empty means by name.

    Raises:
        ValueError: ``name`` is no placement mode, or a weight is not within 0..100.
    """

    name: PlacementMode = "NodeCompactGPULowLoad"
    vram_weight: int = 70
    tflops_weight: int = 30
    tie_salt: str = ""

    def __post_init__(self) -> None:
        if self.name not in MODES:
            raise ValueError(f"unknown placement mode {self.name!r}: use one of {', '.join(MODES)}")
        for field in ("vram_weight", "tflops_weight"):
            weight = getattr(self, field)
            if not 0 <= weight <= 100:  # noqa: PLR2004
                raise ValueError(f"{field} is {weight}: a weight is a percentage within 0..100")

    @classmethod
    def of(cls, pool: Pool, tie_salt: str = "") -> Self:
        """Return the policy that a pool asks for, with an allocator's own tie-break order."""
        return cls(
            name=pool.placement, vram_weight=pool.vram_weight, tflops_weight=pool.tflops_weight, tie_salt=tie_salt
        )

    @cached_property
    def hash(self) -> str:
        """Hex digest of everything in the policy that can change a decision (BLAKE2b, 8 bytes, of canonical JSON)."""
        return blake2b(msgspec.json.encode(self, order="deterministic"), digest_size=8).hexdigest()

    def order_key(self, node: str) -> tuple[bytes, str]:
        """Return what equal nodes are ordered by; the smallest is taken."""
        if not self.tie_salt:
            return b"", node
        return blake2b((self.tie_salt + node).encode(), digest_size=16).digest(), node
