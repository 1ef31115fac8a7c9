"""The shell that keeps workers and connections: looks at a workload whenever something of it has changed, and does its plan.

It looks at the cluster itself and remembers nothing, and every write is bound to a name or a UID, so any number of these
processes may do the same work. It is a role of its own because it is the one that may make pods anywhere.
"""

import asyncio
import logging
from typing import Any, Final

import msgspec

from bus.connection import Bus
from bus.errors import CallError, UndecodableError
from bus.follower import Follower, Record
from bus.kube.client import Client
from bus.kube.errors import KubeError
from bus.makers import Makers
from bus.streams import LEDGER, STATE
from bus.tasks import until_first
from consumers.workload.hands import Hands
from consumers.workload.keeper import Keeper
from consumers.workload.seating import Seating
from consumers.workload.view import LEDGER_FILTERS, STATE_FILTERS, Key, View

log = logging.getLogger("gpubus.workload")

GATHER_S: Final = 0.05
AT_ONCE: Final = 8
AGAIN_S: Final = (2.0, 60.0)
"""When what the API server would not do is tried again: at first, and at most."""

SWEEP_S: Final = 30.0
"""Looks at everything, whatever happened."""


class WorkloadStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; ``seated`` counts connections of which it was said where their worker is."""

    looked: int
    made: int
    removed: int
    seated: int
    failed: int


class WorkloadKeeper:
    """One process that keeps workers.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
        name: Unique name of this process.
    """

    def __init__(self, bus: Bus, client: Client, name: str) -> None:
        self._seating = Seating(bus, name)
        self.view = View(self._look_soon)
        self._keeper = Keeper(self.view, Hands(client), self._seating, Makers(bus), self._look_at)
        self._state = Follower(bus, STATE, STATE_FILTERS, self._on_state)
        self._ledger = Follower(bus, LEDGER, LEDGER_FILTERS, self._on_ledger, recreated=self.view.forget_records)
        self._changed: set[Key] = set()
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._failures: dict[Key, int] = {}
        self._failed = 0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Keep workers until ``stop`` is set."""
        await self._ledger.start()
        await self._seating.start()
        await self._state.start()
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(loop) for loop in (stop.wait(), self._working(), self._sweeping())
        ]
        if ready is not None:
            ready.set()
        try:
            await until_first(*tasks)
        finally:
            await self._state.stop()
            await self._seating.stop()
            await self._ledger.stop()

    def _on_state(self, record: Record) -> None:
        try:
            self.view.on_state(record)
        except UndecodableError as error:  # its own reader buries it
            log.info("%s at %d: %s", record.subject, record.seq, error)

    def _on_ledger(self, record: Record) -> None:
        try:
            self.view.on_ledger(record)
        except UndecodableError as error:
            log.info("%s at %d: %s", record.subject, record.seq, error)

    def _look_soon(self, key: Key) -> None:
        self._changed.add(key)
        self._wake.set()

    def _look_at(self, key: Key, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._look_soon, key)

    async def _sweeping(self) -> None:
        while True:
            for key in self.view.keys():  # noqa: SIM118  no mapping
                self._look_soon(key)
            await asyncio.sleep(SWEEP_S)

    async def _working(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_S)
            self._wake.clear()
            changed, self._changed = self._changed, set()
            await asyncio.gather(*map(self._look, sorted(changed)))

    async def _look(self, key: Key) -> None:
        if self.view.workload(key) is None and not self.view.clients(key):
            self._failures.pop(key, None)
            await self._keeper.forget(key)
            return
        try:
            async with self._slots:
                problem = await self._keeper.keep(key)
        except (KubeError, CallError) as error:
            problem = str(error)
        except Exception as error:
            # Whatever is written in one workload or its clients, the others keep their workers.
            log.exception("workload %s: this should not happen", "/".join(key))
            problem = await self._failed_for(key, f"{type(error).__name__}: {error}")
        if not problem:
            self._failures.pop(key, None)
            return
        self._failed += 1
        tries = self._failures[key] = self._failures.get(key, 0) + 1
        first, most = AGAIN_S
        log.warning("workload %s: %s; trying again", "/".join(key), problem)
        self._look_at(key, min(first * 2 ** min(tries - 1, 10), most))

    async def _failed_for(self, key: Key, problem: str) -> str:
        """Say in a workload's status what has kept us from keeping it."""
        try:
            await self._keeper.fail(key, problem)
        except Exception as error:  # noqa: BLE001  it is logged by whoever asked, and tried again
            return f"{problem}; and that could not be said: {error}"
        return problem

    def statistics(self) -> WorkloadStatistics:
        """Return the counters of this process."""
        keeper = self._keeper
        return WorkloadStatistics(
            looked=keeper.looked, made=keeper.made, removed=keeper.removed, seated=keeper.seated, failed=self._failed
        )
