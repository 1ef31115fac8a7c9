"""A made-up cluster of any size that looks like the published one and is kept busy.

Nodes and pod shapes follow the openb totals in exact proportion, so that even a small cluster has the right mix; chance,
from one seed, decides only their order, arrival and lifetime.

The trace's own times are not followed: half of its pods run for nine minutes or less and arrive over a month, so with
departures its cluster stands nearly empty. Here pods arrive within a day. The first of them fill the cluster in its first
tenth, the rest come evenly, as in the trace, and lifetimes are stretched until the pods that want to run ask, on average
over the rest of the day, for as many GPUs as there are. What fits stays below that by a few percent, so pods wait at times
and enter when others end.
"""

import random
from collections.abc import Sequence
from typing import Final

from producers.simulator.openb import NODE_KINDS, POD_SHAPES, QOS_COUNTS, NodeKind, PodShape
from producers.simulator.trace import Trace, TraceNode, TracePod
from schemas.pod import WHOLE

SPAN_S: Final = 86_400
"""Seconds within which all pods arrive."""

FILL_S: Final = SPAN_S // 10
"""Seconds at the start in which pods arrive that ask for all GPUs together once."""

LIFETIMES: Final = (0.05, 0.11, 0.22, 0.36, 0.51, 0.69, 0.92, 1.2, 1.61, 2.3, 4.0)
"""Deciles of the lifetime before stretching, close to an exponential distribution of mean 1."""

LONGEST_STRETCH_S: Final = 4 * SPAN_S
"""Where stretching stops when there are too few pods to fill the cluster: even then some of them end within the day."""

_HALVINGS: Final = 40
"""Steps of the search for the stretch: far below a second."""


def generate(nodes: int, pods: int, seed: int) -> Trace:
    """Return a trace of ``nodes`` nodes and ``pods`` pods, the same one for the same arguments.

    With ten pods a node, more than the published 6.7, a good scheduler keeps 90 to 98 % of the GPUs allocated from the
    end of the fill to the end of the day, and about a quarter of the pods end within it.

    Args:
        nodes: Nodes, named ``node-0001`` and on.
        pods: Pods, named ``pod-00001`` and on in order of arrival.
        seed: Seed of every random choice.

    Raises:
        ValueError: There would be no node, or a negative number of pods.
    """
    if nodes < 1 or pods < 0:
        raise ValueError(f"nodes={nodes}, pods={pods}: generate at least 1 node and 0 pods")
    rng = random.Random(seed)  # noqa: S311  a reproducible example, not a secret
    cluster = _nodes(rng, nodes)
    shapes = [
        shape for shape, count in zip(POD_SHAPES, _apportion(POD_SHAPES, pods), strict=True) for _ in range(count)
    ]
    rng.shuffle(shapes)
    capacity = sum(node.gpus for node in cluster) * WHOLE
    arrivals = _arrivals(rng, shapes, capacity)
    lifetimes = [_lifetime(rng) for _ in shapes]
    stretch = _stretch(shapes, arrivals, lifetimes, capacity)
    classes = rng.choices(list(QOS_COUNTS), list(QOS_COUNTS.values()), k=pods)
    return Trace(
        cluster,
        [
            TracePod(
                name=f"pod-{number:05d}",
                cpu_milli=shape.cpu_milli,
                memory_mib=shape.memory_mib,
                num_gpu=shape.num_gpu,
                gpu_milli=shape.gpu_milli,
                qos=qos,
                arrives_s=int(arrives_s),
                runs_s=max(1, int(lifetime * stretch)),
            )
            for number, (shape, qos, arrives_s, lifetime) in enumerate(
                zip(shapes, classes, arrivals, lifetimes, strict=True), start=1
            )
        ],
    )


def _nodes(rng: random.Random, total: int) -> list[TraceNode]:
    kinds = [kind for kind, count in zip(NODE_KINDS, _apportion(NODE_KINDS, total), strict=True) for _ in range(count)]
    rng.shuffle(kinds)
    return [
        TraceNode(
            name=f"node-{number:04d}",
            cpu_milli=kind.cpu_milli,
            memory_mib=kind.memory_mib,
            gpus=kind.gpus,
            model=kind.model,
        )
        for number, kind in enumerate(kinds, start=1)
    ]


def _apportion(table: Sequence[NodeKind | PodShape], total: int) -> list[int]:
    """Split ``total`` in proportion to the counts of ``table``, by largest remainder; ties go to the earlier entry."""
    whole = sum(entry.count for entry in table)
    parts = [entry.count * total // whole for entry in table]
    by_remainder = sorted(range(len(table)), key=lambda place: -(table[place].count * total % whole))
    for place in by_remainder[: total - sum(parts)]:
        parts[place] += 1
    return parts


def _gpu_milli(shape: PodShape) -> int:
    return shape.num_gpu * shape.gpu_milli


def _arrivals(rng: random.Random, shapes: Sequence[PodShape], capacity: int) -> list[float]:
    """Return seconds of arrival in ascending order: evenly within the fill until ``capacity`` is asked for, then after."""
    asked = filling = 0
    while filling < len(shapes) and asked < capacity:
        asked += _gpu_milli(shapes[filling])
        filling += 1
    during = sorted(rng.uniform(0, FILL_S) for _ in range(filling))
    after = sorted(rng.uniform(FILL_S, SPAN_S) for _ in range(len(shapes) - filling))
    return during + after


def _lifetime(rng: random.Random) -> float:
    """Draw a lifetime by linear interpolation between the deciles."""
    place, part = divmod(rng.random() * (len(LIFETIMES) - 1), 1)
    low, high = LIFETIMES[int(place)], LIFETIMES[int(place) + 1]
    return low + (high - low) * part


def _stretch(shapes: Sequence[PodShape], arrivals: Sequence[float], lifetimes: Sequence[float], capacity: int) -> float:
    """Return the seconds in one unit of lifetime with which demand after the fill averages ``capacity``.

    Demand grows with the stretch, so halving an interval finds it. Pods count as running from their arrival.
    """
    wanted = capacity * (SPAN_S - FILL_S)
    asks = [
        (_gpu_milli(shape), arrives, life) for shape, arrives, life in zip(shapes, arrivals, lifetimes, strict=True)
    ]

    def demand(stretch: float) -> float:
        return sum(
            milli * max(0.0, min(SPAN_S, arrives + life * stretch) - max(arrives, FILL_S))
            for milli, arrives, life in asks
        )

    low, high = 0.0, float(LONGEST_STRETCH_S)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if demand(middle) < wanted else (low, middle)
    return high
