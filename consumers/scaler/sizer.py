"""The shell around a pool's size: takes ticks, looks at how things stand, writes down what follows, and does it.

What there is to know of a pool between two looks is in one record, replaced by compare-and-set before anything is done. Claims
have names that the plan gives them, and the API server gives a name once: so whoever dies where, no node is ordered twice, and
the next look goes on from how things stand.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from bus import records, subjects, timers
from bus.codec import decode_as
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec, Delivery
from bus.errors import BusError, ConflictError, UndecodableError
from bus.follower import Follower, Record
from bus.kube.client import Client
from bus.kube.errors import KubeError
from bus.streams import LEDGER, STATE, TICK
from bus.tasks import end
from bus.worker import Dead, Done, Outcome, Retry, Worker
from consumers.scaler.capacity import plan_capacity
from consumers.scaler.claims import Claims, Found
from consumers.scaler.closing import close_node
from consumers.scaler.defragmenter import Defragmenter
from consumers.scaler.noted import noted, with_reserve
from consumers.scaler.offers import satisfies
from consumers.scaler.placeholders import Present, Wanted, wanted
from consumers.scaler.pools import LEDGER_FILTERS, STATE_FILTERS, Pools
from consumers.scaler.records import KIND, PoolRecords
from consumers.scaler.reserve import NAMESPACE, Reserve
from consumers.scaler.sizes import LEAVING_LABEL, CapacityPlan, PoolView
from schemas.capacity import Offer, PoolCapacity
from schemas.dialects.text import RequestError
from schemas.kube.pools import GPUPoolSpec
from schemas.ledger import NodeRecord
from schemas.quantity import QuantityError

log = logging.getLogger("gpubus.scaler")

EVERY: Final = timedelta(seconds=10)
TICKS: Final = ConsumerSpec(
    stream=TICK, durable="sizer", filters=(f"gpubus.work.tick.{KIND}.>",), ack_wait_s=30.0, max_deliver=1000
)
CONCURRENCY: Final = 4
SYNC_S: Final = 5.0
ORDERING: Final = "Provisioned"
"""The mode of pools whose nodes are ordered by claims; others' nodes come and go without us."""


class SizerStatistics(msgspec.Struct, frozen=True):
    """Counters since the start."""

    looks: int
    ordered: int
    given_up: int
    closed: int
    removed: int
    reopened: int
    reserved: int
    freed: int
    overtaken: int
    failures: int


