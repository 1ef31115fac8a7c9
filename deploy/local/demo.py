"""The demo: a simulated cluster, allocators in processes of their own, one of them killed half way, and an audit.

It uses nothing that production does not: the same roles, bus and ledger. The numbers at the end come from
:mod:`deploy.local.audit`, which reads the log from its first record, and from what the simulated kubelet saw.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bus.connection import Bus
from bus.streams import StreamLimits, ensure_streams
from deploy.local.audit import Audit, audit
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalBus
from producers.simulator.build import pod_uid
from producers.simulator.progress import Progress
from producers.simulator.service import Simulator
from producers.simulator.trace import Trace
from schemas.cluster import PlacementMode, Pool

TICK_S: Final = 0.25
STALLED_S: Final = 60.0
"""Without any decision for this long the demo gives up and reports what is lost."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to show. ``rate`` is pods offered per second; 0 offers as fast as they are decided."""

    store: Path
    allocators: int = 2
    replicas: int = 1
    kill: bool = True
    seed: int = 1
    rate: float = 500.0
    placement: PlacementMode = "NodeCompactGPULowLoad"


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from the publish of a pod's schedule command to the arrival of its decision event."""

    p50: float
    p99: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome, as ``gpubus demo --json`` prints it."""

    nodes: int
    gpus: int
    pods_offered: int
    pods_allocated: int
    pods_unschedulable: int
    pods_lost: int
    pods_released: int
    double_allocations: int
    gpu_allocation_percent: float
    decisions_per_second: float
    latency_ms: Latency
    conflicts: int
    allocators: int
    killed: int
    invariants_ok: bool
    duration_s: float


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """How things stand in mid-run."""

    progress: Progress
    elapsed_s: float
    decided: int
    decisions_per_second: float
    events_per_second: float
    killed: int
    note: str


class Demo:
    """One run.

    Args:
        settings: What to show.
        trace: The cluster and its pods.
        show: Called a few times a second with how things stand.
    """

    def __init__(self, settings: Settings, trace: Trace, show: Callable[[Snapshot], None]) -> None:
        self._settings = settings
        self.trace = trace
        self._show = show
        self._killed = 0
        self._note = ""
        self.findings: Audit | None = None
        self.interrupted = False

    async def run(self, interrupted: asyncio.Event) -> Report:
        """Play it from an empty bus to the audit.

        Raises:
            LocalBusError: The bus or an allocator cannot be started.
            BusError: The bus failed for good.
        """
        settings = self._settings
        async with LocalBus(settings.store, replicas=settings.replicas) as local:
            async with await Bus.connect(local.urls, name="gpubus-demo") as bus:
                await ensure_streams(bus, StreamLimits(replicas=settings.replicas, ledger_revisions=-1))
                workers = [RoleProcess("allocator", local.urls) for _ in range(settings.allocators)]
                try:
                    await asyncio.gather(*(worker.start() for worker in workers))
                    progress, duration_s = await self._play(bus, workers, interrupted)
                    self.interrupted = interrupted.is_set()
                finally:
                    await asyncio.gather(*(worker.stop() for worker in workers))
            # A new connection: the audit must not depend on anything that the run has touched.
            async with await Bus.connect(local.urls, name="gpubus-demo-audit") as bus:
                self.findings = await audit(bus)
        return self._report(self.findings, progress, duration_s)

    async def _play(self, bus: Bus, workers: list[RoleProcess], interrupted: asyncio.Event) -> tuple[Progress, float]:
        settings = self._settings
        pool = Pool(name="demo", placement=settings.placement)
        simulator = Simulator(bus, self.trace, pool=pool, rate=settings.rate, seed=settings.seed)
        stop = asyncio.Event()
        started = time.monotonic()
        running = asyncio.create_task(simulator.run(stop))
        killing = asyncio.create_task(self._kill_half_way(simulator, workers)) if settings.kill else None
        try:
            await self._watch(bus, simulator, running, interrupted, started)
            duration_s = time.monotonic() - started
            if killing is not None:
                await killing  # the victim must be back, or have failed to come back, before we call it a day
        finally:
            if killing is not None:
                killing.cancel()
            stop.set()
            await running
        return simulator.progress(), duration_s

    async def _watch(
        self,
        bus: Bus,
        simulator: Simulator,
        running: "asyncio.Task[None]",
        interrupted: asyncio.Event,
        started: float,
    ) -> None:
        last_change, last_decided, last_messages, last_at = time.monotonic(), 0, 0, started
        while not (simulator.finished.is_set() or running.done() or interrupted.is_set()):
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            progress = simulator.progress()
            decided = progress.offered - progress.undecided + progress.released
            statistics = bus.statistics()
            messages = statistics.in_messages + statistics.out_messages
            self._show(
                Snapshot(
                    progress=progress,
                    elapsed_s=now - started,
                    decided=decided,
                    decisions_per_second=(decided - last_decided) / (now - last_at),
                    events_per_second=(messages - last_messages) / (now - last_at),
                    killed=self._killed,
                    note=self._note,
                )
            )
            if decided != last_decided:
                last_change = now
            if now - last_change > STALLED_S:
                self._note = f"no decision for {STALLED_S:g} s: giving up"
                return
            last_decided, last_messages, last_at = decided, messages, now

    async def _kill_half_way(self, simulator: Simulator, workers: list[RoleProcess]) -> None:
        half = len(self.trace.pods) // 2
        while simulator.progress().offered < half:  # noqa: ASYNC110  progress has no event to wait for
            await asyncio.sleep(0.02)
        await workers[0].kill()
        self._killed += 1
        self._note = "allocator 1 killed with SIGKILL; its unfinished pods go to the others"
        await workers[0].start()
        self._note = "allocator 1 is back"

    def _report(self, found: Audit, progress: Progress, duration_s: float) -> Report:
        offered = {pod_uid(pod.name) for pod in self.trace.pods[: progress.offered]}
        if progress.offered < len(self.trace.pods):  # interrupted: in a trace, file order is not arrival order
            offered = found.placed | found.refused
        allocated = offered & found.placed
        refused = (offered & found.refused) - allocated
        return Report(
            nodes=found.nodes,
            gpus=found.gpus,
            pods_offered=progress.offered,
            pods_allocated=len(allocated),
            pods_unschedulable=len(refused),
            pods_lost=progress.offered - len(allocated) - len(refused),
            pods_released=len(found.released & offered),
            double_allocations=found.double_allocations + progress.double_started,
            gpu_allocation_percent=round(100 * found.granted_tflops_milli / max(found.physical_tflops_milli, 1), 2),
            decisions_per_second=round(found.decisions / max(duration_s, 1e-9), 1),
            latency_ms=Latency(round(progress.latency_p50_ms, 2), round(progress.latency_p99_ms, 2)),
            conflicts=found.overtaken,
            allocators=self._settings.allocators,
            killed=self._killed,
            invariants_ok=not found.violations,
            duration_s=round(duration_s, 2),
        )
