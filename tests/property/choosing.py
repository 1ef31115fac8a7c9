"""HAMi's words, NUMA binding and topology written straight from the rules: every set of GPUs is looked at."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from consumers.allocator.engine import Policy
from schemas.hardware import GpuLink
from schemas.placement import ScoringWeights, Topology, TopologyRules
from schemas.pod import GpuRequest

Gpu = Any
"""One GPU of a node: ``device``, ``tflops_cap``, ``vram_cap``, ``tflops_free``, ``vram_free``; ``pods`` hold it."""
Links = dict[frozenset[str], GpuLink]
"""Links of a node by the UUIDs that they join."""

ONLY_FILTERS = ("mutex", "topology-aware")
PATHS = ("", "system", "node", "hostbridge", "multiple", "single", "internal")
TOGETHER = ("NumaNodeTooSmall", "GpusTooFarApart")


def words_of(request: GpuRequest, policy: Policy) -> tuple[str, tuple[str, ...], ScoringWeights] | None:
    node, gpus = request.node_policy or policy.node_policy, request.gpu_policies or policy.gpu_policies
    stated = request.scoring_weights or policy.scoring_weights
    if not request.count or not (node or gpus or stated):
        return None
    like_mode = {"CompactFirst": ("binpack", "binpack"), "LowLoadFirst": ("spread", "spread")}
    default_node, default_gpus = like_mode.get(policy.name, ("binpack", "spread"))
    return node or default_node, gpus or (default_gpus,), stated or ScoringWeights(slot=1, core=1, memory=1)


def topology_of(request: GpuRequest, policy: Policy) -> TopologyRules | None:
    asked, rules = request.topology, policy.topology
    if not request.count or not (asked or rules):
        return None
    asked, rules = asked or Topology(), rules or TopologyRules()
    mode = rules.mode if asked.required is None else "hard" if asked.required else "soft"
    return TopologyRules(
        mode=mode,
        source=asked.source or rules.source,
        max_allowed_tier=rules.max_allowed_tier if asked.max_tier is None else asked.max_tier,
        unknown_topology=rules.unknown_topology,
        prefer_least_damage=rules.prefer_least_damage,
    )


def link_of(links: Links, one: Gpu, other: Gpu) -> GpuLink:
    pair = frozenset((one.device.uuid, other.device.uuid))
    return links.get(pair, GpuLink(0, 1))


def tier_of(links: Links, one: Gpu, other: Gpu, source: str) -> int:
    link = link_of(links, one, other)
    if source != "numa":
        if link.nvlinks or link.path == "internal":
            return 0
        if link.path:
            return 2 if link.path == "system" else 1
    numa = {one.device.numa_node, other.device.numa_node}
    return 3 if -1 in numa else len(numa)


def farthest(links: Links, chosen: Iterable[Gpu], source: str) -> int:
    return max((tier_of(links, one, other, source) for one, other in combinations(chosen, 2)), default=0)


def allowed(request: GpuRequest, gpus: list[Gpu]) -> list[tuple[Gpu, ...]]:
    """Return the sets of GPUs that NUMA binding allows."""
    sets = list(combinations(gpus, request.count))
    if request.numa_bind and request.count > 1:
        return [s for s in sets if s[0].device.numa_node >= 0 and len({gpu.device.numa_node for gpu in s}) == 1]
    return sets


def is_near(links: Links, chosen: Iterable[Gpu], rules: TopologyRules) -> bool:
    tier = farthest(links, chosen, rules.source)
    return tier <= rules.max_allowed_tier and not (tier == 3 and rules.unknown_topology == "reject")


def mutex(request: GpuRequest, policy: Policy) -> bool:
    words = words_of(request, policy)
    return words is not None and "mutex" in words[1]


def too_far(links: Links, request: GpuRequest, policy: Policy, gpus: list[Gpu]) -> bool:
    rules = topology_of(request, policy)
    if rules is None or rules.mode == "soft":
        return False
    return not any(is_near(links, chosen, rules) for chosen in allowed(request, gpus))


def points(parts: Iterable[tuple[int, int]]) -> Fraction:
    return sum((10 * Fraction(part, whole) for part, whole in parts if whole), Fraction(0))


def in_points(gpus: list[Gpu]) -> tuple[Fraction, dict[str, int]]:
    parts = {
        "slots": (sum(g.pods for g in gpus if g.device.slots), sum(g.device.slots for g in gpus)),
        "cores": (sum(g.tflops_cap - g.tflops_free for g in gpus), sum(g.tflops_cap for g in gpus)),
        "memory": (sum(g.vram_cap - g.vram_free for g in gpus), sum(g.vram_cap for g in gpus)),
    }
    return points(parts.values()), {key: int(1000 * points([part])) for key, part in parts.items()}


def walk(request: GpuRequest, policy: Policy, gpus: list[Gpu], everything: list[Gpu]) -> list[Gpu]:
    """Return GPUs in the order in which HAMi tries them: sorted as it sorts them, then from the end."""
    _, words, weights = words_of(request, policy) or ("", (), ScoringWeights(slot=1, core=1, memory=1))

    def score(gpu: Gpu) -> Fraction:
        device = gpu.device
        tflops = device.tflops_milli * request.compute_milli // 1000 or request.tflops_milli
        vram = device.vram_bytes * request.vram_milli // 1000 or request.vram_bytes
        return points(
            [
                (weights.slot * (gpu.pods + 1), gpu.device.slots),
                (weights.core * (gpu.tflops_cap - gpu.tflops_free + tflops), gpu.tflops_cap),
                (weights.memory * (gpu.vram_cap - gpu.vram_free + vram), gpu.vram_cap),
            ]
        )

    def numa(gpu: Gpu) -> int:
        return gpu.device.numa_node

    def ascending(gpu: Gpu) -> tuple[Any, ...]:
        if len(words) > 1 or words == ("numa",):
            chain = [
                {"binpack": score(gpu), "spread": -score(gpu), "numa": numa(gpu)}[w]
                for w in words
                if w not in ONLY_FILTERS
            ]
            chain = chain or [-score(gpu)]
            return (numa(gpu), *chain) if request.numa_bind else tuple(chain)
        if words == ("mutex",):
            return -gpu.pods, numa(gpu)
        if words == ("binpack",):
            return (-numa(gpu), score(gpu)) if request.numa_bind else (score(gpu), numa(gpu))
        return (numa(gpu), -score(gpu)) if request.numa_bind else (-score(gpu), numa(gpu))

    return sorted(sorted(gpus, key=everything.index), key=ascending)[::-1]


def damage(links: Links, chosen: tuple[Gpu, ...], gpus: list[Gpu], source: str) -> int:
    """Return how many GPUs are left behind in the groups that a set of GPUs is taken from."""
    joined = {id(gpu): {id(gpu)} for gpu in gpus}
    any_link = False
    for one, other in combinations(gpus, 2):
        if tier_of(links, one, other, source) == 0:
            any_link = True
            both = joined[id(one)] | joined[id(other)]
            joined.update(dict.fromkeys(both, both))
    if not any_link:
        known = [gpu for gpu in gpus if gpu.device.numa_node >= 0]
        joined = {id(g): {id(o) for o in known if o.device.numa_node == g.device.numa_node} for g in known}
    broken = {frozenset(joined[id(gpu)]) for gpu in chosen if id(gpu) in joined}
    if len(chosen) == 1:  # one GPU is better taken from no group at all than from one of its own
        return sum(len(group) for group in broken)
    return sum(len(group) for group in broken) - sum(id(gpu) in joined for gpu in chosen)


def nearest(links: Links, request: GpuRequest, policy: Policy, preferred: list[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs to take, out of some in order of preference."""
    words, rules = words_of(request, policy), topology_of(request, policy)
    sets = allowed(request, preferred)
    if request.numa_bind and request.count > 1:
        tiers = [farthest(links, s, rules.source) if rules else 0 for s in sets]
        best = [s for s, tier in zip(sets, tiers, strict=True) if tier == min(tiers)]
        first = min((gpu for s in best for gpu in s), key=preferred.index).device.numa_node
        if rules is None:
            first = next(g.device.numa_node for g in preferred if any(g in s for s in sets))
        preferred = [gpu for gpu in preferred if gpu.device.numa_node == first]
        sets = list(combinations(preferred, request.count))
    aware = words is not None and "topology-aware" in words[1]
    if rules is not None and (rules.mode == "hard" or not aware):

        def cost(s: tuple[Gpu, ...]) -> tuple[int, int, int, int]:
            tiers = [tier_of(links, *pair, rules.source) for pair in combinations(s, 2)]
            left = damage(links, s, preferred, rules.source) if rules.prefer_least_damage else 0
            nvlinks = sum(link_of(links, *pair).nvlinks for pair in combinations(s, 2))
            return max(tiers, default=0), -sum((10, 6, 2, 0)[tier] for tier in tiers), left, -nvlinks

        return min(sets, key=cost)
    if not aware or len(sets) == 1:
        return sets[0]

    def connected(one: Gpu, other: Gpu) -> int:
        link = link_of(links, one, other)
        return PATHS.index(link.path) * 10 + 100 * link.nvlinks

    if request.count == 1:
        return min(sets, key=lambda s: sum(connected(s[0], other) for other in preferred if other is not s[0]))
    return max(sets, key=lambda s: sum(connected(*pair) for pair in combinations(s, 2)))


