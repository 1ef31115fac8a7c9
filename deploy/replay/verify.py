"""Takes every allocator through its journal again and compares what it decides with what is on record."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Iterable
from datetime import datetime
from typing import Final

import msgspec

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import ApiError, UndecodableError
from bus.follower import Record
from bus.history import batches, newest
from bus.invariants import LedgerChecker
from bus.streams import DECISION, JOURNAL, LEDGER, stream_info
from bus.tasks import breathe
from consumers.allocator.engine import ENGINE_VERSION
from consumers.allocator.replay import JournalGapError, Replay
from deploy.replay.announced import Announced, begun, times_of
from deploy.replay.comparison import SHOWN, Comparison
from deploy.replay.ledger import ChangesReader, LedgerReader
from deploy.replay.past import StateReader, present, seen_by
from deploy.replay.verdict import Noted, Part, Verdict
from schemas.event import Event
from schemas.journal import Turn, referred
from schemas.ledger import Change, NodeRecord

STATE_KINDS: Final = ("pool", "expected", "node", "gpu", "quota")

TURNS: Final = 16
"""Turns played before the announcements of that time are read: what came out waits for them whole."""

BREATH_S: Final = 0.005
"""How long to think before the connection is looked after again."""

FILTERS: Final = 64
"""Journals that the server is asked for one by one; where there are more, all are read."""

_AT_END: Final = 1 << 62

_announced = msgspec.json.Decoder(Event[msgspec.Raw])


class _Dated(msgspec.Struct):
    time: datetime


_dated = msgspec.json.Decoder(_Dated)


class Ends(msgspec.Struct, frozen=True):
    """Where to stop reading, as a bus in use goes on."""

    journal: int
    ledger: int
    decision: int

    @classmethod
    async def now(cls, bus: Bus) -> "Ends":
        """Return the last sequences of the streams. JOURNAL comes last: what leads to a decision is stored before it.

        Raises:
            BusError: A stream cannot be read.
        """
        found = {name: (await stream_info(bus, name)).state.last_seq for name in (LEDGER, DECISION, JOURNAL)}
        return cls(found[JOURNAL], found[LEDGER], found[DECISION])


class Share(msgspec.Struct, frozen=True):
    """What one of several verifiers looks at.

    Attributes:
        mine: Allocators that are followed here, of those that have a journal.
        whole: Whether what concerns nobody in particular is looked at here: the rules of the ledger, and who has no journal.
    """

    mine: frozenset[str]
    whole: bool


async def last_turns(bus: Bus) -> dict[str, Record]:
    """Return the last turn of every allocator that has a journal, by its name.

    Raises:
        BusError: JOURNAL cannot be read.
    """
    records, _ = await newest(bus, JOURNAL, ["gpubus.journal.*"])
    return {subjects.names(record.subject)[-1]: record for record in records}


class _Mind:
    """One allocator that is followed, and how far STATE has been read for it."""

    def __init__(self, name: str, state: StateReader, ledger: LedgerReader) -> None:
        self.replay = Replay(name, (), ledger.allocations)
        self._state = state

    async def prepare(self, turn: Turn) -> None:
        """Have at hand what STATE had said when a turn was taken."""
        self.replay.hear(await self._state.read_to(seen_by(turn)))

    async def close(self) -> None:
        await self._state.close()


class Verifier:
    """One pass over JOURNAL, LEDGER and DECISION.

    Args:
        bus: The connection.
        ends: Where to stop.
        first: Compare only decisions that had read the ledger at least up to this sequence.
        last: And at most up to this one; None for no bound.
        share: What to look at of it; None for all.
    """

    def __init__(
        self, bus: Bus, ends: Ends, first: int = 0, last: int | None = None, *, share: Share | None = None
    ) -> None:
        self._bus = bus
        self._bounds = first, last
        self._share = share
        self._whole = share is None or share.whole
        self._ends = ends
        self._ledger = (
            LedgerReader(bus, self._on_ledger, until=ends.ledger)
            if self._whole
            else ChangesReader(bus, self._on_changes, until=ends.ledger)
        )
        self._comparison = Comparison((), first, last)
        self._checker = LedgerChecker(None)
        self._held: list[Record] = []
        self._minds: dict[str, _Mind] = {}
        self._announced = Announced({}, None, 0, whole=self._whole)
        self._horizon: datetime | None = None
        self._left: set[str] = set()
        self._foreign: set[str] = set()
        self._noted: list[Noted] = []
        self._breathed = 0.0
        self._early: dict[str, dict[int, tuple[Turn, Record, datetime]]] = {}
        self.verdict = Verdict()

    async def run(self) -> Part:
        """Read everything and return what is found.

        Raises:
            BusError: A stream cannot be read.
        """
        state = (await stream_info(self._bus, LEDGER)).state
        self._checker = LedgerChecker(None, complete=state.messages == state.last_seq)
        self._held = await present(self._bus, STATE_KINDS)
        last = await last_turns(self._bus)
        mine = last if self._share is None else {name: last[name] for name in sorted(self._share.mine & last.keys())}
        self._comparison = Comparison(last.keys(), *self._bounds, mine=mine.keys(), strangers=self._whole)
        said = await stream_info(self._bus, DECISION)
        since = await begun(self._bus, DECISION, said)
        older = await begun(self._bus, JOURNAL, await stream_info(self._bus, JOURNAL))
        self._horizon = max((at for at in (since, older) if at is not None), default=None)
        self._announced = Announced(times_of(last), since, said.config.max_msgs_per_subject, whole=self._whole)
        decisions = batches(self._bus, DECISION, ["gpubus.decision.>"], until=self._ends.decision)
        try:
            await self._think(mine, decisions)
            await self._ledger.read_to(None)
            await self._announced_until(decisions, None)
            await self._announced.settle(self._bus, self._ends.decision)
        finally:
            await decisions.aclose()
            await self._ledger.close()
            for mind in self._minds.values():
                await mind.close()
        return Part(self._sum_up(), self._noted)

    async def _think(self, mine: dict[str, Record], decisions: AsyncGenerator[list[Record]]) -> None:
        """Take every allocator of ours through its journal, and compare on the way what was announced."""
        last = {record.seq for record in mine.values()}
        filters = [record.subject for record in mine.values()] if len(mine) <= FILTERS else ["gpubus.journal.*"]
        async with contextlib.aclosing(batches(self._bus, JOURNAL, filters, until=self._ends.journal)) as turns:
            async for batch in turns:
                for number, record in enumerate(batch, 1):
                    await self._on_turn(record, mine, last=record.seq in last)
                    await self._breathe()
                    if number % TURNS == 0 or number == len(batch):
                        await self._announced_until(decisions, record.time_ns)
        for name, early in list(self._early.items()):
            if early:
                self.verdict.gaps += name in self._minds
                await self._leave(
                    name, _AT_END, f"{name} cannot be followed beyond turn {self._next(name) - 1}: the next is missing"
                )

    async def _breathe(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._breathed > BREATH_S:
            await breathe()
            self._breathed = asyncio.get_running_loop().time()

    def _unreadable(self, record: Record, stream: str, why: object) -> None:
        self.verdict.undecodable += 1
        self._noted.append((record.time_ns, f"{stream} {record.seq}: {why}"))

    async def _on_turn(self, record: Record, mine: Collection[str], *, last: bool) -> None:
        try:
            name = subjects.names(record.subject)[-1]
            if name not in mine:
                return
            event = codec.decode_as(Turn, record.payload)
            turn = event.data
            codec.check_name(turn.allocator, name)
        except (UndecodableError, ValueError) as error:
            self._unreadable(record, JOURNAL, error)
            return
        if name in self._left:
            return
        # What was unconfirmed when a connection was lost is sent again, and may be stored behind later turns.
        early = self._early.setdefault(name, {})
        early[turn.number] = turn, record, event.time
        while name not in self._left and (following := early.pop(self._next(name), None)) is not None:
            await self._follow(*following)
        if last and not early:
            await self._close(name)
        self._ledger.forget(min((mind.replay.cluster.ledger_seq for mind in self._minds.values()), default=0))

    async def _close(self, name: str) -> None:
        mind = self._minds.pop(name, None)
        if mind is not None:
            await mind.close()

    def _next(self, name: str) -> int:
        return self._minds[name].replay.turns + 1 if name in self._minds else 1

    async def _follow(self, turn: Turn, record: Record, at: datetime) -> None:
        name = turn.allocator
        if turn.engine != ENGINE_VERSION:
            self._foreign.add(name)
            await self._leave(
                name,
                record.time_ns,
                f"{name} decided by the rules of engine {turn.engine}, and this is engine {ENGINE_VERSION}",
            )
            return
        mind = self._minds.get(name)
        if mind is None:
            self.verdict.allocators += 1
            state = StateReader(self._bus, STATE_KINDS, self._held)
            mind = self._minds[name] = _Mind(name, state, self._ledger)
        needed = referred(turn.steps)
        await self._ledger.read_to(max(needed, default=0))
        try:
            await self._ledger.fetch(needed)
            await mind.prepare(turn)
            self._announced.turn(turn)
            for decision in mind.replay.play(turn):
                self._comparison.computed(decision)
                if self._comparison.asked(decision.basis.ledger):
                    self._announced.computed(decision, at, mind.replay.snapshot)
        except (JournalGapError, ApiError, UndecodableError) as error:
            await self._leave(name, record.time_ns, f"{name} cannot be followed beyond JOURNAL {record.seq}: {error}")

    async def _leave(self, name: str, at: int, why: str) -> None:
        self._left.add(name)
        self._early.pop(name, None)
        self._comparison.leave(name)
        await self._close(name)
        self._noted.append((at, why))

    def _on_ledger(self, record: Record, node: str, data: NodeRecord | None, problem: str) -> None:
        if problem:
            self._unreadable(record, LEDGER, problem)
            return
        self._checker.check(record.seq, node, data)
        if data is not None:
            self._on_changes(record, data.changes)

    def _on_changes(self, record: Record, changes: Iterable[Change]) -> None:
        at: datetime | None = None
        for change in changes:
            at = at or _dated.decode(record.payload).time
            raw = bytes(change.decision)
            said = self._comparison.recorded(LEDGER, record.seq, raw, record.time_ns, excused=self._may_lack(at))
            if said is not None:
                self._announced.changed(record, change.pod_uid, change.op, said, at)

    def _may_lack(self, at: datetime) -> bool:
        """Whether the journal that led to what was said at a time may have been dropped, or is no part of this slice."""
        return self._horizon is not None and at <= self._horizon

    async def _announced_until(self, decisions: AsyncGenerator[list[Record]], time_ns: int | None) -> None:
        while (batch := await anext(decisions, None)) is not None:
            for record in batch:
                self._announced.numbered(record)
                try:
                    event = _announced.decode(record.payload)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    if self._whole:
                        self._unreadable(record, DECISION, error)
                    continue
                excused = self._may_lack(event.time)
                raw = bytes(event.data)
                said = self._comparison.recorded(DECISION, record.seq, raw, record.time_ns, excused=excused)
                if said is not None:
                    self._announced.announced(record, event, said)
            if time_ns is not None and batch[-1].time_ns >= time_ns:
                return

    def _sum_up(self) -> Verdict:
        found, compared = self.verdict, self._comparison
        found.reproduced, found.different = compared.reproduced, compared.different
        found.differences = compared.differences
        found.violations, found.taken_back = self._checker.violations, self._checker.taken_back
        found.undecodable += compared.undecodable
        found.attempts, found.unheard = compared.attempts, compared.unheard
        found.unexplained = compared.unexplained
        found.unfounded = compared.unfounded
        found.unannounced, found.envelopes = self._announced.missing, self._announced.envelopes
        found.astray = [one for _, one in sorted(self._announced.found, key=lambda one: one[0])[:SHOWN]]
        found.other_engine = sum(map(compared.counted, self._foreign))
        found.decisions = compared.reproduced + compared.wrong + compared.unexplained
        return found
