"""The agent of one node: asks the driver, listens to the ledger, and says on the bus what it sees.

One loop asks the driver, in a lane of its own, and nothing else waits for it. Whatever goes wrong there ends as the health of
GPUs, never as the end of the agent.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bus import records, subjects
from bus.connection import Bus
from bus.errors import BusError, UndecodableError
from bus.exposition import Family, MetricsServer
from bus.streams import STATE, USAGE
from bus.tasks import end
from producers.agent import metrics, speech
from producers.agent.accounting import Books, account
from producers.agent.drift import PATIENCE, Watch
from producers.agent.health import Health
from producers.agent.holdings import Holdings
from producers.agent.kubelet import ALLOCATORS, DRIVERS, Kubelet
from producers.agent.lane import HungError, Lane
from producers.agent.mps import MpsControl
from producers.agent.options import HARMLESS, SIMULATED, AgentOptions
from producers.agent.outbox import Outbox
from producers.agent.podresources import PodResources
from producers.agent.processes import Processes
from producers.agent.simulated import Simulated, describe
from producers.agent.source import Reading, Seen, Source, SourceError
from producers.agent.spokesman import Spokesman
from producers.agent.tally import Tally, compute_limit
from producers.agent.workers import WorkerDirectories, wanted
from schemas.cluster import GpuDevice, GpuInventory
from schemas.hardware import GpuProblem
from schemas.usage import NodeUsage

log = logging.getLogger("gpubus.agent")

FAULTS_EVERY_S: Final = 0.25
"""How soon an XID is seen: asking costs one call that returns at once."""

NAMES_EVERY: Final = 10
"""Samples between two looks for the names of containers that had none."""

NOT_LOOKED_YET: Final = "unknown: the agent has just started"
LAY_OUT_EVERY_S: Final = 60.0
REOPEN_EVERY_S: Final = 1.0
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
        self.outbox = Outbox(bus)
        self.holdings = Holdings(bus, options.node)
        self.health = Health(
            ignored_xids=options.ignored_xids, xid_settle_s=options.xid_settle_s, xid_quiet_s=options.xid_quiet_s
        )
        self._lane = Lane("driver", options.deadline_s)
        self._source = self._make_source()
        self._open = False
        self._processes = Processes(options.proc, options.logs)
        self._books = Books(self._processes.owner, self._container_name, self._harmless)
        self._tally = Tally(self._processes.owner, self._processes.started)
        self._kubelet = Kubelet(None if options.pod_resources is None else PodResources(options.pod_resources))
        self._spokesman = Spokesman(self.outbox, options.heartbeat_s)
        self._watch = Watch(options.node)
        self._used_by: dict[str, str] = {}
        self._used_before: dict[str, str] = {}
        self._samples = 0
        self._mps_up = False
        self.usage: NodeUsage | None = None
        """The newest sample; None while the driver does not answer."""
        self.metrics_port: int | None = None
        """Where ``/metrics`` is served."""

    def _make_source(self) -> Source:
        if self._options.gpus.startswith(SIMULATED):
            description = describe(self._options.gpus.removeprefix(SIMULATED))
            return Simulated(description, self._options.node, self.holdings.held)
        from producers.agent.nvml.driver import Driver  # noqa: PLC0415  pynvml is not needed for GPUs that do not exist

        return Driver(self._lane, tflops_milli=self._options.tflops_milli, sysfs=self._options.sysfs)

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Work until ``stop`` is set."""
        await self.holdings.start()
        await self._remember()
        loops = [self._bus.spawn(work, name=name) for name, work in self._loops(ready).items()]
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopped, *loops], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*loops[1:])
            await self.outbox.drain(DRAIN_S)
            await end(*loops, stopped)
            await self._close()
            await self.holdings.stop()
        for loop in loops:
            if not loop.cancelled() and (error := loop.exception()) is not None:
                raise error

    def _loops(self, ready: asyncio.Event | None) -> dict[str, Coroutine[Any, Any, None]]:
        options = self._options
        loops = {
            "agent-outbox": self.outbox.run(),
            "agent-driver": self._watch_driver(ready),
            "agent-holdings": self.holdings.keep_up(),
        }
        if options.pod_resources is not None:
            loops["agent-kubelet"] = self._kubelet.run()
        if options.workers is not None:
            loops["agent-workers"] = self._lay_out(WorkerDirectories(options.workers))
            if options.mode == "mps":
                control = MpsControl(
                    options.mps_control,
                    options.workers / "mps",
                    lambda: [device.uuid for device in self.health.devices() if device.mode == "mps"],
                    self._on_mps,
                )
                loops["agent-mps"] = control.run()
        if options.metrics_port is not None:
            loops["agent-metrics"] = self._serve_metrics(options.metrics_port)
        return loops

    async def _remember(self) -> None:
        """Read what this node's agent said last: a restart must cure no GPU, and begin no count anew."""
        try:
            _seq, said = await records.read(self._bus, STATE, subjects.state("gpu", self._options.node), GpuInventory)
            if said is not None:
                self.health.restore(said)
                self._used_before = {gpu.uuid: gpu.used_by for gpu in said.gpus if gpu.used_by}
            _seq, used = await records.read(self._bus, USAGE, subjects.usage_gpu(self._options.node), NodeUsage)
            if used is not None:
                self._tally.restore(used)
        except (BusError, UndecodableError) as error:
            log.warning("what was said of node %s before cannot be read: %s", self._options.node, error)
        self._spokesman.healthy = self.health.healthy()

    async def _close(self) -> None:
        if not self._lane.hung:
            try:
                await self._lane.run(self._source.close)
            except (HungError, SourceError) as error:
                log.info("closing the driver: %s", error)
        self._lane.close()

    # The driver

    async def _watch_driver(self, ready: asyncio.Event | None) -> None:
        next_sample = next_look = 0.0
        while True:
            now = time.monotonic()
            try:
                if not self._open:
                    await self._lane.run(self._source.open)
                    self._open, next_look = True, now
                if await self._take_faults():
                    next_look = now
                if now >= next_look:
                    await self._look()
                    next_look = now + self._options.heartbeat_s
                if now >= next_sample:
                    self._account(await self._lane.run(self._source.readings))
                    next_sample = max(next_sample + self._options.every_s, now)
            except HungError as error:
                next_sample = self._fail("DriverHung", str(error))
            except SourceError as error:
                next_sample = self._fail("DriverError", str(error))
            except Exception as error:  # whatever it is, GPUs that nobody can ask about are not given out
                log.exception("asking the driver failed")
                next_sample = self._fail("DriverError", f"{type(error).__name__}: {error}")
            self._say_inventory()
            if ready is not None:
                ready.set()
            pause = next_sample - time.monotonic()
            await asyncio.sleep(max(0.0, min(pause, FAULTS_EVERY_S) if self._open else pause))

    def _fail(self, problem: GpuProblem, detail: str) -> float:
        """No GPU takes new pods until the driver answers; return when to ask it again."""
        self._open = False
        self.usage = None
        self.health.fail(problem, detail, _now())
        return time.monotonic() + min(self._options.heartbeat_s, REOPEN_EVERY_S)

    async def _take_faults(self) -> bool:
        """Take in what the driver reported, and say so before anything else is asked: the answer may never come."""
        faults = await self._lane.run(self._source.faults)
        for fault, times in Counter(faults).items():
            log.warning("XID %d of %s, %d times", fault.xid, fault.uuid or "no GPU in particular", times)
        for fault in faults:
            self.health.fault(fault, _now())
        if faults:
            self._say_inventory()
        return bool(faults)

    async def _look(self) -> None:
        if any(
            trouble.problem == "Lost"
            for device in self.health.devices()
            for trouble in self.health.troubles(device.uuid)
        ):
            await self._lane.run(self._source.open)  # only a new session sees a GPU that has come back
        found = await self._lane.run(self._source.hardware)
        self.health.look(found._replace(seen=tuple(map(self._configured, found.seen))), _now())
        self.health.forget_replaced({grant.uuid for allocation in self.holdings.held() for grant in allocation.gpus})
        if self._options.mode == "mps" and not self._mps_up:
            self.health.fail("MpsDown", "the MPS control daemon does not run", _now())

    def _configured(self, seen: Seen) -> Seen:
        device = seen.device
        mode = device.mode if device.mode == "mig" else self._options.mode
        return seen._replace(device=msgspec.structs.replace(device, slots=self._options.slots, mode=mode))

    def _account(self, readings: tuple[Reading, ...]) -> None:
        at = _now()
        self.health.read(readings, at)
        self._processes.forget_all_but({process.pid for reading in readings for process in reading.processes})
        held = self.holdings.allocations
        devices = self.health.devices()
        usage = account(self._options.node, readings, at, books=self._books, managed=held)
        self.usage = self._tally.count(usage, readings, held, self._limits(devices))
        self.outbox.state(speech.usage(self.usage))
        verdict = self._watch.look(
            self.usage,
            held,
            self._kubelet.handed_out(devices),
            at,
            known={device.uuid: device.model for device in devices},
            limits={uid: request.vram_limit_bytes for uid, request in self.holdings.requests.items()},
        )
        self._used_by = verdict.used_by
        self._samples += 1
        if self._samples % NAMES_EVERY == 0:
            self._processes.look_again()
        for drift in verdict.news:
            log.warning(
                "%s %s%s: %s; the ledger: %s",
                drift.kind,
                drift.gpu,
                " is over" * drift.resolved,
                drift.observed,
                drift.ledger,
            )
            self.outbox.event(speech.drift(drift))

    def _limits(self, devices: list[GpuDevice]) -> Callable[[str, str, str], float | None]:
        by_uuid, requests = {device.uuid: device for device in devices}, self.holdings.requests
        return lambda uid, container, gpu: compute_limit(requests.get(uid), container, by_uuid.get(gpu))

    def _harmless(self, pid: int) -> bool:
        return self._processes.command(pid).startswith(HARMLESS)

    def _container_name(self, container: str) -> str:
        found = self._processes.name(container)
        return found.container if found else ""

    # What is said

    def _say_inventory(self) -> None:
        used_by = {device.uuid: self._user(device.uuid) for device in self.health.devices()}
        said = self.health.inventory(self._options.node, _now(), used_by=used_by, valid_s=self._options.valid_s)
        self._spokesman.say(said, self.holdings.held())

    def _user(self, uuid: str) -> str:
        """Return who else uses a GPU. After a start nothing is given out before there was time to look.

        Until then, and while the kubelet has not answered, what was said before this process counts on.
        """
        found = self._used_by.get(uuid, "")
        before = self._used_before.get(uuid, "")
        if self._samples < PATIENCE or not self._kubelet.asked:
            return found or before or NOT_LOOKED_YET
        handed_out = before in (*ALLOCATORS.values(), *DRIVERS)
        return found or (before if handed_out and not self._kubelet.answered else "")

    # The rest of the node

    async def _lay_out(self, directories: WorkerDirectories) -> None:
        while True:
            self.holdings.changed.clear()
            held, requests = self.holdings.allocations, self.holdings.requests
            try:
                await asyncio.to_thread(directories.lay_out, wanted(held, requests), set(held))
            except OSError as error:
                log.warning("worker directories: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAY_OUT_EVERY_S):
                    await self.holdings.changed.wait()

    def _on_mps(self, up: bool) -> None:  # noqa: FBT001  the one thing it says
        self._mps_up = up
        if up:
            self.health.heal("MpsDown")
        else:
            self.health.fail("MpsDown", "the MPS control daemon does not run", _now())

    async def _serve_metrics(self, port: int) -> None:
        async with MetricsServer(self._metrics, port=port, unready=self.unready) as server:
            self.metrics_port = server.port
            log.info("metrics at port %d", server.port)
            await asyncio.Event().wait()

    def unready(self) -> str:
        """Return why nobody hears of this node's GPUs just now; empty when they do."""
        if not self._bus.statistics().connected:
            return "the bus is away"
        return "" if self._open else "the driver does not answer"

    def _metrics(self) -> list[Family]:
        return metrics.families(
            inventory=self._spokesman.told,
            usage=self.usage,
            holdings=self.holdings,
            outbox=self.outbox,
            xids=self.health.xids,
            kubelet_up=self._kubelet.up,
            driver_up=self._open,
            bus_up=self._bus.statistics().connected,
        )


def _now() -> datetime:
    return datetime.now(UTC)
