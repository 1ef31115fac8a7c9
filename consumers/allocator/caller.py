"""Somebody who waits for a decision instead of a message that is acknowledged."""

import asyncio

from schemas.decision import Decision


class Caller:
    """Takes the place of a delivery for a request that came without one.

    Attributes:
        decision: What was decided, once it has been announced.
    """

    __slots__ = ("_settled", "decision")

    def __init__(self) -> None:
        self._settled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.decision: Decision | None = None

    async def ack(self) -> None:
        """The decision is stored."""
        if not self._settled.done():
            self._settled.set_result(True)

    async def retry(self, delay_s: float = 0.0) -> None:
        """Nothing came of it; the caller may ask again."""
        del delay_s  # when, is the caller's business
        if not self._settled.done():
            self._settled.set_result(False)

    async def settled(self) -> bool:
        """Wait until it is decided; return whether anything was."""
        return await self._settled
