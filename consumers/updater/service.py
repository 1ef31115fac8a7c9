"""The updater's shell: takes the steps that :func:`~consumers.updater.lifecycle.advance` decides, and has members replaced.

Any number of these processes work side by side. Each sees what the others see and decides the same; the compare-and-set on
the record lets one of them take the step, and that one has the members replaced. If it dies, a timer that the server keeps
hands the rollout to another. Nothing is kept that the bus does not hold.
"""

import asyncio
import logging
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from bus import codec, ledger, subjects, timers
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.deadletter import bury
from bus.delivery import ConsumerSpec, Delivery
from bus.errors import ApiError, ConflictError, PublishUnconfirmedError, UndecodableError
from bus.follower import Follower, Record
from bus.streams import LEDGER, STATE, TICK
from bus.tasks import end
from bus.worker import Done, Outcome, Worker
from consumers.updater.alarms import FILTERS as ALARM_FILTERS
from consumers.updater.hands import AT_ONCE, Hands
from consumers.updater.lifecycle import advance
from consumers.updater.progress import due, to_replace
from consumers.updater.view import LEDGER_FILTERS, STATE_FILTERS, Key, View, key_of
from schemas.deadletter import DeadLetter
from schemas.event import Event, utc
from schemas.registry import Tick
from schemas.rollout import Rollout

log = logging.getLogger("gpubus.updater")

GATHER_S: Final = 0.05
"""How long changes are gathered before they are looked at: members of a batch come up together."""

YIELD_S: Final = 0.02
"""Pause between two groups of a batch, in which an order finds the record as it has read it."""

TIMER: Final = "rollout"
SWEEP_NAME: Final = "sweep"
SWEEP: Final = timedelta(seconds=10)
"""Looks at everything, whatever happened: finds what a killed updater left without a timer."""

TICKS: Final = ConsumerSpec(
    stream=TICK, durable="updater-tick", filters=("gpubus.work.tick.rollout.>",), ack_wait_s=10.0, max_deliver=20
)


class UpdaterStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; ``overtaken`` counts steps that another updater took first."""

    steps: int
    overtaken: int
    replaced: int
    blocked: int


class Updater:
    """One updater process.

    Args:
        bus: The connection; the streams must exist.
        name: Unique name of this process.
    """

    def __init__(self, bus: Bus, name: str) -> None:
        self._bus = bus
        self.name = name
        self.view = View()
        self._state = Follower(bus, STATE, STATE_FILTERS, self._on_state)
        self._alarms = Follower(bus, STATE, ALARM_FILTERS, self._on_alarm)
        self._ledger = Follower(bus, LEDGER, LEDGER_FILTERS, self._on_ledger, recreated=self.view.forget_records)
        self._changed: dict[Key, bool] = {}
        self._wake = asyncio.Event()
        self._locks: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ours: dict[Key, str] = {}
        self._hands = Hands(bus)
        self._steps = self._overtaken = 0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Load what there is, take over what is under way, and work until ``stop`` is set."""
        await self._state.start()
        await self._alarms.start()
        await self._ledger.start()
        await timers.tick_every(self._bus, TIMER, SWEEP_NAME, SWEEP, now=datetime.now(UTC))
        ticks = Worker(PullConsumer(self._bus, TICKS, prefetch=4), self._on_tick, concurrency=4)
        self._changed.update(dict.fromkeys(self.view.keys(), True))
        self._wake.set()
        ticking = self._bus.spawn(ticks.run(stop), name=f"{self.name}-ticks")
        working = self._bus.spawn(self._working(), name=f"{self.name}-work")
        if ready is not None:
            ready.set()
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopped, ticking, working], return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            await asyncio.wait([ticking])
        finally:
            await end(ticking, working, stopped)
            await self._state.stop()
            await self._alarms.stop()
            await self._ledger.stop()
        for loop in (ticking, working):
            if not loop.cancelled() and (error := loop.exception()) is not None:
                raise error

    # Events

    def _on_state(self, record: Record) -> None:
        try:
            self._look_soon(self.view.on_state(record))
        except UndecodableError as error:
            self._report(STATE, record, error)

    def _on_alarm(self, record: Record) -> None:
        try:
            if self.view.alarms.apply(record):
                for key in self.view.active():
                    self._look_soon(key)
        except (UndecodableError, ValueError) as error:  # its own reader buries it
            log.info("%s at %d: %s", record.subject, record.seq, error)

    def _on_ledger(self, record: Record) -> None:
        try:
            self._look_soon(self.view.on_ledger(record))
        except UndecodableError as error:
            self._report(LEDGER, record, error)

    def _look_soon(self, key: Key) -> None:
        self._changed.setdefault(key, False)
        self._wake.set()

    def _report(self, stream: str, record: Record, error: UndecodableError) -> None:
        letter = DeadLetter(
            stream=stream,
            subject=record.subject,
            sequence=record.seq,
            consumer="updater",
            deliveries=1,
            reason=error.reason,
            payload=record.payload,
            published_at=utc(record.time_ns / 1e9),
        )
        self._bus.spawn(bury(self._bus, letter), name=f"bury-{stream}-{record.seq}")

    async def _on_tick(self, delivery: Delivery) -> Outcome:
        name = codec.decode_as(Tick, delivery.payload).data.name
        if name == SWEEP_NAME:
            for key in self.view.keys():  # noqa: SIM118  no mapping
                await self._look(key, take_over=True)
        else:
            pool, _, component = name.rpartition("/")
            await self._look(key_of(pool, component), take_over=True)
        return Done()

    # Work

    async def _working(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_S)
            self._wake.clear()
            changed, self._changed = self._changed, {}
            for key, take_over in changed.items():
                try:
                    await self._look(key, take_over=take_over)
                except (ApiError, PublishUnconfirmedError) as error:
                    log.warning("%s: rollout of %s: %s; the next sweep looks again", self.name, "/".join(key), error)

    async def _look(self, key: Key, *, take_over: bool = False) -> None:
        """Take every step that is due now. With ``take_over`` members are replaced whoever took the step that says so."""
        async with self._locks[key]:
            asked: set[str] = set()
            owners_asked, timed = False, ""
            while True:
                record, seq = self.view.record(key)
                seen, now = self.view.seen(key), datetime.now(UTC)
                changed = advance(record, seen, now)
                ours = record is not None and (take_over or record.txn == self._ours.get(key))
                if changed is None and record is not None and seen.spec is not None and ours:
                    policy = seen.spec.policy
                    if record.txn != timed:
                        # Set before anything is done, so that somebody else goes on if we do not come to the end of it.
                        await self._set_timer(key, due(record, policy, now), now)
                        timed = record.txn
                    if batch := to_replace(record, AT_ONCE, asked):
                        # Between two such groups it is looked whether an order or a trouble speaks against going on.
                        if asked:
                            await asyncio.sleep(YIELD_S)
                            if self.view.record(key)[1] != seq:
                                continue
                        asked.update(one.name for one in batch)
                        changed = await self._hands.replace(record, batch, seen, policy)
                        if changed is None:
                            continue
                    elif take_over and not owners_asked:
                        owners_asked, changed = True, await self._hands.ask_owners(record, seen, policy)
                # A record that came first is on its way to us, and wakes us.
                if changed is None or not await self._commit(key, changed, seq):
                    return

    async def _set_timer(self, key: Key, at: datetime | None, now: datetime) -> None:
        if at is not None:
            # Timers know whole seconds, and one that is early would have to be set again.
            at = at.replace(microsecond=0) + timedelta(seconds=1)
            await timers.tick_at(self._bus, TIMER, "/".join(key), at, now=now)

    async def _commit(self, key: Key, record: Rollout, expected: int) -> bool:
        txn = f"{self.name}:{self._steps + self._overtaken}"
        record = msgspec.structs.replace(record, txn=txn)
        event = Event(
            id=txn,
            source=f"/gpubus/updater/{self.name}",
            type="gpubus.rollout.v1",
            subject="/".join(key),
            time=record.changed_at,
            data=record,
        )
        try:
            seq = await ledger.commit(
                self._bus, subjects.ledger_rollout(*key), codec.encode(event), txn=txn, expected=expected
            )
        except ConflictError:
            self._overtaken += 1
            return False
        self._steps += 1
        self._ours[key] = txn
        self.view.put_record(key, record, seq)
        log.info("rollout of %s: %s, %s %s", "/".join(key), record.step, record.phase, record.message)
        return True

    def statistics(self) -> UpdaterStatistics:
        """Return the counters of this updater."""
        hands = self._hands
        return UpdaterStatistics(
            steps=self._steps, overtaken=self._overtaken, replaced=hands.replaced, blocked=hands.blocked
        )
