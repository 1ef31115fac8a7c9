"""The follower: the newest message of every subject, then every change, in stream order.

It is how a consumer holds STATE or LEDGER in memory. It loads last-per-subject, follows live, and survives what the
client library's own watchers do not: a server restart (it resumes behind the last sequence it saw, at once), a stream
that was deleted and made again (it notices the new creation time, loads anew and reports what is gone), a gap in the
delivery, and silence (heartbeats stop).

Order: records arrive in stream order, each sequence at most once. ``seq`` is therefore a consistent cut of the stream.
"""

import asyncio
import contextlib
import heapq
import logging
import random
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus.connection import Bus
from bus.errors import ApiError, BusError
from bus.origin import origin
from bus.position import position
from bus.streams import TOMBSTONE_TTL_S, stream_info
from bus.tasks import end

log = logging.getLogger("gpubus.bus")

HEARTBEAT_S: Final = 1
INACTIVE_S: Final = 30
_NS: Final = 1_000_000_000


class Record(msgspec.Struct, frozen=True, gc=False):
    """One message of a followed stream.

    Attributes:
        subject: NATS subject.
        seq: Stream sequence.
        payload: The body; empty when ``deleted``.
        time_ns: When the server stored it, nanoseconds since the epoch.
        deleted: The subject's history was purged (a tombstone without body), or vanished while the follower was away.
    """

    subject: str
    seq: int
    payload: bytes
    time_ns: int = 0
    deleted: bool = False


class FollowerStatistics(msgspec.Struct, frozen=True):
    """Counters since the follower started."""

    seq: int
    records: int
    subjects: int
    resumes: int
    reloads: int


class _Delivered(msgspec.Struct):
    consumer_seq: int = 0


