"""Asks the driver, again and again, in a lane of its own; whatever goes wrong there ends as the health of GPUs.

Faults are asked for four times a second, samples and a look at the hardware when they are due. While the driver fails it is
opened anew every second, and no GPU takes new pods.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Container
from datetime import UTC, datetime
from typing import Final

import msgspec

from producers.agent.health import Health
from producers.agent.lane import HungError, Lane
from producers.agent.options import AgentOptions
from producers.agent.source import Reading, Seen, Source, SourceError
from schemas.hardware import GpuProblem

log = logging.getLogger("gpubus.agent")

FAULTS_EVERY_S: Final = 0.25
"""How soon an XID is seen: asking costs one call that returns at once."""

REOPEN_EVERY_S: Final = 1.0


class DriverWatch:
    """Keeps :class:`~producers.agent.health.Health` up to date.

    Args:
        source: The driver.
        lane: Where its calls are made.
        health: What is known of the GPUs.
        options: What the operator set.
        on_readings: Takes a sample.
        on_news: Called after every round, and at once when a fault was reported.
        held: Returns the UUIDs of the GPUs that pods hold.
    """

    def __init__(
        self,
        source: Source,
        lane: Lane,
        health: Health,
        options: AgentOptions,
        *,
        on_readings: Callable[[tuple[Reading, ...]], None],
        on_news: Callable[[], None],
        held: Callable[[], Container[str]],
    ) -> None:
        self._source = source
        self._lane = lane
        self._health = health
        self._options = options
        self._on_readings = on_readings
        self._on_news = on_news
        self._held = held
        self.up = asyncio.Event()
        """Set while the driver answers and its GPUs are known."""
        self.mps_up = options.mode != "mps"
        """Whether GPUs that are shared by MPS have a server; whoever keeps it running says so."""

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Ask until cancelled; ``ready`` is set after the first round."""
        opened, next_sample, next_look = False, 0.0, 0.0
        while True:
            now = time.monotonic()
            try:
                if not opened:
                    await self._lane.run(self._source.open)
                    opened, next_look = True, now
                if await self._take_faults():
                    next_look = now
                if now >= next_look:
                    await self._look()
                    next_look = now + self._options.heartbeat_s
                if now >= next_sample:
                    self._on_readings(await self._lane.run(self._source.readings))
                    next_sample = max(next_sample + self._options.every_s, now)
            except HungError as error:
                opened, next_sample = False, self._fail("DriverHung", str(error))
            except SourceError as error:
                opened, next_sample = False, self._fail("DriverError", str(error))
            except Exception as error:  # whatever it is, GPUs that nobody can ask about are not given out
                log.exception("asking the driver failed")
                opened, next_sample = False, self._fail("DriverError", f"{type(error).__name__}: {error}")
            self._on_news()
            if ready is not None:
                ready.set()
            pause = next_sample - time.monotonic()
            await asyncio.sleep(max(0.0, min(pause, FAULTS_EVERY_S) if opened else pause))

    async def close(self) -> None:
        """End the session with the driver, unless a call hangs."""
        if not self._lane.hung:
            try:
                await self._lane.run(self._source.close)
            except (HungError, SourceError) as error:
                log.info("closing the driver: %s", error)
        self._lane.close()

    def mps(self, up: bool) -> None:  # noqa: FBT001  the one thing it says
        """Take in whether the MPS server runs."""
        self.mps_up = up
        if up:
            self._health.heal("MpsDown")
        else:
            self._health.fail("MpsDown", "the MPS control daemon does not run", _now(), mode="mps")

    def _fail(self, problem: GpuProblem, detail: str) -> float:
        """No GPU takes new pods until the driver answers; return when to ask it again."""
        self.up.clear()
        self._health.fail(problem, detail, _now())
        return time.monotonic() + min(self._options.heartbeat_s, REOPEN_EVERY_S)

    async def _take_faults(self) -> bool:
        """Take in what the driver reported, and say so before anything else is asked: the answer may never come."""
        faults = await self._lane.run(self._source.faults)
        for fault, times in Counter(faults).items():
            log.warning("XID %d of %s, %d times", fault.xid, fault.uuid or "no GPU in particular", times)
        for fault in faults:
            self._health.fault(fault, _now())
        if faults:
            self._on_news()
        return bool(faults)

    async def _look(self) -> None:
        health = self._health
        if any(trouble.problem == "Lost" for device in health.devices() for trouble in health.troubles(device.uuid)):
            await self._lane.run(self._source.open)  # only a new session sees a GPU that has come back
        found = await self._lane.run(self._source.hardware)
        health.look(found._replace(seen=tuple(map(self._configured, found.seen))), _now())
        health.forget_replaced(self._held())
        if not self.mps_up:
            self.mps(up=False)
        self.up.set()

    def _configured(self, seen: Seen) -> Seen:
        device = seen.device
        mode = device.mode if device.mode == "mig" else self._options.mode
        return seen._replace(device=msgspec.structs.replace(device, slots=self._options.slots, mode=mode))


def _now() -> datetime:
    return datetime.now(UTC)
