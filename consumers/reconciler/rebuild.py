"""A lost ledger from what bindings wrote on running pods. Pure."""

from collections.abc import Iterable

import msgspec

from schemas.decision import Basis, Decision
from schemas.kube.annotations import ALLOCATION, read_allocation
from schemas.kube.core import KubePod
from schemas.ledger import Allocation, Change, NodeRecord

WHO = "rebuild"


class Rebuilt(msgspec.Struct, frozen=True):
    """Records by node, and the pods whose annotation is not to be believed, with the reason."""

    records: dict[str, NodeRecord]
    refused: list[tuple[str, str]]


def rebuild(pods: Iterable[KubePod], before: dict[str, tuple[Allocation, ...]], *, txn: str) -> Rebuilt:
    """Return the ledger that the pods' annotations describe.

    Args:
        pods: All pods of the API server.
        before: What the ledger holds at present, by node: nodes without such pods get an empty record.
        txn: What the transactions of the records begin with, unlike that of any other run.
    """
    held: dict[str, dict[str, Allocation]] = {}
    refused: list[tuple[str, str]] = []
    for pod in pods:
        meta = pod.metadata
        if ALLOCATION not in meta.annotations or not pod.spec.node_name or pod.ended:
            continue
        allocation = read_allocation(meta.annotations, meta.uid)
        name = f"{meta.namespace}/{meta.name}"
        if allocation is None:
            refused.append((name, "its annotation was written for another pod, or cannot be read"))
        elif (allocation.namespace, allocation.name) != (meta.namespace, meta.name):
            refused.append((name, f"its annotation speaks of {allocation.namespace}/{allocation.name}"))
        else:
            held.setdefault(pod.spec.node_name, {})[meta.uid] = msgspec.structs.replace(allocation, since=0)
    return Rebuilt(
        {
            node: _record(node, held.get(node, {}), before.get(node, ()), txn)
            for node in sorted(held.keys() | before.keys())
        },
        sorted(refused),
    )


def _record(node: str, after: dict[str, Allocation], before: tuple[Allocation, ...], txn: str) -> NodeRecord:
    known = {one.pod_uid: one for one in before}
    changes = [_change("remove", node, known[uid]) for uid in sorted(known.keys() - after.keys())]
    changes += [_change("add", node, after[uid]) for uid in sorted(after.keys() - known.keys())]
    return NodeRecord(node=node, txn=f"{txn}:{node}", allocations=tuple(after.values()), changes=tuple(changes))


def _change(op: str, node: str, allocation: Allocation) -> Change:
    decision = Decision(
        outcome="allocated" if op == "add" else "released",
        namespace=allocation.namespace,
        name=allocation.name,
        pod_uid=allocation.pod_uid,
        pool=allocation.pool,
        allocator=WHO,
        basis=Basis(state=0, ledger=0, ordinal=0),
        node=node,
        gpus=allocation.gpus,
        reason="Rebuilt",
        message="Rebuilt from what its binding wrote on the pod"
        if op == "add"
        else "Rebuilt: no pod claims what it held",
    )
    return Change(
        op="add" if op == "add" else "remove",
        pod_uid=allocation.pod_uid,
        decision=msgspec.Raw(msgspec.json.encode(decision)),
    )
