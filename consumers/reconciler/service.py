"""The reconciler's shell: on a tick of the server, which one member takes, reads both sides, repairs and reports."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from bus import codec, history, subjects, timers
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec, Delivery
from bus.errors import UndecodableError
from bus.kube.client import Client, resource_path
from bus.kube.errors import KubeError
from bus.streams import LEDGER, STATE, TICK
from bus.worker import Done, Outcome, Retry, Worker
from consumers.reconciler.compare import Difference, compare
from schemas.event import Event
from schemas.kube.core import KubePod
from schemas.ledger import Allocation, NodeRecord
from schemas.observed import Drift
from schemas.pod import Pod, Release, Schedule, Waiting
from schemas.registry import TYPE_NAMES

log = logging.getLogger("gpubus.reconciler")

EVERY: Final = timedelta(seconds=60)
RECENT_S: Final = 60.0
"""Age below which a pod's commands may still be on the way."""

PAGE: Final = 500
TICKS: Final = ConsumerSpec(
    stream=TICK, durable="reconciler", filters=("gpubus.work.tick.reconcile.>",), ack_wait_s=60.0
)


class ReconcilerStatistics(msgspec.Struct, frozen=True):
    """Counters since the start."""

    rounds: int
    differences: int
    released: int
    scheduled: int


class _ListMeta(msgspec.Struct):
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[KubePod] = []


_page = msgspec.json.Decoder(_Page)


async def all_pods(client: Client) -> AsyncIterator[KubePod]:
    """Yield all pods of the cluster.

    Raises:
        KubeError: The API server cannot say.
    """
    query = {"limit": str(PAGE)}
    while True:
        page = _page.decode(await client.call("GET", resource_path("v1", "pods"), query=query, timeout=60.0))
        for pod in page.items:
            yield pod
        if not page.metadata.continue_:
            return
        query["continue"] = page.metadata.continue_


async def read_ledger(bus: Bus) -> dict[str, tuple[int, tuple[Allocation, ...]]]:
    """Return sequence and allocations of every node's record.

    Raises:
        UndecodableError: A record cannot be read.
    """
    records, _ = await history.newest(bus, LEDGER, ["gpubus.ledger.node.*"])
    return {
        subjects.names(record.subject)[-1]: (record.seq, codec.decode_as(NodeRecord, record.payload).data.allocations)
        for record in records
    }


class Reconciler:
    """One reconciler process.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
        name: Unique name of this process.
        every: Pause between two rounds of the whole group.
    """

    def __init__(self, bus: Bus, client: Client, name: str, *, every: timedelta = EVERY) -> None:
        self._bus, self._client, self._every = bus, client, every
        self._source = f"/gpubus/reconciler/{name}"
        self._rounds = self._differences = self._released = self._scheduled = 0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Compare on every tick until ``stop`` is set."""
        await timers.tick_every(self._bus, "reconcile", "cluster", self._every, now=datetime.now(UTC))
        if ready is not None:
            ready.set()
        await Worker(PullConsumer(self._bus, TICKS, prefetch=1), self._handle, concurrency=1).run(stop)

    async def _handle(self, delivery: Delivery) -> Outcome:
        del delivery
        try:
            await self.reconcile()
        except (KubeError, UndecodableError) as error:
            log.warning("%s", error)
            return Retry(5.0)
        return Done()

    async def reconcile(self) -> list[Difference]:
        """Compare once, repair what is safe, report everything, and return it.

        Raises:
            KubeError: The API server cannot say.
            UndecodableError: A ledger record cannot be read: nothing is repaired on half a view.
        """
        held = {
            one.pod_uid: (node, one)
            for node, (_, allocations) in (await read_ledger(self._bus)).items()
            for one in allocations
        }
        stored = await self._state("gpubus.state.pod.*.*", Pod)
        waiting = await self._state("gpubus.state.waiting.>", Waiting)
        pods = [pod async for pod in all_pods(self._client)]
        recent = frozenset(pod.metadata.uid for pod in pods if _age_s(pod) < RECENT_S)
        found = compare(held, pods, waiting=waiting, stored=stored, recent=recent)
        for difference in found:
            await self._act(difference, stored)
        self._rounds += 1
        self._differences += len(found)
        return found

    async def _state(self, subject: str, struct: type[Any]) -> dict[str, Any]:
        records, _ = await history.newest(self._bus, STATE, [subject])
        found = {}
        for record in records:
            try:
                value = codec.decode_as(struct, record.payload).data
            except UndecodableError:
                continue  # whoever folds STATE has reported it
            found[value.uid] = value
        return found

    async def _act(self, one: Difference, stored: dict[str, Pod]) -> None:
        log.warning("%s: pod %s/%s: %s, %s", one.kind, one.namespace, one.name, one.ledger, one.api)
        # One id for each quarter of an hour: repeated rounds say it once, a trouble that stays is said again.
        slot = int(time.time()) // 900
        if one.repair == "release":
            command = Release(
                namespace=one.namespace, name=one.name, uid=one.uid, pool=one.pool, node=one.node, reason=one.kind
            )
            await self._say(subjects.work("release", one.node), command, one, f"{one.uid}:reconcile:{slot}")
            self._released += 1
        elif one.repair == "schedule" and one.uid in stored:
            request = stored[one.uid].request
            again = Schedule(namespace=one.namespace, name=one.name, uid=one.uid, request=request)
            await self._say(subjects.work("schedule", request.pool), again, one, f"{one.uid}:reconcile:{slot}")
            self._scheduled += 1
        if one.node:
            drift = Drift(
                node=one.node,
                kind=one.kind,
                ledger=one.ledger,
                observed="",
                api=one.api,
                pod_uid=one.uid,
                at=datetime.now(UTC),
            )
            await self._say(subjects.drift(one.node), drift, one, f"drift:{one.uid}:{one.kind}:{slot}")

    async def _say(self, subject: str, data: msgspec.Struct, one: Difference, msg_id: str) -> None:
        event = Event(
            id=msg_id,
            source=self._source,
            type=TYPE_NAMES[type(data)],
            subject=f"{one.namespace}/{one.name}",
            time=datetime.now(UTC),
            data=data,
        )
        await self._bus.publisher.publish(subject, codec.encode(event), msg_id=msg_id)

    def statistics(self) -> ReconcilerStatistics:
        """Return the counters of this reconciler."""
        return ReconcilerStatistics(
            rounds=self._rounds,
            differences=self._differences,
            released=self._released,
            scheduled=self._scheduled,
        )


def _age_s(pod: KubePod) -> float:
    created = pod.metadata.creation_timestamp
    return time.time() - datetime.fromisoformat(created).timestamp() if created else 0.0
