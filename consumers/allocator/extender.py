"""The allocator's answers to a kube-scheduler that has us as its extender, which come over gateways.

``filter`` judges a pod on the nodes that kube-scheduler has left, ``prioritize`` tells which of them the pool's policy prefers,
and ``bind`` reserves: only then anything is written to the ledger. Any allocator may be asked any of the three, so each tells
the others what it has offered.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus import codec, direct, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.rpc import Service
from bus.streams import STATE
from bus.tasks import end
from consumers.allocator.caller import Caller
from consumers.allocator.core import Core
from schemas import reasons
from schemas.dialects import RequestError, parse_pod
from schemas.dialects.tf_keys import PROFILE
from schemas.dialects.view import POOL_KEY
from schemas.extender import ExtenderArgs, ExtenderBindingArgs, Offer, Reserved
from schemas.kube.core import KubePod
from schemas.kube.defaults import Settings
from schemas.kube.resources import CustomResource
from schemas.kube.views import view_of
from schemas.pod import GpuRequest, Schedule

log = logging.getLogger("gpubus.allocator")

OFFERED: Final = "extender.offered"
RESERVE_S: Final = 8.0
"""How long a reservation may take before the caller is told that it is not known."""

EXPIRE_EVERY_S: Final = 1.0


class Offered(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one allocator tells the others: that it has offered ``best`` for a pod."""

    allocator: str
    command: Schedule
    best: tuple[str, ...]


_offered = msgspec.json.Decoder(Offered)


class ExtenderDesk:
    """Answers for one allocator.

    Args:
        bus: The connection.
        core: The allocator's mind.
        changed: Called when ``core`` has something to carry out.
    """

    def __init__(self, bus: Bus, core: Core, changed: Callable[[], None]) -> None:
        self._bus = bus
        self._core = core
        self._changed = changed
        self._settings = Settings(lambda *_: None)
        self._config = Follower(bus, STATE, [f"{subjects.subject('state', 'config')}.>"], self._on_config)
        self._services = (
            Service(bus, "extender.filter", ExtenderArgs, at_once=self._filter),
            Service(bus, "extender.prioritize", ExtenderArgs, at_once=self._prioritize),
            Service(bus, "extender.bind", ExtenderBindingArgs, self._bind, concurrency=256),
        )
        self._offered: Subscription | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to answer, as soon as it is known what operators have set."""
        await self._config.start()
        self._offered = await self._bus.client.subscribe(subjects.rpc(OFFERED), cb=self._on_offered)
        self._tasks = [asyncio.create_task(self._expire(), name="extender-expire")]
        for service in self._services:
            await service.start()

    async def stop(self) -> None:
        """Finish what was asked."""
        for service in self._services:
            await service.stop(drain_s=RESERVE_S / 2)
        if self._offered is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._offered.unsubscribe()
        await end(*self._tasks)
        await self._config.stop()

    # What is asked

    def _filter(self, asked: ExtenderArgs) -> Offer:
        command, problem = self._read(asked.pod)
        names = asked.node_names or ()
        if command is None:
            return Offer(refused={problem: names})
        offer = self._core.offer(command, names, time.monotonic())
        if offer.best:
            self._tell_others(command, offer)
        self._changed()
        return offer

    def _tell_others(self, command: Schedule, offer: Offer) -> None:
        if len(self._core.cluster.allocators()) > 1:
            told = Offered(allocator=self._core.name, command=command, best=offer.best)
            with contextlib.suppress(nats.errors.Error):  # it makes others decide better, no more
                direct.publish(self._bus.client, subjects.rpc(OFFERED), msgspec.json.encode(told))

    def _prioritize(self, asked: ExtenderArgs) -> Offer:
        known = self._core.offers.known(asked.pod.metadata.uid)
        return self._filter(asked) if known is None else Offer(best=known[1])

    async def _bind(self, asked: ExtenderBindingArgs) -> Reserved:
        caller = Caller()
        problem = self._core.reserve(asked.uid, asked.node, caller)
        self._changed()
        if problem:
            return Reserved(error=problem)
        try:
            async with asyncio.timeout(RESERVE_S):
                settled = await caller.settled()
        except TimeoutError:
            return Reserved(error=f"not in the ledger within {RESERVE_S:g} s")
        decision = caller.decision
        if not settled or decision is None:
            return Reserved(error="the reservation came to nothing: try again")
        if decision.outcome != "allocated":
            return Reserved(error=f"{decision.reason}: {decision.message}")
        if decision.node != asked.node:
            return Reserved(error=f"the pod has its place on {decision.node} already")
        return Reserved()

    def _read(self, pod: KubePod) -> tuple[Schedule | None, str]:
        """Return the command to place a pod, or why it cannot be placed as it is written."""
        meta = pod.metadata
        try:
            request = self._request(pod)
        except RequestError as error:
            return None, f"{reasons.INVALID_REQUEST}: {error}"
        if request is None:
            name = pod.spec.scheduler_name
            return None, f"{reasons.INVALID_REQUEST}: the pod asks for no GPU, and {name} is for pods that do"
        created = int(meta.created_at.timestamp()) if meta.created_at is not None else 0
        command = Schedule(
            namespace=meta.namespace, name=meta.name, uid=meta.uid, request=request, way="extender", created_s=created
        )
        return command, ""

    def _request(self, pod: KubePod) -> GpuRequest | None:
        view, settings = view_of(pod), self._settings
        defaults = settings.defaults(pod.metadata.namespace, view.annotation(PROFILE), view.annotation(POOL_KEY))
        # Whoever is asked by this scheduler's extender knows that its pods are ours.
        hami = msgspec.structs.replace(settings.hami(), scheduler_names=(pod.spec.scheduler_name,))
        return parse_pod(view, tensorfusion_defaults=defaults, hami_config=hami)

    # What is heard

    async def _on_offered(self, message: Msg) -> None:
        told = _offered.decode(message.data)
        if told.allocator != self._core.name:
            self._core.offers.remember(told.command, told.best)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            if len(self._core.offers):
                self._core.offers.expire(time.monotonic())
                self._changed()

    def _on_config(self, record: Record) -> None:
        try:
            _, _, plural, namespace, name = subjects.names(record.subject)
            data = None if record.deleted else codec.decode_as(CustomResource, record.payload).data
            self._settings.apply(plural, namespace, name, data)
        except (UndecodableError, ValueError, msgspec.DecodeError) as error:
            log.warning("STATE %d on %s: %s", record.seq, record.subject, error)  # what was set before stays in force
