"""How far a simulation has come, in numbers."""

from collections.abc import Sequence

import msgspec
import numpy as np


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened so far. Every pod counts once, however often the bus repeats itself.

    Attributes:
        pods: Pods in the trace.
        offered: Pods created so far.
        undecided: Offered pods about which no decision has come. If it stays above zero, these are lost.
        allocated: Pods that were given a place at some time.
        waiting: Pods that fit nowhere at present and have never had a place.
        running: Pods that hold a place.
        released: Pods whose place was given back, confirmed by the allocator.
        releasing: Releases that were asked for and are not confirmed yet.
        double_started: Allocations of running pods on a second node. Any is an error of the allocator.
        latency_p50_ms: Median milliseconds from sending the schedule command to receiving the allocation, over the pods
            that were placed at the first try; 0 before the first.
        latency_p99_ms: The 99th percentile of the same.
        gpu_allocation_percent: Compute granted to running pods, of the physical compute of all GPUs.
        events: Messages that the simulator published, all acknowledged.
        finished: Every pod was offered and decided, and nothing more will happen by itself.
    """

    pods: int
    offered: int
    undecided: int
    allocated: int
    waiting: int
    running: int
    released: int
    releasing: int
    double_started: int
    latency_p50_ms: float
    latency_p99_ms: float
    gpu_allocation_percent: float
    events: int
    finished: bool


def latency_ms(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile of ``seconds`` in milliseconds; zeros when there are none."""
    if not seconds:
        return 0.0, 0.0
    p50, p99 = np.percentile(np.array(seconds), (50, 99)) * 1000
    return round(float(p50), 3), round(float(p99), 3)
