"""Who of a workload's clients uses which of its workers, as one record under compare-and-set.

Processes that seat clients in the same moment would each count without the other, and leave one worker with more than its share.
"""

import logging
from datetime import UTC, datetime

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import ApiError, ConflictError, PublishUnconfirmedError, UndecodableError
from bus.follower import Follower, Record
from bus.streams import LEDGER
from schemas.event import Event
from schemas.remote import Seats

log = logging.getLogger("gpubus.workload")

Key = tuple[str, str]
"""Namespace and name of a workload."""

TYPE = "gpubus.ledger.seats.v1"


class Seating:
    """All seats of the cluster, followed and changed.

    Args:
        bus: The connection.
        name: Unique name of this process.
    """

    def __init__(self, bus: Bus, name: str) -> None:
        self._bus = bus
        self._name = name
        self._changes = 0
        self._records: dict[Key, tuple[int, Seats]] = {}
        self._frozen: set[Key] = set()
        self._ledger = Follower(
            bus, LEDGER, ["gpubus.ledger.seats.*.*"], self._on_record, recreated=self._records.clear
        )

    async def start(self) -> None:
        """Begin to follow."""
        await self._ledger.start()

    async def stop(self) -> None:
        """Stop following."""
        await self._ledger.stop()

    def _on_record(self, record: Record) -> None:
        try:
            *_, namespace, name = subjects.names(record.subject)
        except ValueError as error:
            log.warning("LEDGER %d: %s", record.seq, error)  # it names no workload, so nobody's seats hang on it
            return
        try:
            data = None if record.deleted else codec.decode_as(Seats, record.payload).data
        except UndecodableError as error:
            log.warning("LEDGER %d on %s: %s", record.seq, record.subject, error)
            self._frozen.add((namespace, name))
            return
        self._frozen.discard((namespace, name))
        self._keep((namespace, name), record.seq, data or Seats(namespace=namespace, workload=name))

    def _keep(self, key: Key, seq: int, seats: Seats) -> None:
        if seq > self._records.get(key, (0, None))[0]:
            self._records[key] = (seq, seats)

    def read(self, key: Key) -> tuple[int, dict[str, str]]:
        """Return the sequence of a workload's record, to be given to :meth:`settle`, and workers by client, both by UID.

        Read it before looking at clients and workers: whoever is seated in it has been there before the look then.
        """
        seq, record = self._records.get(key, (0, Seats(namespace=key[0], workload=key[1])))
        return seq, record.seats

    def unreadable(self, key: Key) -> bool:
        """Return whether a workload's record cannot be read: then nobody is seated, as somebody may be already."""
        return key in self._frozen

    async def settle(self, key: Key, seq: int, after: dict[str, str]) -> bool:
        """Replace what was read at ``seq``; False if somebody else was faster, or it could not be done just now."""
        found, before = self.read(key)
        if key in self._frozen or found != seq:
            return False
        if after == before:
            return True
        self._changes += 1
        seats = Seats(namespace=key[0], workload=key[1], seats=after)
        event = Event(
            id=f"{self._name}:{self._changes}", source=f"/gpubus/workload/{self._name}", type=TYPE, subject="/".join(key),
            time=datetime.now(UTC), data=seats,
        )  # fmt: skip
        subject = subjects.subject("ledger", "seats", *key)
        try:
            ack = await self._bus.publisher.publish(subject, codec.encode(event), expected=seq, timeout=5.0)
        except ConflictError:
            await self._ledger.caught_up()
            return False
        except (ApiError, PublishUnconfirmedError, TimeoutError) as error:
            log.warning("clients of %s wait to be seated: %s", "/".join(key), error)
            return False
        self._keep(key, ack.seq, seats)
        return True
