"""The newest of what STATE says under a subject, for commands that show it: what cannot be read is named and left out."""

from typing import TYPE_CHECKING, TypeVar

import msgspec

from deploy.cli.output import warn

if TYPE_CHECKING:
    from bus.connection import Bus

T = TypeVar("T", bound=msgspec.Struct)


async def newest_of(bus: "Bus", subject: str, struct: type[T]) -> list[T]:
    """Return what is said on subjects that may have wildcards, oldest first.

    Raises:
        BusError: The stream could not be read.
    """
    from bus import history
    from bus.codec import decode_as
    from bus.errors import UndecodableError
    from bus.streams import STATE

    found = []
    for record in (await history.newest(bus, STATE, [subject]))[0]:
        try:
            found.append(decode_as(struct, record.payload).data)
        except UndecodableError as error:
            warn(f"{record.subject} at {record.seq} cannot be read: {error.reason}")
    return found
