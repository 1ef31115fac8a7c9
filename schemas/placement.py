"""The words of placement policies: what a pod may ask for, and what a pool does for pods that do not ask.

All of it is frozen and made of tuples, because requests are dictionary keys and parts of cache keys.
"""

from typing import Annotated, Final, Literal

import msgspec

from schemas.hardware import GpuLink
from schemas.units import Amount

NodePolicy = Literal["", "binpack", "spread"]
GpuPolicy = Literal["binpack", "spread", "topology-aware", "mutex", "numa"]
TopologySource = Literal["auto", "numa", "vendor"]
Tier = Annotated[int, msgspec.Meta(ge=0, le=3)]
"""How far apart two GPUs are: 0 one interconnect, 1 one NUMA node, 2 across NUMA nodes, 3 unknown."""

INTERCONNECT: Final = 0
SAME_NUMA: Final = 1
CROSS_NUMA: Final = 2
UNKNOWN: Final = 3
UNKNOWN_NUMA: Final = -1


class ScoringWeights(msgspec.Struct, frozen=True, kw_only=True):
    """What counts how much in a GPU's score (``hami.io/device-scoring-weights``). At least one is above zero."""

    slot: Amount
    core: Amount
    memory: Amount


class Topology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How close together the GPUs of one pod must be (``tensor-fusion.ai/*gpu-topology*``). What is not stated is the pool's.

    Attributes:
        required: Whether GPUs that are further apart are refused; otherwise nearness is only preferred.
        max_tier: Furthest tier that is still near.
        source: Where tiers come from.
    """

    required: bool | None = None
    max_tier: Tier | None = None
    source: TopologySource | None = None


class TopologyRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pool does about topology (arguments of the scheduler plugin ``GPUNetworkTopologyAware``).

    Attributes:
        mode: ``hard`` refuses GPUs that are too far apart, ``soft`` prefers near ones.
        source: ``numa`` looks at NUMA nodes alone; the others at links first, and at NUMA nodes where no link is known.
        max_allowed_tier: Furthest tier that is still near; 0 means 0.
        unknown_topology: What ``hard`` makes of GPUs of which nothing is known: ``reject`` them, or ``treat-as-worst``, which
            allows them where tier 3 is allowed.
        prefer_least_damage: Whether to leave large groups of near GPUs whole.
    """

    mode: Literal["soft", "hard"] = "soft"
    source: TopologySource = "auto"
    max_allowed_tier: Tier = 1
    unknown_topology: Literal["treat-as-worst", "reject"] = "treat-as-worst"
    prefer_least_damage: bool = True


def rules_for(asked: Topology | None, rules: TopologyRules | None) -> TopologyRules | None:
    """Return what a pod that asks for ``asked`` gets in a pool with ``rules``; None where topology does not matter."""
    if asked is None:
        return rules
    found = rules or TopologyRules()
    if asked.required is not None:
        found = msgspec.structs.replace(found, mode="hard" if asked.required else "soft")
    if asked.max_tier is not None:
        found = msgspec.structs.replace(found, max_allowed_tier=asked.max_tier)
    if asked.source is not None:
        found = msgspec.structs.replace(found, source=asked.source)
    return found


def tier_of_link(link: GpuLink) -> Tier:
    """Return how far apart the two GPUs of a link are by what it says."""
    if link.nvlinks or link.path == "internal":
        return INTERCONNECT
    return {"": UNKNOWN, "system": CROSS_NUMA}.get(link.path, SAME_NUMA)


def tier_by_numa(one: int, other: int) -> Tier:
    """Return how far apart GPUs on two NUMA nodes are."""
    if UNKNOWN_NUMA in (one, other):
        return UNKNOWN
    return SAME_NUMA if one == other else CROSS_NUMA
