"""HAMi's choice of nodes and GPUs: its scores as exact fractions, and its order of preference.

Score of a node = 10 x (used slots / slots + used compute / compute + used VRAM / VRAM), each over all its GPUs, before the pod
comes. Score of a GPU = 10 x (slot x (used + 1) / slots + core x (used + asked) / compute + memory x (used + asked) / VRAM) with
the scoring weights. A part whose whole is 0 counts 0, a GPU without limit of slots has none. ``binpack`` prefers the highest
score, ``spread`` the lowest. Source: HAMi v2.10, ``pkg/scheduler/policy``.

Nodes are compared in billionths of a point, rounded down: equal scores are equal whatever they are made of. GPUs are compared
exactly; among equal ones HAMi takes the last: the highest NUMA node, then the highest index.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from consumers.allocator.engine.host import Host
from consumers.allocator.engine.manner import EVEN, Manner
from consumers.allocator.engine.policy import COMPACT, SPREAD, Policy
from consumers.allocator.engine.ranking import HOME_BIT, LAST, ORDER_BITS, Keys, Ranking
from consumers.allocator.engine.table import Table
from schemas.decision import Candidate
from schemas.placement import NodePolicy, ScoringWeights
from schemas.pod import WHOLE, GpuRequest

Preference = Callable[[int], Any]
"""Sort key of a slot: the least is preferred."""

_POINTS: Final = 10
_GRAIN: Final = 1_000_000_000
_MILLI: Final = 1000
_SCORE_BITS: Final = 38
_HOME_SHIFT: Final = ORDER_BITS + _SCORE_BITS
_TOP: Final = (1 << _SCORE_BITS) - 1


def in_full(manner: Manner, policy: Policy) -> Manner:
    """Return a manner with words for nodes and GPUs alike: where there are none, those that come closest to the mode."""
    return msgspec.structs.replace(
        manner,
        node=manner.node or ("spread" if policy.name == SPREAD else "binpack"),
        gpus=manner.gpus or (("binpack",) if policy.name == COMPACT else ("spread",)),
    )


def points(parts: Iterable[tuple[int, int]]) -> Fraction:
    """Return the sum of some (part, whole), in HAMi's points."""
    top, bottom = 0, 1
    for part, whole in parts:
        if whole:
            top, bottom = top * whole + part * bottom, bottom * whole
    return Fraction(_POINTS * top, bottom)


def node_usage(host: Host) -> dict[str, tuple[int, int]]:
    """Return what is used of a node's slots, compute and VRAM, and how much there is of each."""
    limited = [
        (used, device.slots) for used, device in zip(host.tenants, host.devices or (), strict=True) if device.slots
    ]
    tflops, vram = sum(host.tflops_cap), sum(host.vram_cap)
    return {
        "slots": (sum(used for used, _ in limited), sum(slots for _, slots in limited)),
        "cores": (tflops - sum(host.tflops_free), tflops),
        "memory": (vram - sum(host.vram_free), vram),
    }


def gpu_score(host: Host, slot: int, request: GpuRequest, weights: ScoringWeights) -> Fraction:
    """Return the score of a GPU with the pod on it."""
    assert host.devices is not None  # noqa: S101
    device = host.devices[slot]
    tflops = device.tflops_milli * request.compute_milli // WHOLE if request.compute_milli else request.tflops_milli
    vram = device.vram_bytes * request.vram_milli // WHOLE if request.vram_milli else request.vram_bytes
    return points(
        (
            (weights.slot * (host.tenants[slot] + 1), device.slots),
            (weights.core * (host.tflops_cap[slot] - host.tflops_free[slot] + tflops), host.tflops_cap[slot]),
            (weights.memory * (host.vram_cap[slot] - host.vram_free[slot] + vram), host.vram_cap[slot]),
        )
    )


