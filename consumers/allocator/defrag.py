"""Which nodes could be emptied, and where their pods would go. Pure: placed on a snapshot, and taken back.

A node is a candidate while little of it is used (tensorfusion.md §9: ``utilizationThresholdPercent``). It is emptied only if
every pod on it has a place elsewhere, found by the same engine and policy that would place it, on what those moved before have
left. No pod moves twice: a node that has taken pods is no candidate any more. So pods go to nodes that stay as they are as long
as one has room, then to those candidates of which most is used; nodes that are empty already are left so.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from consumers.allocator.engine import Policy, Snapshot, decide
from consumers.allocator.grants import allocation
from schemas.cluster import Pool
from schemas.decision import Decision
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

SPARED: Final = 32
"""Candidates that are tried as places for a pod that no other node takes, those first of which most is used."""


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
    idle = [name for name in snapshot.nodes(pool) if _is_open(snapshot, name) and not snapshot.allocations(name)]
    plans = [
        _in_order(_Trial(snapshot, requests, policy, fixed), nodes, order, spared)
        for order in ORDERS
        for spared in (idle, None)
    ]
    return min(plans, key=lambda plan: (-len(plan.emptied), len(plan.moves)))


def _is_candidate(snapshot: Snapshot, node: str, threshold: int) -> bool:
    return _is_open(snapshot, node) and bool(snapshot.allocations(node)) and _share(snapshot, node)[0] <= 10 * threshold


def _is_open(snapshot: Snapshot, node: str) -> bool:
    host = snapshot.host(node)
    return host is not None and host.node is not None and not host.node.unschedulable


def _in_order(trial: "_Trial", nodes: list[str], used: Used, idle: list[str] | None = None) -> Defrag:
    """Return what can be emptied in an order; with a list of ``idle`` nodes those and other candidates are spared."""
    kept, emptied = [], []
    ordered = sorted(nodes, key=lambda name: (*used(trial.snapshot, name), name))
    if idle is not None:
        trial.spare(ordered, idle)
    for node in ordered:
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
        self._spared: dict[str, None] = {}
        self.taken: set[str] = set()
        self.moves: list[Move] = []

    def spare(self, candidates: list[str], idle: list[str]) -> None:
        """Have pods go to other nodes than these as long as there is room.

        Args:
            candidates: Nodes that may be emptied, those first of which least is used.
            idle: Nodes that are to stay empty.
        """
        for node in idle:
            self._close(node, closed=True)
            self._closed.append(node)
        for node in candidates:
            self._close(node, closed=True)
            self._spared[node] = None

    def empty(self, node: str) -> Kept | None:
        """Move all pods of a node, or none of them and return which one keeps it."""
        was_spared = node in self._spared
        self._spared.pop(node, None)
        kept = self._empty(node)
        if kept is not None and was_spared:  # it stays, so it may as well be used
            self._close(node, closed=False)
        return kept

    def _empty(self, node: str) -> Kept | None:
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
            decision = self._on_spared(request) or decision
        if not decision.node:
            return "", decision.message
        command = Schedule(namespace=pod.namespace, name=pod.name, uid=pod.pod_uid, request=request)
        self._remember(decision.node)
        self.snapshot.add(decision.node, allocation(command, decision, self.snapshot))
        return decision.node, ""

    def _on_spared(self, request: GpuRequest) -> Decision | None:
        """Place a pod on a node that was to be emptied, which it then is not."""
        for node in list(reversed(self._spared))[:SPARED]:
            self._close(node, closed=False)
            decision = decide(self.snapshot, request, self._policy, node)
            if decision.node:
                del self._spared[node]
                return decision
            self._close(node, closed=True)
        return None

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
        for node in (*self._closed, *self._spared):
            self._close(node, closed=False)


def _largest_first(pod: Allocation) -> tuple[int, int, str]:
    return (-len(pod.gpus), -sum(gpu.vram_bytes for gpu in pod.gpus), pod.pod_uid)
