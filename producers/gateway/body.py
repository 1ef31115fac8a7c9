"""Reads a request's body, up to a size."""

from starlette.types import Receive


class TooLargeError(ValueError):
    """The body is larger than it may be."""


class GoneError(Exception):
    """The client went away half way."""


async def read_body(receive: Receive, most: int) -> bytes:
    """Return the body.

    Raises:
        TooLargeError: It has more than ``most`` bytes; the rest is not read.
        GoneError: The client went away half way.
    """
    parts, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise TooLargeError(f"the body is over {most} bytes")
        more = message.get("more_body", False)
    return b"".join(parts)
