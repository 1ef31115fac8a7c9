"""The gateway's shell: an HTTPS server in our event loop, and the bus behind it."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn

from bus import rpc
from bus.connection import Bus
from bus.errors import CallError
from bus.tasks import end
from producers.gateway.allocators import BusAllocators
from producers.gateway.app import Gateway, GatewayStatistics
from producers.gateway.extender import Extender, ExtenderStatistics
from producers.gateway.tls import Certificate
from schemas.admission import Admit, Admitted

READY_TIMEOUT_S: Final = 1.0
RETRY_PAUSE_S: Final = 0.1
DRAIN_S: Final = 5


class BusMutators:
    """The mutators of the queue group on the bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def admit(self, request: Admit, timeout: float) -> Admitted:
        """Ask; ask another one when the first has died over it, as long as there is time: a mutation may be repeated.

        Raises:
            CallError: Nobody could say in time.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            left = deadline - asyncio.get_running_loop().time()
            try:
                return await rpc.call(self._bus, "mutate", request, Admitted, timeout=max(min(left, timeout / 3), 0.05))
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


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the process that runs the role."""
        yield


class GatewayService:
    """One gateway process; any number of them stand behind one Service.

    Args:
        bus: The connection.
        certificate: What HTTPS is served with; without it plain HTTP is, for a proxy or a test in front.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one, see :attr:`port`.
    """

    def __init__(self, bus: Bus, certificate: Certificate | None, *, host: str = "0.0.0.0", port: int = 9443) -> None:  # noqa: S104
        self._allocators = BusAllocators(bus)
        self._extender = Extender(self._allocators)
        self._gateway = Gateway(BusMutators(bus), routes=self._extender.routes)
        self._certificate = certificate
        self._socket = socket.create_server((host, port), backlog=1024)
        self.port: int = self._socket.getsockname()[1]

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Serve until ``stop`` is set; answer what is in flight before returning."""
        await self._allocators.start()
        config = uvicorn.Config(
            self._gateway.app,
            interface="asgi3",  # a bound method would be taken for the older one
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=DRAIN_S,
        )
        config.load()
        tasks: list[asyncio.Task[None]] = []
        if self._certificate is not None:
            config.ssl = self._certificate.context
            tasks.append(asyncio.create_task(self._certificate.follow(), name="certificate"))
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[self._socket]), name="gateway")
        while not server.started and not serving.done():  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.01)
        if ready is not None:
            ready.set()
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([stopped, serving], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
        await self._allocators.stop()
        await end(stopped, *tasks)

    def statistics(self) -> GatewayStatistics:
        """Return the counters of this gateway."""
        return self._gateway.statistics

    def extender_statistics(self) -> ExtenderStatistics:
        """Return the counters of the extender's verbs."""
        return self._extender.statistics
