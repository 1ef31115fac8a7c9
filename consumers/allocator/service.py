"""The allocator's shell: reads commands and events, carries out what :class:`~consumers.allocator.core.Core` decides.

Any number of these processes share one pair of durable consumers. Nothing is kept that the bus does not hold: a killed
allocator's unacknowledged commands are redelivered, and what it had committed is found in the ledger.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import nats.errors

from bus import codec, subjects, timers
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.deadletter import bury
from bus.delivery import ConsumerSpec, Delivery
from bus.errors import ApiError, PublishUnconfirmedError, UndecodableError
from bus.follower import Follower, Record
from bus.streams import LEDGER, STATE, TICK, WORK
from bus.tasks import end
from consumers.allocator.announcer import Announcer
from consumers.allocator.cluster import STATE_FILTERS
from consumers.allocator.committer import Committer
from consumers.allocator.core import Core
from consumers.allocator.desk import ResizeDesk
from consumers.allocator.extender import ExtenderDesk
from schemas.deadletter import DeadLetter
from schemas.event import utc
from schemas.pod import Release, Schedule
from schemas.registry import Tick
from schemas.requirements import Gang

log = logging.getLogger("gpubus.allocator")

BATCH: Final = 128
"""Commands decided between two turns of the event loop: at 100 us each it is never away for long, and what other allocators
commit meanwhile is seen soon enough. With 256 twice as many placements are overtaken, with 64 the records hold fewer pods
(measured with two allocators).
"""

MAX_PENDING: Final = 2048
"""Pods placed but not yet seen in the ledger; more are not taken until some have landed."""

LEASE_S: Final = 5.0
LEASE_MARGIN_S: Final = 0.5
"""A command is left alone when less than this remains of its lease: the server is about to give it to somebody else."""

WAKE_EVERY_S: Final = 0.002
"""Pause between two looks at the waiting pods, each of about a millisecond: new pods must not wait for old ones."""

DRAIN_S: Final = 8.0
"""How long an end waits for the bus: the streams of a NATS server that is killed have another leader within this."""

SWEEP: Final = timedelta(seconds=30)
UNKNOWN_RELEASE_TRIES: Final = 4

SCHEDULE: Final = ConsumerSpec(
    stream=WORK, durable="allocator-schedule", filters=("gpubus.work.schedule.>",), ack_wait_s=LEASE_S, max_deliver=20
)
RELEASE: Final = ConsumerSpec(
    stream=WORK, durable="allocator-release", filters=("gpubus.work.release.>",), ack_wait_s=LEASE_S, max_deliver=20
)
SWEEPS: Final = ConsumerSpec(
    stream=TICK, durable="allocator-sweep", filters=("gpubus.work.tick.sweep.>",), ack_wait_s=LEASE_S
)
GANG_TICKS: Final = ConsumerSpec(
    stream=TICK, durable="allocator-gang", filters=("gpubus.work.tick.gang.>",), ack_wait_s=LEASE_S
)


class AllocatorStatistics(msgspec.Struct, frozen=True):
    """Counters since the start.

    ``overtaken`` counts placements that another allocator's commit came before, ``rooms`` pods for which others were evicted.
    """

    decided: int
    placed: int
    refused: int
    released: int
    overtaken: int
    duplicates: int
    recovered: int
    rooms: int
    evicted: int
    waiting: int
    pending: int


class Allocator:
    """One allocator process.

    Args:
        bus: The connection; the streams must exist.
        name: Unique name of this process.
    """

    def __init__(self, bus: Bus, name: str) -> None:
        self._bus = bus
        self.name = name
        self._source = f"/gpubus/allocator/{name}"
        self.core = Core(name, lambda: time.perf_counter_ns() // 1000)
        self._announcer = Announcer(bus, name, self._source)
        self._schedule = PullConsumer(bus, SCHEDULE, prefetch=2 * BATCH)
        self._release = PullConsumer(bus, RELEASE, prefetch=BATCH)
        self._sweeps = PullConsumer(bus, SWEEPS, prefetch=2)
        self._gang_ticks = PullConsumer(bus, GANG_TICKS, prefetch=2)
        self._state = Follower(bus, STATE, STATE_FILTERS, self._on_state)
        self._ledger = Follower(bus, LEDGER, ["gpubus.ledger.>"], self._on_ledger, recreated=self.core.ledger_recreated)
        self._committer = Committer(bus, self._source, self.core, self._ledger, self._pump_soon, lease_s=LEASE_S)
        self._extender = ExtenderDesk(bus, self.core, self._pump_soon)
        self._resizes = ResizeDesk(bus, self.core, self._pump_soon)
        self._read_in = bus.epoch
        self._pump_due = False
        self._wake_timer: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Load the cluster, then work until ``stop`` is set; finish what was begun before returning."""
        await self._state.start()
        await self._ledger.start()
        consumers = (self._schedule, self._release, self._sweeps, self._gang_ticks)
        for consumer in consumers:
            await consumer.start()
        now = datetime.now(UTC)
        await timers.tick_every(self._bus, "sweep", "waiting", SWEEP, now=now)
        work = (
            self._scheduling(),
            self._releasing(),
            self._sweeping(),
            self._timing(),
            self._keeping(),
            self._announcer.be_present(),
        )
        loops = [self._bus.spawn(loop, name=f"{self.name}-{number}") for number, loop in enumerate(work)]
        self.core.decider.warm()
        await self._extender.start()
        await self._resizes.start()
        if ready is not None:
            ready.set()
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopped, *loops], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for consumer in consumers:
                await consumer.stop()
            await self._extender.stop()
            await self._resizes.stop()
            await self._drain()
            await end(*loops, stopped)
            await self._state.stop()
            await self._ledger.stop()
        for loop in loops:
            if not loop.cancelled() and (error := loop.exception()) is not None:
                raise error

    async def _drain(self, seconds: float = DRAIN_S) -> None:
        """Let what is on its way land and be announced. What does not make it is redelivered to somebody else.

        But for the journal: nobody else knows its turns, and decisions without them can never be made again.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and (self.core.busy or self._committer.busy or self._announcer.busy):
            self._pump()
            await asyncio.sleep(0.01)
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        await self._committer.stop()
        await self._announcer.stop()

    # Commands

    async def _scheduling(self) -> None:
        while batch := await self._schedule.take(BATCH):
            if not await self._safe_to_place(batch):
                continue
            for delivery, command in await self._decode(batch, Schedule):
                self.core.schedule(command, delivery)
            self._pump()
            while self.core.pending > MAX_PENDING:
                self._room.clear()
                await self._room.wait()
            await asyncio.sleep(0)

    async def _safe_to_place(self, batch: list[Delivery]) -> bool:
        """Whether the ledger shows all that earlier takers of these commands may have placed.

        They were taken before if they are delivered again, and may have been if we come back from a lost connection: then
        the ledger has to be read up to now. If it cannot be, the commands go back.
        """
        epoch = self._bus.epoch
        if epoch == self._read_in and all(delivery.position.deliveries == 1 for delivery in batch):
            return True
        if await self._catch_up():
            self._read_in = epoch
            return True
        for delivery in batch:
            await delivery.retry(1.0)
        return False

    async def _releasing(self) -> None:
        while batch := await self._release.take(BATCH):
            commands = await self._decode(batch, Release)
            for delivery, command in commands:
                self.core.release(command, delivery)
            unknown, self.core.effects.unknown = self.core.effects.unknown, []
            if unknown:
                # A release follows its pod's allocation, so a ledger read up to now must show it.
                await self._catch_up()
                for command, token in unknown:
                    self.core.release(command, token)
                await self._give_up_unknown()
            self._pump()

    async def _give_up_unknown(self) -> None:
        """Its schedule command may still be under way: look again a few times, then there is nothing to give back."""
        unknown, self.core.effects.unknown = self.core.effects.unknown, []
        for command, token in unknown:
            if isinstance(token, Delivery):
                tries = token.position.deliveries
                if tries < UNKNOWN_RELEASE_TRIES:
                    await token.retry(0.5 * 2**tries)
                else:
                    self.core.release_nothing(command, token)

    async def _sweeping(self) -> None:
        while batch := await self._sweeps.take(1):
            self.core.sweep()
            self._pump()
            for delivery in batch:
                await delivery.ack()

    async def _timing(self) -> None:
        """Tell gangs that have not become complete in the time they were given."""
        while batch := await self._gang_ticks.take(1):
            for delivery, tick in await self._decode(batch, Tick):
                if not self.core.gang_overdue(tick.name, delivery):
                    await delivery.ack()
            self._pump()

    async def _keeping(self) -> None:
        """Keep the leases of what is on its way: being slow is no reason for somebody else to place the same pod."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LEASE_S / 5)
            soon = loop.time() + LEASE_S / 2
            for token in self.core.tokens():
                if isinstance(token, Delivery) and token.expires < soon and not token.lapsed:
                    await token.extend()

    async def _decode(self, batch: Iterable[Delivery], struct: type[Any]) -> list[tuple[Delivery, Any]]:
        """Decode what still has a lease; what cannot be decoded is dead."""
        latest = asyncio.get_running_loop().time() + LEASE_MARGIN_S
        good: list[tuple[Delivery, Any]] = []
        for delivery in batch:
            if delivery.lapsed or delivery.expires < latest:
                continue
            try:
                good.append((delivery, codec.decode_as(struct, delivery.payload).data))
            except UndecodableError as error:
                await delivery.dead(error.reason)
        return good

    async def _catch_up(self) -> bool:
        """Wait until the ledger as it is now has been applied, and return whether the server could say."""
        try:
            async with asyncio.timeout(LEASE_S / 2):
                await self._ledger.caught_up()
        except (TimeoutError, nats.errors.Error, ApiError):
            log.info("%s: the ledger could not be read up to now", self.name)
            return False
        return True

    # Events

    def _on_state(self, record: Record) -> None:
        try:
            self.core.on_state(record)
        except UndecodableError as error:
            self._report(STATE, record, error)
        self._pump_soon()

    def _on_ledger(self, record: Record) -> None:
        try:
            _, kind, *name = subjects.names(record.subject)
            if kind == "node" and len(name) == 1:
                self.core.on_ledger(name[0], record)
            elif kind in {"quota", "gang"} and len(name) == 1:
                self.core.on_key(kind, name[0], record)
        except (UndecodableError, ValueError) as error:
            self._report(LEDGER, record, error)
        self._pump_soon()

    def _report(self, stream: str, record: Record, error: Exception) -> None:
        letter = DeadLetter(
            stream=stream,
            subject=record.subject,
            sequence=record.seq,
            consumer="allocator",
            deliveries=1,
            reason=str(error),
            payload=record.payload,
            published_at=utc(record.time_ns / 1e9),
        )
        self._bus.spawn(bury(self._bus, letter), name=f"bury-{stream}-{record.seq}")

    # Effects

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Carry out everything the core has decided so far."""
        self._pump_due = False
        self._wake_waiting()
        self.core.flush()
        self._announcer.write_down(self.core.journal.take())  # before anything that follows from it
        effects = self.core.take_effects()
        self.core.effects.unknown = effects.unknown
        self._committer.begin(effects.commits)
        self._announcer.announce(effects.announcements, self.core.cluster.waiting)
        self._announcer.recover(effects.recoveries)
        self._announcer.wake(effects.wakes)
        self._announcer.tell_expected(effects.learnt)
        self._announcer.give_back(effects.again)
        for gang, since in effects.timers:
            self._bus.spawn(self._set_timer(gang, since), name=f"timer-{gang.key}")
        for pod, seq in effects.ended:
            self._announcer.clear(pod, seq)
        if self.core.pending <= MAX_PENDING:
            self._room.set()

    async def _set_timer(self, gang: Gang, since: datetime | None) -> None:
        """Have a gang's time end when it is over; again with each sweep, for whoever was to set the timer may have died."""
        now = datetime.now(UTC)
        at = (since or now) + timedelta(seconds=gang.timeout_s)
        if at <= now:
            return
        try:
            await timers.tick_at(self._bus, "gang", gang.key, at, now=now)
        except (ApiError, PublishUnconfirmedError) as error:
            log.warning("%s: nobody will be told if gang %s takes too long: %s", self.name, gang.key, error)

    def _wake_waiting(self) -> None:
        """Try the waiting pods again after something has grown, and make room for others, a little at a time."""
        if not (self.core.cluster.has_grown or self.core.rooms.sought) or self._wake_timer is not None:
            return
        if self.core.cluster.has_grown:
            self._announcer.wake(self.core.wake())
        self.core.make_room(lambda token: isinstance(token, Delivery) and token.lapsed)
        self._wake_timer = asyncio.get_running_loop().call_later(WAKE_EVERY_S, self._wake_again)

    def _wake_again(self) -> None:
        self._wake_timer = None
        self._pump_soon()

    def statistics(self) -> AllocatorStatistics:
        """Return the counters of this allocator."""
        counters = self.core.counters
        return AllocatorStatistics(
            decided=counters.decided,
            placed=counters.placed,
            refused=counters.refused,
            released=counters.released,
            overtaken=counters.overtaken,
            duplicates=counters.duplicates,
            recovered=counters.recovered,
            rooms=counters.rooms,
            evicted=counters.evicted,
            waiting=len(self.core.cluster.waiting),
            pending=self.core.pending,
        )
