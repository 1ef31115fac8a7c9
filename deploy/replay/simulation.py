"""Would it fit? Places a pod, or many of its kind, on a view of the cluster that is thrown away afterwards."""

from typing import Final

import msgspec

from bus.connection import Bus
from bus.history import Cut, newest, newest_until
from bus.streams import LEDGER, STATE
from consumers.allocator.choice import choose
from consumers.allocator.inspector.view import LEDGER_FILTERS, View
from schemas.decision import Decision, GpuGrant
from schemas.pod import GpuRequest, Schedule

KINDS: Final = ("pool", "expected", "node", "gpu", "quota")
"""What of STATE a placement depends on."""


class Placed(msgspec.Struct, frozen=True):
    """One replica and what it would get."""

    replica: int
    node: str
    gpus: tuple[GpuGrant, ...]


class Outcome(msgspec.Struct, kw_only=True):
    """What would become of the replicas.

    Attributes:
        asked: Replicas that were to be placed.
        placed: Those that fit, in order.
        refusal: Why the first that does not fit does not; None if all do.
    """

    asked: int
    placed: list[Placed] = []
    refusal: Decision | None = None


async def load(bus: Bus, cut: Cut | None = None) -> View:
    """Return the cluster as allocators see it, now or as it was at a moment.

    Raises:
        BusError: STATE or LEDGER could not be read in time.
    """
    view = View()
    if cut is None:
        records, ledger = await newest(bus, LEDGER, LEDGER_FILTERS)
        state, _ = await newest(bus, STATE, [f"gpubus.state.{kind}.>" for kind in KINDS])
    else:
        records, ledger = await newest_until(bus, LEDGER, LEDGER_FILTERS, cut)
        state, _ = await newest_until(bus, STATE, KINDS, cut)
    for record in state:
        view.on_state(record)
    for record in sorted(records, key=lambda record: record.seq):
        view.on_ledger(record)
    view.cluster.ledger_seq = ledger
    return view


def simulate(
    view: View, namespace: str, name: str, request: GpuRequest, *, replicas: int, without: tuple[str, ...] = ()
) -> Outcome:
    """Place replicas one after the other, each on what the ones before have left, of nodes and of the namespace's quota.

    Args:
        view: The cluster; it is changed.
        namespace: The pod's.
        name: The pod's.
        request: What each replica asks for.
        replicas: How many to place; placing ends with the first that fits nowhere.
        without: Nodes to leave out, as if they were gone.
    """
    for node in without:
        view.snapshot.remove_node(node)
    policy = view.policy(request.pool)
    outcome = Outcome(asked=replicas)
    for replica in range(1, replicas + 1):
        pod = Schedule(namespace=namespace, name=name, uid=f"simulated-{replica}", request=request)
        decision, held = choose(view.snapshot, view.quotas, pod, policy)
        if held is None:
            outcome.refusal = decision
            break
        view.snapshot.add(decision.node, held)
        view.quotas.promise(decision.node, held)
        outcome.placed.append(Placed(replica, decision.node, decision.gpus))
    return outcome
