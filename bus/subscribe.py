"""For those who build on the bus: typed events as they come, or from any place in the past.

Example::

    async with await Bus.connect("nats://127.0.0.1:4222", name="my-notifier") as bus:
        async for received in subscribe(bus, Decision, after=last_handled, namespace="ml"):
            print(received.data.outcome, received.data.node)
            last_handled = received.seq  # keep it, and go on from there after a restart

Nothing is taken from anybody and nothing need be declared: any number of subscribers read the same stream. An outage of the bus
is waited out, and a slow reader is waited for: the server sends no more than a few thousand events ahead.

A stream that is deleted and made again begins at 1. Who listens then is given all of the new one, from its beginning; who comes
back with a sequence that it has not reached is told so (:class:`bus.errors.PlaceLostError`) and begins anew with ``after=0``. A
sequence that the new stream has passed already cannot be told from one of its own: after such a change begin anew.
"""

import contextlib
import logging
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from bus import codec
from bus.connection import Bus
from bus.errors import PlaceLostError, UndecodableError
from bus.follower import Record
from bus.history import batches, readable
from bus.streams import ALERT, CAPACITY, DEAD, DECISION, LEDGER, SHADOW, STATE, USAGE, stream_info
from schemas.alert import AlertNotice
from schemas.capacity import PoolCapacity
from schemas.cluster import GpuInventory, Node, Pool
from schemas.deadletter import DeadLetter
from schemas.decision import Decision
from schemas.event import Event, utc
from schemas.ledger import NodeRecord
from schemas.observed import Drift, PodNotice
from schemas.pod import Pod, Waiting
from schemas.quota import Quota
from schemas.scaling import WorkloadUse
from schemas.shadow import ShadowReport
from schemas.usage import NodeUsage

log = logging.getLogger("gpubus.bus")

T = TypeVar("T", bound=msgspec.Struct)

PLACES: Final[dict[type[msgspec.Struct], tuple[str, str]]] = {
    Decision: (DECISION, "gpubus.decision.>"),
    NodeRecord: (LEDGER, "gpubus.ledger.node.>"),
    Node: (STATE, "gpubus.state.node.>"),
    GpuInventory: (STATE, "gpubus.state.gpu.>"),
    Pool: (STATE, "gpubus.state.pool.>"),
    Pod: (STATE, "gpubus.state.pod.>"),
    Waiting: (STATE, "gpubus.state.waiting.>"),
    Quota: (STATE, "gpubus.state.quota.>"),
    NodeUsage: (USAGE, "gpubus.usage.gpu.>"),
    Drift: (CAPACITY, "gpubus.drift.>"),
    PodNotice: (CAPACITY, "gpubus.notice.>"),
    AlertNotice: (ALERT, "gpubus.alert.>"),
    ShadowReport: (SHADOW, "gpubus.shadow.report.>"),
    PoolCapacity: (CAPACITY, "gpubus.capacity.>"),
    WorkloadUse: (STATE, "gpubus.state.use.>"),
    DeadLetter: (DEAD, "gpubus.dead.>"),
}
"""Where events of each type are: the stream, and the subjects that hold them. Of STATE only the newest of each object is kept."""


class Received(msgspec.Struct, Generic[T], frozen=True):
    """One event and its place.

    Attributes:
        seq: Its sequence in the stream: give it as ``after`` to go on behind it.
        subject: NATS subject.
        stored_at: When the server stored it.
        event: The whole event; None when what the subject names was deleted.
    """

    seq: int
    subject: str
    stored_at: datetime
    event: Event[T] | None

    @property
    def data(self) -> T:
        """The payload.

        Raises:
            ValueError: There is none, as the object was deleted.
        """
        if self.event is None:
            raise ValueError(f"{self.subject} was deleted: look at `deleted` first")
        return self.event.data

    @property
    def deleted(self) -> bool:
        """Whether what the subject names was deleted."""
        return self.event is None


async def subscribe(
    bus: Bus,
    kind: type[T],
    *,
    after: int | None = None,
    subject: str | None = None,
    pool: str | None = None,
    namespace: str | None = None,
    node: str | None = None,
) -> AsyncGenerator[Received[T]]:
    """Yield events of one type, in stream order, those that are stored already and then those that come.

    What cannot be decoded is passed over with a warning. Filters look at the event, so deletions, which say nothing, are
    left out as soon as there is one.

    Args:
        bus: The connection.
        kind: The payload's type, such as :class:`schemas.decision.Decision`; one of :data:`PLACES`.
        after: Begin behind this sequence; 0 begins with all that is stored, None with what is new.
        subject: Only these subjects, such as ``gpubus.decision.ml.>``; by default all that hold the type.
        pool: Only events about this pool.
        namespace: Only events about pods of this namespace.
        node: Only events about this node.

    Raises:
        ValueError: The type has no stream of its own, or not the field that a filter asks for.
        PlaceLostError: The stream has never reached ``after``: it was deleted and made again, and waiting would be in vain.
        BusError: The stream cannot be read.
    """
    given = (("pool", pool), ("namespace", namespace), ("node", node))
    wanted = {name: value for name, value in given if value is not None}
    stream, everything = _place(kind, wanted)
    if after is None:
        after = (await stream_info(bus, stream)).state.last_seq
    elif after > 0 and (last := await readable(bus, stream)) is not None and last < after:
        raise PlaceLostError(stream, after, last)
    async with contextlib.aclosing(
        batches(bus, stream, [subject or everything], since=after + 1, live=True)
    ) as reading:
        async for batch in reading:
            for record in batch:
                received = _received(kind, stream, record, wanted)
                if received is not None:
                    yield received


def _place(kind: type[msgspec.Struct], wanted: dict[str, str]) -> tuple[str, str]:
    if kind not in PLACES:
        raise ValueError(f"{kind.__name__} cannot be subscribed to: use one of {', '.join(k.__name__ for k in PLACES)}")
    for name, value in wanted.items():
        if not _has(kind, name):
            raise ValueError(f"{kind.__name__} says nothing of a {name}: drop {name}={value!r}")
    return PLACES[kind]


def _received(kind: type[T], stream: str, record: Record, wanted: dict[str, str]) -> Received[T] | None:
    at = utc(record.time_ns / 1e9)
    if record.deleted:
        return None if wanted else Received(record.seq, record.subject, at, None)
    try:
        event = codec.decode_as(kind, record.payload)
    except UndecodableError as error:
        log.warning("%s %d is passed over: %s", stream, record.seq, error.reason)
        return None
    if any(_value(event.data, name) != value for name, value in wanted.items()):
        return None
    return Received(record.seq, record.subject, at, event)


def _has(kind: type[msgspec.Struct], name: str) -> bool:
    fields = kind.__struct_fields__
    return name in fields or (name == "pool" and "request" in fields) or (name == "node" and kind is Node)


def _value(data: Any, name: str) -> Any:
    if name == "pool" and not hasattr(data, "pool"):
        return data.request.pool
    return data.name if name == "node" and isinstance(data, Node) else getattr(data, name)
