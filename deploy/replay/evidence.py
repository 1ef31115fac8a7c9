"""Walks the chains of the log and finds every place where they do not hold."""

from hashlib import blake2b

import msgspec

from bus.chain import Break, Chain, link
from bus.connection import Bus
from bus.follower import Record
from bus.history import batches
from bus.streams import DECISION, JOURNAL, LEDGER, stream_info
from schemas.event import Event

SHOWN = 20


class _Ordinal(msgspec.Struct):
    ordinal: int


class _Decision(msgspec.Struct):
    allocator: str
    basis: _Ordinal
    outcome: str = ""


class _Change(msgspec.Struct):
    decision: msgspec.Raw


class _Linked(msgspec.Struct):
    previous: str = ""
    number: int = 0
    changes: tuple[_Change, ...] = ()


_linked = msgspec.json.Decoder(Event[_Linked])
_announced = msgspec.json.Decoder(Event[msgspec.Raw])
_identity = msgspec.json.Decoder(_Decision)


class Evidence(msgspec.Struct, kw_only=True):
    """What was found.

    Attributes:
        checked: Messages of LEDGER and JOURNAL that were checked against the one before them.
        announced: Decisions that are in the ledger and in DECISION, and were compared.
        broken: How many messages do not follow.
        breaks: The first of them, in stream order.
        head: Digest over the newest message of every chain: note it down, and compare it with a later look at the same log.
    """

    checked: int = 0
    announced: int = 0
    broken: int = 0
    breaks: list[Break] = []
    head: str = ""


async def walk(bus: Bus) -> Evidence:
    """Check LEDGER and JOURNAL link by link, and that DECISION says of each change what the ledger says.

    Raises:
        BusError: A stream cannot be read.
    """
    found, digest = Evidence(breaks=[]), blake2b(digest_size=16)
    decided: dict[tuple[str, int], int] = {}
    whole = False
    for stream, subject in ((LEDGER, "gpubus.ledger.node.>"), (JOURNAL, "gpubus.journal.>")):
        state = (await stream_info(bus, stream)).state
        if stream == LEDGER:
            whole = state.messages == state.last_seq
        chain = Chain(stream, complete=state.first_seq <= 1 and (stream == JOURNAL or state.messages == state.last_seq))
        links = [
            _link(found, stream, record, decided) async for batch in batches(bus, stream, [subject]) for record in batch
        ]
        # Turns that were sent again after a lost connection may be stored behind later ones.
        for one in sorted(links, key=lambda entry: (entry.number, entry.seq)):
            _note(found, chain.follow(one.seq, one.subject, one.own, one.previous))
        found.checked += chain.checked
        for name, newest in chain.heads():
            digest.update(f"{stream} {name} {newest}\n".encode())
    async for batch in batches(bus, DECISION, ["gpubus.decision.>"]):
        for record in batch:
            _note(found, _announce(found, record, decided, whole=whole))
    found.head = digest.hexdigest()
    return found


def _note(found: Evidence, problem: Break | None) -> None:
    if problem is not None:
        found.broken += 1
        if len(found.breaks) < SHOWN:
            found.breaks.append(problem)


class _Link(msgspec.Struct, frozen=True):
    """One message of a chain, in short. ``number`` is its place where the stream's order is not the chain's."""

    number: int
    seq: int
    subject: str
    own: str
    previous: str


def _link(found: Evidence, stream: str, record: Record, decided: dict[tuple[str, int], int]) -> _Link:
    previous, number = "", 0
    if record.payload:
        try:
            data = _linked.decode(record.payload).data
            previous, number = data.previous, data.number
            for change in data.changes:
                decided[_key(bytes(change.decision))] = hash(bytes(change.decision))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _note(found, Break(stream, record.seq, record.subject, f"cannot be read: {error}"))
    return _Link(number, record.seq, record.subject, link(record.payload), previous)


def _announce(found: Evidence, record: Record, decided: dict[tuple[str, int], int], *, whole: bool) -> Break | None:
    try:
        raw = bytes(_announced.decode(record.payload).data)
        decision = _identity.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Break(DECISION, record.seq, record.subject, f"cannot be read: {error}")
    known = decided.get((decision.allocator, decision.basis.ordinal))
    if known is None:  # what takes no place, or gives none back, is in no ledger record
        missing = whole and decision.outcome == "allocated"
        return Break(DECISION, record.seq, record.subject, "is in no ledger record") if missing else None
    found.announced += 1
    return (
        None if known == hash(raw) else Break(DECISION, record.seq, record.subject, "says other than the ledger does")
    )


def _key(raw: bytes) -> tuple[str, int]:
    decision = _identity.decode(raw)
    return decision.allocator, decision.basis.ordinal
