"""The reconciler's shell: on a tick of the server, which one member takes, reads both sides, repairs and reports."""

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from bus import codec, subjects, timers
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec, Delivery
from bus.errors import UndecodableError
from bus.kube.client import Client
from bus.kube.errors import KubeError
from bus.streams import TICK
from bus.worker import Done, Outcome, Retry, Worker
from consumers.reconciler.compare import Difference
from consumers.reconciler.look import key_of, look
from schemas.event import Event
from schemas.observed import Drift
from schemas.pod import Pod, Release
from schemas.registry import TYPE_NAMES

log = logging.getLogger("gpubus.reconciler")

EVERY: Final = timedelta(seconds=60)
TICKS: Final = ConsumerSpec(
    stream=TICK, durable="reconciler", filters=("gpubus.work.tick.reconcile.>",), ack_wait_s=60.0
)


class ReconcilerStatistics(msgspec.Struct, frozen=True):
    """Counters since the start."""

    rounds: int
    differences: int
    released: int
    scheduled: int


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
        view = await look(self._bus, self._client)
        for difference in view.differences:
            await self._act(difference, view.stored)
        now = {key_of(difference) for difference in view.differences}
        for key, drift in view.told.items():
            if key not in now:
                await self._take_back(drift)
        self._rounds += 1
        self._differences += len(view.differences)
        return view.differences

    async def _act(self, one: Difference, stored: dict[str, Pod]) -> None:
        log.warning("%s: pod %s/%s: %s; %s; %s", one.kind, one.namespace, one.name, one.ledger, one.api, one.observed)
        # One id for each quarter of an hour: repeated rounds say it once, a trouble that stays is said again.
        slot = int(time.time()) // 900
        if one.repair == "release":
            command = Release(
                namespace=one.namespace, name=one.name, uid=one.uid, pool=one.pool, node=one.node, reason=one.kind
            )
            about = f"{one.namespace}/{one.name}"
            await self._say(subjects.work("release", one.node), command, about, f"{one.uid}:reconcile:{slot}")
            self._released += 1
        elif one.repair == "schedule" and one.uid in stored:
            again = stored[one.uid].command()
            about = f"{one.namespace}/{one.name}"
            await self._say(subjects.work("schedule", again.request.pool), again, about, f"{one.uid}:reconcile:{slot}")
            self._scheduled += 1
        if one.node:
            drift = Drift(
                node=one.node,
                kind=one.kind,
                ledger=one.ledger,
                observed=one.observed,
                api=one.api,
                gpu=one.gpu,
                pod_uid=one.uid,
                at=datetime.now(UTC),
            )
            msg_id = f"drift:{one.node}:{one.uid}:{one.gpu}:{one.kind}:{slot}"
            await self._say(subjects.drift(one.node), drift, f"{one.namespace}/{one.name}", msg_id)

    async def _take_back(self, drift: Drift) -> None:
        at = datetime.now(UTC)
        over = msgspec.structs.replace(drift, resolved=True, at=at)
        msg_id = f"drift:{drift.node}:{drift.pod_uid}:{drift.gpu}:{drift.kind}:over:{drift.at.isoformat()}"
        await self._say(subjects.drift(drift.node), over, drift.node, msg_id)

    async def _say(self, subject: str, data: msgspec.Struct, about: str, msg_id: str) -> None:
        event = Event(
            id=msg_id,
            source=self._source,
            type=TYPE_NAMES[type(data)],
            subject=about,
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
