"""Whether the GPUs that a pod was given are as near each other as it, or its pool, asks. Pure.

Source: what TensorFusion's scheduler plugin ``GPUNetworkTopologyAware`` counts. It judges every pod; here only those count for
which the pod or its pool states rules.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import Literal, NamedTuple

from schemas import reasons
from schemas.cluster import GpuInventory
from schemas.decision import Decision
from schemas.placement import INTERCONNECT, UNKNOWN, TopologyRules, TopologySource, tier_by_numa, tier_of_link


class Verdict(NamedTuple):
    """What one decision counts for.

    Attributes:
        near: ``satisfied`` or ``unsatisfied``; empty where the decision says nothing about it.
        fallback: Of some pair of GPUs it is not known how near they are.
    """

    near: Literal["", "satisfied", "unsatisfied"] = ""
    fallback: bool = False


def verdict(decision: Decision, rules: TopologyRules | None, inventory: GpuInventory | None) -> Verdict:
    """Return what a decision counts for, by the GPUs of its node as they are known now."""
    if rules is None:
        return Verdict()
    if decision.outcome == "unschedulable":
        too_far = any(report.reason == reasons.TOPOLOGY and report.nodes for report in decision.filters)
        return Verdict("unsatisfied" if too_far else "")
    if decision.outcome != "allocated" or not decision.gpus:
        return Verdict()
    tier = UNKNOWN if inventory is None else farthest(inventory, (gpu.uuid for gpu in decision.gpus), rules.source)
    return Verdict("satisfied" if tier <= rules.max_allowed_tier else "unsatisfied", tier == UNKNOWN)


def farthest(inventory: GpuInventory, uuids: Iterable[str], source: TopologySource) -> int:
    """Return the tier of the two GPUs that are farthest apart; one GPU is near itself."""
    places = {gpu.uuid: place for place, gpu in enumerate(inventory.gpus)}
    found = sorted({places[uuid] for uuid in uuids if uuid in places})
    links = {(link.first, link.second): link for link in inventory.links} if source != "numa" else {}
    most = INTERCONNECT
    for pair in combinations(found, 2):
        link = links.get(pair)
        tier = UNKNOWN if link is None else tier_of_link(link)
        if tier == UNKNOWN:
            tier = tier_by_numa(*(inventory.gpus[place].numa_node for place in pair))
        most = max(most, tier)
    return most