def together(links: Links, request: GpuRequest, policy: Policy, gpus: list[Gpu]) -> tuple[str, list[Gpu]]:
    """Return the first of the filters that look at a node's GPUs together which refuses it, and the GPUs left otherwise."""
    count = request.count
    sets = allowed(request, gpus)
    if count and not sets:
        return "NumaNodeTooSmall", []
    if too_far(links, request, policy, gpus):
        return "GpusTooFarApart", []
    return "", [gpu for gpu in gpus if any(gpu in chosen for chosen in sets)]


# What requests, pools and nodes may say.


def links_between(count: int) -> st.SearchStrategy[tuple[GpuLink, ...]]:
    pairs = list(combinations(range(count), 2))
    link = st.tuples(st.sampled_from(["system", "node", "single", "internal", ""]), st.sampled_from([0, 0, 1, 2]))
    some = st.lists(st.none() | link, min_size=len(pairs), max_size=len(pairs))
    none = st.just([None] * len(pairs))
    return (none | some).map(
        lambda found: tuple(GpuLink(*pair, *said) for pair, said in zip(pairs, found, strict=True) if said)
    )


gpu_words = st.lists(st.sampled_from(["binpack", "spread", "topology-aware", "mutex", "numa"]), max_size=3, unique=True)
weights = st.none() | st.builds(
    ScoringWeights, slot=st.integers(0, 2), core=st.integers(0, 2), memory=st.integers(0, 3)
)
words = {
    "node_policy": st.sampled_from(["", "binpack", "spread"]),
    "gpu_policies": gpu_words.map(tuple),
    "scoring_weights": weights,
}
manners = st.one_of(
    st.just({}),
    st.just({}),
    st.fixed_dictionaries({"numa_bind": st.booleans()}, optional=words),
    st.fixed_dictionaries(
        {
            "topology": st.builds(
                Topology,
                required=st.sampled_from([None, True, False]),
                max_tier=st.sampled_from([None, 0, 1, 2, 3]),
                source=st.sampled_from([None, "auto", "numa", "vendor"]),
            )
        }
    ),
)
pool_topology = st.builds(
    TopologyRules,
    mode=st.sampled_from(["soft", "hard"]),
    source=st.sampled_from(["auto", "numa"]),
    max_allowed_tier=st.integers(0, 3),
    unknown_topology=st.sampled_from(["treat-as-worst", "reject"]),
    prefer_least_damage=st.booleans(),
)
for_silent_pods = st.one_of(
    st.just({}),
    st.just({}),
    st.fixed_dictionaries({}, optional=words),
    st.fixed_dictionaries({"topology": pool_topology}, optional=words),
)
