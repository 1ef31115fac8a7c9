"""The agent of one node: asks the driver, listens to the ledger, and says on the bus what it sees.

One loop asks the driver, in a lane of its own, and nothing else waits for it. Whatever goes wrong there ends as the health of
GPUs, never as the end of the agent.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Final

from bus import records, subjects
from bus.connection import Bus
from bus.errors import BusError, UndecodableError
from bus.exposition import Family, MetricsServer
from bus.streams import STATE, USAGE
from bus.tasks import end
from producers.agent import metrics
from producers.agent.driverwatch import DriverWatch
from producers.agent.health import Health
from producers.agent.holdings import Holdings
from producers.agent.lane import Lane
from producers.agent.mps import MpsControl
from producers.agent.observer import Observer
from producers.agent.options import SIMULATED, AgentOptions
from producers.agent.outbox import Outbox
from producers.agent.simulated import Simulated, describe
from producers.agent.source import Source
from producers.agent.spokesman import Spokesman
from producers.agent.workers import WorkerDirectories, wanted
from schemas.cluster import GpuInventory
from schemas.usage import NodeUsage

log = logging.getLogger("gpubus.agent")

LAY_OUT_EVERY_S: Final = 60.0
DRAIN_S: Final = 2.0


class Agent:
    """One node's agent.

    Args:
        bus: The connection; the streams must exist.
        options: What the operator set.
    """

    def __init__(self, bus: Bus, options: AgentOptions) -> None:
        self._bus = bus
        self._options = options
        self._outbox = Outbox(bus)
        self._holdings = Holdings(bus, options.node)
        self._health = Health(
            ignored_xids=options.ignored_xids, xid_settle_s=options.xid_settle_s, xid_quiet_s=options.xid_quiet_s
        )
        self._observer = Observer(options, self._health, self._holdings, self._outbox)
        self._spokesman = Spokesman(self._outbox, options.heartbeat_s)
        lane = Lane("driver", options.deadline_s)
        self._driver = DriverWatch(
            self._source(lane),
            lane,
            self._health,
            options,
            on_readings=self._observer.take,
            on_news=self._say_inventory,
            held=lambda: {grant.uuid for allocation in self._holdings.held() for grant in allocation.gpus},
        )
        self.metrics_port: int | None = None
        """Where ``/metrics`` is served."""

    def _source(self, lane: Lane) -> Source:
        if self._options.gpus.startswith(SIMULATED):
            description = describe(self._options.gpus.removeprefix(SIMULATED))
            return Simulated(description, self._options.node, self._holdings.held)
        from producers.agent.nvml.driver import Driver  # noqa: PLC0415  pynvml is not needed for GPUs that do not exist

        return Driver(lane, tflops_milli=self._options.tflops_milli, sysfs=self._options.sysfs)

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Work until ``stop`` is set."""
        await self._holdings.start()
        await self._remember()
        loops = [self._bus.spawn(work, name=name) for name, work in self._loops(ready).items()]
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopped, *loops], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*loops[1:])
            await self._outbox.drain(DRAIN_S)
            await end(*loops, stopped)
            await self._driver.close()
            await self._holdings.stop()
        for loop in loops:
            if not loop.cancelled() and (error := loop.exception()) is not None:
                raise error

    def _loops(self, ready: asyncio.Event | None) -> dict[str, Coroutine[Any, Any, None]]:
        options = self._options
        loops = {
            "agent-outbox": self._outbox.run(),
            "agent-driver": self._driver.run(ready),
            "agent-holdings": self._holdings.keep_up(),
        }
        if options.pod_resources is not None:
            loops["agent-kubelet"] = self._observer.kubelet.run()
        if options.workers is not None:
            loops["agent-workers"] = self._lay_out(WorkerDirectories(options.workers))
            if options.mode == "mps":
                control = MpsControl(options.mps_control, options.workers / "mps", self._mps_gpus, self._driver.mps)
                loops["agent-mps"] = control.run()
        if options.metrics_port is not None:
            loops["agent-metrics"] = self._serve_metrics(options.metrics_port)
        return loops

    async def _mps_gpus(self) -> list[str]:
        """Return the GPUs that an MPS server is for, once the driver answers."""
        await self._driver.up.wait()
        return [device.uuid for device in self._health.devices() if device.mode == "mps"]

    async def _remember(self) -> None:
        """Read what this node's agent said last: a restart must cure no GPU, and begin no count anew."""
        node = self._options.node
        try:
            inventory = await records.peek(self._bus, STATE, subjects.state("gpu", node), GpuInventory)
            if inventory is not None:
                self._health.restore(inventory)
            usage = await records.peek(self._bus, USAGE, subjects.usage_gpu(node), NodeUsage)
            self._observer.restore(inventory, usage)
        except (BusError, UndecodableError) as error:
            log.warning("what was said of node %s before cannot be read: %s", node, error)
        self._spokesman.healthy = self._health.healthy()

    def _say_inventory(self) -> None:
        said = self._health.inventory(
            self._options.node,
            datetime.now(UTC),
            used_by=self._observer.used_by(),
            valid_s=self._options.valid_s,
        )
        self._spokesman.say(said, self._holdings.held())

    async def _lay_out(self, directories: WorkerDirectories) -> None:
        while True:
            self._holdings.changed.clear()
            held, requests = self._holdings.allocations, self._holdings.requests
            try:
                await asyncio.to_thread(directories.lay_out, wanted(held, requests), set(held))
            except OSError as error:
                log.warning("worker directories: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAY_OUT_EVERY_S):
                    await self._holdings.changed.wait()

    async def _serve_metrics(self, port: int) -> None:
        async with MetricsServer(self._metrics, port=port, unready=self.unready) as server:
            self.metrics_port = server.port
            log.info("metrics at port %d", server.port)
            await asyncio.Event().wait()

    def unready(self) -> str:
        """Return why nobody hears of this node's GPUs just now; empty when they do."""
        if not self._bus.statistics().connected:
            return "the bus is away"
        return "" if self._driver.up.is_set() else "the driver does not answer"

    def _metrics(self) -> list[Family]:
        up = self._driver.up.is_set()
        return metrics.families(
            inventory=self._spokesman.told,
            usage=self._observer.usage if up else None,
            holdings=self._holdings,
            outbox=self._outbox,
            xids=self._health.xids,
            kubelet_up=self._observer.kubelet.up,
            driver_up=up,
            bus_up=self._bus.statistics().connected,
        )
