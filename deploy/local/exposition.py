"""Prometheus metrics and readiness of roles, made from the statistics that each of them keeps anyway.

A counter in the statistics of a role becomes ``gpubus_<role>_<field>``. What grows for ever cannot be told from what
moves both ways by looking at a number, so all are gauges but those of the connection.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Final

import msgspec

from bus.connection import Bus
from bus.exposition import Family, MetricsServer, Sample

Statistics = Callable[[], msgspec.Struct]
Families = Callable[[], Iterable[Family]]
Unready = Callable[[], str]
"""Why a role is of no use just now; empty while it is."""

_exposed: Final[dict[str, list[Families]]] = {}
"""What the roles of this process have to show, by role."""

_unready: Final[dict[str, Unready]] = {}


@contextmanager
def exposed(role: str, statistics: Statistics, families: Families = list, *, unready: Unready = str) -> Iterator[None]:
    """Show a role's statistics, and what else it has, while the block runs; ``unready`` answers its probe."""
    found = [lambda: of_statistics(role, statistics()), families]
    _exposed[role], _unready[role] = found, unready
    try:
        yield
    finally:
        if _exposed.get(role) is found:
            del _exposed[role], _unready[role]


def of_statistics(role: str, statistics: msgspec.Struct) -> list[Family]:
    """Return a family per number."""
    return [
        Family(f"gpubus_{role}_{name}", f"{name.replace('_', ' ')} of this process", [Sample(float(value))])
        for name, value in msgspec.structs.asdict(statistics).items()
        if isinstance(value, int | float)
    ]


def _collect(bus: Bus) -> Iterator[Family]:
    yield from of_statistics("connection", bus.statistics())
    yield from of_statistics("publisher", bus.publisher.statistics())
    for role in list(_exposed.values()):
        for families in role:
            yield from families()


def _objection(bus: Bus, ready: asyncio.Event) -> str:
    if not ready.is_set():
        return "still starting"
    if not bus.statistics().connected:
        return "the bus is away"
    return next((f"{role}: {reason}" for role, unready in _unready.items() if (reason := unready())), "")


@asynccontextmanager
async def served(bus: Bus, port: int, ready: asyncio.Event) -> AsyncIterator[None]:
    """Serve ``/metrics``, ``/healthz`` and ``/readyz`` while the block runs; a negative port serves nothing.

    Ready is who has said so, is connected, and has nothing to object.

    Raises:
        OSError: The port cannot be used.
    """
    async with AsyncExitStack() as stack:
        if port >= 0:
            server = MetricsServer(lambda: _collect(bus), port=port, unready=lambda: _objection(bus, ready))
            await stack.enter_async_context(server)
        yield
