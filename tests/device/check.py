"""Runs the agent on the GPUs of this machine and compares what it says with what ``nvidia-smi`` and a known load say."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bus import codec
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.streams import STATE, USAGE, ensure_streams
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer
from schemas.cluster import GpuInventory
from schemas.usage import GpuSample, NodeUsage, ProcessUsage
from tests.benchmarks.bench_agent import processor_s, resident_mib
from tests.conftest import eventually
from tests.device.load import HELD

NODE = "device"
POD = "2c48913c-b29f-41e7-9350-020968147796"
CONTAINER = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
CGROUPS = Path("/sys/fs/cgroup")
GROUP = Path("kubepods", f"pod{POD}", CONTAINER)
MIB = 2**20
failures: list[str] = []


def check(what: str, found: object, *, holds: bool) -> None:
    print(f"{'ok  ' if holds else 'FAIL'} {what}: {found}", flush=True)
    if not holds:
        failures.append(what)


def smi(fields: str) -> list[list[str]]:
    """Return what nvidia-smi tells of every GPU."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [[value.strip() for value in line.split(",")] for line in told.splitlines() if line.strip()]


def cgroup() -> Path | None:
    """Make a cgroup as the kubelet would, version 2 or 1, and return it; None where that is not allowed."""
    roots = [CGROUPS] if (CGROUPS / "cgroup.controllers").exists() else [CGROUPS / "pids", CGROUPS / "systemd"]
    for root in roots:
        with contextlib.suppress(OSError):
            (root / GROUP).mkdir(parents=True, exist_ok=True)
            if (root / GROUP / "cgroup.procs").exists():
                return root / GROUP
    return None


def remove(group: Path) -> None:
    """Remove a cgroup and its parents."""
    for directory in (group, group.parent, group.parent.parent):
        directory.rmdir()


def put_into_pod(pid: int, group: Path | None, host: Path) -> str:
    """Make a process one of a pod: in a real cgroup, else in what the agent is told of the host. Return which."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(pid))
        return f"a real cgroup, {group}"
    directory = host / "proc" / str(pid)
    directory.mkdir(parents=True)
    shutil.copy(f"/proc/{pid}/stat", directory / "stat")
    (directory / "cgroup").write_text(f"0::/{GROUP}\n")
    return "a written cgroup file, because no cgroup can be made here"


def check_inventory(inventory: GpuInventory) -> None:
    expected = smi("uuid,name,memory.total,driver_version,pci.bus_id")
    check("every GPU is listed", len(inventory.gpus), holds=len(inventory.gpus) == len(expected))
    for gpu, (uuid, name, mib, driver, pci) in zip(inventory.gpus, expected, strict=False):
        check("identity", (gpu.uuid, gpu.model), holds=(gpu.uuid, gpu.model) == (uuid, name))
        check("driver", inventory.driver, holds=inventory.driver == driver)
        check("PCI address", gpu.pci, holds=gpu.pci == pci.upper())
        check("VRAM", gpu.vram_bytes, holds=abs(gpu.vram_bytes / MIB - int(mib)) < 2)
        check("compute known", gpu.tflops_milli, holds=not gpu.estimated and gpu.tflops_milli > 0)
        check("healthy", [trouble.detail for trouble in gpu.troubles], holds=gpu.healthy)
    print("inventory:", codec.encode(inventory).decode())


async def watch(url: str, host: Path) -> None:
    inventories: list[GpuInventory] = []
    usages: list[NodeUsage] = []

    def hear(record: Record) -> None:
        heard: Any = codec.decode(record.payload).data
        (inventories if isinstance(heard, GpuInventory) else usages).append(heard)

    async with await Bus.connect(url, name="check") as bus:
        await ensure_streams(bus)
        followers = [Follower(bus, stream, ["gpubus.*.gpu.>"], hear) for stream in (STATE, USAGE)]
        for follower in followers:
            await follower.start()
        group = cgroup()
        place = ("--host", str(host) if group is None else "/")
        agent = RoleProcess("agent", [url], "--node", NODE, "--kubelet", "", "--metrics", "-1", *place)
        await agent.start()
        try:
            await eventually(lambda: bool(inventories and usages), 20.0)
            check_inventory(inventories[-1])
            await check_load(usages, group, host)
            before = processor_s(agent.pid)
            await asyncio.sleep(20.0)
            share = 100 * (processor_s(agent.pid) - before) / 20.0
            resident = resident_mib(agent.pid)
            check("processor, percent of a core", round(share, 2), holds=share <= 2.0)
            check("resident MiB", round(resident, 1), holds=resident <= 60.0)
        finally:
            await agent.stop()
            if group is not None:
                remove(group)
            for follower in followers:
                await follower.stop()


async def check_load(usages: list[NodeUsage], group: Path | None, host: Path) -> None:
    idle = usages[-1].gpus[0]
    check(
        "temperature and power", (idle.temperature_c, idle.power_mw), holds=idle.temperature_c > 0 and idle.power_mw > 0
    )
    command = [sys.executable, "-m", "tests.device.load"]
    load = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert load.stdout is not None
        check("the load runs", load.pid, holds=await load.stdout.readline() == b"loaded\n")
        how = put_into_pod(load.pid, group, host)
        await settled(lambda: newest(usages).sm_percent >= 20 and newest(usages).vram_used_bytes >= HELD)
        busy = newest(usages)
        check("utilisation under load", busy.sm_percent, holds=busy.sm_percent >= 20)
        grown = busy.vram_used_bytes - idle.vram_used_bytes
        check("VRAM under load grew by", grown, holds=grown >= HELD)
        await settled(lambda: any(p.pod_uid == POD for p in newest(usages).processes))
        ours: list[ProcessUsage] = [p for p in newest(usages).processes if p.pod_uid == POD]
        check(f"process in its pod, by {how}", ours, holds=bool(ours) and ours[0].vram_bytes >= HELD)
        check("its container", [p.container_id for p in ours], holds=[p.container_id for p in ours] == [CONTAINER])
        print("sample:", codec.encode(newest(usages)).decode())
    finally:
        with contextlib.suppress(ProcessLookupError):
            load.kill()
        await load.wait()


def newest(usages: list[NodeUsage]) -> GpuSample:
    return usages[-1].gpus[0]


async def settled(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for a condition; what is checked afterwards says whether it came."""
    try:
        await eventually(condition, seconds)
    except TimeoutError:
        print("     waited in vain", flush=True)


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="gpubus-device-") as directory:
        server = LocalServer(Path(directory) / "store")
        await server.start()
        try:
            await watch(server.url, Path(directory) / "host")
        finally:
            await server.stop()
    print(f"{len(failures)} checks failed: {', '.join(failures)}" if failures else "all checks hold")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
