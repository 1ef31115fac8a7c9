"""Plays a Service: one address for several servers, each connection to the next of them that answers."""

import asyncio
import contextlib
from collections.abc import Sequence
from itertools import chain
from typing import Self

CHUNK = 65_536


class Service:
    """Listens on a port of its own while entered.

    Kubernetes takes a pod out of a Service when its readiness fails, seconds after it is gone; here the next one is tried when a
    connection is refused. What was on the way to a server that dies is lost.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports, self._next = list(ports), 0
        self._lines: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.create_task(self._serve(reader, writer))
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = self._next = (self._next + 1) % len(self._ports)
        with contextlib.closing(writer):
            for port in chain(self._ports[first:], self._ports[:first]):
                with contextlib.suppress(OSError):
                    server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
                    with contextlib.closing(server_writer):
                        ways = [_relay(reader, server_writer), _relay(server_reader, writer)]
                        tasks = [asyncio.ensure_future(way) for way in ways]
                        try:
                            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)  # one side has gone
                        finally:
                            for task in tasks:
                                task.cancel()
                            await asyncio.gather(*tasks, return_exceptions=True)
                    return


async def _relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            sink.write(data)
            await sink.drain()
