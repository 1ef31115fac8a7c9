"""Why not there? Takes an allocator back to the moment of a decision and asks about one node by itself."""

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.history import batches
from bus.streams import JOURNAL
from consumers.allocator.engine import ENGINE_VERSION, Policy, Snapshot, decide
from consumers.allocator.replay import JournalGapError, Replay
from deploy.replay.ledger import LedgerReader
from deploy.replay.past import StateReader, present, seen_by
from schemas.cluster import GpuInventory, Pool
from schemas.decision import Decision
from schemas.event import utc
from schemas.journal import Free, Place, Turn, referred
from schemas.pod import GpuRequest

STATE_KINDS = ("pool", "expected", "node", "gpu", "quota")


async def ask(bus: Bus, decision: Decision, node: str) -> Decision | None:
    """Return what would have been decided if ``node`` had been the only one of the pool, at the moment of ``decision``.

    Returns:
        None when no journal leads to the decision, it was made by another version's rules, or the node was not known then.

    Raises:
        BusError: A stream cannot be read.
    """
    ledger = LedgerReader(bus, lambda *_: None)
    state = StateReader(bus, STATE_KINDS, await present(bus, STATE_KINDS))
    mind = Replay(decision.allocator, (), ledger.allocations)
    try:
        async for batch in batches(bus, JOURNAL, [subjects.journal(decision.allocator)]):
            for record in batch:
                try:
                    turn = codec.decode_as(Turn, record.payload).data
                except UndecodableError:
                    return None
                if turn.number != mind.turns + 1 or turn.engine != ENGINE_VERSION:
                    return None
                needed = referred(turn.steps)
                await ledger.read_to(max(needed, default=0))
                await ledger.fetch(needed)
                ledger.forget(mind.cluster.ledger_seq)
                mind.hear(await state.read_to(seen_by(turn)))
                steps = [step for step in turn.steps if isinstance(step, Place | Free)]
                for step, again in zip(steps, mind.play(turn), strict=True):
                    if again.basis.ordinal == decision.basis.ordinal and isinstance(step, Place):
                        mind.snapshot.remove(again.node, step.pod_uid)
                        return _alone(mind.snapshot, node, step.request)
    except JournalGapError:
        return None
    finally:
        await ledger.close()
        await state.close()
    return None


def _alone(snapshot: Snapshot, name: str, request: GpuRequest) -> Decision | None:
    host = snapshot.host(name)
    if host is None or host.node is None:
        return None
    pool = snapshot.pools().get(host.node.pool, Pool(name=host.node.pool))
    alone = Snapshot()
    alone.put_pool(pool)
    alone.put_node(host.node)
    if host.devices is not None:
        alone.put_inventory(GpuInventory(node=name, gpus=list(host.devices), observed_at=utc(0), links=host.links))
    alone.set_allocations(name, snapshot.allocations(name))
    if host.frozen:
        alone.freeze(name)
    return decide(alone, request, Policy.of(pool))
