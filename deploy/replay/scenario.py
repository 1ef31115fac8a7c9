"""The same pods, nodes and ends under other rules: what would have become of them. Pure.

One mind decides at once, in the order in which the commands were taken by any allocator. A pod ends when it ended in truth;
one that never ran has no end, so it holds what it gets for good. Pods that fit nowhere wait, and are tried again when a
place falls free: higher priority first, then who came first.
"""

import contextlib
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Final

import msgspec

from bus.errors import UndecodableError
from bus.follower import Record
from consumers.allocator.cluster import Cluster
from consumers.allocator.decider import Decider
from consumers.allocator.engine import Capacity, fits_on
from schemas.journal import Free, Place, Turn
from schemas.ledger import Allocation
from schemas.pod import GpuRequest, Schedule
from schemas.quota import Usage

SAMPLES: Final = 200
_NOTHING: Final = Usage()


class Sample(msgspec.Struct, frozen=True):
    """How things stood at an instant: nanoseconds since the epoch, percent of the schedulable GPU given, pods waiting."""

    time_ns: int
    tflops_percent: float
    vram_percent: float
    waiting: int


class Result(msgspec.Struct, kw_only=True):
    """What became of the pods.

    Attributes:
        rules: Which rules these are.
        pods: Pods that asked for a place.
        placed: Those that got one, at once or later.
        unplaced: Those that never did, those that ended meanwhile included.
        elsewhere: Pods that stood on another node than in truth, or only in one of the two.
        waited: Pods that got their place only after waiting.
        wait_p50_s: Median of how long those waited, in seconds.
        wait_p99_s: 99th percentile of it.
        tflops_percent: Compute given, in percent of what is schedulable, on average over time.
        peak_tflops_percent: The most that was given at any time.
        end_tflops_percent: What is given at the end.
        stranded_percent: Of the free compute at the end, the part on GPUs that are in use already.
        samples: The course of it.
    """

    rules: str
    pods: int = 0
    placed: int = 0
    unplaced: int = 0
    elsewhere: int = 0
    waited: int = 0
    wait_p50_s: float = 0.0
    wait_p99_s: float = 0.0
    tflops_percent: float = 0.0
    peak_tflops_percent: float = 0.0
    end_tflops_percent: float = 0.0
    stranded_percent: float = 0.0
    samples: list[Sample] = []


