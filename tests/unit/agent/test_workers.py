"""What limiters find on the node, and the MPS daemon that some of them need."""

import asyncio
import os
from pathlib import Path

import pytest

from bus.tasks import end
from producers.agent.mps import MpsControl
from producers.agent.workers import STRANGERS_S, WorkerDirectories, wanted
from schemas.decision import GpuGrant
from schemas.ledger import Allocation
from schemas.pod import GpuRequest
from schemas.requirements import ContainerRequest
from tests.conftest import eventually


def allocation(uid: str, *, gpus: int = 1) -> Allocation:
    grants = tuple(GpuGrant(uuid=f"GPU-{i}", index=i, tflops_milli=1, vram_bytes=1) for i in range(gpus))
    return Allocation(pod_uid=uid, namespace="n", name=uid, pool="p", gpus=grants)


def test_every_container_with_gpus_here_wants_a_directory() -> None:
    held = {uid: allocation(uid) for uid in ("hami", "tf", "remote", "unknown")} | {"cpu": allocation("cpu", gpus=0)}
    requests = {
        "hami": GpuRequest(pool="p", count=2, containers=(ContainerRequest(name="a"), ContainerRequest(name="b"))),
        "tf": GpuRequest(pool="p", container_names=("main",)),
        "remote": GpuRequest(pool="p", container_names=("main",), remote=True),
        "cpu": GpuRequest(pool="p", count=0, container_names=("main",)),
    }
    assert wanted(held, requests) == {"hami_a", "hami_b", "tf_main"}


def test_directories_come_and_go_with_their_pods(tmp_path: Path) -> None:
    directories, containers = WorkerDirectories(tmp_path), tmp_path / "containers"
    directories.lay_out({"uid-1_main", "uid-2_main"}, ["uid-1", "uid-2"])
    assert (containers / "uid-1_main").stat().st_mode & 0o777 == 0o777
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o777
    region = containers / "uid-1_main" / "region.cache"
    region.write_text("shared")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (containers / "uid-2_main" / "link").symlink_to(outside)
    for name in ("strange_main", "fresh_main"):
        (containers / name).mkdir()
    os.utime(containers / "strange_main", (0, 0))
    directories.lay_out({"uid-1_main"}, ["uid-1"])
    assert {directory.name for directory in containers.iterdir()} == {"uid-1_main", "fresh_main"}
    assert region.read_text() == "shared"
    assert (outside / "precious").exists()
    # A pod whose request is not known yet keeps what it has, as it does after a restart of the agent.
    os.utime(containers / "uid-1_main", (0, 0))
    WorkerDirectories(tmp_path).lay_out(set(), ["uid-1"])
    assert region.exists()
    assert STRANGERS_S > 0


DAEMON = """#!/bin/sh
trap 'echo ended >> {log}; exit 0' TERM
echo "$1 $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY" >> {log}
while :; do sleep 0.02; done
"""


async def test_an_mps_daemon_is_kept_running_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.agent.mps.FIRST_PAUSE_S", 0.01)
    program, log = tmp_path / "mps", tmp_path / "log"
    said: list[bool] = []
    driver = asyncio.Event()

    async def gpus() -> list[str]:
        await driver.wait()
        return ["GPU-1", "GPU-2"]

    control = MpsControl(str(program), tmp_path / "dir", gpus, said.append)
    task = asyncio.create_task(control.run())
    await asyncio.sleep(0.05)
    assert control.starts == 0  # not before the driver answers
    driver.set()
    await eventually(lambda: control.starts >= 1)  # in vain: the program is not there yet
    program.write_text(DAEMON.format(log=log))
    program.chmod(0o755)
    await eventually(lambda: said == [True] and log.exists() and log.read_text())
    assert log.read_text() == f"-f GPU-1,GPU-2 {tmp_path}/dir/pipe\n"
    pid = int(next(p for p in os.listdir("/proc") if p.isdecimal() and str(program) in _command(p)))  # noqa: PTH208
    os.kill(pid, 9)
    await eventually(lambda: said == [True, False, True] and log.read_text().count("-f") == 2)
    await end(task)
    assert said[-1] is False
    assert log.read_text().endswith("ended\n")


def _command(pid: str) -> str:
    try:
        return Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
