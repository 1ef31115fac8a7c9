"""The history of a bus under other rules, beside what happened in truth."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Record
from bus.history import batches
from bus.streams import DECISION, JOURNAL, LEDGER
from consumers.allocator.engine import Capacity
from deploy.cli.fold import World
from deploy.replay.past import StateReader, present, seen_by
from deploy.replay.scenario import Result, Sample, Scenario, percents, summarise
from schemas.cluster import PlacementMode, Pool
from schemas.decision import Decision
from schemas.journal import Turn
from schemas.ledger import NodeRecord
from schemas.quota import Usage

STATE_KINDS: Final = ("pool", "node", "gpu", "quota")

SETTINGS: Final[dict[str, str]] = {
    "tflopsOversellRatio": "tflops_ratio",
    "vramExpandToHostMem": "host_memory",
    "vramExpandToHostDisk": "host_disk",
}
"""What of a pool's capacity can be set, as the custom resource names it, and the field that it is here."""


_POOLS: Final = subjects.subject("state", "pool") + "."


class Rules(msgspec.Struct, frozen=True):
    """What is to be other than it was. ``placement`` None keeps each pool's; ``settings`` are fields of Oversubscription."""

    name: str
    placement: PlacementMode | None = None
    settings: dict[str, int] = {}

    def apply(self, record: Record) -> Record:
        """Return a record of STATE as it would have been."""
        if record.deleted or not record.subject.startswith(_POOLS):
            return record
        try:
            event = codec.decode_as(Pool, record.payload)
        except UndecodableError:
            return record
        pool = event.data
        over = msgspec.structs.replace(pool.oversubscription, **self.settings)
        pool = msgspec.structs.replace(pool, placement=self.placement or pool.placement, oversubscription=over)
        return msgspec.structs.replace(record, payload=codec.encode(msgspec.structs.replace(event, data=pool)))


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
                await asyncio.sleep(0)  # the server gives up on whoever does not read for ten seconds
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
