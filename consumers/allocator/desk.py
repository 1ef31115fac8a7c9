"""The allocator's answers to whoever wants a pod that stands to hold more or less: done, or why not.

It is asked over the bus and not commanded: who asks looks again anyhow, and what was not to be must not be tried for ever.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from bus.connection import Bus
from bus.rpc import Service
from consumers.allocator.caller import Caller
from consumers.allocator.core import Core
from consumers.allocator.resizing import SAME
from schemas.pod import Schedule
from schemas.scaling import Resized

RESIZE_S: Final = 8.0
"""How long it may take until the caller is told that it is not known."""


class ResizeDesk:
    """Answers for one allocator.

    Args:
        bus: The connection.
        core: The allocator's mind.
        changed: Called when ``core`` has something to carry out.
    """

    def __init__(self, bus: Bus, core: Core, changed: Callable[[], None]) -> None:
        self._core = core
        self._changed = changed
        self._service = Service(bus, "resize", Schedule, self._resize, concurrency=64)

    async def start(self) -> None:
        """Begin to answer."""
        await self._service.start()

    async def stop(self) -> None:
        """Finish what was asked."""
        await self._service.stop(drain_s=RESIZE_S / 2)

    async def _resize(self, command: Schedule) -> Resized:
        caller = Caller()
        problem = self._core.resize(command, caller)
        self._changed()
        if problem == SAME:
            return self._answer(command)
        if problem:
            return Resized(error=problem)
        try:
            async with asyncio.timeout(RESIZE_S):
                settled = await caller.settled()
        except TimeoutError:
            return Resized(error=f"not in the ledger within {RESIZE_S:g} s")
        if not settled:
            return Resized(error="another record of the node came first: try again")
        return self._answer(command)

    def _answer(self, command: Schedule) -> Resized:
        held = self._core.held(command.uid, command.node)
        return Resized(allocation=held) if held is not None else Resized(error="the pod has ended meanwhile")
