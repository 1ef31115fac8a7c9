"""The demo and the long-running commands, as a newcomer types them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.server import free_port
from deploy.local.store import MARK
from producers.simulator.generator import generate

GPUBUS = [sys.executable, "-m", "deploy.cli.main"]
FIELDS = [
    *("nodes", "gpus", "pods_offered", "pods_allocated", "pods_unschedulable", "pods_lost", "pods_released"),
    *("double_allocations", "gpu_allocation_percent", "decisions_per_second", "latency_ms", "conflicts", "allocators"),
    *("killed", "invariants_ok", "duration_s"),
]


def gpubus(*arguments: str | Path, code: int = 0, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*GPUBUS, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def write_trace(directory: Path, nodes: int, pods: int) -> None:
    """An openb CSV pair of a generated cluster."""
    trace = generate(nodes, pods, seed=3)
    lines = ["sn,cpu_milli,memory_mib,gpu,model"]
    lines += [f"{n.name},{n.cpu_milli},{n.memory_mib},{n.gpus},{n.model}" for n in trace.nodes]
    (directory / "openb_node_list_gpu_node.csv").write_text("\n".join(lines) + "\n")
    lines = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli"]
    lines += [f"{p.name},{p.cpu_milli},{p.memory_mib},{p.num_gpu},{p.gpu_milli}" for p in trace.pods]
    (directory / "openb_pod_list_default.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("allocators", [2, 4])
def test_demo_loses_nothing_and_gives_nothing_twice(store, tmp_path, allocators):
    write_trace(tmp_path, 40, 500)
    done = gpubus(
        "demo", "--trace", tmp_path, "--allocators", allocators, "--rate", 0, "--keep", store / "kept", "--json"
    )
    report = json.loads(done.stdout)
    assert list(report) == FIELDS
    assert list(report["latency_ms"]) == ["p50", "p99"]
    assert (report["nodes"], report["pods_offered"], report["killed"]) == (40, 500, 1)
    assert report["pods_allocated"] + report["pods_unschedulable"] == 500
    assert (report["pods_lost"], report["double_allocations"], report["invariants_ok"]) == (0, 0, True)
    # The store is kept and answers afterwards.
    checked = json.loads(gpubus("check", "--store", store / "kept", "--json").stdout)
    assert (checked["violations"], checked["pods_placed"]) == ([], report["pods_allocated"])
    shown = gpubus("events", "gpubus.decision.>", "--store", store / "kept", "--last", 3, "--no-follow")
    assert shown.stdout.count("\n") == 3


@pytest.mark.slow
def test_demo_on_three_servers(store):
    done = gpubus(
        "demo", "--nodes", 20, "--pods", 200, "--replicas", 3, "--rate", 100, "--keep", store / "kept", "--json"
    )
    report = json.loads(done.stdout)
    assert (report["pods_offered"], report["pods_lost"], report["double_allocations"]) == (200, 0, 0)


def test_demo_ends_with_commands_that_work(store):
    done = gpubus("demo", "--nodes", 10, "--pods", 60, "--no-kill", "--rate", 0, "--keep", store / "kept")
    assert "60 pods offered to 10 nodes" in done.stdout
    assert "no GPU was given twice" in done.stdout
    commands = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("  gpubus ")]
    assert {command[0] for command in commands} == {"why", "state", "events", "check"}
    for command in commands:
        assert gpubus(*command).stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--allocators", "0"], "--allocators is 0"),
        (["--replicas", "2"], "use 1 or 3"),
        (["--pods", "0"], "--pods is 0"),
        (["--nodes", "-3"], "--nodes is -3"),
        (["--rate", "-1"], "--rate is -1"),
        (["--rate", "nan"], "--rate is nan"),
        (["--nodes", "1000000000"], "--nodes is 1e+09"),
        (["--trace", "/nonexistent"], "/nonexistent"),
    ],
)
def test_demo_refuses_bad_input_in_one_line(arguments, line):
    done = gpubus("demo", *arguments, code=2)
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_demo_names_the_bad_cell_and_starts_nothing(store, tmp_path):
    write_trace(tmp_path, 5, 10)
    path = tmp_path / "openb_pod_list_default.csv"
    path.write_text(path.read_text().replace("\n", "\nbroken,-5,1,1,1000\n", 1))
    done = gpubus("demo", "--trace", tmp_path, "--keep", store / "kept", code=2)
    for word in ("openb_pod_list_default.csv", "2", "cpu_milli", "-5"):
        assert word in done.stderr
    assert not (store / "kept").exists()


def test_demo_does_not_empty_a_directory_that_is_not_its_own(tmp_path):
    (tmp_path / "precious").touch()
    done = gpubus("demo", "--keep", tmp_path, code=2)
    assert "not empty and not a demo's" in done.stderr
    assert (tmp_path / "precious").exists()
    assert not (tmp_path / MARK).exists()


def test_run_refuses_unknown_roles_and_unreachable_servers():
    assert "choose one of allocator" in gpubus("run", "oracle", code=2).stderr


async def test_up_serves_until_it_is_stopped(store):
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *GPUBUS, "up", "--store", str(store / "up"), "--port", str(port), "--nodes", "10", "--pods", "30", "--rate", "100",
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        assert f"nats://127.0.0.1:{port}" in line
        url = f"nats://127.0.0.1:{port}"
        seen = await asyncio.to_thread(gpubus, "events", "gpubus.decision.>", "--nats", url, "--all", "--count", "3")
        assert seen.stdout.count("\n") == 3
        taken = await asyncio.to_thread(gpubus, "up", "--store", store / "other", "--port", port, code=3)
        assert f"port {port} on 127.0.0.1 is taken" in taken.stderr
        used = await asyncio.to_thread(gpubus, "up", "--store", store / "up", "--port", 0, code=3)
        assert "in use by another gpubus" in used.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
