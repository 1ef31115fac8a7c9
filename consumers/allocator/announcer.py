"""Tells the world: decision events, waiting records, wake-ups, and the acknowledgements that follow them.

A command is acknowledged only after what it led to is stored, so a crash in between repeats the rest. Everything that
has come together while the last batch was on its way goes out as one pipelined batch.
"""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from bus import codec, subjects
from bus.chain import link
from bus.connection import Bus
from bus.delivery import Delivery
from bus.errors import NO_MESSAGE, ApiError, ConflictError, PublishUnconfirmedError, UndecodableError
from bus.stored import get
from bus.streams import LEDGER, TOMBSTONE_TTL_S
from bus.tasks import end
from consumers.allocator.caller import Caller
from consumers.allocator.effects import Announcement, Recovery
from consumers.allocator.waiting import WaitingPods
from schemas.cluster import ExpectedPods
from schemas.decision import Decision
from schemas.event import Event
from schemas.journal import Turn
from schemas.ledger import HOLD, NodeRecord
from schemas.pod import Schedule, Waiting
from schemas.preemption import Evict
from schemas.registry import Presence

log = logging.getLogger("gpubus.allocator")

BATCHES_IN_FLIGHT: Final = 4

PRESENCE_EVERY_S: Final = 3.0
PRESENCE_TTL_S: Final = 10

Outgoing = tuple[str, bytes, str]


_decision = msgspec.json.Decoder(Decision)


