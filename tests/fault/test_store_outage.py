"""Five minutes without the metrics store, under load: bounded memory, counted loss, clean recovery.

The samples are as many as 100 nodes with eight GPUs send in five minutes at one every five seconds, sent as fast as they go: what
an outage costs depends on how much is said in it, not on how long that takes. The bus holds less than half of it.
"""

import asyncio
import contextlib
import re
import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import httpx
import pytest

from bus import codec, subjects
from bus.connection import Bus
from bus.streams import StreamLimits, ensure_streams
from consumers.metrics.settings import store as open_store
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer, free_port
from schemas.event import Event
from schemas.registry import TYPE_NAMES
from schemas.usage import GpuSample, NodeUsage, ProcessUsage
from tests.stores.greptime import GreptimeStandIn

NODES, GPUS, EVERY_S, OUTAGE_S = 100, 8, 5, 300
MIB = 2**20
USAGE_BYTES = 4 * MIB
MOST_GROWTH = 48 * MIB
"""What a recorder may take for the messages in its hand, over and over in several forms."""


class Breakable(Protocol):
    """A metrics store that can be away."""

    url: str

    async def away(self, recorder: int) -> None:
        """Be away for the recorder with that process number."""

    async def back(self, recorder: int) -> None:
        """Be back."""


class Greptime:
    """The stand-in for GreptimeDB; away is a port that nobody listens at."""

    def __init__(self, stand_in: GreptimeStandIn) -> None:
        self._stand_in = stand_in
        self.url = stand_in.url

    async def away(self, recorder: int) -> None:
        del recorder
        await self._stand_in.stop()

    async def back(self, recorder: int) -> None:
        del recorder
        await self._stand_in.start()


class Duck:
    """A file; away is a disk that has no room for another byte."""

    def __init__(self, file: Path) -> None:
        self.url = f"duckdb:{file}"

    async def away(self, recorder: int) -> None:
        resource.prlimit(recorder, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

    async def back(self, recorder: int) -> None:
        resource.prlimit(recorder, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@asynccontextmanager
async def breakable(kind: str, directory: Path) -> AsyncIterator[Breakable]:
    if kind == "duckdb":
        yield Duck(directory / "m.duckdb")
    else:
        async with GreptimeStandIn() as stand_in:
            yield Greptime(stand_in)


def tick(number: int, began: float) -> list[tuple[str, bytes, str]]:
    """Return what all nodes say at one tick."""
    at = datetime.fromtimestamp(began + number / 10, UTC)
    messages = []
    for node in range(NODES):
        gpus = tuple(
            GpuSample(
                uuid=f"GPU-{node}-{gpu}",
                sm_percent=50.0,
                vram_used_bytes=2**30,
                processes=(ProcessUsage(pod_uid=f"pod-{node}-{gpu}", vram_bytes=2**30, sm_percent=50.0),),
            )
            for gpu in range(GPUS)
        )
        usage = NodeUsage(node=f"n{node}", at=at, gpus=gpus)
        event = Event(
            id=f"{node}:{number}", source="/t", type=TYPE_NAMES[NodeUsage], subject=usage.node, time=at, data=usage
        )
        messages.append((subjects.usage_gpu(usage.node), codec.encode(event), event.id))
    return messages


async def numbers(port: int) -> dict[str, float]:
    """Return what the recorder says of itself."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    return {name: float(value) for name, value in re.findall(r"^gpubus_recorder_(\w+) (\S+)$", text, re.MULTILINE)}


async def until(port: int, condition: Callable[[dict[str, float]], bool], seconds: float = 60.0) -> dict[str, float]:
    found, deadline = {}, time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if condition(found := await numbers(port)):
                return found
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the recorder says {found}")


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("kind", ["duckdb", "stand-in"])
async def test_five_minutes_without_the_store_cost_what_the_bus_cannot_hold_and_nothing_else(
    bus: Bus, server: LocalServer, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ensure_streams(bus, StreamLimits(usage_bytes=USAGE_BYTES))
    began, port = time.time(), free_port()
    async with breakable(kind, tmp_path) as store:
        monkeypatch.setenv("GPUBUS_METRICS", store.url)
        recorder = RoleProcess("recorder", [server.url], "--metrics", str(port))
        await recorder.start()
        try:
            await bus.publisher.publish_all(tick(0, began))
            await until(port, lambda found: found["samples"] == NODES * GPUS)
            before = resident(recorder.pid)
            await store.away(recorder.pid)
            ticks = OUTAGE_S // EVERY_S
            for number in range(1, ticks + 1):
                await bus.publisher.publish_all(tick(number, began))
            found = await until(port, lambda found: found["failures"] >= 2)
            assert found["refused"] == 0
            assert resident(recorder.pid) - before < MOST_GROWTH
            await store.back(recorder.pid)
            published = NODES * (ticks + 1)

            def settled(found: dict[str, float]) -> bool:
                return found["samples"] / GPUS + found["lost_usage"] == published

            found = await until(port, settled)
            assert found["lost_usage"] > published / 4
            assert found["refused"] == 0
            await bus.publisher.publish_all(tick(ticks + 1, began))  # it goes on as if nothing had been
            again = await until(port, lambda now: now["samples"] == found["samples"] + NODES * GPUS)
            assert again["lost_usage"] == found["lost_usage"]
            assert resident(recorder.pid) - before < MOST_GROWTH
        finally:
            await recorder.stop()
        opened = await open_store(store.url).open()
        for table in ("tf_gpu_usage", "tf_worker_usage"):
            assert (await opened.query(f"SELECT count(*) AS n FROM {table}", timeout=10)).rows == [(again["samples"],)]
        await opened.close()
