"""The policy: which of the nodes that fit is taken, and which of its GPUs."""

from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, Final, Self, get_args

import msgspec

from consumers.allocator.engine.prices import Price, shadow_prices, shares_below_whole
from consumers.allocator.engine.workload import VAGUE, Workload
from schemas.cluster import PlacementMode, Pool
from schemas.placement import GpuPolicy, NodePolicy, ScoringWeights, TopologyRules

COMPACT: Final = "CompactFirst"
SPREAD: Final = "LowLoadFirst"
GRADIENT: Final = "FragmentationGradient"
PACKING: Final = "PackingValue"
MODES: Final[tuple[str, ...]] = get_args(PlacementMode)
_FOR_SILENT_PODS: Final = ("node_policy", "gpu_policies", "scoring_weights", "topology")
AHEAD: Final = (GRADIENT, PACKING)
"""The modes that look ahead to a workload."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A placement mode with its weights and its tie-break order.

    Three modes and the weights are TensorFusion's (``SchedulingConfigTemplate.spec.placement.mode`` and the scheduler's
    ``vramWeight`` and ``tflopsWeight``):

    * ``NodeCompactGPULowLoad``: the most used node, on it the least used GPUs.
    * ``CompactFirst``: the most used node, on it the most used GPUs.
    * ``LowLoadFirst``: the least used node, on it the least used GPUs.

    Two look ahead to the pods that are expected and have no use for the weights:

    * ``FragmentationGradient``: where the free GPU that those pods cannot use grows least (:mod:`.gradient`).
    * ``PackingValue``: where the free GPU loses least of what it is worth to those pods (:mod:`.packing`).

    Equal nodes are taken by name, one fixed order for all time: a fresh random draw per pod would scatter equal pods over
    empty nodes. Equal GPUs are taken by index, then UUID.

    Allocators that run side by side would all choose the same node and overtake each other. So of ``parts`` allocators
    each is at home on its own part of the nodes, by a digest of the node's name, and takes the best node there; only if
    none fits at home does it look elsewhere, where of equal nodes it takes the last by name. It packs within its part,
    and nothing depends on the parts being right.

    Attributes:
        name: Placement mode.
        vram_weight: Weight of VRAM in a GPU's score, in percent.
        tflops_weight: Weight of compute in a GPU's score, in percent.
        parts: Number of parts that the nodes are divided into.
        part: The one that is preferred, from 0.
        workload: The pods that are expected; only for the modes that look ahead.
        prices: What their shares are worth (:func:`.shadow_prices`); only for ``PackingValue``. Stated, not computed here: a
            policy's hash covers all that a decision depends on.
        node_policy: HAMi's choice among nodes for pods that state none. With this, ``gpu_policies`` or ``scoring_weights``
            HAMi's scores take the place of the mode (:mod:`.words`).
        gpu_policies: HAMi's choice among GPUs for pods that state none.
        scoring_weights: Weights of HAMi's GPU score for pods that state none.
        topology: How near each other the GPUs of a pod are to be, as far as the pod does not say (:mod:`.together`).

    Raises:
        ValueError: ``name`` is no placement mode, a weight is not within 0..100, there is no such part, or the mode needs a
            workload or prices and has none, or has them and no use for them.
    """

    name: PlacementMode = "NodeCompactGPULowLoad"
    vram_weight: int = 70
    tflops_weight: int = 30
    parts: int = 1
    part: int = 0
    workload: Workload = Workload()
    prices: tuple[Price, ...] = ()
    node_policy: NodePolicy = ""
    gpu_policies: tuple[GpuPolicy, ...] = ()
    scoring_weights: ScoringWeights | None = None
    topology: TopologyRules | None = None

    def __post_init__(self) -> None:
        if self.name not in MODES:
            raise ValueError(f"unknown placement mode {self.name!r}: use one of {', '.join(MODES)}")
        for field in ("vram_weight", "tflops_weight"):
            weight = getattr(self, field)
            if not 0 <= weight <= 100:  # noqa: PLR2004
                raise ValueError(f"{field} is {weight}: a weight is a percentage within 0..100")
        if not 0 <= self.part < self.parts:
            raise ValueError(f"part is {self.part} of {self.parts}: parts count from 0")
        if self.name in AHEAD and not self.workload.kinds:
            raise ValueError(f"{self.name} looks ahead to a workload: pass one, such as Workload.of(requests)")
        if self.name not in AHEAD and self.workload.kinds:
            raise ValueError(f"{self.name} looks at no workload: leave it out, or use one of {', '.join(AHEAD)}")
        self._check_prices()

    def _check_prices(self) -> None:
        priced = {price.share_milli for price in self.prices}
        if self.name != PACKING and priced:
            raise ValueError(f"{self.name} looks at no prices: leave them out, or use {PACKING}")
        if self.name == PACKING and not shares_below_whole(self.workload) <= priced:
            missing = min(shares_below_whole(self.workload) - priced)
            raise ValueError(f"share {missing} has no price: pass prices=shadow_prices(workload), or use Policy.of")

    @classmethod
    def of(cls, pool: Pool, *, part: int = 0, parts: int = 1, workload: Workload | None = None) -> Self:
        """Return the policy that a pool asks for, for an allocator that is at home on ``part`` of ``parts``.

        Args:
            pool: The pool.
            part: The part of the nodes that is preferred.
            parts: How many there are.
            workload: The pods that are expected; by default those that the pool states, or a vague guess if it states none.
                Ignored in modes that do not look ahead.
        """
        expected = (workload or _stated(pool)) if pool.placement in AHEAD else Workload()
        return cls(
            name=pool.placement,
            vram_weight=pool.vram_weight,
            tflops_weight=pool.tflops_weight,
            parts=parts,
            part=part,
            workload=expected,
            prices=_prices(expected) if pool.placement == PACKING else (),
            node_policy=pool.node_policy,
            gpu_policies=pool.gpu_policies,
            scoring_weights=pool.scoring_weights,
            topology=pool.topology,
        )

    @cached_property
    def hash(self) -> str:
        """Hex digest of everything in the policy that can change a decision (BLAKE2b, 8 bytes, of JSON in order of fields).

        A policy that has no use for a field hashes as before there was that field: hashes stay in the log.
        """
        content: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in _FOR_SILENT_PODS:
            if not content[name]:
                del content[name]
        if self.name not in AHEAD:
            del content["workload"]
        if self.name != PACKING:
            del content["prices"]
        return blake2b(msgspec.json.encode(content), digest_size=8).hexdigest()

    def at_home(self, node: str) -> bool:
        """Whether the node belongs to the preferred part."""
        if self.parts == 1:
            return True
        digest = blake2b(node.encode(), digest_size=8).digest()
        return int.from_bytes(digest) % self.parts == self.part


def _stated(pool: Pool) -> Workload:
    return Workload(pool.workload) if pool.workload else VAGUE


_prices = lru_cache(maxsize=64)(shadow_prices)
