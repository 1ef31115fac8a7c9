"""``gpubus up --kubeconfig``: a control plane for a real cluster in one process, as somebody tries it from a laptop."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from bus.connection import Bus
from deploy.local.server import free_port
from tests.integration.cluster import Cluster, create_all, hami_pod, play_agents, tensorfusion_pod
from tests.integration.observe import agree
from tests.integration.plane import ControlPlane

pytestmark = pytest.mark.integration

COMMAND = (sys.executable, "-m", "deploy.cli.main", "up")
PATIENCE_S = 30.0


async def test_pods_of_a_real_cluster_are_bound(plane: ControlPlane, cluster: Cluster, tmp_path: Path) -> None:
    await cluster.add_pool()
    await cluster.add_nodes(["a"])
    port, log = free_port(), (tmp_path / "log").open("wb")
    options = ("--kubeconfig", str(plane.kubeconfig), "--store", str(tmp_path / "store"), "--port", str(port))
    process = await asyncio.create_subprocess_exec(*COMMAND, *options, stdout=asyncio.subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            line = await process.stdout.readline()
        assert b"is up at" in line, (tmp_path / "log").read_text()
        async with await Bus.connect(f"nats://127.0.0.1:{port}", name="t") as bus:
            await play_agents(bus, ["a"])
            await create_all(cluster, [tensorfusion_pod("one"), hami_pod("two")])
            await agree(bus, cluster, placed=2, timeout=PATIENCE_S)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0, (tmp_path / "log").read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        log.close()


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        (["--kubeconfig", "absent", "--nodes", "3"], "keep one of them"),
        (["--kubeconfig", "absent"], "absent"),
    ],
)
async def test_a_cluster_that_cannot_be_had_is_named(tmp_path: Path, options: list[str], fix: str) -> None:
    store = ("--store", str(tmp_path / "store"), "--port", str(free_port()))
    process = await asyncio.create_subprocess_exec(*COMMAND, *store, *options, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(PATIENCE_S):
        _, said = await process.communicate()
    assert process.returncode in (2, 3)
    assert fix in said.decode()
    assert b"Traceback" not in said
