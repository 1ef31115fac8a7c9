"""Where a copied message comes from: the sequence and the time that it has in the stream it was copied from.

The server says so of what it copies into a mirror; what ``gpubus import`` copies says so in a header of ours, as the server
lets nobody write its own.
"""

from datetime import UTC, datetime
from typing import Final

_COPIED: Final = "Nats-Stream-Source"
"""Header of what the server has copied: name of the stream, sequence, and more."""
IMPORTED: Final = "Gpubus-Stored"
"""Header of what we have copied: sequence, and nanoseconds since the epoch."""
_NS: Final = 1_000_000_000


def origin(headers: bytes, time_ns: int) -> tuple[int, int]:
    """Return sequence and time of a copied message where it was first stored.

    Args:
        headers: The copy's headers as they are on the wire.
        time_ns: When the copy was stored, nanoseconds since the epoch; stands when the origin's is not told.
    """
    if imported := _header(headers, IMPORTED):
        seq, stored_ns = imported.split(" ")
        return int(seq), int(stored_ns)
    return int(_header(headers, _COPIED).split(" ")[1]), time_ns


def nanoseconds(stamp: str) -> int:
    """Return an RFC 3339 time in UTC as nanoseconds since the epoch; Python's own parser knows none below a microsecond."""
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * _NS + int(fraction.ljust(9, "0")[:9] or 0)


def _header(headers: bytes, name: str) -> str:
    """Return the value of one of a message's raw headers; empty when it is not there."""
    _, found, rest = headers.partition(f"{name}: ".encode())
    return rest.partition(b"\r\n")[0].decode() if found else ""
