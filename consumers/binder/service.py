"""The binder's shell: takes decisions from a queue group and carries each out until its outcome is known.

An allocated pod ends bound with its allocation, or released. Whatever the API server answered, or did not, the pod as it
is then read decides; only a pod that is gone or somebody else's is given back, never one that may still be bound.
"""

import asyncio
import contextlib
import logging
import random
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import nats.errors

from bus import codec, subjects
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec, Delivery
from bus.errors import ApiError
from bus.kube.client import Client
from bus.kube.errors import KubeError, KubeRefusedError
from bus.streams import CAPACITY, DECISION
from bus.worker import Done, Outcome, Retry, Worker
from consumers.binder import pods
from consumers.binder.events import Events, Note
from consumers.binder.holdings import Holding, Holdings
from consumers.binder.verdict import Verdict, judge
from schemas.brief import brief
from schemas.decision import Decision
from schemas.event import Event
from schemas.extender import ExtenderBindingResult
from schemas.observed import PodNotice
from schemas.pod import Release

log = logging.getLogger("gpubus.binder")

DECISIONS: Final = ConsumerSpec(
    stream=DECISION, durable="binder", filters=("gpubus.decision.>",), ack_wait_s=30.0, max_deliver=100
)
NOTICES: Final = ConsumerSpec(
    stream=CAPACITY, durable="binder-notices", filters=("gpubus.notice.>",), ack_wait_s=30.0, max_deliver=20
)
OLD_NOTICE: Final = timedelta(hours=1)
"""Kubernetes keeps Events for an hour; what is older would only alarm."""

AT_ONCE: Final = 48
"""Bindings on their way together; the API server takes most from about 32 connections."""

REMEMBERED: Final = 65_536
_LONGEST_WAIT_S: Final = 10.0
_REFUSED_DELAY_S: Final = 5.0


class BinderStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; ``released`` counts reservations given back because the pod was gone or not ours."""

    bound: int
    released: int
    refused: int
    marked: int
    outdated: int
    events: int
    events_dropped: int


class Binder:
    """One binder process.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
        name: Unique name of this process.
    """

    def __init__(self, bus: Bus, client: Client, name: str) -> None:
        self._bus = bus
        self._client = client
        self._source = f"/gpubus/binder/{name}"
        self._holdings = Holdings(bus)
        self._events = Events(client, name)
        self._marked: OrderedDict[str, str] = OrderedDict()
        self._bound = self._released = self._refused = self._outdated = self._marks = 0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Bind until ``stop`` is set; finish what was begun before returning."""
        await self._holdings.start()
        self._events.start()
        worker = Worker(PullConsumer(self._bus, DECISIONS, prefetch=2 * AT_ONCE), self._handle, concurrency=AT_ONCE)
        notices = Worker(PullConsumer(self._bus, NOTICES), self._tell)
        if ready is not None:
            ready.set()
        try:
            await asyncio.gather(worker.run(stop), notices.run(stop))
        finally:
            await self._events.stop()
            await self._holdings.stop()

    async def _handle(self, delivery: Delivery) -> Outcome:
        event = codec.decode_as(Decision, delivery.payload)
        match event.data.outcome:
            case "allocated" if (
                event.data.way == "resize"
            ):  # it stands there, and who asked writes on the pod what it holds
                self._say(event.data, "Normal", "Resized", "Resizing", brief(event.data))
            case "allocated":
                return await self._allocated(event)
            case "unschedulable":
                return await self._unschedulable(event.data)
            case "evicted":
                self._say(event.data, "Normal", event.data.reason, "Preempting", f"Evicted: {event.data.message}")
        return Done()

    async def _allocated(self, event: Event[Decision]) -> Outcome:
        """Bind a pod to what the ledger says that it holds now, which may be newer than the decision."""
        uid = event.data.pod_uid
        held = self._holdings.get(uid)
        if held is None:
            try:
                async with asyncio.timeout(5.0):
                    await self._holdings.caught_up()
            except (TimeoutError, nats.errors.Error, ApiError):
                return Retry(1.0)
            held = self._holdings.get(uid)
        if held is None:
            self._outdated += 1
            return Done()  # it was given back meanwhile, and whoever did that has said so
        return await self._bind(event, held)

    async def _bind(self, event: Event[Decision], held: Holding) -> Outcome:
        node, allocation = held
        extender = event.data.way == "extender"
        failures = 0
        ambiguous = False
        while True:
            wait = 0.0
            try:
                await pods.bind(self._client, node, allocation)
                verdict = Verdict("bound", f"bound to {node}")
            except KubeError as error:
                log.info("pod %s/%s: %s", allocation.namespace, allocation.name, error)
                refused = error if isinstance(error, KubeRefusedError) else None
                ambiguous |= refused is None
                try:
                    found = await pods.read(self._client, allocation.namespace, allocation.name)
                    verdict = judge(found, node, allocation)
                except KubeError:
                    verdict = Verdict("unbound", "the API server does not answer")
                    refused = None
                if refused is not None and not refused.transient and verdict.outcome == "unbound":
                    if extender and not ambiguous:
                        return await self._hand_back(event, held, refused)
                    return self._refusal(event.data, refused)
                wait = refused.retry_after_s if refused is not None else 0.0
            if verdict.outcome != "unbound":
                return await self._settle(event, held, verdict)
            failures += 1
            pause = min(0.1 * 2 ** min(failures, 10), _LONGEST_WAIT_S) * random.uniform(0.5, 1.0)  # noqa: S311  jitter
            await asyncio.sleep(max(wait, pause))

    async def _settle(self, event: Event[Decision], held: Holding, verdict: Verdict) -> Outcome:
        decision = event.data
        if verdict.outcome == "bound":
            self._bound += 1
            self._marked.pop(decision.pod_uid, None)
            if decision.way != "extender":  # kube-scheduler says so itself
                self._say(decision, "Normal", "Scheduled", "Binding", brief(decision))
            await self._tell_gateway(decision, "")
            return Done()
        self._released += 1
        await self._tell_gateway(decision, verdict.message)
        reason = "Deleted" if verdict.outcome == "gone" else "BoundElsewhere"
        await self._give_back(event, held, reason)
        if verdict.outcome == "elsewhere":
            self._say(decision, "Warning", "BoundElsewhere", "Binding", f"{verdict.message}: its GPUs were given back")
        return Done()

    async def _give_back(self, event: Event[Decision], held: Holding, reason: str) -> None:
        command = Release(
            namespace=event.data.namespace,
            name=event.data.name,
            uid=event.data.pod_uid,
            pool=event.data.pool,
            node=held.node,
            reason=reason,
        )
        said = Event(
            id=f"{event.data.pod_uid}:release:{event.id}",
            source=self._source,
            type="gpubus.release.v1",
            subject=f"{event.data.namespace}/{event.data.name}",
            time=datetime.now(UTC),
            data=command,
            causationid=event.id,
        )
        await self._bus.publisher.publish(subjects.work("release", held.node), codec.encode(said), msg_id=said.id)

    async def _hand_back(self, event: Event[Decision], held: Holding, error: KubeRefusedError) -> Outcome:
        """The pod may not be bound there: its kube-scheduler, which waits for an answer, tries it again."""
        self._refused += 1
        self._released += 1
        log.warning("%s", error)
        await self._give_back(event, held, "BindingRefused")
        await self._tell_gateway(event.data, error.message)
        return Done()

    async def _tell_gateway(self, decision: Decision, error: str) -> None:
        """Tell whoever waits for it in a kube-scheduler's name what became of the pod. Nobody is owed more than an attempt."""
        if decision.way == "extender":
            result = msgspec.json.encode(ExtenderBindingResult(error=error))
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._bus.client.publish(subjects.bound(decision.pod_uid), result)

    def _refusal(self, decision: Decision, error: KubeRefusedError) -> Outcome:
        """The pod is there and has no node, but may not be bound: somebody has to change something."""
        self._refused += 1
        log.warning("%s", error)
        self._say(decision, "Warning", "BindingRefused", "Binding", error.message)
        return Retry(_REFUSED_DELAY_S)

    async def _unschedulable(self, decision: Decision) -> Outcome:
        """Say on the pod why it waits: once for each reason, however often it is tried. A kube-scheduler says so itself."""
        if decision.way == "extender":
            return Done()
        uid = decision.pod_uid
        if self._marked.get(uid) == decision.reason:
            return Done()
        try:
            pod = await pods.read(self._client, decision.namespace, decision.name)
            if pod is None or pod.metadata.uid != uid or pod.spec.node_name or self._holdings.get(uid) is not None:
                return Done()
            if not await pods.mark_unschedulable(self._client, pod, brief(decision)):
                return Retry(0.5)
        except KubeError as error:
            log.info("pod %s/%s: %s", decision.namespace, decision.name, error)
            return Retry(2.0)
        self._marks += 1
        self._marked[uid] = decision.reason
        if len(self._marked) > REMEMBERED:
            self._marked.popitem(last=False)
        self._say(decision, "Warning", "FailedScheduling", "Scheduling", brief(decision))
        return Done()

    async def _tell(self, delivery: Delivery) -> Outcome:
        """Say on a pod what has happened to a GPU that it holds."""
        notice = codec.decode_as(PodNotice, delivery.payload).data
        until = "" if notice.uuid else "its room is kept until "
        if datetime.now(UTC) - notice.at < OLD_NOTICE:
            self._events.say(
                Note(
                    namespace=notice.namespace,
                    name=notice.name,
                    uid=notice.pod_uid,
                    type="Normal" if notice.reason == "GpuRecovered" else "Warning",
                    reason=notice.reason,
                    action="Health" if notice.uuid else "Preempting",
                    note=f"{notice.message} ({until}{notice.at:%Y-%m-%d %H:%M:%S} UTC)",  # the same may happen again
                )
            )
        return Done()

    def _say(self, decision: Decision, kind: str, reason: str, action: str, note: str) -> None:
        self._events.say(
            Note(
                namespace=decision.namespace,
                name=decision.name,
                uid=decision.pod_uid,
                type="Normal" if kind == "Normal" else "Warning",
                reason=reason,
                action=action,
                note=note,
            )
        )

    def statistics(self) -> BinderStatistics:
        """Return the counters of this binder."""
        return BinderStatistics(
            bound=self._bound,
            released=self._released,
            refused=self._refused,
            marked=self._marks,
            outdated=self._outdated,
            events=self._events.written,
            events_dropped=self._events.dropped,
        )