class Announcer:
    """Publishes what the allocator called ``name`` decided, under its ``source``."""

    def __init__(self, bus: Bus, name: str, source: str) -> None:
        self._bus = bus
        self._name = name
        self._source = source
        self._messages: list[Outgoing] = []
        self._tokens: list[object] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._writing: set[asyncio.Task[None]] = set()
        self._turn = ""

    @property
    def busy(self) -> bool:
        """Whether something is on its way or waits to be."""
        return bool(self._messages or self._sending or self._writing)

    def write_down(self, turns: Iterable[Turn]) -> None:
        """Publish turns of the journal. They are sent before anything that is given to be sent later."""
        now = datetime.now(UTC)
        for turn in turns:
            linked = msgspec.structs.replace(turn, previous=self._turn)
            event = Event(
                id=f"{turn.allocator}:turn:{turn.number}",
                source=self._source,
                type="gpubus.journal.v1",
                subject=turn.allocator,
                time=now,
                data=linked,
            )
            payload = codec.encode(event)
            self._turn = link(payload)
            task = asyncio.create_task(self._write(payload, event.id))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write(self, payload: bytes, event_id: str) -> None:
        subject = subjects.journal(self._name)
        while True:
            try:
                await self._bus.publisher.publish(subject, payload, msg_id=event_id)
            except PublishUnconfirmedError as error:
                log.warning("%s; writing it down again", error)
            except ApiError as error:
                log.warning("the journal has a gap, so later decisions cannot be replayed: %s", error)
                return
            else:
                return

    def announce(self, announcements: Iterable[Announcement], waiting: WaitingPods) -> None:
        """Publish decisions, and what they mean for the set of waiting pods."""
        now = datetime.now(UTC)
        for said in announcements:
            self._messages.append(self._decided(said.id, said.decision, said.encoded, now))
            if said.evict is not None:
                self._messages.append(self._eviction(said.decision.pod_uid, said.evict, now))
            if said.refused is not None:
                self._messages.append(self._waiting_record(said, said.refused, waiting.get(said.refused.uid), now))
            elif not said.waits and (entry := waiting.get(said.decision.pod_uid)) is not None:
                self.clear(*entry)
            if isinstance(said.token, Caller):
                said.token.decision = said.decision
            self._tokens.append(said.token)
        self._send()

    def tell_expected(self, learnt: Iterable[ExpectedPods]) -> None:
        """Publish what has been learnt of the pods that come."""
        for expected in learnt:
            event = Event(
                id=f"{self._name}:{expected.pool}:expected:{expected.seen}",
                source=self._source,
                type="gpubus.expected.v1",
                subject=expected.pool,
                time=datetime.now(UTC),
                data=expected,
            )
            self._messages.append((subjects.state("expected", expected.pool), codec.encode(event), event.id))
        self._send()

    def wake(self, pods: Iterable[tuple[Waiting, int]]) -> None:
        """Give the schedule commands of waiting pods again. All allocators do; the id lets one copy survive."""
        now = datetime.now(UTC)
        for pod, seq in pods:
            event = Event(
                id=f"{pod.uid}:wake:{seq}",
                source=self._source,
                type="gpubus.schedule.v1",
                subject=f"{pod.namespace}/{pod.name}",
                time=now,
                data=pod.command(),
            )
            self._messages.append((subjects.work("schedule", pod.request.pool), codec.encode(event), event.id))
        self._send()

    def recover(self, recoveries: Iterable[Recovery]) -> None:
        """Repeat the announcement of pods that are found in the ledger, by a redelivered command for example."""
        for found in recoveries:
            self._bus.spawn(self._repeat(found), name=f"recover-{found.command.uid}")

    def give_back(self, tokens: Iterable[object]) -> None:
        """Have commands delivered anew."""
        deliveries = [token for token in tokens if isinstance(token, Delivery | Caller)]
        if deliveries:
            self._bus.spawn(self._give_back(deliveries), name="give-back")

    async def be_present(self) -> None:
        """Say every few seconds that we are alive, and at the end that we are not."""
        subject = subjects.state("allocator", self._name)
        try:
            while True:
                now = datetime.now(UTC)
                event = Event(
                    id=f"{self._name}:{now.isoformat()}",
                    source=self._source,
                    type="gpubus.presence.v1",
                    subject=self._name,
                    time=now,
                    data=Presence(role="allocator", name=self._name),
                )
                await self._say(subject, codec.encode(event), {"Nats-TTL": f"{PRESENCE_TTL_S}s"})
                await asyncio.sleep(PRESENCE_EVERY_S)
        finally:
            if self._bus.client.is_connected:
                await self._say(subject, b"", {"Nats-TTL": f"{PRESENCE_TTL_S}s"})

    async def _say(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        try:
            await self._bus.publisher.publish(subject, payload, headers=headers, timeout=PRESENCE_EVERY_S)
        except (ApiError, PublishUnconfirmedError) as error:
            log.info("%s could not say that it is alive: %s", self._name, error)

    async def stop(self) -> None:
        """Let what is on its way arrive."""
        await asyncio.gather(*self._sending, return_exceptions=True)
        await end(*self._writing)

    def _waiting_record(
        self, said: Announcement, command: Schedule, before: tuple[Waiting, int] | None, now: datetime
    ) -> Outgoing:
        pod = Waiting(
            namespace=command.namespace,
            name=command.name,
            uid=command.uid,
            request=command.request,
            reason=said.decision.reason,
            state_seq=said.decision.basis.state,
            ledger_seq=said.decision.basis.ledger,
            since=before[0].since if before is not None else now,
            created_s=command.created_s,
        )
        event = Event(
            id=f"{said.id}:waiting",
            source=self._source,
            type="gpubus.waiting.v1",
            subject=f"{command.namespace}/{command.name}",
            time=now,
            data=pod,
            causationid=said.id,
        )
        return waiting_subject(pod), codec.encode(event), event.id

    def told(self, record: NodeRecord, recovery: Recovery) -> list[Outgoing]:
        """Return what the ledger record that added a pod, or room for it, had its author announce."""
        uid, seq, now = recovery.command.uid, recovery.seq, datetime.now(UTC)
        key = HOLD + uid if recovery.room else uid
        messages: list[Outgoing] = []
        for change in record.changes:
            if change.pod_uid != key or change.op != "add":
                continue
            for raw in change.evicts:
                victim = _decision.decode(raw)
                messages.append(self._decided(f"{victim.pod_uid}:{seq}:evicted", victim, raw, now))
            decision = _decision.decode(change.decision)
            messages.append(
                self._decided(f"{uid}:{seq}:room" if recovery.room else f"{uid}:{seq}", decision, change.decision, now)
            )
            if recovery.room and decision.preemption is not None:
                messages.append(self._eviction(uid, Evict(preemption=decision.preemption, since=seq), now))
            if isinstance(recovery.token, Caller):
                recovery.token.decision = decision
        return messages

    def _decided(self, event_id: str, decision: Decision, raw: msgspec.Raw, now: datetime) -> Outgoing:
        event = Event(
            id=event_id,
            source=self._source,
            type="gpubus.decision.v1",
            subject=f"{decision.namespace}/{decision.name}",
            time=now,
            data=raw,
        )
        return subjects.decision(decision.namespace, decision.name), codec.encode(event), event_id

    def _eviction(self, uid: str, command: Evict, now: datetime) -> Outgoing:
        event = Event(
            id=f"{uid}:{command.since}:evict",
            source=self._source,
            type="gpubus.evict.v1",
            subject=command.preemption.node,
            time=now,
            data=command,
            causationid=f"{uid}:{command.since}:room",
        )
        return subjects.work("evict", command.preemption.node), codec.encode(event), event.id

    def _send(self) -> None:
        if self._messages and len(self._sending) < BATCHES_IN_FLIGHT:
            messages, self._messages = self._messages, []
            tokens, self._tokens = self._tokens, []
            task = asyncio.create_task(self._deliver(messages, tokens))
            self._sending.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._send()

    async def _deliver(self, messages: list[Outgoing], tokens: list[object]) -> None:
        try:
            await self._bus.publisher.publish_all(messages)
        except (ApiError, PublishUnconfirmedError) as error:
            log.warning("announcing %d messages: %s; their commands will be redelivered", len(messages), error)
            return
        for token in tokens:
            if isinstance(token, Delivery | Caller):
                await token.ack()

    async def _give_back(self, deliveries: list[Delivery | Caller]) -> None:
        for delivery in deliveries:
            await delivery.retry()

    def clear(self, pod: Waiting, seq: int) -> None:
        """The pod waits no more: a tombstone replaces its record, the one at ``seq`` and no newer one."""
        self._bus.spawn(self._clear(pod, seq), name=f"clear-{pod.uid}")

    async def _clear(self, pod: Waiting, seq: int) -> None:
        headers = {"Nats-TTL": f"{TOMBSTONE_TTL_S}s"}
        try:
            await self._bus.publisher.publish(waiting_subject(pod), b"", expected=seq, headers=headers)
        except ConflictError:
            log.debug("the waiting record of pod %s is cleared already, or a newer one is there", pod.uid)
        except (ApiError, PublishUnconfirmedError) as error:
            log.warning("clearing the waiting record of pod %s: %s; the next sweep will", pod.uid, error)

    async def _repeat(self, recovery: Recovery) -> None:
        """The decision is kept in the ledger record that carried it out: announce exactly that one."""
        command, seq = recovery.command, recovery.seq
        try:
            found = await get(self._bus, LEDGER, seq=seq)
            record = codec.decode_as(NodeRecord, found.data).data
        except (ApiError, UndecodableError) as error:
            if isinstance(error, ApiError) and error.err_code != NO_MESSAGE:
                raise  # the server cannot say just now: the command is redelivered
            log.info("pod %s/%s: its ledger record %d is gone: %s", command.namespace, command.name, seq, error)
        else:
            for message in self.told(record, recovery):
                await self._bus.publisher.publish(message[0], message[1], msg_id=message[2])
        if recovery.waiting is not None:
            await self._clear(*recovery.waiting)
        if isinstance(recovery.token, Delivery | Caller):
            await recovery.token.ack()


def waiting_subject(pod: Waiting) -> str:
    """Subject of a waiting pod's record: ``gpubus.state.waiting.<pool>.<namespace>.<name>``."""
    return subjects.state("waiting", pod.request.pool, pod.namespace, pod.name)
