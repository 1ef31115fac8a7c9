"""A TCP relay between a client and its server that can lose what is on the way."""

import asyncio
import contextlib
from typing import Self

from deploy.local.server import HOST

CHUNK = 65_536


class _Line:
    """One connection. What travels in a silenced direction is swallowed, as by a network that is gone."""

    def __init__(self) -> None:
        self.swallowed = 0
        self.silent = {"to_server": False, "to_client": False}
        self.writers: list[asyncio.StreamWriter] = []

    async def relay(self, direction: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                if self.silent[direction]:
                    self.swallowed += len(data)
                else:
                    sink.write(data)
                    await sink.drain()
        sink.close()


class Proxy:
    """Listens on a port of its own and relays to ``port`` on this machine.

    Trouble befalls the connections that exist at that moment; those made later work again.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._lines: list[_Line] = []
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where clients connect; only once started."""
        assert self._server is not None
        return f"nats://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Line()
        line.writers.append(writer)
        self._lines.append(line)
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, self._port)
        except OSError:
            writer.close()
            return
        line.writers.append(server_writer)
        await asyncio.gather(
            line.relay("to_server", reader, server_writer), line.relay("to_client", server_reader, writer)
        )

    def silence(self, *directions: str) -> None:
        """Swallow what travels ``to_server`` or ``to_client``; nobody is told."""
        for line in self._lines:
            line.silent.update(dict.fromkeys(directions, True))

    def heal(self) -> None:
        """Let everything through again; what was swallowed stays lost."""
        for line in self._lines:
            line.silent = dict.fromkeys(line.silent, False)

    @property
    def swallowed(self) -> int:
        """Bytes that were lost on the connections that exist."""
        return sum(line.swallowed for line in self._lines)

    def cut(self) -> None:
        """Close every connection."""
        lines, self._lines = self._lines, []
        for line in lines:
            for writer in line.writers:
                writer.close()
