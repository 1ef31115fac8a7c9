"""The history of a bus under other rules, beside what happened in truth."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from bus import codec
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Record
from bus.history import batches
from bus.streams import DECISION, JOURNAL, LEDGER
from bus.tasks import breathe
from consumers.allocator.engine import Capacity
from consumers.allocator.shadow.rules import Rules
from deploy.cli.fold import World
from deploy.replay.alerts import Chronicle, Rulebook, Tally, rules_in_force
from deploy.replay.past import StateReader, present, seen_by
from deploy.replay.scenario import Result, Sample, Scenario, percents, summarise
from schemas.decision import Decision
from schemas.journal import Turn
from schemas.ledger import Allocation, NodeRecord
from schemas.quota import Usage

STATE_KINDS: Final = ("pool", "node", "gpu", "quota")


async def play(bus: Bus, rules: Sequence[Rules]) -> list[Result]:
    """Return what happened, and what would have happened under each of the rules, in that order.

    Raises:
        BusError: A stream cannot be read.
    """
    held = await present(bus, STATE_KINDS)
    book = Rulebook(await rules_in_force(bus))
    past = _Past(book)
    truth, actual = await _truth(bus, held, past)
    scenarios: list[Scenario] = []
    chronicles: list[Chronicle] = []
    for one in rules:
        tally = Tally()
        scenarios.append(Scenario(one.name, one.apply, tally.note))
        chronicles.append(Chronicle(book, one.apply, scenarios[-1].standing, tally))
    state = StateReader(bus, STATE_KINDS, held)
    ahead: deque[Record] = deque()
    end_ns = 0
    try:
        async for batch in batches(bus, JOURNAL, ["gpubus.journal.*"]):
            for record in batch:
                try:
                    turn = codec.decode_as(Turn, record.payload).data
                except UndecodableError:
                    continue
                end_ns, seen = max(end_ns, record.time_ns), seen_by(turn)
                ahead += await state.read_to(seen)
                while ahead and ahead[0].seq <= seen:
                    said = ahead.popleft()
                    for scenario, chronicle in zip(scenarios, chronicles, strict=True):
                        scenario.on_state(said)
                        chronicle.on_state(said)
                for chronicle in chronicles:
                    await chronicle.reach(record.time_ns)
                for scenario in scenarios:
                    scenario.play(turn, record.time_ns)
                await breathe()
    finally:
        await state.close()
    results = [scenario.finish(actual) for scenario in scenarios]
    truth.pods = max((result.pods for result in results), default=len(actual))
    truth.unplaced = truth.pods - truth.placed
    for chronicle, result in zip((past.chronicle, *chronicles), (truth, *results), strict=True):
        await chronicle.judge(end_ns, result)
    return [truth, *results]


class _Past:
    """What stood in truth."""

    def __init__(self, rules: Rulebook) -> None:
        self.held: dict[str, NodeRecord] = {}
        self.tally = Tally()
        self.chronicle = Chronicle(rules, lambda record: record, self.standing, self.tally)

    def standing(self) -> Iterable[tuple[str, Allocation]]:
        return ((data.node, allocation) for data in self.held.values() for allocation in data.allocations)

    def put(self, subject: str, data: NodeRecord | None) -> None:
        if data is None:
            self.held.pop(subject, None)
        else:
            self.held[subject] = data


async def _truth(bus: Bus, present: list[Record], past: _Past) -> tuple[Result, dict[str, str]]:
    """Return what happened by the ledger and the decisions, and the node on which each pod stood first."""
    capacity = _capacity(present)
    waits = await _waits(bus, past.tally)
    said = _Said(StateReader(bus, STATE_KINDS, present))
    held: dict[str, Usage] = {}
    places: dict[str, str] = {}
    granted, course = Usage(), []
    async for batch in batches(bus, LEDGER, ["gpubus.ledger.node.>"]):
        for record in batch:
            try:
                data = codec.decode_as(NodeRecord, record.payload).data if record.payload else None
            except UndecodableError:
                continue
            for told in await said.until(record.time_ns):
                past.chronicle.on_state(told)
            await past.chronicle.reach(record.time_ns)
            past.put(record.subject, data)
            after = Usage()
            for allocation in data.allocations if data is not None else ():
                after += allocation.usage()
                if data is not None:
                    places.setdefault(allocation.pod_uid, data.node)
            granted += after - held.get(record.subject, Usage())
            held[record.subject] = after
            course.append(Sample(record.time_ns, *percents(granted, capacity), 0))
    await said.close()
    result = Result(rules="as it was", placed=len(places))
    summarise(result, course, waits)
    return result, places


class _Said:
    """What STATE has said, by time."""

    def __init__(self, state: StateReader) -> None:
        self._state = state
        self._ahead: deque[Record] = deque()
        self._seq = 0

    async def until(self, time_ns: int) -> list[Record]:
        """Return what it said since the last call, up to a time."""
        while not self._ahead or self._ahead[-1].time_ns <= time_ns:
            more = await self._state.read_to(self._seq + 1)
            if not more:
                break
            self._ahead += more
            self._seq = more[-1].seq
        found = []
        while self._ahead and self._ahead[0].time_ns <= time_ns:
            found.append(self._ahead.popleft())
        return found

    async def close(self) -> None:
        await self._state.close()


def _capacity(state: list[Record]) -> Capacity:
    world = World()
    for record in state:
        if not record.subject.startswith("gpubus.state.quota."):
            world.put_state(record)
    return world.snapshot.total()


async def _waits(bus: Bus, tally: Tally) -> list[float]:
    refused: dict[str, int] = {}
    waits: dict[str, float] = {}
    async for batch in batches(bus, DECISION, ["gpubus.decision.>"]):
        for record in batch:
            try:
                decision = codec.decode_as(Decision, record.payload).data
            except UndecodableError:
                continue
            tally.note(decision, record.time_ns)
            uid = decision.pod_uid
            if decision.outcome == "unschedulable":
                refused.setdefault(uid, record.time_ns)
            elif decision.outcome == "allocated" and uid in refused:
                waits.setdefault(uid, (record.time_ns - refused[uid]) / 1e9)
    return list(waits.values())
