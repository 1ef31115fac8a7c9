"""The history of a bus under other rules, beside what happened in truth."""

from collections import deque
from collections.abc import Sequence
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
from deploy.replay.past import StateReader, present, seen_by
from deploy.replay.scenario import Result, Sample, Scenario, percents, summarise
from schemas.decision import Decision
from schemas.journal import Turn
from schemas.ledger import NodeRecord
from schemas.quota import Usage

STATE_KINDS: Final = ("pool", "node", "gpu", "quota")


async def play(bus: Bus, rules: Sequence[Rules]) -> list[Result]:
    """Return what happened, and what would have happened under each of the rules, in that order.

    Raises:
        BusError: A stream cannot be read.
    """
    held = await present(bus, STATE_KINDS)
    truth, actual = await _truth(bus, held)
    scenarios = [Scenario(one.name, one.apply) for one in rules]
    state = StateReader(bus, STATE_KINDS, held)
    ahead: deque[Record] = deque()
    try:
        async for batch in batches(bus, JOURNAL, ["gpubus.journal.*"]):
            for record in batch:
                try:
                    turn = codec.decode_as(Turn, record.payload).data
                except UndecodableError:
                    continue
                seen = seen_by(turn)
                ahead += await state.read_to(seen)
                while ahead and ahead[0].seq <= seen:
                    said = ahead.popleft()
                    for scenario in scenarios:
                        scenario.on_state(said)
                for scenario in scenarios:
                    scenario.play(turn, record.time_ns)
                await breathe()
    finally:
        await state.close()
    results = [scenario.finish(actual) for scenario in scenarios]
    truth.pods = max((result.pods for result in results), default=len(actual))
    truth.unplaced = truth.pods - truth.placed
    return [truth, *results]


async def _truth(bus: Bus, state: list[Record]) -> tuple[Result, dict[str, str]]:
    """Return what happened by the ledger and the decisions, and the node on which each pod stood first."""
    capacity = _capacity(state)
    held: dict[str, Usage] = {}
    places: dict[str, str] = {}
    granted, course = Usage(), []
    async for batch in batches(bus, LEDGER, ["gpubus.ledger.node.>"]):
        for record in batch:
            try:
                data = codec.decode_as(NodeRecord, record.payload).data if record.payload else None
            except UndecodableError:
                continue
            after = Usage()
            for allocation in data.allocations if data is not None else ():
                after += allocation.usage()
                if data is not None:
                    places.setdefault(allocation.pod_uid, data.node)
            granted += after - held.get(record.subject, Usage())
            held[record.subject] = after
            course.append(Sample(record.time_ns, *percents(granted, capacity), 0))
    result = Result(rules="as it was", placed=len(places))
    summarise(result, course, await _waits(bus))
    return result, places


def _capacity(state: list[Record]) -> Capacity:
    world = World()
    for record in state:
        if not record.subject.startswith("gpubus.state.quota."):
            world.put_state(record)
    return world.snapshot.total()


async def _waits(bus: Bus) -> list[float]:
    refused: dict[str, int] = {}
    waits: dict[str, float] = {}
    async for batch in batches(bus, DECISION, ["gpubus.decision.>"]):
        for record in batch:
            try:
                decision = codec.decode_as(Decision, record.payload).data
            except UndecodableError:
                continue
            uid = decision.pod_uid
            if decision.outcome == "unschedulable":
                refused.setdefault(uid, record.time_ns)
            elif decision.outcome == "allocated" and uid in refused:
                waits.setdefault(uid, (record.time_ns - refused[uid]) / 1e9)
    return list(waits.values())
