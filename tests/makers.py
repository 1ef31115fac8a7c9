"""Stands in for the watcher where there is no API server: every controller that a pod names is what it says, but some."""

import contextlib
from collections.abc import AsyncIterator, Container

from bus.connection import Bus
from bus.makers import SERVICE
from bus.rpc import Service
from schemas.makers import Made, WhoMade


@contextlib.asynccontextmanager
async def makers(bus: Bus, forged: Container[str] = ()) -> AsyncIterator[None]:
    """Answer who asks; controllers with a UID in ``forged`` are none."""

    async def made(asked: WhoMade) -> Made:
        if asked.owner.uid in forged:
            return Made(problem=f"there is no {asked.owner.kind} {asked.owner.name}")
        return Made(top=asked.owner)

    service = Service(bus, SERVICE, WhoMade, made)
    await service.start()
    try:
        yield
    finally:
        await service.stop()