class Sizer:
    """One process that keeps pools at their size.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
        name: Unique name of this process.
        offers: Kinds of nodes that can be had.
        namespace: Where placeholders are.
        image: What placeholders run; empty for one that waits to be told to end.
        clock: Seconds since the epoch.
        step: Called with the name of every step of a look, for tests that kill us there.
    """

    def __init__(
        self,
        bus: Bus,
        client: Client,
        name: str,
        offers: Iterable[Offer] = (),
        *,
        namespace: str = NAMESPACE,
        image: str = "",
        clock: Callable[[], float] = time.time,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._bus = bus
        self._client = client
        self._claims = Claims(client)
        source = f"/gpubus/scaler/{name}"
        self._offers = tuple(offers)
        self._records = PoolRecords(bus, source, clock)
        self._clock = clock
        self._step = step
        self._reserve = Reserve(client, namespace=namespace, image=image, step=step)
        self.pools = Pools(namespace)
        self._defragmenter = Defragmenter(bus, client, self.pools, source, clock=clock, step=step)
        self._state = Follower(bus, STATE, STATE_FILTERS, self._on_state)
        self._ledger = Follower(bus, LEDGER, LEDGER_FILTERS, self._on_ledger, recreated=self.pools.forget_records)
        self._counts = dict.fromkeys(SizerStatistics.__struct_fields__, 0)

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Keep pools at their size until ``stop`` is set; what was begun is finished."""
        await self._ledger.start()
        await self._state.start()
        consumer = PullConsumer(self._bus, TICKS, prefetch=2 * CONCURRENCY)
        syncing = self._bus.spawn(self._syncing(), name="sizer-sync")
        if ready is not None:
            ready.set()
        try:
            await Worker(consumer, self.handle, concurrency=CONCURRENCY).run(stop)
        finally:
            await end(syncing)
            await self._state.stop()
            await self._ledger.stop()

    def _on_state(self, record: Record) -> None:
        try:
            self.pools.on_state(record)
        except UndecodableError as error:  # its own reader buries it
            log.info("%s at %d: %s", record.subject, record.seq, error)

    def _on_ledger(self, record: Record) -> None:
        try:
            self.pools.on_ledger(record)
        except UndecodableError as error:
            log.info("%s at %d: %s", record.subject, record.seq, error)

    async def _syncing(self) -> None:
        """Give every pool its timer, and end what belongs to pools that are no more."""
        timed: set[str] = set()
        while True:
            wanted = set(self.pools.names())
            try:
                for pool in sorted(wanted - timed):
                    await timers.keep_ticking(self._bus, KIND, pool, EVERY, now=datetime.now(UTC))
                    timed.add(pool)
                for pool in sorted((timed | self.pools.recorded.keys()) - wanted):
                    await self._forget(pool)
                    timed.discard(pool)
            except (BusError, KubeError, TimeoutError) as error:
                log.info("timers could not be set: %s; trying again", error)
            await asyncio.sleep(SYNC_S)

    async def _forget(self, pool: str) -> None:
        """End what belongs to a pool that is no more; its claims stay, for pods may be on their nodes."""
        await timers.cancel(self._bus, KIND, pool)
        await self._defragmenter.forget(pool)
        await self._reserve.drop(pool)
        seq, record = await self._records.read(pool)
        for node in record.closed:
            await close_node(self._client, node, LEAVING_LABEL, closed=False)
        if seq:
            await records.erase(self._bus, subjects.state(KIND, pool), expected=seq)

    async def handle(self, delivery: Delivery) -> Outcome:
        """Look at the pool that a tick is for; what is wrong with its size does not keep a campaign from its end."""
        _, _, _, *name = subjects.names(delivery.subject)
        if len(name) != 1:
            return Dead(f"subject {delivery.subject} names no pool")
        outcome: Outcome = Done()
        for look in (self.look, self.defragment):
            try:
                await look(name[0])
            except (BusError, KubeError) as error:
                self._counts["failures"] += 1
                log.info("pool %s: %s; it is looked at again", name[0], error)
                outcome = Retry(2.0)
        return outcome

    async def look(self, pool: str) -> None:
        """Look at one pool: plan, write down, do.

        Raises:
            BusError, KubeError: What could not be reached; the next look goes on.
        """
        while (spec := self.pools.spec(pool)) is not None:
            now = datetime.fromtimestamp(self._clock(), UTC)
            seq, before = await self._records.read(pool)
            await self._records.tell(before, seq)
            offers = self._offers_of(spec)
            found = await self._claims.of(pool, offers, before.claims, now)
            present = await self._reserve.of(pool) if self._reserves(pool) or before.placeholders else ()
            self._step("read")
            view = self.pools.view(pool, before, found, offers, now)
            kept = self._kept(pool, spec, view, before, present)
            plan = plan_capacity(view, now)
            if spec.node_manager_config.provisioning_mode != ORDERING:
                # Its nodes come and go without us; what we closed while they did not is opened again.
                plan = CapacityPlan(reopen=tuple(one for one in view.machines if one.leaving and not one.ending))
            after = noted(view, plan, before, found, self.pools.came(before, found))
            after = with_reserve(after, kept, present)
            self._step("planned")
            if after != before:
                try:
                    seq = await self._records.replace(after, seq)
                except ConflictError:
                    self._counts["overtaken"] += 1
                    continue
            self._step("written")
            await self._carry_out(pool, spec, plan, after, found)
            if kept.follows:
                await self._keep_reserve(pool, spec, kept, present)
            await self._records.tell(after, seq)
            self._counts["looks"] += 1
            return

    def _reserves(self, pool: str) -> bool:
        try:
            return self.pools.by_placeholders(pool)
        except RequestError:  # that is said with what is to be kept
            return False

    def _kept(
        self, pool: str, spec: GPUPoolSpec, view: PoolView, before: PoolCapacity, present: tuple[Present, ...]
    ) -> Wanted:
        """Return the placeholders that a pool is to have; where that cannot be followed, those stay that are there."""
        try:
            if not view.refused:
                return wanted(view, spec, self.pools.preemption(pool)) if self.pools.by_placeholders(pool) else Wanted()
            refusal = ""
        except (QuantityError, RequestError) as error:
            refusal = str(error)
        log.warning("pool %s: %s", pool, view.refused or refusal)
        return Wanted(number=max(before.placeholders, len(present)), refusal=refusal, follows=False)

    async def defragment(self, pool: str) -> None:
        """Bring a pool's defragmentation on by a step.

        Raises:
            BusError, KubeError: What could not be reached; the next look goes on.
        """
        await self._defragmenter.look(pool)

    def _offers_of(self, spec: GPUPoolSpec) -> tuple[Offer, ...]:
        provisioner = spec.node_manager_config.node_provisioner
        requirements = provisioner.gpu_requirements if provisioner is not None else ()
        return tuple(one for one in self._offers if satisfies(one, requirements))

    async def _carry_out(
        self, pool: str, spec: GPUPoolSpec, plan: CapacityPlan, record: PoolCapacity, found: Found
    ) -> None:
        by_name = {claim.name: claim for claim in found.claims}
        nodes = self.pools.nodes_of(found.claims)
        for name in record.given_up:
            claim = by_name[name]
            # What stands on a node by the name of its claim tells that it came, whatever we have heard of it.
            names = nodes.get(name) or [claim.node or name]
            if any([await self._stays(node) for node in names]):
                continue
            # One that came, and that nobody tells of any more, must be gone indeed.
            if (
                name in record.came
                and name not in nodes
                and (not claim.node or await self._claims.is_there(claim.node))
            ):
                continue
            await self._claims.drop(by_name[name])
            self._counts["given_up"] += 1
            self._step("dropped")
        for machine in plan.reopen:
            await close_node(self._client, machine.name, LEAVING_LABEL, closed=False)
            self._counts["reopened"] += 1
        for machine in plan.close:
            await close_node(self._client, machine.name, LEAVING_LABEL, closed=True)
            self._counts["closed"] += 1
            self._step("closed")
        for machine in plan.remove:
            if why := await self._stays(machine.name):
                log.info("node %s is not given back: %s", machine.name, why)
                continue
            await self._claims.drop(by_name[machine.claim])
            self._counts["removed"] += 1
            self._step("removed")
        provisioner = spec.node_manager_config.node_provisioner
        for order in plan.orders:
            node_class = provisioner.node_class if provisioner is not None else ""
            self._counts["ordered"] += await self._claims.make(pool, node_class, order)
            self._step("ordered")

    async def _keep_reserve(self, pool: str, spec: GPUPoolSpec, kept: Wanted, present: tuple[Present, ...]) -> None:
        if not kept.number and not present:
            return
        made, deleted = await self._reserve.keep(pool, self.pools.uid(pool), spec, kept, present)
        self._counts["reserved"] += made
        self._counts["freed"] += deleted

    async def _stays(self, node: str) -> str:
        """Ask the ledger itself and the API server why a node must stay: what we have heard of it may be late."""
        stored = await records.latest(self._bus, LEDGER, subjects.ledger_node(node))
        try:
            if stored.payload and decode_as(NodeRecord, stored.payload).data.allocations:
                return "its ledger record names pods"
        except UndecodableError:
            return "its ledger record cannot be read"
        return await self._claims.busy(node)

    def statistics(self) -> SizerStatistics:
        """Return the counters of this process."""
        return SizerStatistics(**self._counts)
