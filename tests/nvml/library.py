"""Builds the stand-in library, and writes the scenarios that it plays.

The library has the name that ``pynvml`` asks the system for, ``libnvidia-ml.so.1``. A child process finds it through
``LD_LIBRARY_PATH``; this process has to have it loaded already when ``pynvml`` asks, because the search path of a running
process cannot change, and the system takes a loaded library of the same name.
"""

import ctypes
import json
import os
import subprocess
from pathlib import Path
from typing import Any

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
NAME = "libnvidia-ml.so.1"


def build(directory: Path) -> Path:
    """Compile the library into ``directory`` with the system's compiler and return it."""
    library = directory / NAME
    compiler = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    options = ["-Wno-format-truncation", f"-Wl,-soname,{NAME}", "-o", str(library), *map(str, SOURCES), "-lpthread"]
    subprocess.run([*compiler, *options], check=True)
    return library


def load(library: Path) -> None:
    """Make this process have the library, so that ``pynvml`` finds it by name."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class Scenario:
    """What the library plays. Changes take effect with the next call, in whatever process."""

    def __init__(self, file: Path, world: dict[str, Any]) -> None:
        self.file = file
        self.world = world
        self.write()

    @property
    def gpus(self) -> list[dict[str, Any]]:
        gpus: list[dict[str, Any]] = self.world["gpus"]
        return gpus

    def write(self) -> None:
        """Put the world where the library reads it, whole or not at all."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(self.world))
        fresh.replace(self.file)

    def fault(self, gpu: int, xid: int, times: int = 1) -> None:
        """Have the driver report an XID."""
        self.world["events"] += [{"gpu": gpu, "type": 8, "data": xid}] * times
        self.write()


GIB = 2**30


def uuid(index: int) -> str:
    return f"GPU-{index:08d}-0000-4000-8000-000000000000"


def _world(gpus: list[dict[str, Any]]) -> dict[str, Any]:
    return {"driver": "550.54.15", "cuda": 12040, "generation": 1, "events": [], "errors": {}, "gpus": gpus}


def h100s(count: int = 8) -> dict[str, Any]:
    """H100s behind NVSwitches, four on each CPU."""
    return _world(
        [
            {
                "uuid": uuid(i),
                "name": "NVIDIA H100 80GB HBM3",
                "memory": {"total": 80 * GIB, "used": GIB, "reserved": 0},
                "bus": 0x10 + i,
                "cc": [9, 0],
                "minor": i,
                "persistence": 1,
                "ecc": 1,
                "remapped": [0, 0, 0, 0],
                "utilization": [10 * i, 5],
                "temperature": 40 + i,
                "power": 120_000 + i,
                "clocks": [1980, 1980, 2619, 1545],
                "throttle": 4 | 1,
                "fields": {"197": 0, "198": 0, "138": 0, "139": 0, "90": 26_562, "230": 0},
                "nvlink": [-1] * 18,
                "path": [0 if i == j else 40 if i // 4 == j // 4 else 50 for j in range(count)],
                "mig": {"mode": 0, "max": 7, "devices": []},
                "processes": [],
                "errors": {},
                "event_types": 8 | 2 | 1,
            }
            for i in range(count)
        ]
    )


def _instance(number: int, gi: int, profile: str, *, placement: tuple[int, int], gib: int) -> dict[str, Any]:
    return {
        "uuid": f"MIG-{number:08d}-0000-4000-8000-000000000000",
        "gi": gi,
        "ci": 0,
        "profile": profile,
        "slices": int(profile[0]),
        "placement": placement,
        "memory": {"total": gib * GIB, "used": 0},
    }


def a100_mig() -> dict[str, Any]:
    """One A100 that is cut into three, and one that is whole; NVLinks straight between them."""
    profiles = [
        {"name": "1g.10gb", "slices": 1, "mib": 9728, "most": 7, "size": 1, "starts": [0, 1, 2, 3, 4, 5, 6]},
        {"name": "2g.20gb", "slices": 2, "mib": 19968, "most": 3, "size": 2, "starts": [0, 2, 4]},
        {"name": "3g.40gb", "slices": 3, "mib": 40192, "most": 2, "size": 4, "starts": [0, 4]},
        {"name": "4g.40gb", "slices": 4, "mib": 40192, "most": 1, "size": 4, "starts": [0]},
        {"name": "7g.80gb", "slices": 7, "mib": 80896, "most": 1, "size": 8, "starts": [0]},
    ]
    world = h100s(2)
    for i, gpu in enumerate(world["gpus"]):
        gpu |= {
            "name": "NVIDIA A100-SXM4-80GB",
            "cc": [8, 0],
            "nvlink": [1 - i] * 12,
            "path": [0, 10],
            "pcie": [500, 700],
        }
        gpu["fields"] = {"90": 25_781, "138": 0, "139": 0}  # counts no PCIe bytes, and knows no recovery action
    devices = [
        _instance(1, 1, "3g.40gb", placement=(0, 4), gib=39),
        _instance(2, 7, "1g.10gb", placement=(4, 1), gib=9),
        _instance(3, 8, "1g.10gb", placement=(5, 1), gib=9),
    ]
    world["gpus"][0]["mig"] = {"mode": 1, "max": 7, "devices": devices, "profiles": profiles}
    del world["gpus"][0]["utilization"]  # a GPU in MIG mode does not tell it
    return world


def t4() -> dict[str, Any]:
    """One T4 that can do little beyond what every GPU can."""
    return _world(
        [
            {
                "uuid": uuid(0),
                "name": "Tesla T4",
                "memory": {"total": 15 * GIB, "used": 0},
                "bus": 0x3B,
                "cc": [7, 5],
                "utilization": [0, 0],
                "temperature": 35,
                "errors": {},
                "processes": [],
                "event_types": 0,
            }
        ]
    )
