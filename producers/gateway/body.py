"""Reads a request's body, up to a size."""

from starlette.requests import Request


class TooLargeError(ValueError):
    """The body is larger than it may be."""


async def read_body(request: Request, most: int) -> bytes:
    """Return the body.

    Raises:
        TooLargeError: It has more than ``most`` bytes; the rest is not read.
        ClientDisconnect: The client went away half way.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise TooLargeError(f"the body is over {most} bytes")
        parts.append(part)
    return b"".join(parts)
