"""A place for a pod that both the nodes and the quota of its namespace have room for."""

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from consumers.allocator.engine import Policy, Snapshot, decide, fits_on
from consumers.allocator.gangs import Gangs
from consumers.allocator.grants import allocation
from consumers.allocator.quotas import Quotas
from schemas.decision import Decision
from schemas.ledger import HOLD, Allocation
from schemas.pod import WHOLE, GpuRequest, Schedule, Waiting

Expected = Callable[[str, Collection[str]], Iterable[Allocation]]
"""Returns what is kept for pods of a namespace, but for some by UID."""


def nothing(_namespace: str, _but: Collection[str]) -> Iterable[Allocation]:
    """Return that nothing is kept for anybody."""
    return ()


class Kept(NamedTuple):
    """What counts as taken on a node because it is kept for a pod."""

    node: str
    allocation: Allocation


def lift(snapshot: Snapshot, uid: str) -> Kept | None:
    """Stop counting as taken what is kept for a pod, and return it; None if nothing is."""
    key = HOLD + uid
    node = snapshot.node_of(key)
    held = snapshot.held(node, key) if node is not None else None
    if node is None or held is None:
        return None
    snapshot.remove(node, key)
    return Kept(node, held)


def choose(
    snapshot: Snapshot, quotas: Quotas, pod: Schedule | Waiting, policy: Policy
) -> tuple[Decision, Allocation | None]:
    """Decide where a pod goes, or why nowhere, and what it would hold there.

    The quota is asked first for what the pod states, and again for what it would hold: a share of a GPU means an amount
    only once the GPU is chosen. If that is too much, GPUs are looked for of which the share is small enough.
    """
    request = pod.request
    chosen = pod.node if isinstance(pod, Schedule) else ""
    if refused := quotas.refuse(pod.namespace, request):
        return refused, None
    decision = decide(snapshot, request, policy, chosen)
    if not decision.node:
        return decision, None
    held = allocation(pod, decision, snapshot)
    refused = quotas.refuse(pod.namespace, request, held.usage()) if quotas.bound(pod.namespace) else None
    if refused is None:
        return decision, held
    narrowed = smaller(snapshot, quotas, pod.namespace, request)
    if narrowed is not None:
        decision = decide(snapshot, narrowed, policy, chosen)
        if decision.node:
            held = allocation(pod, decision, snapshot)
            if quotas.refuse(pod.namespace, request, held.usage()) is None:
                return decision, held
    return refused, None


def smaller(snapshot: Snapshot, quotas: Quotas, namespace: str, request: GpuRequest) -> GpuRequest | None:
    """Return the request for those GPU models only of which its shares keep within the quota, or None if there are none."""
    limits = (
        ("vram_bytes", request.vram_milli, quotas.room(namespace, "vram_bytes")),
        ("tflops_milli", request.compute_milli, quotas.room(namespace, "tflops_milli")),
    )
    bounds = [
        (name, room // request.count * WHOLE // share) for name, share, room in limits if share and room is not None
    ]
    if not bounds or not request.count:
        return None
    largest: dict[str, dict[str, int]] = {}
    for node in snapshot.nodes(request.pool):
        host = snapshot.host(node)
        for device in (host.devices if host is not None else None) or ():
            sizes = largest.setdefault(device.model, {})
            for name, _ in bounds:
                sizes[name] = max(sizes.get(name, 0), getattr(device, name))
    models = tuple(
        model
        for model, sizes in sorted(largest.items())
        if (not request.models or model in request.models) and all(sizes[name] <= most for name, most in bounds)
    )
    return msgspec.structs.replace(request, models=models) if models else None


class Trial:
    """Places pods for the sake of asking; on leaving the context everything is as it was."""

    def __init__(
        self,
        snapshot: Snapshot,
        quotas: Quotas,
        gangs: Gangs,
        policy_of: Callable[[str], Policy],
        *,
        expected: Expected = nothing,
    ) -> None:
        self._snapshot = snapshot
        self._quotas = quotas
        self._gangs = gangs
        self._policy_of = policy_of
        self._expected = expected
        self._taken: list[tuple[str, Allocation]] = []
        self._lifted: list[Kept] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_back(len(self._taken))
        for kept in self._lifted:
            self._snapshot.add(*kept)
        self._lifted.clear()

    def _take_back(self, places: int) -> None:
        for _ in range(places):
            node, held = self._taken.pop()
            self._snapshot.remove(node, held.pod_uid)
            self._quotas.withdraw(node, held, quietly=True)

    def account(self, pod: Waiting) -> str:
        """Return the namespace if its quota counts the pod, and nothing otherwise."""
        return pod.namespace if self._quotas.bound(pod.namespace) else ""

    def fits_on(self, pod: Waiting, node: str) -> bool:
        """Return whether the pod fits one node, whatever its quota."""
        kept = lift(self._snapshot, pod.uid)
        fits = fits_on(self._snapshot, pod.request, node, self._policy_of(pod.request.pool))
        if kept is not None:
            self._snapshot.add(*kept)
        return fits

    def place(self, pod: Waiting) -> bool:
        """Take a place for the pod if there is one, and say whether."""
        kept = lift(self._snapshot, pod.uid)
        with self._expecting(pod):
            decision, held = choose(self._snapshot, self._quotas, pod, self._policy_of(pod.request.pool))
        if held is None:
            if kept is not None:
                self._snapshot.add(*kept)
            return False
        if kept is not None:
            self._lifted.append(kept)
        self._snapshot.add(decision.node, held)
        self._quotas.promise(decision.node, held)
        self._taken.append((decision.node, held))
        return True

    def allows(self, pod: Waiting) -> bool:
        """Return whether the quota of the pod's namespace allows what it states."""
        with self._expecting(pod):
            return self._quotas.refuse(pod.namespace, pod.request) is None

    def _expecting(self, pod: Waiting) -> AbstractContextManager[None]:
        """Count as promised what is kept for others, but for those that have taken a place here."""
        taken = {held.pod_uid for _, held in self._taken}
        return self._quotas.expecting(pod.namespace, self._expected(pod.namespace, {pod.uid, *taken}))

    def keeps_room(self, pod: Waiting) -> bool:
        """Whether room is kept for the pod somewhere, which makes it unlike others that ask for the same."""
        return self._snapshot.node_of(HOLD + pod.uid) is not None

    def must_form(self, pod: Waiting) -> bool:
        """Whether the pod may only be placed together with others."""
        return pod.request.gang is not None and not self._gangs.standing(pod.request.gang.key)

    def form(self, members: Iterable[Waiting], least: int) -> list[str]:
        """Take places for as many members as fit, and return their UIDs, or for none if fewer than ``least`` fit."""
        placed = [member.uid for member in members if self.place(member)]
        if len(placed) >= least:
            return placed
        self._take_back(len(placed))
        return []
