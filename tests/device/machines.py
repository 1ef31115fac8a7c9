"""What the checks run on: the GPUs of this machine with a real load, or a library that stands in for NVML and plays one."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from tests.device.load import HELD
from tests.nvml import library

MIB = 2**20


class Told(NamedTuple):
    """What somebody else than the agent tells of a GPU."""

    uuid: str
    name: str
    mib: int
    driver: str
    pci: str


class Machine(Protocol):
    """Somewhere to run the agent. ``measured_s`` is for how long its processor time is measured."""

    measured_s: float

    def told(self) -> list[Told]:
        """Return the GPUs there are."""

    def load(self) -> contextlib.AbstractAsyncContextManager[int]:
        """Keep the first GPU busy with :data:`HELD` bytes of it taken; yields the process."""


class Real:
    """The driver of this machine."""

    measured_s = 20.0

    def told(self) -> list[Told]:
        """Ask nvidia-smi."""
        fields = "uuid,name,memory.total,driver_version,pci.bus_id"
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        rows = [[value.strip() for value in line.split(",")] for line in lines if line.strip()]
        return [Told(uuid, name, int(mib), driver, pci.upper()) for uuid, name, mib, driver, pci in rows]

    @asynccontextmanager
    async def load(self) -> AsyncIterator[int]:
        """Run :mod:`tests.device.load`."""
        command = [sys.executable, "-m", "tests.device.load"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            if await process.stdout.readline() != b"loaded\n":
                raise SystemExit("the load does not run: see above")
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class StandIn:
    """Two H100s that exist in a file."""

    measured_s = 3.0

    def __init__(self, directory: Path) -> None:
        built = library.build(directory)
        self._scenario = library.Scenario(directory / "scenario.json", library.h100s(2))
        os.environ |= {"LD_LIBRARY_PATH": str(built.parent), "NVML_SCENARIO": str(directory / "scenario.json")}

    def told(self) -> list[Told]:
        """Return what the file says."""
        world = self._scenario.world
        return [
            Told(
                gpu["uuid"],
                gpu["name"],
                gpu["memory"]["total"] // MIB,
                world["driver"],
                f"00000000:{gpu['bus']:02X}:00.0",
            )
            for gpu in self._scenario.gpus
        ]

    @asynccontextmanager
    async def load(self) -> AsyncIterator[int]:
        """Have the library say that a process of this machine is on the GPU; it only sleeps."""
        process = await asyncio.create_subprocess_exec("sleep", "600")
        gpu = self._scenario.gpus[0]
        gpu["processes"] = [{"pid": process.pid, "memory": HELD, "sm": 90}]
        gpu["utilization"] = [95, 40]
        gpu["memory"]["used"] += HELD
        self._scenario.write()
        try:
            yield process.pid
        finally:
            process.kill()
            await process.wait()
