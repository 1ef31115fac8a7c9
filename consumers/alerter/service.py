"""The alerter's shell: takes ticks, asks the metrics store, and keeps what :mod:`consumers.alerter.streaks` decides.

Any number of these processes share one durable consumer, so that each tick of each rule is evaluated once, by whoever takes
it. A tick is known by the instant at which the server stored it; a rule's state names the last one that was evaluated. So a
tick that comes again, because its taker died or was slow, finds that it was evaluated, or is evaluated now.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from bus import subjects, timers
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec, Delivery
from bus.errors import BusError
from bus.follower import Follower, Record
from bus.rpc import Service
from bus.streams import STATE, TICK
from bus.tasks import end
from bus.worker import Dead, Done, Outcome, Retry, Worker
from consumers.alerter import backtest
from consumers.alerter.coverage import LONGEST_WAIT_S, Coverage
from consumers.alerter.rulebook import Rulebook
from consumers.alerter.rules import CompiledRule
from consumers.alerter.sources import RuleSource
from consumers.alerter.states import KIND, RuleStates
from consumers.alerter.streaks import TooManyAlertsError, ending, evaluated, failed
from consumers.alerter.template import TemplateRunError
from consumers.metrics.store import MetricsStore, StoreError
from schemas.alert import RuleState

log = logging.getLogger("gpubus.alerter")

TICKS: Final = ConsumerSpec(
    stream=TICK,
    durable="alerter",
    filters=(f"gpubus.work.tick.{KIND}.>",),
    ack_wait_s=10.0,
    max_deliver=1000,  # a tick that nobody can evaluate ends with its time to live, not as a dead letter
)
CONCURRENCY: Final = 16
LONGEST_QUERY_S: Final = 30.0
SYNC_AGAIN_S: Final = 5.0
_NS: Final = 1_000_000_000


class AlerterStatistics(msgspec.Struct, frozen=True):
    """Counters since the start, and what is in force now.

    Attributes:
        evaluations: Evaluations that this process wrote.
        failures: Those of them that failed.
        overtaken: Evaluations thrown away because another process had written first.
        repeated: Ticks that had been evaluated when they came.
        told: Notices published.
        query_seconds: Time spent waiting for the metrics store.
    """

    rules: int
    reloads: int
    refusals: int
    refused: bool
    evaluations: int
    failures: int
    overtaken: int
    repeated: int
    told: int
    query_seconds: float


class Alerter:
    """One alerter process.

    Args:
        bus: The connection; the streams must exist.
        name: Unique name of this process.
        store: Where the metrics are, opened.
        rules: Where rules are written; None leaves those in force, or the built-in ones.
        runbooks: See :func:`~consumers.alerter.rulebook.built_in`.
        step: Called with the name of every step of an evaluation, for tests that kill us there.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        store: MetricsStore,
        *,
        rules: RuleSource | None = None,
        runbooks: str = "",
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._bus = bus
        self.name = name
        self._store = store
        self._step = step
        source = f"/gpubus/alerter/{name}"
        self.rulebook = Rulebook(bus, source, rules, runbooks=runbooks)
        self._states = RuleStates(bus, source)
        self._coverage = Coverage(bus, store)
        self._known: set[str] = set()
        self._follower = Follower(bus, STATE, [f"gpubus.state.{KIND}.*"], self._on_state)
        self._evaluations = self._failures = self._overtaken = self._repeated = 0
        self._query_s = 0.0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Evaluate rules until ``stop`` is set; what was begun is finished."""
        self._coverage.start()
        await self._follower.start()
        await self.rulebook.start()
        backtests = Service(self._bus, backtest.SERVICE, backtest.BacktestRequest, self._backtest, concurrency=1)
        await backtests.start()
        consumer = PullConsumer(self._bus, TICKS, prefetch=2 * CONCURRENCY)
        tasks = [
            self._bus.spawn(self._syncing(), name=f"{self.name}-sync"),
            self._bus.spawn(self.rulebook.watch(), name=f"{self.name}-watch"),
        ]
        if ready is not None:
            ready.set()
        try:
            await Worker(consumer, self.handle, concurrency=CONCURRENCY).run(stop)
        finally:
            await backtests.stop()
            await end(*tasks)
            await self.rulebook.stop()
            await self._follower.stop()
            self._coverage.stop()

    async def handle(self, delivery: Delivery) -> Outcome:
        """Evaluate the rule that a tick is for, unless that was done."""
        _, _, _, *name = subjects.names(delivery.subject)
        if len(name) != 1:
            return Dead(f"subject {delivery.subject} names no rule")
        compiled = self.rulebook.rules.get(name[0])
        if compiled is None:
            return Done()  # the rule is gone, and so will be its timer
        self._step("taken")
        try:
            await self._evaluate(compiled, delivery.position.time_ns)
        except BusError as error:
            log.info("rule %s: %s; the tick comes again", name[0], error)
            return Retry(1.0)
        self._step("told")
        return Done()

    async def _evaluate(self, compiled: CompiledRule, slot: int) -> None:
        interval_ns = int(compiled.interval.total_seconds() * _NS)
        after: RuleState | None = None
        while True:
            seq, state = await self._states.read(compiled.rule.name)
            await self._states.tell(state.notice)
            self._step("read")
            if (
                slot - state.slot < interval_ns // 4
            ):  # done, or a second tick of one interval after its timer was set anew
                self._repeated += 1
                return
            after = await self._next(compiled, state, slot)
            self._step("queried")
            if await self._states.replace(seq, after):
                break
            self._overtaken += 1
        self._evaluations += 1
        self._failures += after.failures > 0
        self._step("written")
        await self._states.tell(after.notice)

    async def _next(self, compiled: CompiledRule, state: RuleState, slot: int) -> RuleState:
        """Ask the store, and return the state that follows; a late answer, or one over what is not all there, is none."""
        interval = compiled.interval.total_seconds()
        if (late := time.time() - slot / _NS) > interval:
            return failed(compiled, state, f"the tick was taken {late:.1f} s late", slot=slot)
        if lacking := await self._coverage.lacking(compiled, state, slot):
            return failed(compiled, state, lacking, slot=slot)
        began, through = time.monotonic(), self._coverage.through
        try:
            late = time.time() - slot / _NS
            timeout = min(max(interval - max(late, 0.0), 0.5), LONGEST_QUERY_S)
            rows = (await self._store.query(compiled.sql(), timeout=timeout)).named()
            if anew := self._coverage.anew(compiled, slot):
                return failed(compiled, state, anew, slot=slot)
            after = evaluated(compiled, state, rows, slot=slot)
            if not (nodes := ending(compiled, state, after)):
                return after
            begin = slot + int((late - interval + min(interval / 4, LONGEST_WAIT_S)) * _NS)
            silent, gone = await self._coverage.silent(compiled, nodes, begin, through)
            return evaluated(compiled, state, rows, slot=slot, silent=silent, gone=gone)
        except (StoreError, TemplateRunError, TooManyAlertsError) as error:
            return failed(compiled, state, str(error), slot=slot)
        finally:
            self._query_s += time.monotonic() - began

    async def _backtest(self, request: backtest.BacktestRequest) -> backtest.Backtest:
        return await backtest.answer(self._store, request)

    def _on_state(self, record: Record) -> None:
        name = subjects.names(record.subject)[-1]
        (self._known.discard if record.deleted else self._known.add)(name)

    async def _syncing(self) -> None:
        """Give every rule its timer, and end what belongs to rules that are no more, whenever the rules change."""
        timed: dict[str, float] = {}
        while True:
            await self.rulebook.changed.wait()
            self.rulebook.changed.clear()
            try:
                await self._sync(timed)
            except (BusError, TimeoutError) as error:
                log.info("timers could not be set: %s; trying again", error)
                await asyncio.sleep(SYNC_AGAIN_S)
                self.rulebook.changed.set()

    async def _sync(self, timed: dict[str, float]) -> None:
        rules = self.rulebook.rules
        for name, compiled in rules.items():
            interval = compiled.interval.total_seconds()
            if timed.get(name) != interval:
                await timers.keep_ticking(self._bus, KIND, name, compiled.interval, now=datetime.now(UTC))
                timed[name] = interval
        for name in (timed.keys() | self._known) - rules.keys():
            await timers.cancel(self._bus, KIND, name)
            await self._states.retire(name)
            timed.pop(name, None)
        active = self.rulebook.active
        if active is not None and active.metrics_ttl:
            try:
                await self._store.set_ttl(active.metrics_ttl)
            except StoreError as error:
                log.warning("metricsTTL %s could not be set: %s", active.metrics_ttl, error)

    def statistics(self) -> AlerterStatistics:
        """Return the counters of this process."""
        refusal = self.rulebook.refusal
        return AlerterStatistics(
            rules=len(self.rulebook.rules),
            reloads=self.rulebook.reloads,
            refusals=self.rulebook.refusals,
            refused=refusal is not None and bool(refusal.problems),
            evaluations=self._evaluations,
            failures=self._failures,
            overtaken=self._overtaken,
            repeated=self._repeated,
            told=self._states.told,
            query_seconds=self._query_s,
        )
