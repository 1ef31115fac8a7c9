"""What the agent costs a node: memory, processor time and start, with eight GPUs at one sample per second.

Method: ``gpubus run agent`` in a process of its own on an embedded bus, with the real ``pynvml`` over the stand-in library of the
tests: eight H100s, a ledger record and four processes in pods on each. The stand-in answers at once, so this is what the agent
itself costs; a real driver adds its own time to each call. Memory is the process's resident set, of which the interpreter and
libraries that it shares with others are a part. The bare interpreter and an interpreter with the NATS client, of the same run,
are the floors.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from bus import codec, subjects
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.streams import STATE
from deploy.local.processes import RoleProcess
from schemas.cluster import GpuInventory
from schemas.decision import GpuGrant
from schemas.ledger import Allocation, NodeRecord
from tests.benchmarks.end_to_end import message, running_bus
from tests.nvml import library

NODE = "bench"
MEASURED_S = 20.0
SETTLE_S = 5.0
PER_GPU = 4
MIB = 2**20
TICKS = os.sysconf("SC_CLK_TCK")
FLOOR = "import {modules}; print(open('/proc/self/status').read())"


def scenario(file: Path, host: Path) -> tuple[library.Scenario, NodeRecord]:
    """Begin with eight busy GPUs and their processes, and return the ledger record that explains them too."""
    world = library.h100s()
    allocations = []
    for place, gpu in enumerate(world["gpus"]):
        for number in range(PER_GPU):
            pid = 1000 + place * PER_GPU + number
            uid = f"{pid:08x}-0000-4000-8000-000000000000"
            gpu["processes"].append({"pid": pid, "memory": 4 * library.GIB, "sm": 20})
            directory = host / "proc" / str(pid)
            directory.mkdir(parents=True)
            (directory / "stat").write_text(f"{pid} (python) S {' '.join(['0'] * 18)} 1 0\n")
            (directory / "cgroup").write_text(f"0::/kubepods/pod{uid}/{'a' * 64}\n")
            grant = GpuGrant(uuid=gpu["uuid"], index=place, tflops_milli=200_000, vram_bytes=16 * library.GIB)
            allocations.append(Allocation(pod_uid=uid, namespace="n", name=f"pod-{pid}", pool="p", gpus=(grant,)))
    record = NodeRecord(node=NODE, txn="t", allocations=tuple(allocations), changes=())
    return library.Scenario(file, world), record


def resident_mib(pid: int) -> float:
    """Return the resident set of a process."""
    return _resident_mib(Path(f"/proc/{pid}/status").read_text())


def _resident_mib(status: str) -> float:
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def floor_mib(*modules: str) -> float:
    """Return the resident set of an interpreter that has imported these."""
    command = [sys.executable, "-c", FLOOR.format(modules=", ".join(("sys", *modules)))]
    return _resident_mib(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def imports_s() -> float:
    """Return how long an interpreter takes to start and import what every agent needs."""
    started = time.perf_counter()
    floor_mib("bus.follower", "uvloop", "pynvml")
    return time.perf_counter() - started


def processor_s(pid: int) -> float:
    """Return the processor time that a process has taken, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def notice_s(bus: Bus, playing: library.Scenario, gpu: int) -> float:
    """Return how long it takes from an XID until the bus holds an inventory that says so."""
    told = asyncio.Event()

    def hear(record: Record) -> None:
        if not codec.decode_as(GpuInventory, record.payload).data.gpus[gpu].healthy:
            told.set()

    follower = Follower(bus, STATE, [subjects.state("gpu", NODE)], hear)
    await follower.start()
    failed = time.perf_counter()
    playing.fault(gpu, 79)
    await asyncio.wait_for(told.wait(), 30.0)
    await follower.stop()
    return time.perf_counter() - failed


async def measure() -> dict[str, float]:
    """Run one agent and return what it cost."""
    with tempfile.TemporaryDirectory(prefix="gpubus-bench-") as directory:
        root = Path(directory)
        built = library.build(root)
        playing, record = scenario(root / "scenario.json", root)
        os.environ |= {"LD_LIBRARY_PATH": str(built.parent), "NVML_SCENARIO": str(root / "scenario.json")}
        async with running_bus() as (server, bus):
            subject, payload, txn = message(subjects.ledger_node(NODE), NODE, record, datetime.now(UTC))
            await bus.publisher.publish(subject, payload, msg_id=txn)
            agent = RoleProcess(
                "agent", [server.url], "--node", NODE, "--host", directory, "--kubelet", "", "--metrics", "0"
            )
            started = time.perf_counter()
            await agent.start()
            start_s = time.perf_counter() - started
            pid = agent.pid
            start_processor_s = processor_s(pid)
            await asyncio.sleep(SETTLE_S)
            before, at = processor_s(pid), time.perf_counter()
            await asyncio.sleep(MEASURED_S)
            share = (processor_s(pid) - before) / (time.perf_counter() - at)
            resident = resident_mib(pid)
            noticed = [await notice_s(bus, playing, gpu) for gpu in range(len(playing.gpus))]
            await agent.stop()
    return {
        "start_s": start_s,
        "start_processor_s": start_processor_s,
        "processor_percent": 100 * share,
        "resident_mib": resident,
        "notice_s": max(noticed),
    }


async def report() -> None:
    """Print the limits beside what was measured."""
    found = await measure()
    print(f"\nagent, 8 GPUs with {8 * PER_GPU} processes, one sample per second")
    print(f"  floor: bare interpreter                 {floor_mib():6.1f} MiB resident")
    print(
        f"  floor: with the bus client and pynvml   {floor_mib('bus.follower', 'uvloop', 'pynvml'):6.1f} MiB resident"
    )
    print(f"  memory                                  {found['resident_mib']:6.1f} MiB resident   limit 60")
    print(f"  processor                               {found['processor_percent']:6.2f} % of a core   limit 2")
    print(
        f"  start to the first inventory            {found['start_s']:6.2f} s              limit 1 "
        f"({found['start_processor_s']:.2f} s of processor; bare interpreter to the same imports {imports_s():.2f} s)"
    )
    print(f"  XID to the inventory on the bus         {found['notice_s']:6.2f} s at most      limit 5")
