"""The gateway's shell: an HTTPS server in our event loop, and the bus behind it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bus import rpc
from bus.connection import Bus
from bus.errors import CallError
from bus.tasks import end
from producers.gateway.access import Access
from producers.gateway.allocators import BusAllocators
from producers.gateway.app import KNOWN, Gateway, GatewayStatistics
from producers.gateway.callers import Callers
from producers.gateway.connections import Connections
from producers.gateway.extender import Extender, ExtenderStatistics
from producers.gateway.rest import Rest
from producers.gateway.sockets import guarded, inside, listen
from producers.gateway.tls import Certificate
from schemas.admission import Admit, Decided
from schemas.inspection import Answer, Query

INSPECT_TIMEOUT_S: Final = 10.0
READY_TIMEOUT_S: Final = 1.0
RETRY_PAUSE_S: Final = 0.1
ANOTHER: Final = 1 / 3
"""Part of the time for a review after which another mutator is asked as well."""

DRAIN_S: Final = 5
KEEP_ALIVE_S: Final = 120
"""Longer than the 90 s after which Go's clients close an idle connection: one closed by us may have a review on its way."""


class BusMutators:
    """The mutators of the queue group on the bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def admit(self, request: Admit, timeout: float) -> Decided:
        """Ask; ask another one too when the first takes long, for it may have died over it: a mutation may be repeated.

        Raises:
            CallError: Nobody could say in time.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            left = deadline - asyncio.get_running_loop().time()
            try:
                return await rpc.call(
                    self._bus, "mutate", request, Decided, timeout=max(left, 0.05), again=timeout * ANOTHER
                )
            except CallError:
                if deadline - asyncio.get_running_loop().time() < 2 * RETRY_PAUSE_S:
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)

    async def ready(self) -> bool:
        """Whether a mutator answers."""
        try:
            return await rpc.call(self._bus, "mutate.ready", None, bool, timeout=READY_TIMEOUT_S)
        except CallError:
            return False


class BusInspectors:
    """The inspectors of the queue group on the bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def ask(self, query: Query) -> Answer:
        """Ask.

        Raises:
            CallError: Nobody could say.
        """
        return await rpc.gather(self._bus, "inspect", query, Answer, timeout=INSPECT_TIMEOUT_S)


class _Protocol(HttpToolsProtocol):
    """Notes with every request which certificate its connection has shown; TLS has verified it by then."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, KNOWN: _names(transport.get_extra_info("peercert"))}


def _names(certificate: Mapping[str, Any] | None) -> frozenset[str] | None:
    """Return the names of hosts in a certificate as the ssl module tells it; None for no certificate."""
    if not certificate:
        return None
    return frozenset(name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS")


class _Server(uvicorn.Server):
    def __init__(self, app: ASGIApp, socket: socket.socket, context: ssl.SSLContext | None = None) -> None:
        config = uvicorn.Config(
            app,
            http=_Protocol,
            interface="asgi3",  # a bound method would be taken for the older one
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # nobody's address matters
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=DRAIN_S,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        if context is not None:
            config.ssl = context
        super().__init__(config)
        self._socket = socket

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the process that runs the role."""
        yield

    async def begin(self) -> asyncio.Task[None]:
        """Return the serving, when it has begun or failed to."""
        serving = asyncio.create_task(self.serve(sockets=[self._socket]), name="gateway")
        while not self.started and not serving.done():  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.01)
        return serving


class GatewayService:
    """One gateway process; any number of them stand behind one Service.

    Args:
        bus: The connection.
        certificate: What HTTPS is served with; without it plain HTTP is, for a proxy or a test in front.
        clients: Names of which one must be in the certificate that a kube-scheduler shows; empty for any of a known authority.
        host: Address to listen on; at a loopback address nobody who asks for the extender's verbs has to show a certificate.
        port: Port to listen on; 0 takes a free one, see :attr:`port`.
        rest: Host and port to answer the REST interface at; port 0 takes a free one, see :attr:`rest_port`. At a loopback address
            it speaks plain HTTP, elsewhere HTTPS.
        access: Who may use it; None for everybody, who must then be on this machine.
        callers: Says which pod a token is of, so that clients of remote workers are told where those are; None: they are not.

    Raises:
        ListenError: It cannot be listened there, or anyone could reach the REST interface there.
    """

    def __init__(
        self,
        bus: Bus,
        certificate: Certificate | None,
        *,
        clients: frozenset[str] = frozenset(),
        host: str = "0.0.0.0",  # noqa: S104
        port: int = 9443,
        rest: tuple[str, int] | None = None,
        access: Access | None = None,
        callers: Callers | None = None,
    ) -> None:
        self._allocators = BusAllocators(bus)
        self._extender = Extender(self._allocators)
        self._connections = Connections(bus, callers) if callers is not None else None
        self._gateway = Gateway(
            BusMutators(bus),
            self._extender,
            open_to_all=inside(host),
            clients=clients,
            connections=self._connections,
        )
        self._rest = Rest(BusInspectors(bus), access)
        self._certificate = certificate
        at = guarded(*rest, asked=access is not None, encrypted=certificate is not None) if rest is not None else None
        self._rest_tls = at is not None and not inside(at[0])
        self._socket = listen(host, port)
        self._rest_socket = listen(*at) if at is not None else None
        self.port: int = self._socket.getsockname()[1]
        self.rest_port: int = self._rest_socket.getsockname()[1] if self._rest_socket is not None else -1

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Serve until ``stop`` is set; answer what is in flight before returning."""
        await self._allocators.start()
        if self._connections is not None:
            await self._connections.start()
        certificate, following = self._certificate, None
        if certificate is not None:
            following = asyncio.create_task(certificate.follow(), name="certificate")
        context = certificate.context if certificate is not None else None
        servers = [_Server(self._gateway.app, self._socket, context)]
        if self._rest_socket is not None:
            servers.append(_Server(self._rest.app, self._rest_socket, context if self._rest_tls else None))
        serving = [await server.begin() for server in servers]
        if ready is not None:
            ready.set()
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([stopped, *serving], return_when=asyncio.FIRST_COMPLETED)
        if self._connections is not None:
            self._connections.hurry()
        for server in servers:
            server.should_exit = True
        try:
            await asyncio.gather(*serving)
        finally:
            if self._connections is not None:
                await self._connections.stop()
            await self._allocators.stop()
            await end(stopped, *([following] if following is not None else []))

    def statistics(self) -> GatewayStatistics:
        """Return the counters of this gateway."""
        return self._gateway.statistics

    def extender_statistics(self) -> ExtenderStatistics:
        """Return the counters of the extender's verbs."""
        return self._extender.statistics
