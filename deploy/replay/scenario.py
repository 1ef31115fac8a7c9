"""A history under other rules, told in numbers: who was placed, who waited and for how long, how full it was. Pure."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from typing import Final

import msgspec

from bus.follower import Record
from consumers.allocator.engine import Capacity
from consumers.allocator.shadow.rules import Alter
from consumers.allocator.shadow.world import OtherWorld, stranded_percent
from schemas.decision import Decision
from schemas.event import Timestamp
from schemas.journal import Turn
from schemas.ledger import Allocation
from schemas.quota import Usage

SAMPLES: Final = 200


class Sample(msgspec.Struct, frozen=True):
    """How things stood at an instant: nanoseconds since the epoch, percent of the schedulable GPU given, pods waiting."""

    time_ns: int
    tflops_percent: float
    vram_percent: float
    waiting: int


class Alarm(msgspec.Struct, frozen=True):
    """One alert, from the evaluation at which it would have fired to the one at which it would have been over, if it was."""

    rule: str
    severity: str
    instance: str
    summary: str
    fired: Timestamp
    ended: Timestamp | None = None


class NotKnown(msgspec.Struct, frozen=True):
    """A rule of which nobody can say whether it would have fired, and why."""

    rule: str
    why: str


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
        alerts: Alerts that would have fired, by the rules in force, in the order of their firing.
        alerts_unknown: Rules of which that cannot be told.
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
    alerts: list[Alarm] = []
    alerts_unknown: list[NotKnown] = []


class Scenario:
    """One set of rules, fed with what happened.

    Args:
        rules: Their name.
        change: Called with every record of STATE; returns it as it would have been.
        decided: Called with every decision and its time.
    """

    def __init__(self, rules: str, change: Alter, decided: Callable[[Decision, int], None] = lambda *_: None) -> None:
        self.result = Result(rules=rules)
        self._decided = decided
        self.places: dict[str, str] = {}
        self._world = OtherWorld("scenario", change)
        self._waits: list[float] = []
        self._course: list[Sample] = []
        self._capacity: Capacity | None = None

    def on_state(self, record: Record) -> None:
        """STATE said something."""
        self._capacity = None
        self._world.on_state(record)

    def play(self, turn: Turn, time_ns: int) -> None:
        """Take in what an allocator was asked at a time."""
        for made in self._world.play(turn, time_ns):
            self._decided(made.decision, time_ns)
            if made.waited_ns is None:
                self.result.pods += 1
            else:
                self._waits.append(made.waited_ns / 1e9)
            if made.decision.node:
                self.result.placed += 1
                self.places[made.uid] = made.decision.node
        self._course.append(self._sample(time_ns))

    def standing(self) -> Iterable[tuple[str, Allocation]]:
        """Return every allocation that stands, with its node."""
        return self._world.held.values()

    def _sample(self, time_ns: int) -> Sample:
        if self._capacity is None:
            self._capacity = self._world.snapshot.total()
        return Sample(time_ns, *percents(self._world.granted, self._capacity), len(self._world.waiting))

    def finish(self, actual: dict[str, str]) -> Result:
        """Return the result; ``actual`` is the node on which each pod stood in truth."""
        result = self.result
        result.unplaced = result.pods - result.placed
        both = self.places.keys() | actual.keys()
        result.elsewhere = sum(self.places.get(uid) != actual.get(uid) for uid in both)
        summarise(result, self._course, self._waits)
        result.stranded_percent = stranded_percent(self._world.snapshot)
        return result


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
