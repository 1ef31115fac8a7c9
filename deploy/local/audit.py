"""What the log itself says of a run, read from scratch: nothing in here has seen an allocator or its counters."""

import msgspec

from bus import codec, history
from bus.capacity import Limits, limits_of
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Record
from bus.invariants import LedgerChecker, Violation
from bus.streams import DECISION, LEDGER, STATE, stream_info
from bus.subjects import names
from schemas.cluster import GpuInventory, Node, Pool
from schemas.decision import Decision


class Audit(msgspec.Struct, kw_only=True):
    """Findings.

    Attributes:
        nodes: Nodes in STATE.
        gpus: GPUs in their inventories.
        physical_tflops_milli: Compute of all GPUs.
        granted_tflops_milli: Compute that the newest ledger records give out.
        records: Ledger records read.
        complete: Whether every record ever written is still there. If not, ``placed`` lacks pods that left long ago.
        placed: UIDs of pods that the ledger has held at some time.
        holding: Pods that the ledger holds now.
        refused: UIDs of pods whose newest decision says that they fit nowhere.
        released: UIDs of pods with a decision that they gave back what they held.
        decisions: Decision events read.
        overtaken: Placements that another allocator's commit came before.
        violations: Broken invariants of the ledger.
        taken_back: Second places of pods whose command came twice, which did not last.
        double_allocations: Times that something was given twice, what was taken back since included.
        unsealed: Changes of namespaces with a quota that were not counted at once, by allocators that had not heard of it.
    """

    nodes: int = 0
    gpus: int = 0
    physical_tflops_milli: int = 0
    granted_tflops_milli: int = 0
    records: int = 0
    complete: bool = True
    placed: set[str] = msgspec.field(default_factory=set)
    holding: int = 0
    refused: set[str] = msgspec.field(default_factory=set)
    released: set[str] = msgspec.field(default_factory=set)
    decisions: int = 0
    overtaken: int = 0
    violations: list[Violation] = msgspec.field(default_factory=list)
    taken_back: list[Violation] = msgspec.field(default_factory=list)
    double_allocations: int = 0
    unsealed: int = 0


async def audit(bus: Bus) -> Audit:
    """Read STATE, LEDGER and DECISION from the beginning and check them against each other.

    Raises:
        BusError: A stream could not be read.
    """
    found = Audit()
    limits = await _limits(bus, found)
    state = (await stream_info(bus, LEDGER)).state
    found.complete = state.messages == state.last_seq
    checker = LedgerChecker(limits, complete=found.complete)
    granted: dict[str, int] = {}

    def on_ledger(record: Record) -> None:
        checker.apply(record.seq, record.subject, record.payload)
        if names(record.subject)[1] == "node":
            granted[record.subject] = checker.granted(record.subject)

    await history.read(bus, LEDGER, ["gpubus.ledger.>"], on_ledger)
    await history.read(bus, DECISION, ["gpubus.decision.>"], lambda record: _on_decision(found, record))
    found.granted_tflops_milli = sum(granted.values())
    found.records = checker.records
    found.placed = checker.ever_placed
    found.holding = len(checker.pods())
    found.violations, found.taken_back = checker.violations, checker.taken_back
    found.double_allocations = checker.double_allocations
    found.unsealed = checker.sums.unsealed.total()
    return found


async def _limits(bus: Bus, found: Audit) -> dict[str, Limits]:
    pools: dict[str, Pool] = {}
    nodes: dict[str, Node] = {}
    inventories: dict[str, GpuInventory] = {}
    records, _ = await history.newest(bus, STATE, ["gpubus.state.pool.*", "gpubus.state.node.*", "gpubus.state.gpu.*"])
    for record in records:
        try:
            name = names(record.subject)[-1]
            data = codec.decode(record.payload).data
        except (UndecodableError, ValueError):
            continue  # what cannot be read gives nothing out, so anything given out there shows as a violation
        if isinstance(data, Pool):
            pools[name] = data
        elif isinstance(data, Node):
            nodes[name] = data
        elif isinstance(data, GpuInventory):
            inventories[name] = data
    found.nodes = len(nodes)
    found.gpus = sum(len(inventory.gpus) for inventory in inventories.values())
    found.physical_tflops_milli = sum(gpu.tflops_milli for inventory in inventories.values() for gpu in inventory.gpus)
    return {name: limits_of(node, inventories.get(name), pools.get(node.pool)) for name, node in nodes.items()}


def _on_decision(found: Audit, record: Record) -> None:
    try:
        decision = codec.decode_as(Decision, record.payload).data
    except UndecodableError:
        return
    found.decisions += 1
    found.overtaken += len(decision.attempts)
    if decision.outcome == "released":
        found.released.add(decision.pod_uid)
    if decision.outcome == "unschedulable":
        found.refused.add(decision.pod_uid)
    else:
        found.refused.discard(decision.pod_uid)
