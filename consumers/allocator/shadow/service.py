"""The shadow's shell: hears what allocators are asked, decides by other rules, and says so on ``gpubus.shadow.>`` alone.

What allocators are asked it reads in their journals, which they write down before anything follows from it. Its cluster begins
as the true one stands; from then on pods go where its own rules put them.
"""

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import msgspec

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import ApiError, PublishUnconfirmedError, UndecodableError
from bus.follower import Follower, Record
from bus.history import batches
from bus.streams import JOURNAL, LEDGER, STATE, stream_info
from bus.tasks import breathe, end
from consumers.allocator.cluster import STATE_FILTERS
from consumers.allocator.engine import Snapshot
from consumers.allocator.inspector.view import LEDGER_FILTERS, View
from consumers.allocator.shadow.rules import Rules
from consumers.allocator.shadow.world import OtherWorld, stranded_percent
from schemas.event import Event
from schemas.journal import Turn
from schemas.registry import TYPE_NAMES
from schemas.shadow import ShadowReport, Standing

log = logging.getLogger("gpubus.shadow")

REPORT_S: Final = 5.0
EXAMPLES: Final = 10

_OWN: Final = tuple(f"gpubus.state.{kind}." for kind in ("waiting", "allocator", "expected"))
"""What STATE says of the allocators' own doing: the shadow does that itself."""


class ShadowStatistics(msgspec.Struct, frozen=True):
    """Counters since the start, and the journal sequence up to which allocators have been heard."""

    decided: int
    placed: int
    waiting: int
    unreadable: int
    journal: int


class Shadow:
    """One shadow.

    Args:
        bus: The connection; the streams must exist.
        name: Of this shadow.
        rules: What it decides by.
    """

    def __init__(self, bus: Bus, name: str, rules: Rules) -> None:
        self._bus, self.name, self._rules = bus, name, rules
        self._world = OtherWorld(name, rules.apply)
        self._truth = View()
        self._state = Follower(bus, STATE, STATE_FILTERS, self._on_state)
        self._ledger = Follower(bus, LEDGER, LEDGER_FILTERS, self._truth.on_ledger, recreated=self._truth.recreated)
        self._since = datetime.now(UTC)
        self._decided = self._placed = self._unreadable = self._heard = 0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Take the cluster over as it stands, then decide until ``stop`` is set."""
        behind = (await stream_info(self._bus, JOURNAL)).state.last_seq
        await self._state.start()
        await self._ledger.start()
        for node in self._truth.snapshot.nodes():
            self._world.adopt(node, self._truth.snapshot.allocations(node))
        self._since = datetime.now(UTC)
        loops = [
            self._bus.spawn(loop, name=f"{self.name}-{number}")
            for number, loop in enumerate((self._listen(behind + 1), self._reporting()))
        ]
        if ready is not None:
            ready.set()
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopped, *loops], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*loops, stopped)
            with contextlib.suppress(ApiError, PublishUnconfirmedError):
                await self._report()
            await self._state.stop()
            await self._ledger.stop()
        for loop in loops:
            if not loop.cancelled() and (error := loop.exception()) is not None:
                raise error

    def _on_state(self, record: Record) -> None:
        self._truth.on_state(record)
        if not record.subject.startswith(_OWN):
            self._world.on_state(record)

    async def _listen(self, since: int) -> None:
        async with contextlib.aclosing(
            batches(self._bus, JOURNAL, ["gpubus.journal.*"], since=since, live=True)
        ) as reading:
            async for batch in reading:
                for record in batch:
                    await self._on_turn(record)
                    await breathe()

    async def _on_turn(self, record: Record) -> None:
        self._heard = record.seq
        try:
            turn = codec.decode_as(Turn, record.payload).data
        except UndecodableError as error:
            self._unreadable += 1
            log.warning("JOURNAL %d is passed over: %s", record.seq, error.reason)
            return
        said = []
        for made in self._world.play(turn, record.time_ns):
            self._decided += 1
            self._placed += bool(made.decision.node)
            subject = subjects.subject("shadow", "decision", self.name, made.decision.namespace, made.decision.name)
            event_id = f"shadow:{self.name}:{record.seq}:{made.uid}:{made.decision.basis.ordinal}"
            said.append((subject, self._encode(event_id, made.uid, made.decision), event_id))
        if said:
            try:
                await self._bus.publisher.publish_all(said)
            except (ApiError, PublishUnconfirmedError) as error:
                log.warning("%d decisions could not be said: %s", len(said), error)

    async def _reporting(self) -> None:
        while True:
            try:
                await self._report()
            except (ApiError, PublishUnconfirmedError) as error:
                log.warning("the report could not be said: %s", error)
            await asyncio.sleep(REPORT_S)

    async def _report(self) -> None:
        now = datetime.now(UTC)
        event_id = f"shadow:{self.name}:report:{now.isoformat()}"
        payload = self._encode(event_id, self.name, self.report(now))
        await self._bus.publisher.publish(subjects.subject("shadow", "report", self.name), payload, msg_id=event_id)

    def _encode(self, event_id: str, subject: str, data: msgspec.Struct) -> bytes:
        kind, source = TYPE_NAMES[type(data)], f"/gpubus/shadow/{self.name}"
        event = Event(id=event_id, source=source, type=kind, subject=subject, time=datetime.now(UTC), data=data)
        return codec.encode(event)

    def report(self, now: datetime) -> ShadowReport:
        """Return how the shadow stands beside the truth."""
        snapshot = self._truth.snapshot
        real = {held.pod_uid: node for node in snapshot.nodes() for held in snapshot.allocations(node)}
        both = real.keys() & self._world.held.keys()
        elsewhere = sorted(uid for uid in both if self._world.held[uid][0] != real[uid])
        return ShadowReport(
            shadow=self.name,
            rules=self._rules.name,
            since=self._since,
            at=now,
            decided=self._decided,
            placed=self._placed,
            same=len(both) - len(elsewhere),
            elsewhere=len(elsewhere),
            only_shadow=len(self._world.held.keys() - both),
            only_real=len(real.keys() - both),
            examples=tuple(self._example(uid, real[uid]) for uid in islice(elsewhere, EXAMPLES)),
            real=standing(snapshot, len(real), len(self._truth.cluster.waiting)),
            state=standing(self._world.snapshot, len(self._world.held), len(self._world.waiting)),
        )

    def _example(self, uid: str, node: str) -> str:
        where, held = self._world.held[uid]
        return f"{held.namespace}/{held.name}: {node}, in the shadow {where}"

    def statistics(self) -> ShadowStatistics:
        """Return the counters of this shadow."""
        return ShadowStatistics(
            decided=self._decided,
            placed=self._placed,
            waiting=len(self._world.waiting),
            unreadable=self._unreadable,
            journal=self._heard,
        )


def standing(snapshot: Snapshot, pods: int, waiting: int) -> Standing:
    """Return how a cluster stands."""
    total = snapshot.total()
    return Standing(
        pods=pods,
        waiting=waiting,
        tflops_percent=100 * total.granted_tflops_milli / max(total.schedulable_tflops_milli, 1),
        vram_percent=100 * total.granted_vram_bytes / max(total.schedulable_vram_bytes, 1),
        stranded_percent=stranded_percent(snapshot),
    )
