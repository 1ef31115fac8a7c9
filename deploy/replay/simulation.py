"""Would it fit? Places a pod, or many of its kind, on a snapshot that is thrown away afterwards. Pure."""

import msgspec

from consumers.allocator.engine import Policy, Snapshot, decide
from consumers.allocator.grants import allocation
from schemas.cluster import Pool
from schemas.decision import Decision, GpuGrant
from schemas.pod import GpuRequest, Schedule


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


def simulate(
    snapshot: Snapshot, namespace: str, name: str, request: GpuRequest, *, replicas: int, without: tuple[str, ...] = ()
) -> Outcome:
    """Place replicas one after the other, each on what the ones before have left.

    Args:
        snapshot: The cluster; it is changed.
        namespace: The pod's.
        name: The pod's.
        request: What each replica asks for.
        replicas: How many to place; placing ends with the first that fits nowhere.
        without: Nodes to leave out, as if they were gone.
    """
    for node in without:
        snapshot.remove_node(node)
    policy = Policy.of(snapshot.pools().get(request.pool) or Pool(name=request.pool))
    outcome = Outcome(asked=replicas)
    for replica in range(1, replicas + 1):
        pod = Schedule(namespace=namespace, name=name, uid=f"simulated-{replica}", request=request)
        decision = decide(snapshot, request, policy)
        if not decision.node:
            outcome.refusal = decision
            break
        snapshot.add(decision.node, allocation(pod, decision, snapshot))
        outcome.placed.append(Placed(replica, decision.node, decision.gpus))
    return outcome
