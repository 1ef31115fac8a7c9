"""Where ledger and API server differ, and what follows. Pure.

The ledger was read first and the pods were listed afterwards, so a pod that is held and not listed is gone for certain:
nothing is held for a pod that the API server did not have before.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from schemas.kube.annotations import ALLOCATION, VISIBLE_DEVICES
from schemas.kube.core import KubePod
from schemas.kube.scheduler import SCHEDULERS
from schemas.ledger import Allocation
from schemas.observed import DriftKind
from schemas.pod import Pod

Repair = Literal["release", "schedule", "none"]
Kind = DriftKind


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One difference, with what each side says.

    Attributes:
        node: Node that it is about; empty for a pod without one.
        ledger: What the ledger says.
        api: What the API server says.
        observed: What is seen on the GPUs.
        gpu: UUID of the GPU, if it is about one.
        repair: What may safely be done: give back what is held, have the pod scheduled (or its decision said) again, or nothing.
    """

    kind: Kind
    namespace: str
    name: str
    uid: str
    node: str
    pool: str
    ledger: str
    api: str
    repair: Repair
    observed: str = ""
    gpu: str = ""


def compare(
    held: Mapping[str, tuple[str, Allocation]],
    pods: Iterable[KubePod],
    *,
    waiting: Mapping[str, Pod],
    stored: Mapping[str, Pod],
    recent: frozenset[str],
) -> list[Difference]:
    """Return the differences.

    Args:
        held: Node and allocation by pod UID.
        pods: All pods of the API server.
        waiting: Pods that are known to fit nowhere at present, by UID.
        stored: Pods that STATE knows, by UID.
        recent: UIDs of pods too young to be missed: their commands are still on the way.
    """
    found: list[Difference] = []
    seen: set[str] = set()
    for pod in pods:
        uid = pod.metadata.uid
        seen.add(uid)
        has = held.get(uid)
        difference = _of_holder(pod, *has, recent) if has is not None else _of_other(pod, waiting, stored, recent)
        if difference is not None:
            found.append(difference)
    for uid in sorted(held.keys() - seen):
        node, allocation = held[uid]
        found.append(_difference("PodGone", allocation, node, "there is no such pod", "release"))
    found += [
        Difference(
            kind="PodGone",
            namespace=pod.namespace,
            name=pod.name,
            uid=uid,
            node="",
            pool=pod.request.pool,
            ledger="the pod waits for a place",
            api="there is no such pod",
            repair="release",
        )
        for uid, pod in sorted(waiting.items())
        if uid not in seen and uid not in held
    ]
    return found


def _of_holder(pod: KubePod, node: str, allocation: Allocation, recent: frozenset[str]) -> Difference | None:
    where = pod.spec.node_name
    if pod.ended:
        return _difference("PodEnded", allocation, node, f"the pod is {pod.status.phase}", "release")
    if where and where != node:
        return _difference("BoundElsewhere", allocation, node, f"the pod is on {where}", "release")
    if not where and pod.metadata.uid not in recent:
        return _difference("NotBound", allocation, node, "the pod has no node", "schedule")
    return None


def _of_other(
    pod: KubePod, waiting: Mapping[str, Pod], stored: Mapping[str, Pod], recent: frozenset[str]
) -> Difference | None:
    meta = pod.metadata
    if pod.spec.scheduler_name not in SCHEDULERS or pod.ended or meta.uid in recent:
        return None
    claims = ALLOCATION in meta.annotations or VISIBLE_DEVICES in meta.annotations
    known = stored.get(meta.uid)
    if pod.spec.node_name:
        kind: Kind = "NotInLedger"
        api = f"the pod is on {pod.spec.node_name}" + (" and claims GPUs by annotation" if claims else "")
    elif known is not None and meta.uid not in waiting:
        kind, api = "NotScheduled", "the pod has no node"
    else:
        return None
    return Difference(
        kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        node=pod.spec.node_name,
        pool=known.request.pool if known is not None else "",
        ledger="it holds nothing",
        api=api,
        repair="schedule" if kind == "NotScheduled" else "none",
    )


def _difference(kind: Kind, allocation: Allocation, node: str, api: str, repair: Repair) -> Difference:
    gpus = ", ".join(gpu.uuid for gpu in allocation.gpus) or "no GPU"
    return Difference(
        kind=kind,
        namespace=allocation.namespace,
        name=allocation.name,
        uid=allocation.pod_uid,
        node=node,
        pool=allocation.pool,
        ledger=f"it holds {gpus} on {node}",
        api=api,
        repair=repair,
    )
