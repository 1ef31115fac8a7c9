"""An answer over HTTP, for paths that are asked so often that routing and wrapping would show."""

from typing import Final, NamedTuple

from starlette.types import Send

UNAVAILABLE: Final = 503
NOT_ALLOWED: Final = 405


class Said(NamedTuple):
    """An answer over HTTP."""

    status: int
    body: bytes
    kind: bytes = b"text/plain; charset=utf-8"

    async def send(self, send: Send) -> None:
        """Give the answer."""
        headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", self.kind)]
        if self.status == UNAVAILABLE:
            headers.append((b"retry-after", b"1"))
        elif self.status == NOT_ALLOWED:
            headers.append((b"allow", b"POST"))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})
