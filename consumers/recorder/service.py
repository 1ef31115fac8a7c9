"""The recorder's shell: usage samples and snapshots of the cluster go to the metrics store.

Any number of these processes share two durable consumers. A message is acknowledged when its rows are stored; what comes
again is written again, which changes nothing. While the store is down a recorder holds what it has, a bounded number of
messages, and takes no more: the rest waits on the bus, which drops the oldest when it is full, and that is counted. After
half a minute it gives its messages to other recorders, which may still reach the store, and keeps their rows to try it with.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import nats.errors

from bus import codec, subjects, timers
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec, Delivery
from bus.errors import BusError, UndecodableError
from bus.follower import Follower
from bus.streams import LEDGER, STATE, TICK, USAGE
from bus.tasks import end
from consumers.metrics.progress import USAGE_DURABLE, USAGE_SUBJECTS
from consumers.metrics.store import MetricsStore, StoreError, StoreUnavailableError
from consumers.metrics.tables import GPU_USAGE, SYSTEM_LOG, SYSTEM_METRICS, Row, Table
from consumers.recorder.counters import Counters, system_rows
from consumers.recorder.snapshot import snapshot_rows
from consumers.recorder.usage import skewed, usage_rows
from consumers.recorder.view import LEDGER_FILTERS, STATE_FILTERS, View
from consumers.recorder.writer import LEASE_S, Part, Writer, together
from schemas.usage import NodeUsage

log = logging.getLogger("gpubus.recorder")

BATCH: Final = 512
"""Messages of one write; a message is a node, with eight GPUs as a rule."""

GATHER_S: Final = 0.1
"""How long to wait for a fuller batch: many small writes cost a store far more than one."""

SNAPSHOT: Final = timedelta(seconds=10)
"""Between two snapshots, so that a window of 30 s holds three."""

LONGEST_ASIDE_S: Final = 10.0
"""Longest pause between two tries of a recorder that has given its messages to others."""

_FOREVER: Final = 1_000_000_000

USAGE_SPEC: Final = ConsumerSpec(
    stream=USAGE, durable=USAGE_DURABLE, filters=(USAGE_SUBJECTS,), ack_wait_s=LEASE_S, max_deliver=_FOREVER
)
SNAPSHOT_SPEC: Final = ConsumerSpec(
    stream=TICK,
    durable="recorder-snapshot",
    filters=("gpubus.work.tick.record.>",),
    ack_wait_s=10.0,
    max_deliver=_FOREVER,
    max_ack_pending=16,
)


class RecorderStatistics(msgspec.Struct, frozen=True):
    """Counters since the start.

    Attributes:
        samples: GPU samples stored.
        rows: Rows stored.
        writes: Writes that succeeded.
        failures: Writes that failed and were tried again.
        refused: Messages that were refused for good; they are dead letters.
        held: Messages in hand.
        lost_usage: Usage messages that the bus dropped unrecorded, over all recorders.
        skewed: Nodes whose clock is wrong by their last sample, or whose last sample came late.
        lost_rows: Stored rows that went with a file that somebody took away.
    """

    samples: int
    rows: int
    writes: int
    failures: int
    refused: int
    held: int
    lost_usage: int
    skewed: int
    lost_rows: int


class Recorder:
    """One recorder process; ``store`` is opened."""

    def __init__(self, bus: Bus, name: str, store: MetricsStore) -> None:
        self._bus = bus
        self.name = name
        self._store = store
        self.view = View()
        self._state = Follower(bus, STATE, STATE_FILTERS, self.view.on_state)
        self._ledger = Follower(bus, LEDGER, LEDGER_FILTERS, self.view.on_ledger)
        self._usage = self._member()
        self._aside = False
        self._ticks = PullConsumer(bus, SNAPSHOT_SPEC, prefetch=2)
        self._counters = Counters(bus, f"/gpubus/recorder/{name}", USAGE_SPEC.durable)
        self._skewed: set[str] = set()
        self._writer = Writer(store, self._counters)
        self._samples = 0
        self._stop = asyncio.Event()

    def _member(self) -> PullConsumer:
        return PullConsumer(self._bus, USAGE_SPEC, prefetch=BATCH, keep_lapsed=True)

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Record until ``stop`` is set."""
        self._stop = stop
        await self._state.start()
        await self._ledger.start()
        await self._usage.start()
        await self._ticks.start()
        await timers.keep_ticking(self._bus, "record", "snapshot", SNAPSHOT, now=datetime.now(UTC))
        loops = [
            self._bus.spawn(self._recording(), name=f"{self.name}-usage"),
            self._bus.spawn(self._snapshots(), name=f"{self.name}-snapshots"),
        ]
        if ready is not None:
            ready.set()
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopped, *loops], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not self._aside:
                await self._usage.stop()
            await self._ticks.stop()
            await asyncio.wait(loops, timeout=5.0)
            await end(*loops, stopped)
            await self._state.stop()
            await self._ledger.stop()
        for loop in loops:
            if not loop.cancelled() and (error := loop.exception()) is not None:
                raise error

    async def _recording(self) -> None:
        while batch := await self._usage.take(BATCH):
            if len(batch) < BATCH // 2:
                await asyncio.sleep(GATHER_S)
                batch += await self._usage.take_now(BATCH - len(batch))
            parts, bad = self._parts(batch)
            await self._writer.refuse(bad)
            try:
                self._samples += await self._writer.settle(parts)
            except StoreUnavailableError as error:
                await self._stand_aside(parts, str(error))

    def _parts(self, batch: list[Delivery]) -> tuple[list[Part], list[tuple[Delivery, str]]]:
        """Return the rows of each message, and those that none can be made of, with the reason."""
        good, bad = list[Part](), list[tuple[Delivery, str]]()
        for delivery in batch:
            rows: dict[Table, list[Row]] = defaultdict(list)
            try:
                usage = codec.decode_as(NodeUsage, delivery.payload).data
                codec.check_name(usage.node, subjects.names(delivery.subject)[-1])
                stored_ms = delivery.position.time_ns // 1_000_000
                self._note_skew(usage, stored_ms)
                usage_rows(self.view, usage, stored_ms, rows)
            except UndecodableError as error:
                bad.append((delivery, error.reason))
            except Exception as error:  # noqa: BLE001  no message may end a recorder: it would end the next one as well
                bad.append((delivery, f"no rows can be made of it: {type(error).__name__}: {error}"))
            else:
                good.append(Part(delivery, rows))
        return good, bad

    async def _stand_aside(self, parts: list[Part], reason: str) -> None:
        """Leave messages to recorders that reach the store, until we do; what we had is kept, as the bus may drop it.

        Nothing is taken meanwhile, and what was is given back. Writing rows that another recorder has written changes nothing.
        """
        log.warning("the metrics store is away for too long: %s; others may take what is to be recorded", reason)
        parts = parts + self._parts(await self._usage.take_now(BATCH))[0]
        self._aside = True
        await self._usage.stop()
        for part in parts:
            await part.delivery.retry()
        rows, pause, away = together(parts), 1.0, True
        self._writer.held = len(parts)
        while away and not await self._stopped_within(pause):
            pause = min(pause * 2, LONGEST_ASIDE_S)
            try:
                await self._writer.write(rows)
                self._samples += len(rows.get(GPU_USAGE, ()))
                away = False
            except StoreUnavailableError:
                await self._writer.note_loss()
            except Exception as error:  # noqa: BLE001  it was reached; what it refuses is told when its message comes again
                log.info("kept metrics are refused: %s", error)
                away = False
        self._writer.held = 0
        while not await self._stopped_within(0.0):
            self._usage = self._member()
            try:
                await self._usage.start()
            except (BusError, TimeoutError, nats.errors.Error) as error:
                log.info("usage cannot be taken again: %s; trying again", error)
                await self._stopped_within(1.0)
            else:
                self._aside = False
                if self._stop.is_set():  # while it began
                    await self._usage.stop()
                await self._writer.note_loss()
                return

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        return self._stop.is_set()

    def _note_skew(self, usage: NodeUsage, stored_ms: int) -> None:
        wrong = skewed(usage, stored_ms)
        if wrong and usage.node not in self._skewed:
            ahead = usage.at.timestamp() - stored_ms / 1000
            log.warning("the clock of node %s is %+.1f s off: its samples are dated by the bus", usage.node, ahead)
        (self._skewed.add if wrong else self._skewed.discard)(usage.node)

    async def _snapshots(self) -> None:
        while batch := await self._ticks.take(1):
            for delivery in batch:
                if self._aside:  # another recorder may reach the store
                    await delivery.retry(1.0)
                    continue
                try:
                    await self._snapshot(delivery.position.time_ns)
                    await delivery.ack()
                except (BusError, StoreUnavailableError, TimeoutError, nats.errors.Error) as error:
                    log.warning("no snapshot: %s", error)
                    await delivery.retry(1.0)
                except StoreError as error:
                    log.warning("a snapshot is refused: %s", error)
                    await delivery.ack()

    async def _snapshot(self, slot: int) -> None:
        ts_ms = slot // 1_000_000
        rows = snapshot_rows(self.view, ts_ms=ts_ms, seconds=SNAPSHOT.total_seconds())
        counted = await self._counters.count(slot, self.view)
        if counted is not None:
            seq, counters, rows[SYSTEM_LOG] = counted
            rows[SYSTEM_METRICS] = system_rows(self.view, counters, ts_ms=ts_ms)
        await self._writer.write(rows)
        if counted is not None:
            await self._counters.commit(seq, counters)
        await self._store.expire()

    def unready(self) -> str:
        """Return why nothing can be recorded for as long as somebody does not mend it; empty otherwise."""
        return self._store.trouble or self._writer.trouble

    def statistics(self) -> RecorderStatistics:
        """Return the counters of this process."""
        return RecorderStatistics(
            samples=self._samples,
            rows=self._writer.rows,
            writes=self._writer.writes,
            failures=self._writer.failures,
            refused=self._writer.refused,
            held=self._writer.held,
            lost_usage=self._counters.lost_usage,
            skewed=len(self._skewed),
            lost_rows=self._store.lost_rows,
        )
