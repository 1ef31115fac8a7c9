"""The past of a stream as values: for checks, listings and replays."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

import msgspec
import nats.errors

from bus.connection import Bus
from bus.errors import ApiError, BusError
from bus.follower import Follower, Record
from bus.moment import newest_before
from bus.stored import find
from bus.streams import HISTORY, LEDGER, STATE, stream_info
from bus.tasks import breathe, end

_UNAVAILABLE: Final = 503
"""The cluster has no leader just now."""


AT_ONCE: Final = 4096
"""Records held for a reader before the server is asked to wait."""

TOGETHER: Final = 512
"""Records that a reader gets in one list."""


async def read(
    bus: Bus, stream: str, filters: Sequence[str], apply: Callable[[Record], None], *, since: int = 1
) -> int:
    """Call ``apply`` for every record of ``stream`` from ``since`` to the end as it is now; return the last sequence.

    Raises:
        BusError: The stream could not be read.
    """
    await readable(bus, stream)
    follower = Follower(bus, stream, filters, apply, since=since)
    await follower.start(timeout=300.0)
    await follower.stop()
    return follower.seq


async def batches(
    bus: Bus,
    stream: str,
    filters: Sequence[str],
    *,
    since: int = 1,
    until: int | None = None,
    live: bool = False,
    original: bool = False,
) -> AsyncGenerator[list[Record]]:
    """Yield the records of ``stream`` from ``since`` on, a list at a time, and have the server wait for a slow reader.

    Ends with what there is when it gets there, or with the record at ``until``, unless ``live``: then it waits for more. An
    outage of the bus is waited out.

    Raises:
        BusError: The stream cannot be read.
    """
    await readable(bus, stream)
    held: list[Record] = []
    some, room = asyncio.Event(), asyncio.Event()
    room.set()

    def keep(record: Record) -> None:
        held.append(record)
        some.set()
        if len(held) >= AT_ONCE:
            room.clear()

    follower = Follower(bus, stream, filters, keep, since=since, room=room, original=original)
    loading = bus.spawn(follower.start(timeout=None), name=f"load-{stream}")
    loading.add_done_callback(lambda _: some.set())
    try:
        while live or held or not loading.done():
            await some.wait()
            some.clear()
            taken, held[:] = held[:], []
            room.set()
            for first in range(0, len(taken), TOGETHER):
                some_of_it = taken[first : first + TOGETHER]
                if until is not None and some_of_it[-1].seq >= until:
                    if within := [record for record in some_of_it if record.seq <= until]:
                        yield within
                    return
                yield some_of_it
                await breathe()
    finally:
        await end(loading)
        await follower.stop()


async def readable(bus: Bus, stream: str) -> int | None:
    """Return the last sequence of a stream that can be read; None when nobody can tell just now.

    Raises:
        BusError: It cannot be read.
    """
    try:
        info = await stream_info(bus, stream)
    except (nats.errors.Error, TimeoutError):
        return None  # whoever reads waits for a server that is away, and says so if it does not come
    except ApiError as error:
        if error.code == _UNAVAILABLE:
            return None
        raise BusError(f"stream {stream} cannot be read: {error or type(error).__name__}") from error
    if info.is_queue:
        raise BusError(
            f"stream {stream} is a queue: it has no past, as messages go when they are done; DECISION has what came of them"
        )
    return info.state.last_seq


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Where to cut the log to see how things stood: by sequence, by time (nanoseconds since the epoch), or by both."""

    state: int | None = None
    ledger: int | None = None
    time_ns: int | None = None

    def holds(self, stream: str, record: Record) -> bool:
        """Whether a record of STATE or LEDGER had been stored by then."""
        last = self.ledger if stream == LEDGER else self.state
        return (last is None or record.seq <= last) and (self.time_ns is None or record.time_ns <= self.time_ns)


async def newest_until(bus: Bus, stream: str, names: Sequence[str], cut: Cut) -> tuple[list[Record], int]:
    """Return what :func:`newest` would have returned at a moment; ``names`` are kinds of STATE or subjects of LEDGER.

    It costs as much as there are objects, however long the log is. What HISTORY says of STATE is as for :func:`past_state`, and
    what has been replaced since counts from when it was copied there, as nothing tells when it was first stored: by a time, not
    by a sequence, it may be missed for that long, about a millisecond on one server.

    Raises:
        BusError: The stream could not be read.
    """
    if stream == LEDGER:
        records = await newest_before(bus, LEDGER, names, lambda record: cut.holds(LEDGER, record))
        return [record for record in records if not record.deleted], cut.ledger or _end(records)
    filters = [f"gpubus.state.{kind}.>" for kind in names]
    present, _ = await newest(
        bus, STATE, filters
    )  # first: what is replaced meanwhile has reached HISTORY by then, or does so
    past = await newest_before(bus, HISTORY, filters, lambda record: cut.holds(STATE, record), original=True)
    found = {record.subject: record for record in past}
    for record in present:
        if cut.holds(STATE, record) and (record.subject not in found or found[record.subject].seq < record.seq):
            found[record.subject] = record
    records = sorted(found.values(), key=lambda record: record.seq)
    return [record for record in records if not record.deleted], cut.state or _end(records)


def _end(records: list[Record]) -> int:
    return records[-1].seq if records else 0


async def time_of(bus: Bus, stream: str, seq: int) -> int | None:
    """Return when a message was stored, in nanoseconds since the epoch; None when the stream does not hold it."""
    message = await find(bus, stream, seq=seq)
    return message.time_ns if message is not None else None


async def past_state(bus: Bus, kinds: Sequence[str]) -> list[Record]:
    """Return all that is known of what STATE has said of some kinds of objects, in its order.

    HISTORY tells what was replaced, as far back as it goes; what has not been replaced since is in STATE. Of two records that
    replace each other while the server starts, it may miss the first.

    Raises:
        BusError: A stream cannot be read.
    """
    found: dict[int, Record] = {}
    records, _ = await newest(bus, STATE, [f"gpubus.state.{kind}.>" for kind in kinds])
    found.update((record.seq, record) for record in records)
    async for batch in batches(bus, HISTORY, [f"gpubus.state.{kind}.>" for kind in kinds], original=True):
        found.update((record.seq, record) for record in batch)
    return [found[seq] for seq in sorted(found)]


async def newest(bus: Bus, stream: str, filters: Sequence[str]) -> tuple[list[Record], int]:
    """Return the newest record of every subject that has one, oldest first, and the sequence up to which that is true.

    Raises:
        BusError: The stream could not be read.
    """
    found: dict[str, Record] = {}

    def keep(record: Record) -> None:
        found.pop(record.subject, None)
        if not record.deleted:
            found[record.subject] = record

    begun = await readable(bus, stream)
    if stream == STATE and len(filters) > 1 and begun is not None:
        # Most of what STATE was told has been replaced, and there the server looks ten times as long by several filters at
        # once. So they are asked for one after the other, and then all for what has come meanwhile: that is soon found.
        for one in filters:
            found |= {record.subject: record for record in (await newest(bus, stream, [one]))[0]}
        seq = await read(bus, stream, filters, keep, since=begun + 1)
        return sorted(found.values(), key=lambda record: record.seq), seq
    follower = Follower(bus, stream, filters, keep)
    await follower.start()
    await follower.stop()
    return list(found.values()), follower.seq  # only now, as records come until it has stopped
