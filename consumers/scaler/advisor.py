"""The shell around vertical recommendations: takes ticks, asks the metrics store, keeps what :mod:`learn` makes of it.

Any number of these processes share one durable consumer, so each tick of each workload is looked at once, by whoever takes it.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import httpx
import msgspec

from bus import subjects, timers
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec, Delivery
from bus.errors import BusError, UndecodableError
from bus.follower import Follower, Record
from bus.kube.client import Client
from bus.kube.errors import KubeError
from bus.streams import STATE, TICK
from bus.tasks import end
from bus.worker import Dead, Done, Outcome, Retry, Worker
from consumers.metrics.store import MetricsStore, StoreError
from consumers.scaler.carrier import Carrier
from consumers.scaler.external import ExternalError, ask, is_due
from consumers.scaler.learn import advise, is_fresh, learnt, window
from consumers.scaler.samples import read_samples
from consumers.scaler.shown import show
from consumers.scaler.uses import Uses
from consumers.scaler.workloads import STATE_FILTERS, Asked, Key, Workloads
from schemas.scaling import Advice, WorkloadUse

log = logging.getLogger("gpubus.scaler")

KIND: Final = "scaling"
TICKS: Final = ConsumerSpec(
    stream=TICK, durable="scaler", filters=(f"gpubus.work.tick.{KIND}.>",), ack_wait_s=60.0, max_deliver=1000
)
CONCURRENCY: Final = 8
SYNC_AGAIN_S: Final = 5.0
WINDOWS: Final = 12
"""Stretches of samples read in one look: two hours of what was missed."""


class AdvisorStatistics(msgspec.Struct, frozen=True):
    """Counters since the start, and how many workloads are looked at now."""

    workloads: int
    looks: int
    samples: int
    failures: int
    overtaken: int


class Advisor:
    """One process that advises.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
        name: Unique name of this process.
        store: Where the metrics are, opened.
        clock: Seconds since the epoch.
        step: Called with the name of every step of a look, for tests that kill us there.
    """

    def __init__(
        self,
        bus: Bus,
        client: Client,
        name: str,
        store: MetricsStore,
        *,
        clock: Callable[[], float] = time.time,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._bus = bus
        self._client = client
        self._store = store
        self._clock = clock
        self._step = step
        self._carrier = Carrier(bus, client)
        self._uses = Uses(bus, f"/gpubus/scaler/{name}")
        self._changed = asyncio.Event()
        self.workloads = Workloads(self._changed.set)
        self._follower = Follower(bus, STATE, STATE_FILTERS, self._on_state)
        self._looks = self._samples = self._failures = self._overtaken = 0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Advise until ``stop`` is set; what was begun is finished."""
        await self._follower.start()
        self._changed.set()
        consumer = PullConsumer(self._bus, TICKS, prefetch=2 * CONCURRENCY)
        syncing = self._bus.spawn(self._syncing(), name="scaler-sync")
        if ready is not None:
            ready.set()
        try:
            async with httpx.AsyncClient() as self._http:
                await Worker(consumer, self.handle, concurrency=CONCURRENCY).run(stop)
        finally:
            await end(syncing)
            await self._follower.stop()

    def _on_state(self, record: Record) -> None:
        try:
            self.workloads.on_state(record)
        except UndecodableError as error:  # its own reader buries it
            log.info("%s at %d: %s", record.subject, record.seq, error)

    async def handle(self, delivery: Delivery) -> Outcome:
        """Look at the workload that a tick is for."""
        _, _, _, *name = subjects.names(delivery.subject)
        key = tuple(name[0].split("/", 1)) if len(name) == 1 else ()
        if len(key) != 2:  # noqa: PLR2004  namespace and name
            return Dead(f"subject {delivery.subject} names no workload")
        try:
            await self.look((key[0], key[1]))
        except (BusError, StoreError, KubeError) as error:
            self._failures += 1
            log.info("workload %s/%s: %s; it is looked at again", *key, error)
            return Retry(5.0)
        return Done()

    async def look(self, key: Key) -> None:
        """Look at one workload: learn what was recorded since the last look, advise, and show it.

        Raises:
            BusError, StoreError, KubeError: What could not be reached; nothing is lost, and the next look does it.
        """
        namespace, name = key
        asked = self.workloads.asked(key)
        if asked is None:
            return  # it is gone, and so will be its timer
        while True:
            now = datetime.fromtimestamp(self._clock(), UTC)
            seq, before = await self._uses.read(
                namespace, name, uid=asked.uid, unit=asked.unit, now=now, history_s=asked.history_s
            )
            self._step("read")
            use = await self._learn(asked, before, now)
            use = await self._ask(asked, use, now)
            advice = (
                Advice(reason=asked.refusal)
                if asked.refusal
                else advise(asked.scaling, use, asked.stated, asked.qos, now)
            )
            use = msgspec.structs.replace(use, advice=advice)
            if asked.scaling.auto is None or not asked.scaling.auto.apply:
                use = msgspec.structs.replace(use, applied=0, problem="")
            self._step("learnt")
            if use == before or await self._uses.replace(seq, use):
                break
            self._overtaken += 1
        self._looks += 1
        self._samples += use.samples - min(before.samples, use.samples)
        self._step("written")
        use = await self._carry(asked, use, now)
        await show(self._client, asked, use)

    async def _carry(self, asked: Asked, use: WorkloadUse, now: datetime) -> WorkloadUse:
        """Have workers hold what is advised, if the workload says so, and note what became of it.

        As long as it is not known what they use now, nothing that follows from use is carried out, and no VRAM is taken away.
        """
        auto = asked.scaling.auto
        if auto is None or not auto.apply or asked.refusal:
            return use
        fresh = is_fresh(use, now)
        if not fresh and use.advice.source in ("", "percentile"):
            return use
        carried = await self._carrier.carry(asked, use, shrinks=fresh)
        self._step("carried")
        while (use.applied, use.problem) != (carried.workers, carried.problem):
            seq, newest = await self._uses.read(
                use.namespace, use.workload, uid=use.uid, unit=use.unit, now=use.until, history_s=asked.history_s
            )
            if not seq:
                break
            use = msgspec.structs.replace(newest, applied=carried.workers, problem=carried.problem)
            if await self._uses.replace(seq, use):
                break
        return use

    async def _learn(self, asked: Asked, use: WorkloadUse, now: datetime) -> WorkloadUse:
        if asked.scaling.auto is None:
            return use
        for _ in range(WINDOWS):
            stretch = window(use, now)
            if stretch is None:
                break
            samples = await read_samples(self._store, asked.key, asked.unit, *stretch)
            after = learnt(use, samples, stretch[1], now, half_life_s=asked.scaling.auto.history_s)
            if after == use:
                break
            use = after
        return use

    async def _ask(self, asked: Asked, use: WorkloadUse, now: datetime) -> WorkloadUse:
        """Ask the external scaler if it is time to; when it does not answer, its last answer stands no longer."""
        external = asked.scaling.external
        if external is None:
            return msgspec.structs.replace(use, external=None, external_at=None)
        begun = asked.created_at + timedelta(seconds=external.delay_s)
        if now < begun or not is_due(use.external_at, now, external):
            return use
        try:
            answer = await ask(self._http, self._client, external, asked.key, asked.stated)
        except ExternalError as error:
            self._failures += 1
            log.warning("workload %s/%s: %s", *asked.key, error)
            answer = Advice(reason=str(error))
        return msgspec.structs.replace(use, external=answer, external_at=now)

    async def _syncing(self) -> None:
        """Give every workload its timer, and end what belongs to those that are no more, whenever they change."""
        timed: dict[Key, int] = {}
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._sync(timed)
            except (BusError, TimeoutError) as error:
                log.info("timers could not be set: %s; trying again", error)
                await asyncio.sleep(SYNC_AGAIN_S)
                self._changed.set()

    async def _sync(self, timed: dict[Key, int]) -> None:
        wanted = {key: interval for key in self.workloads.known() if (interval := self.workloads.interval_s(key))}
        problem: BusError | None = None
        for key, interval in wanted.items():
            if timed.get(key) != interval:
                now, every = datetime.now(UTC), timedelta(seconds=interval)
                try:
                    await timers.keep_ticking(self._bus, KIND, "/".join(key), every, now=now)
                except BusError as error:  # one workload's must not keep the others' from being set
                    problem = error
                else:
                    timed[key] = interval
        for key in (timed.keys() | self.workloads.remembered) - wanted.keys():
            await timers.cancel(self._bus, KIND, "/".join(key))
            await self._uses.forget(*key)
            timed.pop(key, None)
        if problem is not None:
            raise problem

    def statistics(self) -> AdvisorStatistics:
        """Return the counters of this process."""
        return AdvisorStatistics(
            workloads=sum(1 for key in self.workloads.known() if self.workloads.interval_s(key)),
            looks=self._looks,
            samples=self._samples,
            failures=self._failures,
            overtaken=self._overtaken,
        )
