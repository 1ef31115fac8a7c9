"""What the agents see on the GPUs, beside what ledger and API server say. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from consumers.reconciler.compare import Difference, Kind
from schemas.cluster import GpuInventory
from schemas.kube.core import KubePod
from schemas.ledger import Allocation
from schemas.observed import Drift
from schemas.usage import NodeUsage

SILENT = "nothing is heard of the node's agent"
NOT_ASKED = "it was not asked"

Held = Mapping[str, tuple[str, Allocation]]
"""Node and allocation by pod UID."""


class Sight:
    """What is seen on the nodes.

    Args:
        usage: The newest samples of the nodes whose agents are heard.
        inventories: What GPUs the nodes have.
        told: Differences that agents have told and not taken back.
    """

    def __init__(
        self, usage: Iterable[NodeUsage], inventories: Iterable[GpuInventory], told: Iterable[Drift] = ()
    ) -> None:
        self._gpus = {one.node: {gpu.uuid for gpu in one.gpus} for one in inventories}
        self._foreign = [drift for drift in told if drift.kind == "ForeignAllocation"]
        self._heard: set[str] = set()
        self._uses: defaultdict[str, defaultdict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
        for sample in usage:
            self._heard.add(sample.node)
            for gpu in sample.gpus:
                for process in gpu.processes:
                    self._uses[process.pod_uid][sample.node, gpu.uuid] += process.vram_bytes

    def uses(self, uid: str, node: str) -> bool:
        """Whether processes of a pod are seen on a node's GPUs."""
        return any(where == node for where, _ in self._uses.get(uid, ()))

    def words(self, uid: str, node: str) -> str:
        """Return what is seen of a pod, wherever it is; ``node`` is where it should be."""
        seen = [f"{vram} bytes of {uuid} on {where}" for (where, uuid), vram in sorted(self._uses.get(uid, {}).items())]
        if seen:
            return f"it uses {', '.join(seen)}"
        return "it uses no GPU" if node in self._heard or not node else SILENT

    def differences(self, held: Held, pods: Mapping[str, KubePod] | None) -> Iterator[Difference]:
        """Yield where what is seen differs from the ledger. ``pods`` of the API server by UID; None if it was not asked."""
        sides = _Sides(held, pods)
        for uid, places in sorted(self._uses.items()):
            for (node, uuid), vram in sorted(places.items()):
                found = _judged(uid, held.get(uid), node, uuid, vram)
                if found is not None:
                    observed = self.words(uid, node) if uid else f"processes of the host use {vram} bytes of it"
                    yield sides.difference(found[0], (node, uuid), uid, ledger=found[1], observed=observed)
        for uid, (node, allocation) in sorted(held.items()):
            for gpu in allocation.gpus:
                if node in self._gpus and gpu.uuid not in self._gpus[node]:
                    ledger, observed = _holding(node, allocation), "the node has no such GPU"
                    yield sides.difference("MissingGpu", (node, gpu.uuid), uid, ledger=ledger, observed=observed)
        for drift in self._foreign:
            place = drift.node, drift.gpu
            yield sides.difference(drift.kind, place, "", ledger=drift.ledger, observed=drift.observed)


class _Sides(NamedTuple):
    """What ledger and API server say."""

    held: Held
    pods: Mapping[str, KubePod] | None

    def difference(self, kind: Kind, place: tuple[str, str], uid: str, *, ledger: str, observed: str) -> Difference:
        _, allocation = self.held.get(uid, ("", None))
        pod = self.pods.get(uid) if self.pods is not None else None
        who = allocation or (pod.metadata if pod is not None else None)
        return Difference(
            kind=kind,
            namespace=who.namespace if who is not None else "",
            name=who.name if who is not None else "",
            uid=uid,
            node=place[0],
            gpu=place[1],
            pool=allocation.pool if allocation is not None else "",
            ledger=ledger,
            api=NOT_ASKED if self.pods is None else _said(uid, pod),
            observed=observed,
            repair="none",
        )


def _judged(uid: str, has: tuple[str, Allocation] | None, node: str, uuid: str, vram: int) -> tuple[Kind, str] | None:
    """Return how the use of a GPU differs from what the ledger says of the pod, and what that is."""
    if has is None:
        return "UnmanagedUse", "it holds nothing" if uid else "it knows nothing of them"
    where, allocation = has
    granted = [gpu.vram_bytes for gpu in allocation.gpus if gpu.uuid == uuid]
    if where != node or not granted:
        return "WrongGpu", _holding(where, allocation)
    most = max(granted[0], allocation.vram_limit_bytes // len(allocation.gpus))
    return ("OverLimit", f"it may use {most} bytes of it") if vram > most else None


def _holding(node: str, allocation: Allocation) -> str:
    return f"it holds {', '.join(gpu.uuid for gpu in allocation.gpus) or 'no GPU'} on {node}"


def _said(uid: str, pod: KubePod | None) -> str:
    if not uid:
        return "it knows nothing of them"
    if pod is None:
        return "there is no such pod"
    return f"the pod is {pod.status.phase} on {pod.spec.node_name}" if pod.spec.node_name else "the pod has no node"
