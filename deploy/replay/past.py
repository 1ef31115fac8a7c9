"""What STATE has said, in its order, read as it is needed: its history may be far larger than memory."""

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Final

from bus.connection import Bus
from bus.follower import Record
from bus.history import batches, newest
from bus.streams import HISTORY, STATE
from schemas.journal import Saw, Turn

_NO_MORE: Final = 1 << 63


def subjects_of(kinds: Iterable[str]) -> list[str]:
    """Return the subjects of kinds of objects in STATE."""
    return [f"gpubus.state.{kind}.>" for kind in kinds]


def seen_by(turn: Turn) -> int:
    """Return the STATE sequence that an allocator had read when it ended a turn."""
    return max((step.state for step in turn.steps if isinstance(step, Saw)), default=0)


async def present(bus: Bus, kinds: Sequence[str]) -> list[Record]:
    """Return what STATE holds of some kinds of objects, in its order.

    Raises:
        BusError: It cannot be read.
    """
    records, _ = await newest(bus, STATE, subjects_of(kinds))
    return records


class StateReader:
    """Reads forwards: HISTORY, and what STATE holds that has not been copied there.

    Args:
        bus: The connection.
        kinds: Kinds of objects.
        held: What STATE holds of them (:func:`present`).
    """

    def __init__(self, bus: Bus, kinds: Sequence[str], held: Iterable[Record]) -> None:
        self._records: AsyncGenerator[list[Record]] = batches(bus, HISTORY, subjects_of(kinds), original=True)
        self._held = deque(held)
        self._at = 0

    async def read_to(self, seq: int) -> list[Record]:
        """Return what follows up to a sequence, and maybe beyond.

        Raises:
            BusError: It cannot be read.
        """
        found: list[Record] = []
        while self._at < seq:
            batch = await anext(self._records, None)
            if batch is None:
                self._at = _NO_MORE
                break
            for record in batch:
                found += self._held_before(record.seq)
                found.append(record)
                self._at = record.seq
        return found + self._held_before(seq + 1) if self._at == _NO_MORE else found

    def _held_before(self, seq: int) -> list[Record]:
        """Return what STATE holds below a sequence and HISTORY does not, and drop what both have at that sequence."""
        found = []
        while self._held and self._held[0].seq < seq:
            found.append(self._held.popleft())
        if self._held and self._held[0].seq == seq and self._at != _NO_MORE:
            self._held.popleft()
        return found

    async def close(self) -> None:
        """Stop reading."""
        await self._records.aclose()
