"""Takes every allocator through its journal again and compares what it decides with what is on record."""

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import ApiError, UndecodableError
from bus.follower import Record
from bus.history import batches, newest
from bus.invariants import LedgerChecker, Violation
from bus.streams import DECISION, JOURNAL, LEDGER, stream_info
from bus.tasks import breathe
from consumers.allocator.engine import ENGINE_VERSION
from consumers.allocator.replay import JournalGapError, Replay
from deploy.replay.comparison import Comparison, Difference
from deploy.replay.ledger import LedgerReader
from deploy.replay.past import StateReader, present, seen_by
from schemas.event import Event
from schemas.journal import Adopt, Turn
from schemas.ledger import NodeRecord

STATE_KINDS: Final = ("pool", "expected", "node", "gpu", "quota")

TURNS: Final = 16
"""Turns played before the announcements of that time are read: what came out waits for them whole."""

_announced = msgspec.json.Decoder(Event[msgspec.Raw])


class Verdict(msgspec.Struct, kw_only=True):
    """What became of all decisions on record.

    Attributes:
        decisions: Decisions in the log, each counted once.
        reproduced: Those that came out the same, bit for bit.
        different: Records of decisions that came out otherwise.
        differences: The first ten of them.
        unexplained: Decisions that no journal leads to: it is older, or lacks a turn.
        unfounded: Of these, those that nothing excuses, since no journal is missing: nobody has decided so.
        other_engine: Decisions that were made under other rules than those of this version.
        violations: Ledger records that break a rule: allocations move without a change that says so.
        undecodable: Records that cannot be read.
        attempts: Placements that were overtaken by another allocator, told by a later decision and reproduced too.
        unheard: Decisions that never took effect, because their allocator died or left the pod to others.
        allocators: Allocators with a journal.
        gaps: Journals that lack a turn between two others, which no retention drops.
        notes: What could not be followed, and why.
    """

    decisions: int = 0
    reproduced: int = 0
    different: int = 0
    differences: list[Difference] = []
    unexplained: int = 0
    unfounded: int = 0
    other_engine: int = 0
    violations: list[Violation] = []
    undecodable: int = 0
    attempts: int = 0
    unheard: int = 0
    allocators: int = 0
    gaps: int = 0
    notes: list[str] = []


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
        first: Compare only decisions that had read the ledger at least up to this sequence.
        last: And at most up to this one; None for no bound.
    """

    def __init__(self, bus: Bus, first: int = 0, last: int | None = None) -> None:
        self._bus = bus
        self._bounds = first, last
        self._comparison = Comparison((), first, last)
        self._checker = LedgerChecker(None)
        self._ledger = LedgerReader(bus, self._on_ledger)
        self._held: list[Record] = []
        self._minds: dict[str, _Mind] = {}
        self._complete = False
        self._left: set[str] = set()
        self._early: dict[str, dict[int, tuple[Turn, Record]]] = {}
        self.verdict = Verdict()

    async def run(self) -> Verdict:
        """Read everything and return what is found.

        Raises:
            BusError: A stream cannot be read.
        """
        state = (await stream_info(self._bus, LEDGER)).state
        self._checker = LedgerChecker(None, complete=state.messages == state.last_seq)
        journal = (await stream_info(self._bus, JOURNAL)).state
        self._complete = journal.messages == journal.last_seq
        self._held = await present(self._bus, STATE_KINDS)
        records, _ = await newest(self._bus, JOURNAL, ["gpubus.journal.*"])
        last = {record.subject: record.seq for record in records}
        authors = frozenset(subjects.names(record.subject)[-1] for record in records)
        self._comparison = Comparison(authors, *self._bounds)
        decisions = batches(self._bus, DECISION, ["gpubus.decision.>"])
        try:
            async for batch in batches(self._bus, JOURNAL, ["gpubus.journal.*"]):
                for number, record in enumerate(batch, 1):
                    await self._on_turn(record, last=last.get(record.subject) == record.seq)
                    await breathe()
                    if number % TURNS == 0 or number == len(batch):
                        await self._announced_until(decisions, record.time_ns)
            for name, early in list(self._early.items()):
                if early:
                    self.verdict.gaps += name in self._minds
                    await self._leave(
                        name, f"{name} cannot be followed beyond turn {self._next(name) - 1}: the next is missing"
                    )
            await self._ledger.read_to(None)
            await self._announced_until(decisions, None)
        finally:
            await decisions.aclose()
            await self._ledger.close()
            for mind in self._minds.values():
                await mind.close()
        return self._sum_up()

    async def _on_turn(self, record: Record, *, last: bool) -> None:
        try:
            turn = codec.decode_as(Turn, record.payload).data
        except UndecodableError as error:
            self.verdict.undecodable += 1
            self.verdict.notes.append(f"JOURNAL {record.seq}: {error.reason}")
            return
        name = turn.allocator
        if name in self._left:
            return
        # What was unconfirmed when a connection was lost is sent again, and may be stored behind later turns.
        early = self._early.setdefault(name, {})
        early[turn.number] = turn, record
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

    async def _follow(self, turn: Turn, record: Record) -> None:
        name = turn.allocator
        if turn.engine != ENGINE_VERSION:
            await self._leave(
                name, f"{name} decided by the rules of engine {turn.engine}, and this is engine {ENGINE_VERSION}"
            )
            return
        mind = self._minds.get(name)
        if mind is None:
            self.verdict.allocators += 1
            state = StateReader(self._bus, STATE_KINDS, self._held)
            mind = self._minds[name] = _Mind(name, state, self._ledger)
        needed = [step.seq for step in turn.steps if isinstance(step, Adopt) and step.seq]
        await self._ledger.read_to(max(needed, default=0))
        try:
            await self._ledger.fetch(needed)
            await mind.prepare(turn)
            for decision in mind.replay.play(turn):
                self._comparison.computed(decision)
        except (JournalGapError, ApiError, UndecodableError) as error:
            await self._leave(name, f"{name} cannot be followed beyond JOURNAL {record.seq}: {error}")

    async def _leave(self, name: str, why: str) -> None:
        self._left.add(name)
        self._early.pop(name, None)
        self._comparison.leave(name)
        await self._close(name)
        self.verdict.notes.append(why)

    def _on_ledger(self, record: Record, node: str, data: NodeRecord | None, problem: str) -> None:
        if problem:
            self.verdict.undecodable += 1
            self.verdict.notes.append(f"LEDGER {record.seq}: {problem}")
            return
        self._checker.check(record.seq, node, data)
        for change in data.changes if data is not None else ():
            self._comparison.recorded(LEDGER, record.seq, bytes(change.decision))

    async def _announced_until(self, decisions: AsyncGenerator[list[Record]], time_ns: int | None) -> None:
        while (batch := await anext(decisions, None)) is not None:
            for record in batch:
                try:
                    raw = _announced.decode(record.payload).data
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    self.verdict.undecodable += 1
                    self.verdict.notes.append(f"DECISION {record.seq}: {error}")
                    continue
                self._comparison.recorded(DECISION, record.seq, bytes(raw))
            if time_ns is not None and batch[-1].time_ns >= time_ns:
                return

    def _sum_up(self) -> Verdict:
        found, compared = self.verdict, self._comparison
        found.reproduced, found.different = compared.reproduced, compared.different
        found.differences, found.violations = compared.differences, self._checker.violations
        found.undecodable += compared.undecodable
        found.attempts, found.unheard = compared.attempts, compared.unheard
        found.unexplained = compared.unexplained
        found.unfounded = compared.unfounded(complete=self._complete)
        found.decisions = compared.reproduced + compared.wrong + compared.unexplained
        return found
