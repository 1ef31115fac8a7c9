"""Whether the window that a rule looks at is in the metrics store: an empty one must not pass for one in which all is well.

Three things keep it out: the recorder is dead or behind, the bus was away so that agents could tell nobody, or the store was made
anew. An agent that is silent while the bus is there keeps out its own node alone: :meth:`Coverage.silent` tells of those.
"""

import asyncio
import time
from collections.abc import Collection
from typing import Final

from bus import records, subjects
from bus.connection import Bus
from bus.streams import STATE
from consumers.alerter.rules import CompiledRule
from consumers.metrics.progress import Progress, progress, said
from consumers.metrics.store import MetricsStore
from consumers.metrics.tables import OF_USAGE, TABLES
from schemas.alert import RuleState

LONGEST_WAIT_S: Final = 5.0
"""How long a tick waits for what is being written just then."""

LONGEST_BACK_S: Final = 300.0
"""How far back a hole in what was said matters; behind it there is enough to find whatever still lasts."""

_AGAIN_S: Final = 0.1
_PARTS: Final = 3
_NS: Final = 1_000_000_000
_USAGE: Final = frozenset(table.name for table in OF_USAGE)
_SNAPSHOTS: Final = TABLES.keys() - _USAGE


def tolerance_s(interval_s: float) -> float:
    """Return how much of the end of a window may be missing: recorders gather before they write."""
    return min(max(interval_s / 4, 0.5), LONGEST_WAIT_S)


def behind(compiled: CompiledRule, now: Progress) -> str:
    """Return what of a rule's window recorders have not written; empty when it is there. Pure."""
    interval_s = compiled.interval.total_seconds()
    if compiled.tables & _USAGE:
        if now.usage is None:
            return "no recorder has ever run, so that there are no metrics: run one (gpubus run recorder)"
        lag_s = (now.at - now.usage) / _NS
        if lag_s > tolerance_s(interval_s):
            return (
                f"usage of the last {lag_s:.0f} s is not recorded yet: "
                "is a recorder running, and does the metrics store take what it writes?"
            )
        ago_s = (now.at - now.refused) / _NS
        if now.refused and ago_s < interval_s:
            return f"the recorder or its store refused usage {ago_s:.0f} s ago: see their logs, and `gpubus dead list`"
    if compiled.tables & _SNAPSHOTS:
        age_s = (now.at - now.snapshot) / _NS
        if not now.snapshot or age_s > max(interval_s * 3 / 4, tolerance_s(interval_s)):
            age = f"for {age_s:.0f} s" if now.snapshot else "yet"
            return (
                f"the recorder has taken no snapshot of the cluster {age}: is one running, and does it reach the store?"
            )
    return ""


def unbroken(compiled: CompiledRule, before: RuleState, slot: int, *, since: int) -> bool:
    """Whether we know that the bus was there for the whole window: our connection lasted, and so did its ticks. Pure.

    Args:
        compiled: The rule.
        before: Its state, with the tick before this one.
        slot: Time of the tick in nanoseconds since the epoch.
        since: Since when our connection has lasted, likewise.
    """
    interval_s = compiled.interval.total_seconds()
    ticked = not before.slot or slot - before.slot <= (1.1 * interval_s + 1.0) * _NS
    slack = int(tolerance_s(interval_s) * _NS)
    return ticked and since <= slot - _back(compiled) + slack


def _back(compiled: CompiledRule) -> int:
    return int(min(compiled.interval.total_seconds(), LONGEST_BACK_S) * _NS)


class Coverage:
    """Looks at how far things are, for all rules of one alerter."""

    def __init__(self, bus: Bus, store: MetricsStore) -> None:
        self._bus = bus
        self._store = store
        self._since = time.time_ns()
        self._looking = asyncio.Lock()
        self._looked = float("-inf")
        self._progress: Progress | None = None

    def start(self) -> None:
        """Begin to watch the connection."""
        self._since = time.time_ns()
        self._bus.on_reconnect(self._on_reconnect)

    def stop(self) -> None:
        """Watch it no longer."""
        self._bus.off_reconnect(self._on_reconnect)

    def _on_reconnect(self) -> None:
        self._since = time.time_ns()

    async def lacking(self, compiled: CompiledRule, before: RuleState, slot: int) -> str:
        """Return why the window of a tick cannot be judged, after waiting for what is about to be written; empty when it can.

        Raises:
            BusError: The bus did not answer.
        """
        if not compiled.tables & TABLES.keys():
            return ""
        interval_s = compiled.interval.total_seconds()
        if compiled.tables & _USAGE and not unbroken(compiled, before, slot, since=self._since):
            begin, part = slot - _back(compiled), _back(compiled) // _PARTS
            for number in range(_PARTS):
                if not await said(self._bus, begin + number * part, begin + (number + 1) * part):
                    return (
                        "the bus was away, or this alerter just came: no usage was said in a part of the window, and nobody "
                        "knows whether there was any"
                    )
        deadline = slot + int(min(interval_s / 2, LONGEST_WAIT_S) * _NS)
        while True:
            now = await self._look()
            reason = behind(compiled, now)
            if not reason or now.at >= deadline:
                break
            await asyncio.sleep(_AGAIN_S)
        return reason

    def anew(self, compiled: CompiledRule, slot: int) -> str:
        """Return why the store cannot reach back over the window of a tick. Ask after the query, which may find that out."""
        interval_s, at_s = compiled.interval.total_seconds(), slot / _NS
        if not compiled.tables & TABLES.keys() or self._store.since <= at_s - interval_s + tolerance_s(interval_s):
            return ""
        ago_s = max(at_s - self._store.since, 0.0)
        return f"the metrics store was made anew {ago_s:.0f} s ago and does not reach back over the window"

    async def silent(
        self, compiled: CompiledRule, nodes: Collection[str], begin: int, end: int
    ) -> tuple[set[str], set[str]]:
        """Return those of ``nodes`` that said nothing in a window, without and with those that are no more.

        A node that cannot be on the bus is neither: its name came from elsewhere.

        Args:
            compiled: The rule; one that reads no usage does not ask.
            nodes: The nodes.
            begin: Begin of the window that the query looked at, nanoseconds since the epoch.
            end: Until when what was said was in the store as the query began, likewise: what came later it has not seen.

        Raises:
            BusError: The bus did not answer.
        """
        silent, gone = set[str](), set[str]()
        if not compiled.tables & _USAGE:
            return silent, gone
        for node in sorted(nodes):
            try:
                where = [subjects.state(kind, node) for kind in ("node", "gpu")]
            except ValueError:
                continue
            if await said(self._bus, begin, end, node=node):
                continue
            known, inventory = [await records.latest(self._bus, STATE, subject) for subject in where]
            # A node that no watcher speaks of is there while its agent's inventory is.
            there = bool(known.payload) or (not known.seq and bool(inventory.payload))
            (silent if there else gone).add(node)
        return silent, gone

    @property
    def through(self) -> int:
        """Until when usage was in the store at the last look, nanoseconds since the epoch."""
        return (self._progress.usage or 0) if self._progress is not None else 0

    async def _look(self) -> Progress:
        """Return how far recorders are; all who ask at one time share one look."""
        async with self._looking:
            clock = asyncio.get_running_loop().time()
            if self._progress is None or clock - self._looked >= _AGAIN_S:
                self._progress = await progress(self._bus)
                self._looked = asyncio.get_running_loop().time()
            return self._progress
