"""Runs the agent on the GPUs of this machine and compares what it says with what ``nvidia-smi`` and a known load say.

With ``--stand-in`` on GPUs that do not exist, which checks the checks.
"""

import asyncio
import contextlib
import shutil
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
from tests.device.load import HELD
from tests.device.machines import MIB, Machine, Real, StandIn

NODE = "device"
POD = "2c48913c-b29f-41e7-9350-020968147796"
CONTAINER = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
CGROUPS = Path("/sys/fs/cgroup")
GROUP = Path("kubepods", f"pod{POD}", CONTAINER)
failures: list[str] = []


def check(what: str, found: object, *, holds: bool) -> None:
    print(f"{'ok  ' if holds else 'FAIL'} {what}: {found}", flush=True)
    if not holds:
        failures.append(what)


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


def check_inventory(inventory: GpuInventory, machine: Machine) -> None:
    expected = machine.told()
    check("every GPU is listed", len(inventory.gpus), holds=len(inventory.gpus) == len(expected))
    for gpu, (uuid, name, mib, driver, pci) in zip(inventory.gpus, expected, strict=False):
        check("identity", (gpu.uuid, gpu.model), holds=(gpu.uuid, gpu.model) == (uuid, name))
        check("driver", inventory.driver, holds=inventory.driver == driver)
        check("PCI address", gpu.pci, holds=gpu.pci == pci)
        check("VRAM", gpu.vram_bytes, holds=abs(gpu.vram_bytes / MIB - mib) < 2)
        check("compute known", gpu.tflops_milli, holds=not gpu.estimated and gpu.tflops_milli > 0)
        check("healthy", [trouble.detail for trouble in gpu.troubles], holds=gpu.healthy)
    print("inventory:", codec.encode(inventory).decode())


async def watch(url: str, host: Path, machine: Machine) -> None:
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
            await settled(lambda: bool(inventories and usages), 20.0)
            check_inventory(inventories[-1], machine)
            await check_load(usages, group, host, machine)
            before = processor_s(agent.pid)
            await asyncio.sleep(machine.measured_s)
            share = 100 * (processor_s(agent.pid) - before) / machine.measured_s
            resident = resident_mib(agent.pid)
            check("processor, percent of a core", round(share, 2), holds=share <= 2.0)
            check("resident MiB", round(resident, 1), holds=resident <= 60.0)
        finally:
            await agent.stop()
            if group is not None:
                remove(group)
            for follower in followers:
                await follower.stop()


async def check_load(usages: list[NodeUsage], group: Path | None, host: Path, machine: Machine) -> None:
    idle = usages[-1].gpus[0]
    check(
        "temperature and power", (idle.temperature_c, idle.power_mw), holds=idle.temperature_c > 0 and idle.power_mw > 0
    )
    async with machine.load() as pid:
        how = put_into_pod(pid, group, host)
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


def newest(usages: list[NodeUsage]) -> GpuSample:
    return usages[-1].gpus[0]


async def settled(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for a condition; what is checked afterwards says whether it came."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  followers call us back
                await asyncio.sleep(0.01)
        return
    print("     waited in vain", flush=True)


async def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="gpubus-device-") as name:
        directory = Path(name)
        machine: Machine = StandIn(directory) if arguments == ["--stand-in"] else Real()
        server = LocalServer(directory / "store")
        await server.start()
        try:
            await watch(server.url, directory / "host", machine)
        finally:
            await server.stop()
    print(f"{len(failures)} checks failed: {', '.join(failures)}" if failures else "all checks hold")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