class Scenario:
    """One set of rules, fed with what happened.

    Args:
        rules: Their name.
        change: Called with every record of STATE; returns it as it would have been.
    """

    def __init__(self, rules: str, change: Callable[[Record], Record]) -> None:
        self.result = Result(rules=rules)
        self.places: dict[str, str] = {}
        self._change = change
        self._cluster = Cluster()
        self._decider = Decider("scenario", self._cluster, lambda: 0)
        self._held: dict[str, tuple[str, Allocation]] = {}
        self._waiting: dict[str, tuple[Schedule, int]] = {}
        self._ended: set[str] = set()
        self._waits: list[float] = []
        self._course: list[Sample] = []
        self._granted = _NOTHING
        self._capacity: Capacity | None = None

    def on_state(self, record: Record) -> None:
        """STATE said something."""
        self._capacity = None
        with contextlib.suppress(UndecodableError):  # as the allocators did
            self._cluster.on_state(self._change(record))

    def play(self, turn: Turn, time_ns: int) -> None:
        """Take in what an allocator was asked at a time."""
        for step in turn.steps:
            if isinstance(step, Place):
                self._arrive(step, time_ns)
            elif isinstance(step, Free):
                self._end(step.pod_uid, time_ns)
        self._course.append(self._sample(time_ns))

    def _arrive(self, step: Place, time_ns: int) -> None:
        uid = step.pod_uid
        if uid in self._held or uid in self._waiting or uid in self._ended:
            return
        self.result.pods += 1
        command = Schedule(namespace=step.namespace, name=step.name, uid=uid, request=step.request)
        if not self._place(command):
            self._waiting[uid] = command, time_ns

    def _place(self, command: Schedule) -> bool:
        decision, held = self._decider.place(command)
        self._decider.journal.take()
        if held is None:
            return False
        self._cluster.snapshot.add(decision.node, held)
        self._cluster.quotas.promise(decision.node, held)
        self._held[command.uid] = decision.node, held
        self._granted += held.usage()
        self.places[command.uid] = decision.node
        self.result.placed += 1
        return True

    def _end(self, uid: str, time_ns: int) -> None:
        self._ended.add(uid)
        self._waiting.pop(uid, None)
        entry = self._held.pop(uid, None)
        if entry is None:
            return
        node, held = entry
        self._granted -= held.usage()
        self._cluster.snapshot.remove(node, uid)
        self._cluster.quotas.withdraw(node, held, quietly=True)
        self._try_again(node, time_ns)

    def _try_again(self, node: str, time_ns: int) -> None:
        hopeless: set[GpuRequest] = set()
        snapshot = self._cluster.snapshot
        for uid, (command, since) in sorted(self._waiting.items(), key=_by_priority):
            request = command.request
            if request in hopeless:
                continue
            if not fits_on(snapshot, request, node, self._decider.policy(request.pool)) or not self._place(command):
                hopeless.add(request)
                continue
            del self._waiting[uid]
            self._waits.append((time_ns - since) / 1e9)

    def _sample(self, time_ns: int) -> Sample:
        if self._capacity is None:
            self._capacity = self._cluster.snapshot.total()
        return Sample(time_ns, *percents(self._granted, self._capacity), len(self._waiting))

    def finish(self, actual: dict[str, str]) -> Result:
        """Return the result; ``actual`` is the node on which each pod stood in truth."""
        result = self.result
        result.unplaced = result.pods - result.placed
        both = self.places.keys() | actual.keys()
        result.elsewhere = sum(self.places.get(uid) != actual.get(uid) for uid in both)
        summarise(result, self._course, self._waits)
        result.stranded_percent = self._stranded()
        return result

    def _stranded(self) -> float:
        free = partly = 0
        snapshot = self._cluster.snapshot
        for name in snapshot.nodes():
            host = snapshot.host(name)
            for left, whole in zip(host.tflops_free, host.tflops_cap, strict=True) if host is not None else ():
                free += max(left, 0)
                partly += max(left, 0) if left < whole else 0
        return 100 * partly / free if free else 0.0


def summarise(result: Result, course: list[Sample], waits: list[float]) -> None:
    """Fill in what follows from the course and the waits: averages, the peak, the end, and at most 200 samples."""
    result.waited = len(waits)
    if waits:
        result.wait_p50_s = median(waits)
        result.wait_p99_s = sorted(waits)[min(len(waits) - 1, len(waits) * 99 // 100)]
    if not course:
        return
    spans = [(later.time_ns - one.time_ns, one.tflops_percent) for one, later in pairwise(course)]
    whole = sum(span for span, _ in spans)
    last = course[-1].tflops_percent
    result.tflops_percent = sum(span * percent for span, percent in spans) / whole if whole else last
    result.peak_tflops_percent = max(sample.tflops_percent for sample in course)
    result.end_tflops_percent = last
    step = max(-(-len(course) // SAMPLES), 1)
    result.samples = [*course[:-1:step], course[-1]]


def percents(granted: Usage, capacity: Capacity) -> tuple[float, float]:
    """Return compute and VRAM given, in percent of what is schedulable."""
    return (
        100 * granted.tflops_milli / max(capacity.schedulable_tflops_milli, 1),
        100 * granted.vram_bytes / max(capacity.schedulable_vram_bytes, 1),
    )


def _by_priority(entry: tuple[str, tuple[Schedule, int]]) -> tuple[int, int, str]:
    uid, (command, since) = entry
    return -command.request.priority, since, uid
