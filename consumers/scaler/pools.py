"""Pools as the bus tells of them: nodes, what is free on them, and what waits. The fold; no I/O."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.scaler.claims import Found
from consumers.scaler.closing import is_closed
from consumers.scaler.packing import suits
from consumers.scaler.placeholders import by_placeholders, is_placeholder
from consumers.scaler.room import room_on
from consumers.scaler.sizes import LEAVING_LABEL, Bounds, Claim, Machine, PoolView, claim_number
from consumers.scaler.wanted import CURABLE, PATIENCE, bounds_of, compaction_of, kept_off_by_us, shape_of
from schemas import reasons
from schemas.capacity import Offer, PoolCapacity, Shape, Shortage
from schemas.cluster import KEEP_WORDS, GpuInventory, Node, Oversubscription, Pool
from schemas.dialects.tensorfusion import PLACEHOLDER_PRIORITY
from schemas.dialects.text import RequestError
from schemas.kube.defaults import Settings
from schemas.kube.pools import GPUPoolSpec
from schemas.kube.resources import CustomResource
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import GpuRequest, Waiting
from schemas.preemption import DisruptionBudget
from schemas.quantity import QuantityError

T = TypeVar("T", bound=msgspec.Struct)

STATE_FILTERS = (
    "gpubus.state.node.*", "gpubus.state.gpu.*", "gpubus.state.waiting.*.*.*", "gpubus.state.config.gpupools.*.*",
    "gpubus.state.capacity.*", "gpubus.state.disruption.*.*", "gpubus.state.pool.*",
)  # fmt: skip
LEDGER_FILTERS = ("gpubus.ledger.node.*",)

CLAIM_LABEL: Final = "tensor-fusion.ai/node-claim"
"""Label of a node that names its claim, where it is not called as its claim says."""

SOURCE_LABEL: Final = "tensor-fusion.ai/defrag-source"
"""Label of a node that a campaign has closed."""

MOST_PODS: Final = 2000
"""Pods that are asked about at a time for a place elsewhere: some 250 bytes each, of the million that a message may have."""

MOST_SHAPES: Final = 100
"""Shapes that are told and planned for at a time: a message has its bounds."""

KEEP_LABELS: Final = KEEP_WORDS
"""Labels of nodes, and labels and annotations of pods, that forbid to disrupt them; the watcher tells of annotations of nodes."""


class Pools:
    """All pools; ``namespace`` is where placeholders are."""

    def __init__(self, namespace: str = "") -> None:
        self._namespace = namespace
        self._nodes: dict[str, Node] = {}
        self._inventories: dict[str, GpuInventory] = {}
        self._held: dict[str, tuple[Allocation, ...] | None] = {}
        """What pods hold on nodes; None where that cannot be read."""
        self._waiting: dict[str, Waiting] = {}
        self._budgets: dict[str, DisruptionBudget] = {}
        self._told: dict[str, Pool] = {}
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
        return self._settings.pools.items["", pool].metadata.uid

    def by_placeholders(self, pool: str) -> bool:
        """Return whether placeholders keep a pool's warm reserve.

        Raises:
            RequestError: What its annotation says cannot be followed.
        """
        item = self._settings.pools.items["", pool]
        return by_placeholders(item.spec, item.metadata.annotations)

    def preemption(self, pool: str) -> str:
        """Return whose pods may be evicted for a pod of a pool; nobody's as long as that has not been told."""
        told = self._told.get(pool)
        return told.preemption if told is not None else "never"

    def view(self, pool: str, before: PoolCapacity, found: Found, offers: tuple[Offer, ...], now: datetime) -> PoolView:
        """Return what a pool's plan depends on; ``before`` is what was written down at the last look.

        What of the pool's size cannot be followed is said in it.
        """
        spec = self._settings.pools.items["", pool].spec
        known = self._settings.pool(pool)
        oversold = known.oversubscription if known is not None else Oversubscription()
        nodes = self.nodes_of(found.claims)
        came = {*before.came, *found.bound, *nodes}
        ended = self._ended(before, found, nodes)
        machines = self._machines(pool, before, found.claims, oversold, ended=ended, now=now)
        there = {machine.claim for machine in machines}
        coming = tuple(
            self._coming(pool, claim, before, nodes.get(claim.name, []), now if claim.name in came else None)
            for claim in found.claims
            if claim.name not in there
        )
        numbers = {claim_number(pool, name) for name in (*found.names, *self._nodes)}
        bounds, shrinks, refused = Bounds(), None, ""
        try:
            bounds, shrinks = bounds_of(spec.capacity_config), compaction_of(spec)
        except (QuantityError, RequestError) as error:
            refused = str(error)
        return PoolView(
            bounds=bounds, machines=machines, claims=coming, missing=self._missing(pool, machines, oversold, now),
            offers=offers, failures=before.failures, shrinks=shrinks, oversold=oversold, refused=refused,
            numbers=frozenset(number for number in numbers if number is not None), ended=tuple(sorted(ended)),
        )  # fmt: skip

    def _coming(self, pool: str, claim: Claim, before: PoolCapacity, nodes: list[str], came: datetime | None) -> Claim:
        """Return a claim that has no node with GPUs here; ``came`` is now if its node has come, at any time.

        Such a node counts on as one that comes, so that nobody orders it again, until it is too late for its GPUs. One that is
        in another pool counts for the maximum alone, and is nobody's to give up.
        """
        elsewhere = any(self._nodes[node].pool not in ("", pool) for node in nodes)
        bare = before.bare_since.get(claim.name, came) if came is not None and not elsewhere else None
        ending = claim.ending or elsewhere or claim.name in before.given_up
        return msgspec.structs.replace(claim, ending=ending, bare_since=bare)

    def _ended(self, before: PoolCapacity, found: Found, nodes: dict[str, list[str]]) -> set[str]:
        """Return the nodes whose claim has been there and is gone; by its name alone a node is nobody's."""
        gone = before.claims.keys() - found.names
        ours = {name for name, node in self._nodes.items() if name in gone or node.labels.get(CLAIM_LABEL, "") in gone}
        claimed = {name for names in nodes.values() for name in names}
        return (ours | (set(before.ended) & self._nodes.keys())) - claimed

    def came(self, before: PoolCapacity, found: Found) -> tuple[str, ...]:
        """Return the claims whose node has come, at any time, as far as they still exist."""
        names = {*before.came, *found.bound, *self.nodes_of(found.claims)}
        return tuple(sorted(names & {claim.name for claim in found.claims}))

    def nodes_of(self, claims: Iterable[Claim]) -> dict[str, list[str]]:
        """Return the nodes of each claim, whichever pool they are in: by their label, else as the claim calls them."""
        by_node = {claim.node: claim.name for claim in claims if claim.node}
        names = {claim.name for claim in claims}
        found: dict[str, list[str]] = {}
        for name, node in self._nodes.items():
            labelled = node.labels.get(CLAIM_LABEL, "")
            claim = labelled if labelled in names else "" if labelled else by_node.get(name, "")
            if claim:
                found.setdefault(claim, []).append(name)
        return found

    def _machines(
        self,
        pool: str,
        before: PoolCapacity,
        claims: tuple[Claim, ...],
        oversold: Oversubscription,
        *,
        ended: set[str],
        now: datetime,
    ) -> tuple[Machine, ...]:
        """Return the nodes of a pool that have shown their GPUs."""
        by_name = {claim.name: claim for claim in claims}
        claim_of = {node: (name, len(nodes)) for name, nodes in self.nodes_of(claims).items() for node in nodes}
        found = []
        for name, node in sorted(self._nodes.items()):
            inventory = self._inventories.get(name)
            if node.pool != pool or inventory is None or not inventory.gpus:
                continue
            claimed, sharing = claim_of.get(name, ("", 0))
            claim = by_name.get(claimed)
            known = name in before.closed
            # A taint of ours that no record tells of is ours to take off, or to go on from.
            adopted = not known and claim is not None and not self._closed_by_others(pool, name)
            leaving = (known or adopted) and is_closed(node, LEAVING_LABEL)
            size, free, empty = room_on(node, inventory, self._on(name), oversold)
            ours = CLAIM_LABEL in node.labels or name in ended
            found.append(
                Machine(
                    name=name,
                    size=size,
                    free=free,
                    created_at=claim.made_at if claim is not None else now,
                    claim=claimed,
                    offer=claim.offer if claim is not None else None,
                    idle_since=before.idle_since.get(name, now) if empty else None,
                    # A node that an operator has closed is the operator's; one of two with a claim would take the other along.
                    keep=sharing > 1 or node.unschedulable or must_stay(node),
                    leaving=leaving,
                    ending=claim.ending if claim is not None else ours or leaving,
                    adopted=adopted and leaving,
                )
            )
        return tuple(found)

    def _closed_by_others(self, pool: str, node: str) -> bool:
        return any(node in record.closed for name, record in self.recorded.items() if name != pool)

    def _on(self, node: str) -> tuple[Allocation, ...] | None:
        """Return what pods hold on a node, placeholders aside, as what is only kept for others is free; None if unreadable."""
        held = self._held.get(node, ())
        if held is None or not self._namespace:
            return held
        return tuple(one for one in held if not is_placeholder(one, self._namespace))

    def _missing(
        self, pool: str, machines: Iterable[Machine], oversold: Oversubscription, now: datetime
    ) -> tuple[Shortage, ...]:
        """Return what has waited in a pool, for a reason that another node may cure; the most pods of the oldest shapes.

        Pods that only a taint of ours keeps off a node that we have closed count, those that only keep room do not.
        """
        closed = [one for one in machines if one.leaving and not one.ending]
        found: dict[Shape, list[Waiting]] = {}
        for one in self._waiting.values():
            if one.request.pool != pool or now - one.since < PATIENCE or self._keeps_room(one):
                continue
            if one.reason in CURABLE:
                found.setdefault(shape_of(one.request), []).append(one)
            elif one.reason == reasons.TAINT and closed:
                shape = shape_of(msgspec.structs.replace(one.request, nodes=None))
                if self._kept_off(one.request, shape, closed, oversold):
                    found.setdefault(shape, []).append(one)
        shortages = (
            Shortage(
                shape=shape,
                pods=len(pods),
                reason=min(pods, key=lambda pod: (pod.since, pod.uid)).reason,
                since=min(pod.since for pod in pods),
            )
            for shape, pods in found.items()
        )
        return tuple(sorted(shortages, key=lambda short: (short.since, msgspec.json.encode(short.shape)))[:MOST_SHAPES])

    def _kept_off(
        self, request: GpuRequest, shape: Shape, closed: Iterable[Machine], oversold: Oversubscription
    ) -> bool:
        """Return whether a pod would fit on one of the nodes that we have closed, were it not for that."""
        return any(
            one.offer is not None
            and suits(shape, one.offer, oversold)
            and kept_off_by_us(request, self._nodes[one.name].taints)
            for one in closed
        )

    def lightly_used(self, pool: str, threshold: int) -> list[Allocation]:
        """Return what pods hold of those nodes of a pool of whose physical VRAM at most ``threshold`` percent is granted.

        Where they are too many to be asked about at once, those of the nodes with the fewest pods.
        """
        found: list[tuple[Allocation, ...]] = []
        for name, node in sorted(self._nodes.items()):
            inventory, held = self._inventories.get(name), self._held.get(name)
            if node.pool != pool or inventory is None or not held:
                continue
            whole = sum(gpu.vram_bytes for gpu in inventory.gpus)
            if 100 * sum(grant.vram_bytes for one in held for grant in one.gpus) <= threshold * whole:
                found.append(held)
        pods: list[Allocation] = []
        for held in sorted(found, key=len):
            if len(pods) + len(held) > MOST_PODS:
                break
            pods += held
        return pods

    def kept(self, pool: str) -> tuple[str, ...]:
        """Return the nodes of a pool that must not be disrupted."""
        return tuple(sorted(name for name, node in self._nodes.items() if node.pool == pool and must_stay(node)))

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
            if one.request.pool == pool and one.since >= since and not self._keeps_room(one)
        )

    def _keeps_room(self, one: Waiting) -> bool:
        return one.namespace == self._namespace and one.request.priority == PLACEHOLDER_PRIORITY

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
                case "pool":
                    _put(self._told, names[0], record, Pool)
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


def must_stay(node: Node) -> bool:
    """Return whether somebody has said, by a label or an annotation, that a node must not be disrupted."""
    return node.keep or any(node.labels.get(label) == "true" for label in KEEP_LABELS)


def _put(items: dict[str, T], name: str, record: Record, struct: type[T]) -> None:
    if record.deleted:
        items.pop(name, None)
    else:
        items[name] = codec.decode_as(struct, record.payload).data