def preference(host: Host, request: GpuRequest, manner: Manner) -> Preference:
    """Return the order in which HAMi walks the GPUs of a node for a pod.

    One word of ``binpack``, ``spread``, ``topology-aware`` (which walks like ``spread``) or ``mutex`` orders by the score, or for
    ``mutex`` by the pods on the GPU, then by NUMA node. A list, or ``numa`` alone, orders by its words in turn. NUMA binding
    puts NUMA nodes first.
    """
    weights, words = manner.weights or EVEN, manner.gpus
    numa, tenants = host.layout.numa, host.tenants

    def packed(slot: int) -> Fraction:
        return -gpu_score(host, slot, request, weights)

    def spread(slot: int) -> Fraction:
        return gpu_score(host, slot, request, weights)

    def last_numa(slot: int) -> int:
        return -numa[slot]

    steps: dict[str, Preference] = {"binpack": packed, "spread": spread, "numa": last_numa}
    if len(words) > 1 or words == ("numa",):
        chain = [steps[word] for word in words if word in steps] or [spread]
        if manner.numa_bind:
            chain = [last_numa, *chain]
    elif words == ("mutex",):
        chain = [tenants.__getitem__, last_numa]
    elif words == ("binpack",):
        chain = [numa.__getitem__, packed] if manner.numa_bind else [packed, last_numa]
    else:
        chain = [last_numa, spread] if manner.numa_bind else [spread, last_numa]
    return lambda slot: (*(step(slot) for step in chain), -slot)


class WordRanking(Ranking):
    """Order of the nodes by HAMi's score, whatever else pods ask.

    A key is ``at home << 61 | score << 23 | (last - place by name)``, the score in billionths of a point, turned round for
    ``spread``.
    """

    __slots__ = ("_spread",)

    dtype: type[np.signedinteger[Any]] = np.int64

    def __init__(self, policy: Policy, table: Table, node_policy: NodePolicy) -> None:
        super().__init__(policy, table, gpus=True)
        self._spread = node_policy == "spread"

    def _key(self, host: Host, tie: int) -> int:
        score = points(node_usage(host).values()) * _GRAIN
        steps = min(max(score.numerator // score.denominator, 0), _TOP)
        if self._spread:
            steps = _TOP - steps
        return (tie >> HOME_BIT) << _HOME_SHIFT | steps << ORDER_BITS | (tie & LAST)

    def _explain(self, host: Host, _key: int) -> Candidate:
        """Return the node's score and its parts, in thousandths of a point."""
        parts = {name: int(points([used]) * _MILLI) for name, used in node_usage(host).items()}
        score = int(points(node_usage(host).values()) * _MILLI)
        return Candidate(node=host.name, score=score, parts=parts)


class Wording:
    """Order of nodes and GPUs by HAMi's words, for one shape of request."""

    __slots__ = ("_manner", "_ranking", "_request", "dtype")

    def __init__(self, request: GpuRequest, manner: Manner, ranking: WordRanking) -> None:
        self.dtype = ranking.dtype
        self._request = request
        self._manner = manner
        self._ranking = ranking

    def refresh(self) -> None:
        """Apply what changed in the table since the last call."""
        self._ranking.refresh()

    def key(self, row: int, host: Host, fitting: list[int]) -> int:
        """Return the key of a row."""
        return self._ranking.key(row, host, fitting)

    def keys(self, rows: NDArray[np.intp], fitting: NDArray[np.bool_]) -> Keys:
        """Return the keys of several rows."""
        return self._ranking.keys(rows, fitting)

    def best(self, keys: Keys, count: int) -> list[int]:
        """Return the best rows."""
        return self._ranking.best(keys, count)

    def candidate(self, row: int) -> Candidate:
        """Return a row as a decision names it."""
        return self._ranking.candidate(row)

    def prefer(self, _row: int, host: Host, fitting: list[int], _count: int) -> list[int]:
        """Return the slots in HAMi's order."""
        return sorted(fitting, key=preference(host, self._request, self._manner))

    def choose(self, row: int, host: Host, fitting: list[int], count: int) -> list[int]:
        """Return the first slots of that order, in slot order."""
        return sorted(self.prefer(row, host, fitting, count)[:count])
