"""The past of a stream as values: for checks, listings and replays."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

import nats.errors

from bus.connection import Bus
from bus.errors import ApiError, BusError
from bus.follower import Follower, Record
from bus.streams import HISTORY, STATE, stream_info
from bus.tasks import end

AT_ONCE: Final = 4096
"""Records held for a reader before the server is asked to wait."""


async def read(
    bus: Bus, stream: str, filters: Sequence[str], apply: Callable[[Record], None], *, since: int = 1
) -> int:
    """Call ``apply`` for every record of ``stream`` from ``since`` to the end as it is now; return the last sequence.

    Raises:
        BusError: The stream could not be read.
    """
    follower = Follower(bus, stream, filters, apply, since=since)
    await follower.start(timeout=300.0)
    await follower.stop()
    return follower.seq


async def batches(
    bus: Bus, stream: str, filters: Sequence[str], *, since: int = 1, live: bool = False, original: bool = False
) -> AsyncGenerator[list[Record]]:
    """Yield the records of ``stream`` from ``since`` on, a list at a time, and have the server wait for a slow reader.

    Ends with what there is when it gets there, unless ``live``: then it waits for more. An outage of the bus is waited out.

    Raises:
        BusError: The stream cannot be read.
    """
    await _exists(bus, stream)
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
            if taken:
                yield taken
    finally:
        await end(loading)
        await follower.stop()


async def _exists(bus: Bus, stream: str) -> None:
    try:
        await stream_info(bus, stream)
    except (nats.errors.Error, TimeoutError, ApiError) as error:
        raise BusError(f"stream {stream} cannot be read: {error or type(error).__name__}") from error


async def past_state(bus: Bus, kinds: Sequence[str]) -> list[Record]:
    """Return all that is known of what STATE has said of some kinds of objects, in its order.

    HISTORY tells what was replaced, as far back as it goes; what has not been replaced since is in STATE.

    Raises:
        BusError: A stream cannot be read.
    """
    found: dict[int, Record] = {}
    records, _ = await newest(bus, STATE, [f"gpubus.state.{kind}.>" for kind in kinds])
    found.update((record.seq, record) for record in records)
    async for batch in batches(bus, HISTORY, [f"gpubus.history.{kind}.>" for kind in kinds], original=True):
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

    follower = Follower(bus, stream, filters, keep)
    await follower.start()
    seq = follower.seq
    await follower.stop()
    return list(found.values()), seq
