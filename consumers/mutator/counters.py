"""Slots on the bus: taken, confirmed and given back by compare-and-set, so that any number of mutators count as one."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import ApiError, ConflictError, PublishUnconfirmedError, UndecodableError
from bus.follower import Follower, Record
from bus.streams import LEDGER, STATE
from consumers.mutator.mutate import SLOT_LABEL
from consumers.mutator.ports import OWNER, PORT_LABEL, PortWish, block_of, blocks, held, port_of, take_port
from consumers.mutator.slots import confirm, give_back, take
from schemas.event import Event
from schemas.pod import Pod
from schemas.remote import RemoteClient
from schemas.slots import WorkloadSlots

log = logging.getLogger("gpubus.mutator")

_NEVER: Final = datetime.fromtimestamp(0, UTC)


class SlotsUnknownError(Exception):
    """The number of slots cannot be told just now; the message says why."""


class Counters:
    """All slots of the cluster, followed and changed.

    Args:
        bus: The connection.
        name: Unique name of this process.
    """

    def __init__(self, bus: Bus, name: str) -> None:
        self._bus = bus
        self._source = f"/gpubus/mutator/{name}"
        self._records: dict[str, tuple[int, WorkloadSlots]] = {}
        self._frozen: set[str] = set()
        self._owners: dict[str, str] = {}
        self._pods: dict[tuple[str, str], tuple[str, str]] = {}
        """Slot and UID of a pod, by its subject and the slot's label."""
        self._there: dict[str, str] = {}
        """While loading: subjects of pods that run, by UID."""
        self._heard = _NEVER
        self._changes = 0
        self._name = name
        self._ledger = Follower(bus, LEDGER, ["gpubus.ledger.>"], self._on_ledger, recreated=self._records.clear)
        self._state = Follower(bus, STATE, ["gpubus.state.pod.>", "gpubus.state.client.>"], self._on_pod)
        self._loaded = False

    async def start(self) -> None:
        """Load who holds a slot and which pods there are, and give back the slots of pods that went while we were away."""
        await self._ledger.start()  # first: a pod that holds a slot by now is in STATE, or has gone
        await self._state.start()
        self._loaded = True
        there = {uid: subject for subject, uid in self._there.items()}
        self._there.clear()
        for owner, (_, record) in list(self._records.items()):
            for slot in record.slots:
                if slot.pod_uid in there:  # whatever its labels say by now
                    label = PORT_LABEL if port_of(slot.id) else SLOT_LABEL
                    self._pods[there[slot.pod_uid], label] = (slot.id, slot.pod_uid)
                elif slot.pod_uid:
                    self._later(owner, slot.id, slot.pod_uid, gone=True)

    async def stop(self) -> None:
        """Stop following."""
        await self._state.stop()
        await self._ledger.stop()

    async def take(self, owner: str, slot: str, limit: int, *, before: str = "", dry_run: bool = False) -> str:
        """Take a slot of ``owner`` if fewer than ``limit`` are taken, and return its id, empty if none is left.

        A pod that has come ``before`` keeps its slot; see :func:`consumers.mutator.slots.take`.

        Raises:
            SlotsUnknownError: The bus cannot say, or the record is unreadable; then nobody may count on it.
        """
        fresh = False
        while True:
            self._check(owner)
            seq, record = self._records.get(owner, (0, WorkloadSlots(owner=owner)))
            after, granted = take(record, slot, limit, datetime.now(UTC), self._heard, before=before)
            if granted and (after is record or dry_run):
                return granted
            try:
                if granted:
                    await self._replace(seq, after)
                    return granted
                if fresh:
                    return ""
                await self._ledger.caught_up()  # a slot may have come free that we have not heard of
                fresh = True
            except ConflictError:
                await self._ledger.caught_up()
            except (ApiError, PublishUnconfirmedError, TimeoutError) as error:
                raise SlotsUnknownError(f"the slots of {owner} cannot be counted: {error}") from None

    async def take_port(self, wish: PortWish, bounds: tuple[int, int], *, dry_run: bool = False) -> str:
        """Take the first free port of nodes within ``bounds`` for a pod, and return its slot; empty if all are taken.

        Raises:
            SlotsUnknownError: The bus cannot say, or a record is unreadable; then its ports cannot be given out.
        """
        fresh = False
        while True:
            found = await self._try_port(wish, bounds, dry_run=dry_run)
            if found or (found is not None and fresh):
                return found
            fresh = fresh or found is not None
            try:
                await self._ledger.caught_up()  # a port may have come free that we have not heard of
            except (ApiError, TimeoutError) as error:
                raise SlotsUnknownError(f"the ports of nodes cannot be counted: {error}") from None

    async def _try_port(self, wish: PortWish, bounds: tuple[int, int], *, dry_run: bool) -> str | None:
        """Return the slot of a port, empty if none is free, or None if somebody else was faster."""
        records = [self._records.get(owner, (0, WorkloadSlots(owner=owner))) for owner in blocks(*bounds)]
        for _, record in records:
            if before := held(record, wish):
                return before
        for seq, record in records:
            if record.owner in self._frozen:
                continue
            after, slot = take_port(record, wish, bounds, datetime.now(UTC), self._heard)
            if not slot or dry_run:
                if slot:
                    return slot
                continue
            try:
                await self._replace(seq, after)
            except ConflictError:
                return None
            except (ApiError, PublishUnconfirmedError, TimeoutError) as error:
                raise SlotsUnknownError(f"the ports of nodes cannot be counted: {error}") from None
            return slot
        return ""

    def _check(self, owner: str) -> None:
        if owner in self._frozen:
            raise SlotsUnknownError(f"the record of the slots of {owner} cannot be read: see `gpubus dead list`")

    async def _replace(self, seq: int, record: WorkloadSlots) -> None:
        self._changes += 1
        event = Event(
            id=f"{self._name}:{self._changes}",
            source=self._source,
            type="gpubus.ledger.workload.v1",
            subject=record.owner,
            time=datetime.now(UTC),
            data=record,
        )
        subject = slots_subject(record.owner)
        ack = await self._bus.publisher.publish(subject, codec.encode(event), expected=seq, timeout=5.0)
        self._keep(record.owner, ack.seq, record)

    def _keep(self, owner: str, seq: int, record: WorkloadSlots) -> None:
        if seq > self._records.get(owner, (0, None))[0]:
            self._records[owner] = (seq, record)
            for slot in record.slots:
                self._owners[slot.id] = owner

    # What the bus says

    def _on_ledger(self, record: Record) -> None:
        try:
            _, kind, *name = subjects.names(record.subject)
        except ValueError as error:
            log.warning("LEDGER %d: %s", record.seq, error)  # it names no controller, so nobody's slots hang on it
            return
        if kind not in ("workload", "ports"):
            return
        owner = "/".join(name) if kind == "workload" else f"{OWNER}/{'/'.join(name)}"
        try:
            data = None if record.deleted else codec.decode_as(WorkloadSlots, record.payload).data
            if data is not None:
                codec.check_name(data.owner, owner)
        except UndecodableError as error:
            log.warning("LEDGER %d on %s: %s", record.seq, record.subject, error)
            self._frozen.add(owner)
            return
        self._frozen.discard(owner)
        self._keep(owner, record.seq, data or WorkloadSlots(owner=owner))

    def _on_pod(self, record: Record) -> None:
        slots, uid = {SLOT_LABEL: "", PORT_LABEL: ""}, ""
        if record.time_ns:
            self._heard = max(self._heard, datetime.fromtimestamp(record.time_ns / 1e9, UTC))
        if not record.deleted:
            try:
                slots, uid = _slots(record)
            except UndecodableError as error:
                log.warning("STATE %d on %s: %s", record.seq, record.subject, error)
                return  # whoever cannot be read keeps what it has
        if not self._loaded:
            self._there.pop(record.subject, "")
            if uid:
                self._there[record.subject] = uid
        for label, slot in slots.items():
            self._claims(record.subject, label, slot if self._may_have(record.subject, slot) else "", uid)

    def _may_have(self, subject: str, slot: str) -> bool:
        """Return whether a pod may have a slot: a controller has its pods in its own namespace, whatever others' labels say."""
        owner = self._owners.get(slot, "")
        return bool(port_of(slot)) or not owner or subject.split(".")[3] == subjects.token(owner.partition("/")[0])

    def _claims(self, subject: str, label: str, slot: str, uid: str) -> None:
        before = self._pods.pop((subject, label), ("", ""))
        # What a pod has it keeps until it ends: its labels are anybody's to change.
        after = before if before[0] and before[1] == uid else (slot, uid)
        if after[0]:
            self._pods[subject, label] = after
        if after == before:
            return
        if self._loaded and before[0]:
            self._later(self._owner_of(before[0]), *before, gone=True)
        if after[0]:
            self._later(self._owner_of(slot), slot, uid)

    def _owner_of(self, slot: str) -> str:
        """Return whose a slot is; a port's says so itself, so that it is known for taken though nobody has heard of it."""
        port = port_of(slot)
        return block_of(port) if port else self._owners.get(slot, "")

    def _later(self, owner: str, slot: str, uid: str, *, gone: bool = False) -> None:
        if owner:
            self._bus.spawn(self._settle(owner, slot, uid, gone=gone), name=f"slot-{slot}")

    async def _settle(self, owner: str, slot: str, uid: str, *, gone: bool) -> None:
        """Confirm a slot for the pod ``uid``, or give it back when that is gone. Every mutator tries; one will do it."""
        for attempt in range(100):
            seq, record = self._records.get(owner, (0, WorkloadSlots(owner=owner)))
            after = give_back(record, slot, uid) if gone else confirm(record, slot, uid, datetime.now(UTC))
            if after is record or owner in self._frozen:
                return
            try:
                await self._replace(seq, after)
            except ConflictError:
                await self._ledger.caught_up()
            except (ApiError, PublishUnconfirmedError, TimeoutError) as error:
                log.info("slot %s of %s: %s; trying again", slot, owner, error)
                await asyncio.sleep(min(0.1 * 2**attempt, 5.0))
            else:
                return


def _slots(record: Record) -> tuple[dict[str, str], str]:
    """Return the slots that a pod claims by their labels, empty for none, and its UID, empty once it has ended."""
    if record.subject.startswith("gpubus.state.client."):
        client = codec.decode_as(RemoteClient, record.payload).data
        return {SLOT_LABEL: client.slot, PORT_LABEL: client.host_port}, client.uid
    pod = codec.decode_as(Pod, record.payload).data
    ended = pod.phase in {"Succeeded", "Failed"}
    slots = {label: "" if ended else pod.labels.get(label, "") for label in (SLOT_LABEL, PORT_LABEL)}
    return slots, "" if ended else pod.uid


def slots_subject(owner: str) -> str:
    """Subject of the slots of a controller, ``namespace/kind/name/uid``, or of a block of ports, ``host-ports/first``."""
    kind, _, first = owner.partition("/")
    if kind == OWNER and "/" not in first:
        return subjects.subject("ledger", "ports", first)
    return subjects.subject("ledger", "workload", *owner.split("/"))
