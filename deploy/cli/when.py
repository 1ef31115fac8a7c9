"""Moments of the past, as people name them: a place in the ledger, an age, or a time."""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from deploy.cli.errors import InputError

if TYPE_CHECKING:
    from bus.connection import Bus
    from bus.history import Cut

AtOption = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="WHEN", help="As it was then: a time such as 2026-11-29T14:03Z, or an age such as 15m."
    ),
]
SequenceOption = Annotated[
    int | None, typer.Option("--seq", metavar="N", min=0, help="As it was at this sequence of the ledger.")
]

_AGE: Final = re.compile(r"(\d{1,9})([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NS: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_SEQUENCE: Final = 1 << 63
"""More messages than any stream counts."""


def instant_of(text: str, option: str) -> datetime:
    """Return the instant that a time or an age names; one longer ago than there are dates is the first date.

    Raises:
        InputError: It names none.
    """
    if age := _AGE.fullmatch(text):
        try:
            return datetime.now(UTC) - timedelta(seconds=int(age[1]) * _UNITS[age[2]])
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InputError(
            f"{option} {text!r} is no moment: write a time such as 2026-11-29T14:03Z, or an age such as 15m"
        )
    return found


def nanoseconds_since_epoch(moment: datetime) -> int:
    """Return an instant as the log counts time, exactly: as a float it would be up to a quarter of a microsecond off."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


async def cut_of(bus: "Bus", at: str | None, sequence: int | None) -> "Cut | None":
    """Return where to cut the log, or None for no cut.

    Raises:
        InputError: The options contradict each other, or the ledger holds no such sequence.
    """
    from bus.history import Cut, time_of
    from bus.streams import LEDGER

    if at is not None and sequence is not None:
        raise InputError("--at and --seq each name a moment: keep one of them")
    if sequence is not None:
        time_ns = await time_of(bus, LEDGER, sequence) if sequence < _NO_SEQUENCE else None
        if time_ns is None:
            raise InputError(f"--seq {sequence}: the ledger holds no such record: `gpubus state` says how far it goes")
        cut = Cut(ledger=sequence, time_ns=time_ns)
    elif at is not None:
        cut = Cut(time_ns=nanoseconds_since_epoch(instant_of(at, "--at")))
    else:
        return None
    await _warn_of_gaps(bus, cut)
    return cut


async def _warn_of_gaps(bus: "Bus", cut: "Cut") -> None:
    """Say when the log does not reach back so far, or only in part: the answer would look like that of an empty cluster."""
    from bus.history import time_of
    from bus.streams import HISTORY, LEDGER, stream_info
    from deploy.cli.output import instant, warn

    ledger, history = (await stream_info(bus, LEDGER)).state, (await stream_info(bus, HISTORY)).state
    begun = await time_of(bus, HISTORY, history.first_seq) if history.messages else None
    if begun is not None and cut.time_ns is not None and cut.time_ns < begun:
        first = datetime.fromtimestamp(begun / _NS, UTC)
        warn(
            f"what was said before {instant(first)} is not on record: of that moment nothing, or only a part, is known"
        )
    elif history.first_seq > 1:
        warn("the older part of what was said has been dropped: what has not been said again since is missing")
    if ledger.messages < ledger.last_seq:
        warn("older records of the ledger have been dropped: nodes that changed often since may seem empty")


def split_moment(text: str) -> tuple[str | None, int | None]:
    """Return a moment that is given as one word as the two options: digits are a sequence."""
    return (None, int(text)) if text.isascii() and text.isdigit() else (text, None)


async def ledger_sequence(bus: "Bus", text: str, option: str) -> int:
    """Return the sequence of the newest ledger record at a moment, which may be given as that sequence.

    Raises:
        InputError: It is no moment, or one still to come from which on nothing is there.
    """
    if text.isascii() and text.isdigit():
        return min(int(text), _NO_SEQUENCE - 1)
    from deploy.cli.history import lanes

    at, now = instant_of(text, option), datetime.now(UTC)
    if at > now and option == "--from":
        raise InputError(f"{option} {text} is still to come: nothing would be compared")
    (lane,) = await lanes(bus, "gpubus.ledger.>")
    await lane.from_time(max(min(at, now), _EPOCH))  # the server counts no times of other centuries
    return lane.next - 1
