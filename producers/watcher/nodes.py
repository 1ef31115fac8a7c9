"""Nodes as the allocator knows them: what they can give, and what pods that are not in the ledger take of it. No I/O."""

from collections.abc import Callable
from typing import Final, NamedTuple

from schemas import quantity
from schemas.cluster import EVERY_GPU, KEEP_WORDS, Node
from schemas.kube.core import KubeNode, same

CORDONED: Final = "hami.io/device-cordon"

_DISK: Final = "ephemeral-storage"


class Seat(NamedTuple):
    """A pod that has a node and is not in the ledger, and what it takes there."""

    node: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()


class Nodes:
    """Nodes and foreign pods on them; ``changed`` is called with the name of a node that may have to be told anew."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._nodes: dict[str, KubeNode] = {}
        self._seats: dict[tuple[str, ...], Seat] = {}
        self._taken: dict[str, list[int]] = {}
        self._claims: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = {}
        self._versions: dict[str, int] = {}
        self.listed_at = 0

    def put(self, item: KubeNode) -> None:
        """The node is so."""
        before = self._nodes.get(item.metadata.name)
        if before is not None and same(before, item):
            return  # a heartbeat: what we read of it is as it was
        self._nodes[item.metadata.name] = item
        self._touch(item.metadata.name, item.metadata.version)

    def gone(self, namespace: str, name: str, version: int) -> None:  # noqa: ARG002  nodes have no namespace
        """The node is no more."""
        self._nodes.pop(name, None)
        self._touch(name, version)

    def complete(self, version: int) -> None:
        """A list has ended."""
        self.listed_at = version

    def names(self) -> list[str]:
        """Return the names of all nodes."""
        return list(self._nodes)

    def get(self, name: str) -> KubeNode | None:
        """Return a node as the API server says it."""
        return self._nodes.get(name)

    def version(self, name: str) -> int:
        """Return the version since which a node, with the pods on it, is as it is."""
        return self._versions.get(name, self.listed_at)

    def seat(self, pod: tuple[str, ...], seat: Seat | None, version: int) -> None:
        """A foreign pod has, or no longer has, a seat."""
        before = self._seats.get(pod)
        if before == seat:
            return
        for one, sign in ((before, -1), (seat, 1)):
            if one is not None:
                taken = self._taken.setdefault(one.node, [0, 0, 0])
                for place, amount in enumerate((one.cpu_milli, one.memory_bytes, 1)):
                    taken[place] += sign * amount
        if before is not None and before.gpus:
            self._claims[before.node].pop(pod, None)
        if seat is None:
            self._seats.pop(pod, None)
        else:
            self._seats[pod] = seat
            if seat.gpus:
                self._claims.setdefault(seat.node, {})[pod] = seat.gpus
        for node in {one.node for one in (before, seat) if one is not None}:
            self._touch(node, version)

    def project(self, name: str, pool_of: Callable[[dict[str, str], str], str]) -> Node | None:
        """Return what STATE says of a node; None if there is no such node or it belongs to no pool.

        A node whose amounts cannot be read takes no pods.
        """
        item = self._nodes.get(name)
        pool = pool_of(item.metadata.labels, name) if item is not None else ""
        if item is None or not pool:
            return None
        cpu, memory, pods, disk = map(item.status.allocatable.get, ("cpu", "memory", "pods", _DISK))
        taken_cpu, taken_memory, taken_pods = self._taken.get(name, (0, 0, 0))
        claimed = sorted({gpu for gpus in self._claims.get(name, {}).values() for gpu in gpus})
        cordoned = item.metadata.annotations.get(CORDONED, "")
        return Node(
            name=name,
            pool=pool,
            cpu_milli=_amount(cpu, quantity.parse_milli),
            memory_bytes=_amount(memory, quantity.parse_bytes),
            max_pods=_amount(pods, quantity.parse_bytes),
            disk_bytes=_amount(disk, quantity.parse_bytes),
            ready=any(one.type == "Ready" and one.status == "True" for one in item.status.conditions),
            unschedulable=item.spec.unschedulable,
            labels=item.metadata.labels,
            taints=tuple(sorted(item.spec.taints, key=lambda taint: (taint.key, taint.value, taint.effect))),
            taken_cpu_milli=taken_cpu,
            taken_memory_bytes=taken_memory,
            taken_pods=taken_pods,
            cordoned_gpus=_cordoned(cordoned),
            claimed_gpus=tuple(claimed),
            keep=any(item.metadata.annotations.get(word) == "true" for word in KEEP_WORDS),
        )

    def _touch(self, node: str, version: int) -> None:
        self._versions[node] = max(version, self._versions.get(node, 0))
        self._changed(node)


def _cordoned(written: str) -> tuple[str, ...]:
    """Return the GPUs that an operator's annotation takes out of service; one that cannot be read means all."""
    uuids = tuple(sorted({one.strip() for one in written.split(",") if one.strip()}))
    return uuids or ((EVERY_GPU,) if written else ())


def _amount(text: str | None, parse: Callable[..., int]) -> int:
    try:
        return parse(text, field="allocatable") if text else 0
    except quantity.QuantityError:
        return 0
