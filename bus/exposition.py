"""Prometheus metrics and probes over HTTP: what a process knows of itself, written when somebody asks.

Nothing is registered and nothing counts beside the code that already counts: a role hands over a function that returns
families made from its own statistics, and the function is called in the event loop for every scrape. The server answers
``GET /metrics``, ``/healthz`` and ``/readyz`` and nothing else, one request per connection. ``/healthz`` says that the event
loop turns; a process whose bus or API server is away is not helped by a restart, so only ``/readyz`` tells of those.
Source: Prometheus text exposition format 0.0.4.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple, Self

log = logging.getLogger("gpubus.exposition")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LONGEST_REQUEST: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0


class Sample(NamedTuple):
    """One value of a family. ``suffix`` is what histograms and summaries add to the name, such as ``_bucket``."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class Family(NamedTuple):
    """All samples of one metric."""

    name: str
    help: str
    samples: Iterable[Sample]
    kind: Literal["gauge", "counter", "histogram", "summary", "untyped"] = "gauge"


def render(families: Iterable[Family]) -> bytes:
    """Write families in the text format, in the order given. A family without samples is left out."""
    lines: list[str] = []
    for family in families:
        samples = [_line(family.name, sample) for sample in family.samples]
        if samples:
            lines.append(f"# HELP {family.name} {_escape(family.help, quotes=False)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += samples
    lines.append("")
    return "\n".join(lines).encode()


def _line(name: str, sample: Sample) -> str:
    value = sample.value
    # Large whole numbers in full: repr(float) would write bytes as 8.5899e+10, exact but unreadable.
    text = str(int(value)) if isinstance(value, int) or (abs(value) < 2**53 and value.is_integer()) else _special(value)
    labels = ",".join(f'{key}="{_escape(word)}"' for key, word in sample.labels.items())
    return f"{name}{sample.suffix}{{{labels}}} {text}" if labels else f"{name}{sample.suffix} {text}"


def _special(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))


def _escape(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


class MetricsServer:
    """Serves what ``collect`` returns, on ``host``:``port``; port 0 takes a free one.

    ``unready`` answers ``/readyz``: 200 while it returns nothing, else 503 with the reason that it returns.

    Example::

        async with MetricsServer(lambda: [Family("up", "Whether it runs.", [Sample(1)])], port=9400) as server:
            ...
    """

    def __init__(
        self,
        collect: Callable[[], Iterable[Family]],
        *,
        port: int,
        host: str = "0.0.0.0",  # noqa: S104  scraped from outside the pod
        unready: Callable[[], str] = str,
    ) -> None:
        self._collect = collect
        self._unready = unready
        self._host = host
        self.port = port
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: The address cannot be used.
        """
        self._server = await asyncio.start_server(self._serve, self._host, self.port, limit=LONGEST_REQUEST)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = self._answer(head.split(b"\r\n", 1)[0])
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                )
                if not head.startswith(b"HEAD "):
                    writer.write(body)
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # a client that leaves, dawdles or talks too much gets nothing
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, request: bytes) -> tuple[str, str, bytes]:
        method, _, rest = request.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", "text/plain", b"use GET\n"
        match path:
            case b"/metrics":
                try:
                    return "200 OK", CONTENT_TYPE, render(self._collect())
                except Exception:
                    log.exception("metrics could not be collected")
                    return "500 Internal Server Error", "text/plain", b"metrics could not be collected; see the log\n"
            case b"/healthz":
                return "200 OK", "text/plain", b"ok\n"
            case b"/readyz":
                reason = self._unready()
                return ("503 Service Unavailable" if reason else "200 OK"), "text/plain", f"{reason or 'ok'}\n".encode()
            case _:
                return "404 Not Found", "text/plain", b"use /metrics, /healthz or /readyz\n"
