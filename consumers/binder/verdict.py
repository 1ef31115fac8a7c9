"""What has become of a pod that was to be bound, judged by the pod as the API server has it. Pure."""

from typing import Literal

import msgspec

from schemas.kube.annotations import read_allocation
from schemas.kube.core import KubePod
from schemas.ledger import Allocation

Outcome = Literal["bound", "unbound", "elsewhere", "gone"]


class Verdict(msgspec.Struct, frozen=True):
    """What has become of the pod, and a sentence for people."""

    outcome: Outcome
    message: str


def judge(pod: KubePod | None, node: str, allocation: Allocation) -> Verdict:
    """Return what has become of the pod that was to be bound to ``node``; ``pod`` is None when there is none of that name.

    ``elsewhere`` includes the right node without our allocation: whoever bound it there gave it none of our GPUs.
    """
    if pod is None or pod.metadata.uid != allocation.pod_uid:
        return Verdict("gone", "the pod was deleted before it was bound")
    where = pod.spec.node_name
    if where:
        written = read_allocation(pod.metadata.annotations, allocation.pod_uid)
        if where == node and written is not None and written.says_as(allocation):
            return Verdict("bound", f"bound to {node}")
        return Verdict("elsewhere", f"somebody else bound the pod to {where}, without its allocation on {node}")
    if pod.ended or pod.metadata.deletion_timestamp:
        return Verdict("gone", "the pod ended before it was bound")
    return Verdict("unbound", "the pod has no node yet")
