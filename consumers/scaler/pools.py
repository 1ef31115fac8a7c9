"""Pools as the bus tells of them: nodes, what is free on them, and what waits. The fold; no I/O."""

from datetime import datetime
from typing import Final, TypeVar

import msgspec

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.scaler.sizes import LEAVING_LABEL, Claim, Machine, PoolView, claim_number
from consumers.scaler.wanted import CURABLE, PATIENCE, bounds_of, compaction_of, shape_of
from schemas.capacity import Offer, PoolCapacity, Shape, Shortage, Size
from schemas.cluster import GpuInventory, Node
from schemas.kube.defaults import Settings
from schemas.kube.pools import GPUPoolSpec
from schemas.kube.resources import CustomResource
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import Waiting
from schemas.preemption import DisruptionBudget

T = TypeVar("T", bound=msgspec.Struct)

STATE_FILTERS = (
    "gpubus.state.node.*", "gpubus.state.gpu.*", "gpubus.state.waiting.*.*.*", "gpubus.state.config.gpupools.*.*",
    "gpubus.state.capacity.*", "gpubus.state.disruption.*.*",
)  # fmt: skip
LEDGER_FILTERS = ("gpubus.ledger.node.*",)

CLAIM_LABEL: Final = "tensor-fusion.ai/node-claim"
"""Label of a node that names its claim, where it is not called as its claim says."""

KEEP_LABELS: Final = ("tensor-fusion.ai/do-not-disrupt", "karpenter.sh/do-not-disrupt")


