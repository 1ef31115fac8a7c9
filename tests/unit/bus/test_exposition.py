"""Metrics in the text format, and the server that hands them out."""

import asyncio
import math

from bus.exposition import CONTENT_TYPE, Family, MetricsServer, Sample, render

FAMILIES = [
    Family("a_bytes", "Back\\slash\nand line.", [Sample(85_899_345_920, {"gpu": 'a"b\\c\nd'}), Sample(0.5)]),
    Family("empty", "Nothing.", []),
    Family("h_seconds", "Time.", [Sample(3, {"le": "+Inf"}, "_bucket"), Sample(math.inf, {}, "_sum")], "histogram"),
]
TEXT = rb"""# HELP a_bytes Back\\slash\nand line.
# TYPE a_bytes gauge
a_bytes{gpu="a\"b\\c\nd"} 85899345920
a_bytes 0.5
# HELP h_seconds Time.
# TYPE h_seconds histogram
h_seconds_bucket{le="+Inf"} 3
h_seconds_sum +Inf
"""


def test_families_are_written_with_their_escapes_and_whole_numbers_in_full() -> None:
    assert render(FAMILIES) == TEXT


async def ask(port: int, request: bytes) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


async def test_the_server_answers_scrapes_and_refuses_the_rest() -> None:
    sick: list[str] = []
    failing: list[str] = []

    def collect() -> list[Family]:
        if failing:
            raise RuntimeError(failing[0])
        return FAMILIES

    async with MetricsServer(collect, host="127.0.0.1", port=0, unready=lambda: "".join(sick)) as server:
        head, body = await ask(server.port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert CONTENT_TYPE.encode() in head
        assert body == TEXT
        assert await ask(server.port, b"HEAD /metrics HTTP/1.1\r\n\r\n") == (head, b"")
        assert (await ask(server.port, b"GET /readyz HTTP/1.1\r\n\r\n"))[1] == b"ok\n"
        sick.append("the bus is away")
        head, body = await ask(server.port, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert body == b"the bus is away\n"
        assert (await ask(server.port, b"GET /healthz HTTP/1.1\r\n\r\n"))[1] == b"ok\n"
        assert (await ask(server.port, b"GET / HTTP/1.1\r\n\r\n"))[0].startswith(b"HTTP/1.1 404")
        assert (await ask(server.port, b"POST /metrics HTTP/1.1\r\n\r\n"))[0].startswith(b"HTTP/1.1 405")
        assert await ask(server.port, b"x" * 20_000) == (b"", b"")  # no end of the request within its limit
        failing.append("no")
        assert (await ask(server.port, b"GET /metrics HTTP/1.1\r\n\r\n"))[0].startswith(b"HTTP/1.1 500")
