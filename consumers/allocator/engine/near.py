"""Sets of GPUs of one node that are near each other.

``best_set`` looks at every set, save those that differ from one it has seen by twins alone (see
:func:`~consumers.allocator.engine.layout.twins_of`): of 8 GPUs behind one switch all sets of 4 are the same set, and on a node
with two NUMA nodes there are five.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, Final

from consumers.allocator.engine.layout import Layout, Matrix
from schemas.placement import INTERCONNECT, UNKNOWN_NUMA, TopologyRules, TopologySource

AFFINITY: Final = (10, 6, 2, 0)
"""What a pair counts for, by tier."""

_REMEMBERED: Final = 4096


def best_set(
    preferred: list[int], count: int, twins: tuple[int, ...], cost: Callable[[tuple[int, ...]], Any]
) -> tuple[int, ...]:
    """Return the ``count`` slots that cost least; among equals those that come first in the order of preference.

    Args:
        preferred: Slots to choose from, at least ``count``, the preferred ones first.
        count: How many to take.
        twins: Per slot the first slot that can stand for it, whatever else is taken.
        cost: Cost of a set, the same for two sets that differ by twins alone.
    """
    if len(preferred) == count:
        return tuple(preferred)
    return min(_sets(preferred, count, twins), key=cost)


def _sets(preferred: list[int], count: int, twins: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the sets in lexicographic order of preference, without those that leave out a twin preferred to one taken."""
    size = len(preferred)
    taken: list[int] = []

    def extend(start: int, skipped: frozenset[int]) -> Iterator[tuple[int, ...]]:
        if len(taken) == count:
            yield tuple(taken)
            return
        for place in range(start, size - count + len(taken) + 1):
            slot = preferred[place]
            if twins[slot] not in skipped:
                taken.append(slot)
                yield from extend(place + 1, skipped)
                taken.pop()
            skipped |= {twins[slot]}

    yield from extend(0, frozenset())


def nearest(layout: Layout, preferred: list[int], count: int, rules: TopologyRules) -> tuple[int, ...]:
    """Return the slots that a pool's topology rules take, most preferred first among equals.

    Least: the farthest tier of a pair; then most affinity of all pairs; then, to do least damage, fewest GPUs left behind in
    the groups of near GPUs that are broken; then most NVLinks. A single GPU is taken from the smallest group. Source:
    TensorFusion's ``GPUNetworkTopologyAware``; a group is what pairs of tier 0 join, or a NUMA node where there is no such pair.
    Only GPUs that the pod fits on count.
    """
    tiers = layout.tiers(rules.source)
    groups = _groups(layout, preferred, rules.source)
    sizes = [len(group) for group in groups]
    member = {slot: number for number, group in enumerate(groups) for slot in group}
    if count == 1:
        if not rules.prefer_least_damage:
            return (preferred[0],)
        return (min(preferred, key=lambda slot: sizes[member[slot]] if slot in member else 0),)

    def cost(slots: tuple[int, ...]) -> tuple[int, int, int, int]:
        pairs = [tiers[one][other] for one, other in combinations(slots, 2)]
        left = 0
        if rules.prefer_least_damage:
            broken = [number for slot in slots if (number := member.get(slot)) is not None]
            left = sum(sizes[number] for number in set(broken)) - len(broken)
        links = sum(layout.nvlinks[one][other] for one, other in combinations(slots, 2))
        return max(pairs), -sum(AFFINITY[tier] for tier in pairs), left, -links

    return best_set(preferred, count, _twins(layout, rules.source), cost)


def _twins(layout: Layout, source: TopologySource) -> tuple[int, ...]:
    """Return what can stand for what as regards tiers, NVLinks and groups alike."""
    by_tier, by_links = layout.twins(layout.tiers(source)), layout.twins(layout.nvlinks)
    first: dict[tuple[int, int, int], int] = {}
    return tuple(
        first.setdefault(key, slot) for slot, key in enumerate(zip(by_tier, by_links, layout.numa, strict=True))
    )


def _groups(layout: Layout, slots: list[int], source: TopologySource) -> list[list[int]]:
    """Return the groups of near GPUs among some; those of which nothing is known are in none."""
    tiers, left, groups = layout.tiers(source), set(slots), []
    if not any(tiers[one][other] == INTERCONNECT for one, other in combinations(slots, 2)):
        numa = sorted({layout.numa[slot] for slot in slots} - {UNKNOWN_NUMA})
        return [[slot for slot in slots if layout.numa[slot] == node] for node in numa]
    for slot in slots:
        if slot not in left:
            continue
        left.discard(slot)
        group, reached = [slot], [slot]
        while reached:
            row = tiers[reached.pop()]
            joined = [other for other in left if row[other] == INTERCONNECT]
            left.difference_update(joined)
            group += joined
            reached += joined
        groups.append(group)
    return groups


def least_tier(layout: Layout, slots: list[int], count: int, source: TopologySource) -> int:
    """Return the farthest tier in the nearest set of ``count`` of some slots. One GPU is near itself: tier 0."""
    if count == 1:
        return INTERCONNECT
    key = (source, count, tuple(slots))
    found = layout.farthest.get(key)
    if found is None:
        tiers = layout.tiers(source)

        def farthest(chosen: tuple[int, ...]) -> int:
            return max(tiers[one][other] for one, other in combinations(chosen, 2))

        found = farthest(best_set(slots, count, layout.twins(tiers), farthest))
        if len(layout.farthest) < _REMEMBERED:
            layout.farthest[key] = found
    return found


def best_connected(scores: Matrix, preferred: list[int], count: int, twins: tuple[int, ...]) -> tuple[int, ...]:
    """Return the slots with the highest sum of pair scores, the first in the order of preference among equals.

    A single GPU is the one that has least to do with the other candidates. Source: HAMi's ``topology-aware``.
    """
    if count == 1:
        return (min(preferred, key=lambda slot: sum(scores[slot][other] for other in preferred if other != slot)),)
    return best_set(
        preferred, count, twins, lambda slots: -sum(scores[one][other] for one, other in combinations(slots, 2))
    )
