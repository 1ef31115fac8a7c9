"""What the watcher does with 100,000 pods: listing and projecting them, keeping up with updates, and what decoding costs.

Method: ``gpubus run watcher`` in a process of its own on an embedded bus, against :mod:`tests.benchmarks.api_server`. Every
pod is one of ours and in the ledger, so every one becomes a record in STATE; all are listed and projected when the watcher
says that it is ready. Updates change a label, so each is said too: at the full rate for a while, STATE has to keep up. The
ratio is of processor time, for the bytes of the same page in one process. Where the watcher got clearly less than one whole
processor the machine had other work, and its processor time tells more than the clock does.
"""

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec
import yaml
from kubernetes.aio.client import ApiClient

from bus import subjects
from bus.connection import Bus
from bus.streams import STATE, stream_info
from deploy.local import processes
from deploy.local.processes import RoleProcess
from schemas.decision import GpuGrant
from schemas.kube.core import KubePod
from schemas.ledger import Allocation, NodeRecord
from tests.benchmarks.api_server import Api, uid
from tests.benchmarks.bench_agent import processor_s
from tests.benchmarks.end_to_end import message, publish, running_bus

PODS, NODES, RATE = 100_000, 10_000, 2_000
UPDATES_S = 20.0
PAGE = 500
PATIENCE_S = 300.0


class _List(msgspec.Struct):
    items: list[KubePod]


def peak_mib(pid: int) -> float:
    """Return the largest resident set that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


@asynccontextmanager
async def api_server() -> AsyncIterator[str]:
    """Run the server of pods in a process of its own and return its URL."""
    command = [sys.executable, "-m", "tests.benchmarks.api_server", str(PODS), str(NODES), str(RATE)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


async def updates(url: str, bus: Bus) -> tuple[int, int, float]:
    """Have updates told for a while; return how many were, how many STATE holds at that moment, and the seconds taken."""

    async def said() -> int:
        return (await stream_info(bus, STATE)).state.last_seq

    before = await said()
    async with aiohttp.ClientSession() as session:
        await session.post(f"{url}/go")
        started = time.perf_counter()
        await asyncio.sleep(UPDATES_S)
        async with session.get(f"{url}/progress") as answer:
            told = int((await answer.json())["told"])
    return told, await said() - before, time.perf_counter() - started


def ledger() -> Iterator[tuple[str, bytes, str]]:
    """Yield a record per node, with a share of its only GPU for each of its pods."""
    now = datetime.now(UTC)
    for node in range(NODES):
        grant = (GpuGrant(uuid=f"GPU-{node}", index=0, tflops_milli=10_000, vram_bytes=2**32),)
        held = tuple(
            Allocation(pod_uid=uid(number), namespace="default", name=f"pod-{number:06}", pool="shared", gpus=grant)
            for number in range(node, PODS, NODES)
        )
        name = f"node-{node:05}"
        record = NodeRecord(node=name, txn=f"t:{name}", allocations=held, changes=())
        yield message(subjects.ledger_node(name), name, record, now)


def decoding() -> tuple[float, float, int]:
    """Return processor time per pod, ours and the official client's, in microseconds, and the bytes of a pod."""
    api = Api(PAGE, PAGE, 1)
    items = b",".join(api.pod(number, 1) for number in range(PAGE))
    body = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[' + items + b"]}"
    ours = msgspec.json.Decoder(_List)
    client = ApiClient()
    text = body.decode()
    spent = []
    for decode, rounds in (
        (lambda: ours.decode(body), 10),
        (lambda: client.deserialize(text, "V1PodList", "application/json"), 2),
    ):
        began = time.process_time()
        for _ in range(rounds):
            assert len(decode().items) == PAGE
        spent.append(1e6 * (time.process_time() - began) / rounds / PAGE)
    return spent[0], spent[1], len(body) // PAGE


async def report() -> None:
    """Print the limits beside what was measured."""
    print(f"\nwatcher, {PODS:,} pods of ours on {NODES:,} nodes")
    processes.READY_TIMEOUT_S = PATIENCE_S  # type: ignore[misc]  # a slow run is to be measured too
    async with running_bus() as (server, bus), api_server() as url:
        await publish(bus, list(ledger()))
        with tempfile.TemporaryDirectory(prefix="gpubus-bench-") as directory:
            kubeconfig = Path(directory) / "kubeconfig"
            kubeconfig.write_text(yaml.safe_dump(config(url)))
            watcher = RoleProcess("watcher", [server.url], "--kubeconfig", str(kubeconfig))
            started = time.perf_counter()
            await watcher.start()
            listed_s, pid = time.perf_counter() - started, watcher.pid
            spent, peak = processor_s(pid), peak_mib(pid)
            messages = (await stream_info(bus, STATE)).state.messages
            share = 100 * spent / listed_s
            print(
                f"  listed and projected         {listed_s:7.1f} s   limit 30 ({spent:.1f} s of processor: {share:.0f} % of one)"
            )
            print(f"  resident at most             {peak:7.0f} MiB limit 700")
            print(f"  records in STATE             {messages:7,}")
            told, said, took = await updates(url, bus)
            spent = processor_s(pid) - spent
            print(f"  updates told per second      {told / took:7.0f}     limit {RATE}")
            cost = f"{1e6 * spent / max(said, 1):.0f} us of processor each, {100 * spent / took:.0f} % of one"
            print(f"  of these in STATE by then    {100 * said / told:7.1f} %   ({cost})")
            print(f"  resident at most, after all  {peak_mib(pid):7.0f} MiB")
            await watcher.stop()
    ours, official, size = decoding()
    print(
        f"  decoding a pod of {size} bytes: {ours:.1f} us, official client {official:.0f} us: ratio {official / ours:.0f}"
    )


def config(url: str) -> dict[str, object]:
    """Return a kubeconfig for a server that asks nobody who they are."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": url}}],
        "users": [{"name": "bench", "user": {"token": "none"}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }
