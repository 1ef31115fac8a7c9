"""Which nodes could be emptied, and where their pods would go. Pure: placed on a snapshot, and taken back.

A node is a candidate while little of it is used (tensorfusion.md §9: ``utilizationThresholdPercent``). It is emptied only if
every pod on it has a place elsewhere, found by the same engine and policy that would place it, on what those moved before have
left. No pod moves twice: a node that has taken pods is no candidate any more.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from consumers.allocator.engine import Policy, Snapshot, decide
from consumers.allocator.grants import allocation
from schemas.cluster import Pool
from schemas.defrag import Defrag, Kept, Move
from schemas.ledger import Allocation
from schemas.pod import GpuRequest, Schedule

Used = Callable[[Snapshot, str], tuple[int, ...]]


def _share(snapshot: Snapshot, node: str) -> tuple[int, ...]:
    """Return how much of a node is granted, in thousandths of what may be: the larger of compute and VRAM."""
    capacity = snapshot.capacity(node)
    if capacity is None:
        return (0,)
    pairs = (
        (capacity.granted_tflops_milli, capacity.schedulable_tflops_milli),
        (capacity.granted_vram_bytes, capacity.schedulable_vram_bytes),
    )
    return (max((1000 * part // whole for part, whole in pairs if whole), default=0),)


def _pods(snapshot: Snapshot, node: str) -> tuple[int, ...]:
    return (len(snapshot.allocations(node)), *_share(snapshot, node))


def _gpus(snapshot: Snapshot, node: str) -> tuple[int, ...]:
    return (sum(len(one.gpus) for one in snapshot.allocations(node)), *_share(snapshot, node))


ORDERS: Final[tuple[Used, ...]] = (_share, _pods, _gpus)
"""In which order candidates are tried: what is used least, has the fewest pods, or the fewest GPUs to replace, first."""


def plan_defrag(
    snapshot: Snapshot,
    requests: Mapping[str, GpuRequest],
    pool: str,
    *,
    threshold: int,
    fixed: Mapping[str, str],
    skip: frozenset[str] = frozenset(),
) -> Defrag:
    """Return the nodes of a pool that could be emptied; of several orders that which empties the most, with the fewest moves.

    Args:
        snapshot: The cluster; it is the same afterwards.
        requests: What pods ask for, by UID; a pod that is not here stays where it is.
        pool: The pool.
        threshold: Percent of a node that may be used for it to be a candidate.
        fixed: Pods that must not be moved, by UID, and why.
        skip: Nodes to leave alone.
    """
    policy = Policy.of(snapshot.pools().get(pool) or Pool(name=pool))
    nodes = [name for name in snapshot.nodes(pool) if name not in skip and _is_candidate(snapshot, name, threshold)]
    plans = [_in_order(_Trial(snapshot, requests, policy, fixed), nodes, order) for order in ORDERS]
    return min(plans, key=lambda plan: (-len(plan.emptied), len(plan.moves)))


def _is_candidate(snapshot: Snapshot, node: str, threshold: int) -> bool:
    host = snapshot.host(node)
    is_open = host is not None and host.node is not None and not host.node.unschedulable
    return is_open and bool(snapshot.allocations(node)) and _share(snapshot, node)[0] <= 10 * threshold


def _in_order(trial: "_Trial", nodes: list[str], used: Used) -> Defrag:
    kept, emptied = [], []
    for node in sorted(nodes, key=lambda name: (*used(trial.snapshot, name), name)):
        if node in trial.taken:
            continue
        stays = trial.empty(node)
        if stays is None:
            emptied.append(node)
        else:
            kept.append(stays)
    trial.undo()
    return Defrag(candidates=len(nodes), emptied=tuple(emptied), moves=tuple(trial.moves), kept=tuple(kept))


class _Trial:
    """Moves pods on a snapshot, and back again."""

    def __init__(
        self, snapshot: Snapshot, requests: Mapping[str, GpuRequest], policy: Policy, fixed: Mapping[str, str]
    ) -> None:
        self.snapshot = snapshot
        self._requests = requests
        self._policy = policy
        self._fixed = fixed
        self._before: dict[str, tuple[Allocation, ...]] = {}
        self._closed: list[str] = []
        self.taken: set[str] = set()
        self.moves: list[Move] = []

    def empty(self, node: str) -> Kept | None:
        """Move all pods of a node, or none of them and return which one keeps it."""
        pods = sorted(self.snapshot.allocations(node), key=_largest_first)
        for pod in pods:
            why = self._fixed.get(pod.pod_uid) or (
                "" if pod.pod_uid in self._requests else "what it asks for is not known"
            )
            why = why or ("it is a member of a gang" if pod.gang else "")
            if why:
                return Kept(node=node, pod=f"{pod.namespace}/{pod.name}", reason=why)
        self._close(node, closed=True)
        done: list[Move] = []
        for pod in pods:
            self._remember(node)
            self.snapshot.remove(node, pod.pod_uid)
        for pod in pods:
            target, reason = self._place(pod)
            if not target:
                self._back(node, pods, done)
                self._close(node, closed=False)
                return Kept(node=node, pod=f"{pod.namespace}/{pod.name}", reason=reason)
            done.append(Move(namespace=pod.namespace, name=pod.name, pod_uid=pod.pod_uid, source=node, target=target))
        self._closed.append(node)
        self.taken |= {move.target for move in done}
        self.moves += done
        return None

    def _place(self, pod: Allocation) -> tuple[str, str]:
        request = self._requests[pod.pod_uid]
        decision = decide(self.snapshot, request, self._policy)
        if not decision.node:
            return "", decision.message
        command = Schedule(namespace=pod.namespace, name=pod.name, uid=pod.pod_uid, request=request)
        self._remember(decision.node)
        self.snapshot.add(decision.node, allocation(command, decision, self.snapshot))
        return decision.node, ""

    def _back(self, node: str, pods: Iterable[Allocation], done: Iterable[Move]) -> None:
        for move in done:
            self.snapshot.remove(move.target, move.pod_uid)
        for pod in pods:
            self.snapshot.add(node, pod)

    def _close(self, node: str, *, closed: bool) -> None:
        host = self.snapshot.host(node)
        if host is not None and host.node is not None:
            self.snapshot.put_node(msgspec.structs.replace(host.node, unschedulable=closed))

    def _remember(self, node: str) -> None:
        self._before.setdefault(node, self.snapshot.allocations(node))

    def undo(self) -> None:
        """Put everything back where it was."""
        for node, allocations in self._before.items():
            self.snapshot.set_allocations(node, allocations)
        for node in self._closed:
            self._close(node, closed=False)


def _largest_first(pod: Allocation) -> tuple[int, int, str]:
    return (-len(pod.gpus), -sum(gpu.vram_bytes for gpu in pod.gpus), pod.pod_uid)