class _Created(msgspec.Struct):
    delivered: _Delivered
    num_pending: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing matched. Deliveries begin before this answer is written, so pending alone does not tell."""
        return self.num_pending == 0 and self.delivered.consumer_seq == 0


_created = msgspec.json.Decoder(_Created)


class Follower:
    """Follows ``filters`` of ``stream`` and calls ``apply`` for every record, in order, from the event loop.

    ``apply`` must not block and must not raise on bad payloads: what cannot be decoded is the caller's to report.
    ``recreated`` is called before the records of a stream that was deleted and made again, whose sequences start anew.
    With ``since`` it starts with every record from that sequence on, instead of the newest of each subject. While ``room``
    is clear the server sends no more than it has under way. With ``original`` the records of a stream that copies another
    one come with the sequence that they have there.
    """

    def __init__(
        self,
        bus: Bus,
        stream: str,
        filters: Sequence[str],
        apply: Callable[[Record], None],
        *,
        recreated: Callable[[], None] | None = None,
        since: int | None = None,
        room: asyncio.Event | None = None,
        original: bool = False,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._filters = list(filters)
        self._apply = apply
        self._recreated = recreated
        self._room = room
        self._original = original
        self._history = since is not None
        self.seq = max(since or 1, 1) - 1
        self._created = ""
        self._subscription: Subscription | None = None
        self._generation = 0
        self._consumer_seq = 0
        self._known: set[str] = set()
        self._loading: set[str] | None = None
        self._loaded = asyncio.Event()
        self._restart = asyncio.Event()
        self._heard = 0.0
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._tickets = 0
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._held_back = False
        self._records = self._resumes = self._reloads = 0

    async def start(self, *, timeout: float | None = 30.0) -> None:
        """Begin to follow and return once everything that existed has been applied.

        Raises:
            BusError: The stream could not be read in time.
        """
        self._bus.on_reconnect(self._restart.set)
        self._restart.set()
        self._task = self._bus.spawn(self._run(), name=f"follow-{self._stream}")
        try:
            async with asyncio.timeout(timeout):
                await self._loaded.wait()
        except TimeoutError:
            raise BusError(f"stream {self._stream} could not be loaded within {timeout or 0:g} s") from None

    async def stop(self) -> None:
        """Stop following."""
        # A cancellation that meets an answer is swallowed by wait_for (Python 3.11), so the loop is told as well.
        self._stopping = True
        self._bus.off_reconnect(self._restart.set)
        await end(self._task)
        await self._unsubscribe()

    async def reached(self, seq: int) -> None:
        """Wait until the record at ``seq``, or one behind it, has been applied."""
        if self.seq >= seq:
            return
        self._tickets += 1  # orders equal sequences; futures do not compare
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (seq, self._tickets, future))
        await future

    async def caught_up(self) -> None:
        """Wait until everything the stream's leader holds at this moment has been applied.

        Only meaningful for a follower of the whole stream.
        """
        await self.reached((await stream_info(self._bus, self._stream)).state.last_seq)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._restart.wait()
            silent = loop.time() - self._heard > 3 * HEARTBEAT_S and not self._held_back
            if not (self._restart.is_set() or silent):
                continue
            self._restart.clear()
            try:
                await self._subscribe()
                failures = 0
            except (nats.errors.Error, OSError, TimeoutError, ApiError) as error:
                failures += 1
                log.info("following %s: %s; trying again", self._stream, error)
                await asyncio.sleep(min(0.1 * 2**failures, 2.0) * random.uniform(0.5, 1.0))  # noqa: S311  jitter
                self._restart.set()

    async def _subscribe(self) -> None:
        """Start a new server-side consumer behind what was applied, or from scratch if the stream is another one."""
        info = await stream_info(self._bus, self._stream)
        another = info.created != self._created or (bool(self._created) and info.state.last_seq < self.seq)
        # What was dropped or whose tombstone expired while we were away would be missed silently by resuming.
        away = asyncio.get_running_loop().time() - self._heard
        fresh = another or info.state.first_seq > self.seq + 1 or away > TOMBSTONE_TTL_S / 2
        await self._unsubscribe()
        self._generation += 1
        generation = self._generation
        self._consumer_seq = 0
        if another and self._created and self._recreated is not None:
            self._recreated()
        fresh = fresh and not self._history
        if another and self._created:
            self.seq = 0
        if fresh:
            self._loading = set()
            self.seq = 0
            self._reloads += 1
        else:
            self._resumes += 1

        async def on_message(message: Msg) -> None:
            if generation == self._generation:
                await self._on_message(message)

        inbox = f"{self._bus.inbox}.follow.{token_hex(6)}"
        self._subscription = await self._bus.client.subscribe(
            inbox, cb=on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        self._bus.express.attach(
            self._subscription,
            lambda *message: generation == self._generation and self._on_delivery(*message),
        )
        name = f"follow-{token_hex(6)}"
        config: dict[str, Any] = {
            "name": name,
            "deliver_subject": inbox,
            "ack_policy": "none",
            "max_deliver": 1,
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": HEARTBEAT_S * _NS,
            "inactive_threshold": INACTIVE_S * _NS,
            "mem_storage": True,
            "num_replicas": 1,
            "filter_subjects": self._filters,
        }
        if fresh:
            config["deliver_policy"] = "last_per_subject"
        else:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self.seq + 1}
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        created = _created.decode(await self._bus.api(f"CONSUMER.CREATE.{self._stream}.{name}", body))
        self._created = info.created
        self._heard = asyncio.get_running_loop().time()
        if created.empty:
            self._finish_loading(info.state.last_seq)

    async def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._bus.express.detach(self._subscription)
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._subscription.unsubscribe()
            self._subscription = None

    async def _on_message(self, message: Msg) -> None:
        raw = "".join(f"{name}: {value}\r\n" for name, value in (message.headers or {}).items()).encode()
        if not self._on_delivery(message.subject.encode(), message.reply.encode(), raw, message.data):
            self._heard = asyncio.get_running_loop().time()
            await self._on_status(message)

    def _on_delivery(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bool:
        """Take a message of the stream; return False when it is something else: a heartbeat, or flow control."""
        if not reply.startswith(b"$JS.ACK."):
            return False
        self._heard = asyncio.get_running_loop().time()
        at = position(reply.decode())
        if at.consumer_seq != self._consumer_seq + 1:
            log.info("following %s: gap before delivery %d", self._stream, at.consumer_seq)
            self._generation += 1
            self._restart.set()
            return True
        self._consumer_seq = at.consumer_seq
        if at.seq > self.seq:
            record = Record(subject.decode(), at.seq, payload, at.time_ns, not payload)
            shown = record
            if self._original:
                seq, time_ns = origin(headers, record.time_ns)
                shown = msgspec.structs.replace(record, seq=seq, time_ns=time_ns)
            self._deliver(record, shown)
        if at.pending == 0:
            self._finish_loading(self.seq)
        return True

    def _deliver(self, record: Record, shown: Record) -> None:
        self.seq = record.seq
        self._records += 1
        if record.deleted:
            self._known.discard(record.subject)
        else:
            self._known.add(record.subject)
        if self._loading is not None:
            self._loading.add(record.subject)
        self._apply(shown)
        self._release_waiters()

    def _release_waiters(self) -> None:
        while self._waiters and self._waiters[0][0] <= self.seq:
            _, _, future = heapq.heappop(self._waiters)
            if not future.done():
                future.set_result(None)

    def _finish_loading(self, seq: int) -> None:
        """Everything that existed is applied: report what vanished while away, and open the gate."""
        self.seq = max(self.seq, seq)
        self._release_waiters()
        if self._loading is not None:
            gone, self._loading = self._known - self._loading, None
            for subject in sorted(gone):
                self._known.discard(subject)
                self._apply(Record(subject, self.seq, b"", deleted=True))
        self._loaded.set()

    async def _on_status(self, message: Msg) -> None:
        headers = message.headers or {}
        answer = message.reply or headers.get("Nats-Consumer-Stalled", "")
        if answer:  # flow control: the server waits for this before it sends more
            if self._room is not None and not self._room.is_set():
                self._held_back = True
                await self._room.wait()
                self._held_back = False
                self._heard = asyncio.get_running_loop().time()
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._bus.client.publish(answer)
        # A heartbeat says how much was sent: the last message may be lost without a next one to show the gap.
        missed = int(headers.get("Nats-Last-Consumer", 0)) > self._consumer_seq
        if missed or headers.get("Status") == "409":
            self._restart.set()

    def statistics(self) -> FollowerStatistics:
        """Return the counters of this follower."""
        return FollowerStatistics(
            seq=self.seq,
            records=self._records,
            subjects=len(self._known),
            resumes=self._resumes,
            reloads=self._reloads,
        )
