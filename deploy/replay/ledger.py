"""Ledger records by sequence, read as they are needed and forgotten when nobody can ask for them any more."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final

import msgspec

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Record
from bus.history import batches
from bus.stored import get
from bus.streams import LEDGER
from schemas.ledger import Allocation, Change, NodeRecord

KEPT: Final = 8192
"""Records kept without looking which of them are still needed."""

MOST: Final = 4 * KEPT
"""Records kept that are not their node's newest, if somebody might need them: an allocator that rests needs them once."""

AT_ONCE: Final = 64
"""Records fetched again at the same time."""


class _Changes(msgspec.Struct):
    changes: tuple[Change, ...]


class _Changed(msgspec.Struct):
    data: _Changes


_changed = msgspec.json.Decoder(_Changed)

Seen = Callable[[Record, str, NodeRecord | None, str], None]
"""Takes a record, its node, what it says (None: the node's record was deleted) and why it cannot be read, if so."""


class LedgerReader:
    """Reads the ledger forwards.

    Args:
        bus: The connection.
        seen: Called with every record once, in stream order.
        until: Where to stop; None for where it ends.

    Attributes:
        seq: Sequence up to which it has been read.
    """

    def __init__(self, bus: Bus, seen: Seen, *, until: int | None = None) -> None:
        self._bus = bus
        self._seen = seen
        self._records: AsyncGenerator[list[Record]] = batches(bus, LEDGER, ["gpubus.ledger.node.>"], until=until)
        self._held: dict[int, tuple[Allocation, ...]] = {}
        self._newest: dict[str, int] = {}
        self._ended = False
        self._kept = True
        self._full = KEPT
        self.seq = 0

    async def read_to(self, seq: int | None) -> None:
        """Read at least up to a sequence; None reads to the end, and keeps nothing of that, as nobody asks for it any more."""
        self._kept = seq is not None
        while not self._ended and (seq is None or self.seq < seq):
            batch = await anext(self._records, None)
            if batch is None:
                self._ended = True
                return
            for record in batch:
                self._take(record)
            self.seq = batch[-1].seq

    def _take(self, record: Record) -> None:
        data, problem, node = None, "", record.subject
        try:
            node = subjects.names(record.subject)[-1]
            data = None if record.deleted else codec.decode_as(NodeRecord, record.payload).data
            if data is not None:
                codec.check_name(data.node, node)
        except (UndecodableError, ValueError) as error:
            problem = str(error)
        else:
            if self._kept:
                self._held[record.seq] = data.charges() if data is not None else ()
        self._newest[record.subject] = record.seq
        self._seen(record, node, data, problem)

    async def fetch(self, seqs: Iterable[int]) -> None:
        """Have records at hand that have been forgotten.

        Raises:
            ApiError: The stream holds one of them no more.
            UndecodableError: One cannot be read.
        """
        missing = [seq for seq in seqs if seq not in self._held]
        for first in range(0, len(missing), AT_ONCE):
            await asyncio.gather(*map(self._fetch, missing[first : first + AT_ONCE]))

    async def _fetch(self, seq: int) -> None:
        self._held[seq] = _charges((await get(self._bus, LEDGER, seq=seq)).data)

    def forget(self, before: int) -> None:
        """Nobody is likely to ask for a record below ``before`` that is not its node's newest."""
        if len(self._held) <= self._full:
            return
        newest = set(self._newest.values())
        others = sorted(seq for seq in self._held if seq >= before and seq not in newest)[-MOST:]
        kept = newest.intersection(self._held).union(others)
        self._held = {seq: held for seq, held in self._held.items() if seq in kept}
        self._full = len(kept) + KEPT  # looking through all of them with every turn would be in vain

    def allocations(self, _node: str, seq: int) -> tuple[Allocation, ...]:
        """Return what counts as taken by the record at a sequence."""
        return self._held[seq]

    async def close(self) -> None:
        """Stop reading."""
        await self._records.aclose()


class ChangesReader(LedgerReader):
    """Decodes of a record what it changes, and the rest only when somebody asks: it checks nothing.

    Args:
        bus: The connection.
        changed: Called with every record that can be read, in stream order, and its changes.
        until: Where to stop; None for where it ends.
    """

    def __init__(
        self, bus: Bus, changed: Callable[[Record, tuple[Change, ...]], None], *, until: int | None = None
    ) -> None:
        super().__init__(bus, lambda *_: None, until=until)
        self._changed = changed
        self._encoded: dict[int, bytes] = {}

    def _take(self, record: Record) -> None:
        self._newest[record.subject] = record.seq
        if self._kept:
            self._encoded[record.seq] = record.payload
        if record.payload:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._changed(record, _changed.decode(record.payload).data.changes)

    async def fetch(self, seqs: Iterable[int]) -> None:
        """Have records at hand; see :meth:`LedgerReader.fetch`."""
        wanted = list(seqs)
        for seq in wanted:
            if seq not in self._held and (payload := self._encoded.get(seq)) is not None:
                self._held[seq] = _charges(payload)
        await super().fetch(wanted)

    def forget(self, before: int) -> None:
        """Keep few records; see :meth:`LedgerReader.forget`."""
        super().forget(before)
        if len(self._encoded) > MOST:
            newest = set(self._newest.values())
            kept = sorted(seq for seq in self._encoded if seq >= before or seq in newest)[-MOST // 2 :]
            self._encoded = {seq: self._encoded[seq] for seq in kept}


def _charges(payload: bytes) -> tuple[Allocation, ...]:
    """Return what counts as taken by a record.

    Raises:
        UndecodableError: It cannot be read.
    """
    return codec.decode_as(NodeRecord, payload).data.charges() if payload else ()
