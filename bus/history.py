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
