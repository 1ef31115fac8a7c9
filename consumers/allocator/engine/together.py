"""Filters and choice that look at the GPUs of a node together. Few requests need them, so one node is looked at at a time."""

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.manner import Manner
from consumers.allocator.engine.near import best_connected, least_tier, nearest
from consumers.allocator.engine.rules import FITS, NUMA, TOPOLOGY
from schemas.placement import UNKNOWN, UNKNOWN_NUMA


class Together:
    """What a manner asks of the GPUs of a pod as a whole.

    * NUMA binding takes all from one NUMA node, one whose number is known.
    * Topology that is required takes no GPUs that are further apart than allowed.

    Partitions are taken from GPUs that are cut already, so that the others stay whole.

    Args:
        manner: What is asked.
        count: GPUs of the pod.

    Attributes:
        narrows: Whether :meth:`narrow` ever does anything.
    """

    __slots__ = ("_bind", "_count", "_manner", "narrows")

    def __init__(self, manner: Manner, count: int) -> None:
        self._manner = manner
        self._count = count
        self._bind = manner.numa_bind and count > 1
        self.narrows = self._bind or (manner.topology is not None and manner.topology.mode == "hard")

    def narrow(self, host: Host, fitting: list[int]) -> tuple[int, list[int]]:
        """Return the filter that refuses the node, or ``FITS``, and the slots that are left to choose from."""
        if self._bind:
            bound = {slot for group in self._bound(host, fitting) for slot in group}
            fitting = [slot for slot in fitting if slot in bound]
            if not fitting:
                return NUMA, []
        if self._too_far(host, fitting):
            return TOPOLOGY, []
        return FITS, fitting

    def _bound(self, host: Host, slots: list[int]) -> list[list[int]]:
        """Return the slots of each NUMA node that has enough of them, in order of the first of each."""
        groups: dict[int, list[int]] = {}
        for slot in slots:
            groups.setdefault(host.layout.numa[slot], []).append(slot)
        groups.pop(UNKNOWN_NUMA, None)
        return [group for group in groups.values() if len(group) >= self._count]

    def _too_far(self, host: Host, slots: list[int]) -> bool:
        rules = self._manner.topology
        if rules is None or rules.mode == "soft":
            return False
        groups = self._bound(host, slots) if self._bind else [slots]
        tier = min(least_tier(host.layout, sorted(group), self._count, rules.source) for group in groups)
        return tier > rules.max_allowed_tier or (tier == UNKNOWN and rules.unknown_topology == "reject")

    def choose(self, host: Host, preferred: list[int]) -> list[int]:
        """Return the slots to take, in slot order, out of those left, the preferred ones first."""
        rules, layout, count = self._manner.topology, host.layout, self._count
        if self._manner.partitioned:
            preferred = sorted(preferred, key=lambda slot: slot not in host.cuts)
        if self._bind:
            groups = self._bound(host, preferred)
            if rules is not None:
                tiers = [least_tier(layout, sorted(group), count, rules.source) for group in groups]
                groups = [group for group, tier in zip(groups, tiers, strict=True) if tier == min(tiers)]
            preferred = groups[0]
        aware = "topology-aware" in self._manner.gpus
        if rules is not None and (rules.mode == "hard" or not aware):
            return sorted(nearest(layout, preferred, count, rules))
        if aware:
            return sorted(best_connected(layout.scores, preferred, count, layout.twins(layout.scores)))
        return sorted(preferred[:count])
