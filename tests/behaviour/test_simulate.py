"""``gpubus simulate`` sees what an allocator would: nodes, quotas, and what is missing altogether."""

import asyncio
import json
from datetime import UTC, datetime

from bus import subjects
from bus.connection import Bus
from deploy.cli.main import main
from deploy.local.server import LocalServer
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.quota import Budget, Quota
from tests.benchmarks.end_to_end import message

POD = """
kind: Pod
metadata: {name: trainer, namespace: ml}
spec:
  schedulerName: hami-scheduler
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpucores: 50, nvidia.com/gpumem: 4096}}}
"""
NOW = datetime(2026, 11, 30, tzinfo=UTC)


async def test_replicas_are_placed_as_far_as_nodes_and_quota_go(
    bus: Bus, server: LocalServer, tmp_path, capsys
) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(POD)

    async def say(kind: str, *name_and_data) -> None:
        *name, data = name_and_data
        subject, payload, _ = message(subjects.state(kind, *name), "x", data, NOW)
        await bus.publisher.publish(subject, payload)

    async def simulate(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        command = ["simulate", "-f", str(manifest), "--nats", server.url, *arguments]
        code = await asyncio.to_thread(main, command)
        return (code, *capsys.readouterr())

    code, _, error = await simulate()
    assert (code, "no pool was known" in error) == (1, True)

    gpus = [GpuDevice(uuid=f"g{i}", index=i, model="A", tflops_milli=100_000, vram_bytes=1 << 34) for i in range(2)]
    await say("pool", "p", Pool(name="p"))
    await say("node", "n", Node(name="n", pool="p", cpu_milli=8000, memory_bytes=1 << 36, max_pods=100))
    await say("gpu", "n", GpuInventory(node="n", gpus=gpus, observed_at=NOW))
    code, shown, _ = await simulate("--replicas", "9", "--json")
    assert (code, len(json.loads(shown)["outcome"]["placed"])) == (1, 4)

    await say("quota", "ml", "q", Quota(namespace="ml", name="q", total=Budget(gpus=3)))
    code, shown, _ = await simulate("--replicas", "9", "--json")
    outcome = json.loads(shown)["outcome"]
    assert (code, len(outcome["placed"]), outcome["refusal"]["reason"]) == (1, 3, "QuotaExceeded")
    assert (await simulate("--replicas", "3"))[0] == 0
    assert (await simulate("--replicas", "9", "--seq", "1"))[0] == 2  # the ledger has no record yet

    manifest.write_text(POD.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 99999999999999999999999"))
    code, _, error = await simulate()
    assert (code, "is more than can be counted: write at most 9223372036854775807" in error) == (2, True)
