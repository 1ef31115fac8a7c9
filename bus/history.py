"""The past of a stream as values: for checks, listings and replays."""

from collections.abc import Callable, Sequence

from bus.connection import Bus
from bus.follower import Follower, Record


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


async def newest(bus: Bus, stream: str, filters: Sequence[str]) -> list[Record]:
    """Return the newest record of every subject, oldest first, deleted ones left out.

    Raises:
        BusError: The stream could not be read.
    """
    records: list[Record] = []
    follower = Follower(bus, stream, filters, records.append)
    await follower.start()
    await follower.stop()
    return [record for record in records if not record.deleted]
