"""The evictor's shell: has the victims of a preemption leave, as far as disruption budgets let them.

It decides nothing: who goes for whom is in the ledger, and as long as room is kept there for the pod that comes, its victims
are asked to go. All are asked about first, so that none goes in vain while another may not. Any number of these processes
share the commands, and each command can come twice.
"""

import asyncio
import hashlib
import logging
import time
from datetime import UTC, datetime
from typing import Final

import msgspec

from bus import codec, subjects
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec, Delivery
from bus.errors import UndecodableError
from bus.kube.client import Client
from bus.kube.errors import KubeError
from bus.kube.eviction import Evicted, evict
from bus.records import read
from bus.streams import LEDGER, WORK
from bus.worker import Done, Outcome, Retry, Worker
from schemas.decision import PodRef, Preemption
from schemas.event import Event
from schemas.ledger import NodeRecord
from schemas.observed import PodNotice
from schemas.preemption import Evict

log = logging.getLogger("gpubus.evictor")

EVICTIONS: Final = ConsumerSpec(
    stream=WORK, durable="evictor", filters=("gpubus.work.evict.>",), ack_wait_s=30.0, max_deliver=1000
)
AGAIN_S: Final = 3.0
"""When what a budget forbids is tried again: its controller takes about a second to see a pod that is ready."""


class EvictorStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; ``blocked`` counts tries that a disruption budget, or the API server, did not let through."""

    evicted: int
    blocked: int
    void: int


class Evictor:
    """One evictor process.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
        name: Unique name of this process.
    """

    def __init__(self, bus: Bus, client: Client, name: str) -> None:
        self._bus = bus
        self._client = client
        self._source = f"/gpubus/evictor/{name}"
        self._evicted = self._blocked = self._void = 0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Evict until ``stop`` is set; finish what was begun before returning."""
        worker = Worker(PullConsumer(self._bus, EVICTIONS), self._handle)
        if ready is not None:
            ready.set()
        await worker.run(stop)

    async def _handle(self, delivery: Delivery) -> Outcome:
        command = codec.decode_as(Evict, delivery.payload).data
        said = command.preemption
        if time.time() > said.until_s or not await self._wanted(command):
            self._void += 1
            return Done()
        try:
            blocked = await self._try(said)
        except KubeError as error:
            blocked = str(error)
        if not blocked:
            return Done()
        self._blocked += 1
        await self._say(command, blocked)
        return Retry(AGAIN_S)

    async def _wanted(self, command: Evict) -> bool:
        """Whether the ledger still keeps the room that these pods are to leave."""
        said = command.preemption
        try:
            seq, record = await read(self._bus, LEDGER, subjects.ledger_node(said.node), NodeRecord)
        except UndecodableError:
            return False  # nothing is given out there until it can be read
        held = record.holds if record is not None else ()
        mine = [hold.allocation for hold in held if hold.allocation.pod_uid == said.preemptor.uid]
        return any((kept.since or seq) == command.since for kept in mine)

    async def _try(self, said: Preemption) -> str:
        """Have all victims go, and return why not; empty if they do."""
        for dry_run in (True, False):
            answers = await asyncio.gather(*(self._evict(victim, dry_run=dry_run) for victim in said.victims))
            if not dry_run:
                self._evicted += sum(answer.outcome == "done" for answer in answers)
            for victim, answer in zip(said.victims, answers, strict=True):
                if answer.outcome == "blocked":
                    return f"{victim.namespace}/{victim.name} may not be evicted from {said.node}: {answer.message}"
        return ""

    async def _evict(self, victim: PodRef, *, dry_run: bool) -> Evicted:
        return await evict(self._client, victim.namespace, victim.name, victim.uid, dry_run=dry_run)

    async def _say(self, command: Evict, why: str) -> None:
        """Tell the pod that waits, once for each reason."""
        pod = command.preemption.preemptor
        log.info("%s/%s waits: %s", pod.namespace, pod.name, why)
        digest = hashlib.blake2b(why.encode(), digest_size=6).hexdigest()
        now = datetime.now(UTC)
        event = Event(
            id=f"{pod.uid}:{command.since}:blocked:{digest}",
            source=self._source,
            type="gpubus.notice.v1",
            subject=f"{pod.namespace}/{pod.name}",
            time=now,
            data=PodNotice(
                namespace=pod.namespace,
                name=pod.name,
                pod_uid=pod.uid,
                node=command.preemption.node,
                uuid="",
                reason="EvictionBlocked",
                message=why,
                at=datetime.fromtimestamp(command.preemption.until_s, UTC),
            ),
        )
        await self._bus.publisher.publish(
            subjects.notice(pod.namespace, pod.name, command.preemption.node), codec.encode(event), msg_id=event.id
        )

    def statistics(self) -> EvictorStatistics:
        """Return the counters of this evictor."""
        return EvictorStatistics(evicted=self._evicted, blocked=self._blocked, void=self._void)