class Pools:
    """All pools."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._inventories: dict[str, GpuInventory] = {}
        self._held: dict[str, tuple[Allocation, ...] | None] = {}
        """What pods hold on nodes; None where that cannot be read."""
        self._waiting: dict[str, Waiting] = {}
        self._budgets: dict[str, DisruptionBudget] = {}
        self._settings = Settings(lambda *_: None)
        self.recorded: dict[str, PoolCapacity] = {}
        """What was written down of pools the last time that they were looked at."""

    def names(self) -> list[str]:
        """Return all pools."""
        return sorted(name for _, name in self._settings.pools.items)

    def spec(self, pool: str) -> GPUPoolSpec | None:
        """Return what a pool is to be like; None if there is none."""
        item = self._settings.pools.items.get(("", pool))
        return item.spec if item is not None else None

    def uid(self, pool: str) -> str:
        """Return the UID of a pool's object."""
        item = self._settings.pools.items.get(("", pool))
        return item.metadata.uid if item is not None else ""

    def view(
        self, pool: str, before: PoolCapacity, claims: list[Claim], offers: tuple[Offer, ...], now: datetime
    ) -> PoolView:
        """Return what a pool's plan depends on; ``before`` is what was written down at the last look.

        Raises:
            QuantityError: An amount of the pool's bounds cannot be read.
        """
        spec = self._settings.pools.items["", pool].spec
        machines = self._machines(pool, claims, before.idle_since, now)
        there = {machine.claim for machine in machines}
        coming = tuple(
            msgspec.structs.replace(claim, ending=claim.ending or claim.name in before.given_up)
            for claim in claims
            if claim.name not in there
        )
        numbers = {claim_number(pool, claim.name) for claim in claims}
        return PoolView(
            bounds=bounds_of(spec.capacity_config), machines=machines, claims=coming, missing=self._missing(pool, now),
            offers=offers, failures=before.failures, shrinks=compaction_of(spec),
            numbers=frozenset(number for number in numbers if number is not None),
        )  # fmt: skip

    def _machines(
        self, pool: str, claims: list[Claim], idle: dict[str, datetime], now: datetime
    ) -> tuple[Machine, ...]:
        """Return the nodes of a pool that have shown their GPUs; ``idle`` says since when those that were are empty."""
        by_node = {claim.node: claim for claim in claims}
        by_name = {claim.name: claim for claim in claims}
        found = []
        for name, node in sorted(self._nodes.items()):
            inventory = self._inventories.get(name)
            if node.pool != pool or inventory is None or not inventory.gpus:
                continue
            claim = by_name.get(node.labels.get(CLAIM_LABEL, "")) or by_node.get(name)
            size, free, empty = self._size(node, inventory)
            found.append(
                Machine(
                    name=name,
                    size=size,
                    free=free,
                    created_at=claim.made_at if claim is not None else now,
                    claim=claim.name if claim is not None else "",
                    offer=claim.offer if claim is not None else None,
                    idle_since=idle.get(name, now) if empty else None,
                    keep=any(node.labels.get(label) == "true" for label in KEEP_LABELS),
                    leaving=node.labels.get(LEAVING_LABEL) == "true" and node.unschedulable,
                )
            )
        return tuple(found)

    def _size(self, node: Node, inventory: GpuInventory) -> tuple[Size, Size, bool]:
        """Return the node's GPUs, what is free of them, and whether it is known that nobody is on it."""
        held = self._held.get(node.name, ())
        leaving = node.labels.get(LEAVING_LABEL) == "true"
        taken: dict[str, tuple[int, int]] = {}
        for allocation in held or ():
            for grant in allocation.gpus:
                tflops, vram = taken.get(grant.uuid, (0, 0))
                taken[grant.uuid] = (tflops + grant.tflops_milli, vram + grant.vram_bytes)
        size = free = Size()
        open_to_pods = held is not None and node.ready and (leaving or not node.unschedulable)
        for gpu in inventory.gpus:
            size = size.plus(Size(gpus=1, tflops_milli=gpu.tflops_milli, vram_bytes=gpu.vram_bytes))
            usable = gpu.healthy and not gpu.used_by and gpu.uuid not in (*node.cordoned_gpus, *node.claimed_gpus)
            if open_to_pods and usable:
                tflops, vram = taken.get(gpu.uuid, (0, 0))
                free = free.plus(
                    Size(
                        gpus=int(gpu.uuid not in taken),
                        tflops_milli=max(gpu.tflops_milli - tflops, 0),
                        vram_bytes=max(gpu.vram_bytes - vram, 0),
                    )
                )
        # Other pods are daemons, or claim GPUs by hand and are in ``claimed_gpus``.
        empty = held is not None and not held and not node.claimed_gpus
        return size, free, empty

    def _missing(self, pool: str, now: datetime) -> tuple[Shortage, ...]:
        """Return what has waited in a pool, for a reason that another node may cure."""
        found: dict[Shape, list[Waiting]] = {}
        for one in self._waiting.values():
            if one.request.pool == pool and one.reason in CURABLE and now - one.since >= PATIENCE:
                found.setdefault(shape_of(one.request), []).append(one)
        return tuple(
            sorted(
                (
                    Shortage(
                        shape=shape,
                        pods=len(pods),
                        reason=min(pods, key=lambda pod: (pod.since, pod.uid)).reason,
                        since=min(pod.since for pod in pods),
                    )
                    for shape, pods in found.items()
                ),
                key=lambda short: (short.since, msgspec.json.encode(short.shape)),
            )
        )

    def lightly_used(self, pool: str, threshold: int) -> list[Allocation]:
        """Return what pods hold of those nodes of a pool of whose physical VRAM at most ``threshold`` percent is granted."""
        found: list[Allocation] = []
        for name, node in sorted(self._nodes.items()):
            inventory, held = self._inventories.get(name), self._held.get(name)
            if node.pool != pool or inventory is None or not held:
                continue
            whole = sum(gpu.vram_bytes for gpu in inventory.gpus)
            if 100 * sum(grant.vram_bytes for one in held for grant in one.gpus) <= threshold * whole:
                found += held
        return found

    def guarded(self) -> dict[str, str]:
        """Return the pods whose disruption budget allows no eviction now, by UID, and which budget that is."""
        return {
            uid: f"PodDisruptionBudget {budget.namespace}/{budget.name} allows no eviction now"
            for budget in self._budgets.values()
            if not budget.allowed
            for uid in budget.pods
        }

    def waiting_since(self, pool: str, since: datetime) -> list[str]:
        """Return the pods of a pool that have begun to wait since an instant."""
        return sorted(
            f"{one.namespace}/{one.name}"
            for one in self._waiting.values()
            if one.request.pool == pool and one.since >= since
        )

    def on_state(self, record: Record) -> None:
        """Apply one record of STATE.

        Raises:
            UndecodableError: It cannot be read; what was known stays.
        """
        try:
            _, kind, *names = subjects.names(record.subject)
            match kind:
                case "node":
                    _put(self._nodes, names[0], record, Node)
                case "gpu":
                    _put(self._inventories, names[0], record, GpuInventory)
                case "capacity":
                    _put(self.recorded, names[0], record, PoolCapacity)
                case "disruption":
                    _put(self._budgets, record.subject, record, DisruptionBudget)
                case "waiting":
                    _put(self._waiting, record.subject, record, Waiting)
                case "config":
                    data = None if record.deleted else codec.decode_as(CustomResource, record.payload).data
                    self._settings.apply(names[0], names[1], names[2], data)
        except (ValueError, IndexError, msgspec.ValidationError) as error:
            raise UndecodableError(str(error)) from None

    def on_ledger(self, record: Record) -> None:
        """Apply one record of the ledger's nodes.

        Raises:
            UndecodableError: It cannot be read; then its node counts as full, and as never empty.
        """
        name = subjects.names(record.subject)[-1]
        if record.deleted:
            self._held.pop(name, None)
            return
        self._held[name] = None
        self._held[name] = codec.decode_as(NodeRecord, record.payload).data.allocations

    def forget_records(self) -> None:
        """LEDGER was made anew."""
        self._held.clear()


def _put(items: dict[str, T], name: str, record: Record, struct: type[T]) -> None:
    if record.deleted:
        items.pop(name, None)
    else:
        items[name] = codec.decode_as(struct, record.payload).data
