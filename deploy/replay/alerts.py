"""Which alerts would have fired: what a recorder would have written of a world, and what the rules would have found in it.

Only what follows from places is told. Use of GPUs, temperatures and the like are samples of what ran, and under other rules
nothing ran; so a rule that reads them is not known.
"""

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from bus.codec import decode_as
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Record
from bus.history import newest
from bus.streams import STATE
from consumers.alerter.backtest import backtest
from consumers.alerter.rulebook import ACTIVE, built_in
from consumers.alerter.rules import CompiledRule, RulesError
from consumers.allocator.shadow.rules import Alter
from consumers.metrics.duckdb import MEMORY, DuckDBStore
from consumers.metrics.tables import GPU_ALLOCATION, GPU_METRICS, NODE_METRICS, POOL_METRICS, SYSTEM_METRICS
from consumers.recorder.counters import system_rows
from consumers.recorder.snapshot import snapshot_rows
from consumers.recorder.view import View
from deploy.replay.scenario import Alarm, NotKnown, Result
from schemas.alert import AlertRule, RuleSet
from schemas.decision import Decision
from schemas.ledger import Allocation
from schemas.record import PoolCounters, RecorderCounters

KNOWN: Final = frozenset(
    table.name for table in (NODE_METRICS, POOL_METRICS, GPU_METRICS, GPU_ALLOCATION, SYSTEM_METRICS)
)
"""Tables that follow from which pod stands where."""

STEP_S: Final = 10
"""Seconds between two snapshots, as recorders take them."""

MOST_ROWS: Final = 2_000_000
"""Rows of metrics of one world: they are held in memory."""

_GUESSED: Final = re.compile(r"\b(limited_\w+|raw_cost|total_topo_\w+|total_scale_\w+)", re.IGNORECASE)
"""Columns of known tables that depend on more: what pods say of themselves, prices, and nodes that come and go for them."""

_NS: Final = 1_000_000_000


class Rulebook:
    """The rules that can be judged, and why the others cannot.

    Attributes:
        known: The former, compiled.
        unknown: The latter.
        tables: What the former read.
    """

    def __init__(self, rules: Iterable[AlertRule]) -> None:
        self.known: list[CompiledRule] = []
        self.unknown: list[NotKnown] = []
        for rule in rules:
            try:
                self._sort(CompiledRule(rule))
            except RulesError as error:
                self.unknown.append(NotKnown(rule.name, str(error)))
        self.tables = frozenset(name for compiled in self.known for name in compiled.tables)

    def _sort(self, compiled: CompiledRule) -> None:
        sampled = sorted(compiled.tables - KNOWN)
        guessed = sorted({name.lower() for name in _GUESSED.findall(compiled.rule.query)})
        if sampled or guessed:
            what = ", ".join(sampled or guessed)
            self.unknown.append(NotKnown(compiled.rule.name, f"{what} can only be told by what ran"))
        else:
            self.known.append(compiled)


async def rules_in_force(bus: Bus) -> tuple[AlertRule, ...]:
    """Return the rules that alerters follow on this bus, the built-in ones where none ever did.

    Raises:
        BusError: STATE cannot be read.
    """
    for record in (await newest(bus, STATE, [ACTIVE]))[0]:
        try:
            return decode_as(RuleSet, record.payload).data.rules
        except UndecodableError:
            break
    return built_in().rules


class Tally:
    """When pods of each pool got a place, and when they were refused."""

    def __init__(self) -> None:
        self._times: defaultdict[str, tuple[array[int], array[int]]] = defaultdict(lambda: (array("q"), array("q")))

    def note(self, decision: Decision, time_ns: int) -> None:
        """A decision was made at a time, none of which is before that of the last."""
        if decision.outcome in ("allocated", "unschedulable"):
            self._times[decision.pool][decision.outcome == "unschedulable"].append(time_ns)

    def until(self, time_ns: int) -> RecorderCounters:
        """Return the counts up to a time, as recorders keep them."""
        pools = {
            pool: PoolCounters(allocated=bisect_right(placed, time_ns), failed=bisect_right(refused, time_ns))
            for pool, (placed, refused) in self._times.items()
        }
        return RecorderCounters(pools=pools)


Standing = Callable[[], Iterable[tuple[str, Allocation]]]
"""Returns every allocation that stands, with its node."""


class Chronicle:
    """The metrics of one world.

    Args:
        rules: Who is to be judged by them.
        alter: Called with every record of STATE; returns it as it would be.
        standing: What stands in this world.
        tally: What has been decided in it.
    """

    def __init__(self, rules: Rulebook, alter: Alter, standing: Standing, tally: Tally) -> None:
        self._rules = rules
        self._alter = alter
        self._standing = standing
        self._tally = tally
        self._view = View()
        self._store = DuckDBStore(MEMORY, clock=lambda: self._first)
        self._first = 0.0
        self._at = 0
        self._rows = 0

    def on_state(self, record: Record) -> None:
        """STATE said something."""
        if self._rules.known:
            self._view.on_state(self._alter(record))

    async def reach(self, time_ns: int) -> None:
        """It is that late, and nothing has changed since the last call but what was told."""
        if not self._rules.known or self._rows > MOST_ROWS:
            return
        if not self._at:
            await self._store.open()
            self._first, self._at = time_ns / _NS, time_ns // _NS // STEP_S * STEP_S + STEP_S
        if self._at * _NS > time_ns:
            return
        held: dict[str, dict[str, Allocation]] = defaultdict(dict)
        for node, allocation in self._standing():
            held[node][allocation.pod_uid] = allocation
        self._view.held = dict(held)
        while self._at * _NS <= time_ns and self._rows <= MOST_ROWS:
            ts_ms = self._at * 1000
            found = snapshot_rows(self._view, ts_ms=ts_ms, seconds=STEP_S)
            found[SYSTEM_METRICS] = system_rows(self._view, self._tally.until(self._at * _NS), ts_ms=ts_ms)
            kept = {table: rows for table, rows in found.items() if table.name in self._rules.tables}
            self._rows += sum(map(len, kept.values()))
            await self._store.write(kept)
            self._at += STEP_S

    async def judge(self, end_ns: int, result: Result) -> None:
        """Note in a result what would have fired up to a time, and what of that is not known. Nothing can be told later on."""
        await self.reach(end_ns)
        result.alerts_unknown = list(self._rules.unknown)
        for compiled in self._rules.known:
            name, interval = compiled.rule.name, compiled.interval.total_seconds()
            begin, end = self._first + interval, end_ns / _NS
            if self._rows > MOST_ROWS:
                why = f"so long a log has over {MOST_ROWS:,} rows of metrics"
            elif not self._at or begin > end:
                why = f"the log is shorter than {interval:g} s, after which it is evaluated first"
            else:
                found = await backtest(compiled, self._store, begin=begin, end=end)
                result.alerts += [
                    Alarm(name, compiled.rule.severity, one.instance, one.summary, one.fired, one.ended)
                    for one in found.episodes
                ]
                if not found.failures:
                    continue
                why = f"{found.failures} of {found.evaluations} evaluations failed: {found.error}"
            result.alerts_unknown.append(NotKnown(name, why))
        result.alerts.sort(key=lambda alarm: (alarm.fired, alarm.rule, alarm.instance))
        if self._at:
            await self._store.close()
