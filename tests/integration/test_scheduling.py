"""The scheduler's configuration from a ConfigMap of a real API server to the decisions of a running allocator."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
import yaml

from bus import codec, history
from bus.connection import Bus
from bus.streams import DECISION
from consumers.allocator.engine import Policy
from deploy.local.server import LocalServer
from deploy.local.settings import SCHEDULER_CONFIG
from schemas.cluster import Pool
from schemas.decision import Decision
from schemas.placement import TopologyRules
from tests.integration.cluster import POOL, SYSTEM, Cluster, create_all, play_agents, tensorfusion_pod
from tests.integration.test_projections import said

pytestmark = pytest.mark.integration

NAME = "tensor-fusion-sys-config"
KEY = "scheduler-config.yaml"
REPLAY = (sys.executable, "-m", "deploy.cli.main", "replay", "--verify", "--json")


def config_map(workers: Any, **topology: Any) -> dict[str, Any]:
    plugins = [
        {"name": "GPUResourcesFit", "args": {"maxWorkerPerNode": workers, "vramWeight": 0.2, "tflopsWeight": 0.8}},
        *([{"name": "GPUNetworkTopologyAware", "args": topology}] if topology else []),
    ]
    written = {"profiles": [{"schedulerName": "tensor-fusion-scheduler", "pluginConfig": plugins}]}
    meta = {"name": NAME, "namespace": SYSTEM}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {KEY: yaml.safe_dump(written)}}


async def decided(bus: Bus, name: str, *, node: str = "", reason: str = "") -> Decision:
    """Wait until the newest decision about a pod says so, and return it."""
    found: list[Decision] = []
    try:
        async with asyncio.timeout(20):
            while True:
                records, _ = await history.newest(bus, DECISION, [f"gpubus.decision.default.{name}"])
                found = [codec.decode_as(Decision, record.payload).data for record in records]
                if found and (found[0].node, found[0].reason) == (node, reason):
                    return found[0]
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"about {name} it says {found}") from None


async def test_plugin_arguments_reach_a_running_allocator_and_its_decisions(
    cluster: Cluster, bus: Bus, server: LocalServer, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCHEDULER_CONFIG, f"configmap:{SYSTEM}/{NAME}/{KEY}")
    await cluster.add_pool()
    await cluster.add_nodes(["a"])
    await play_agents(bus, ["a"])
    await cluster.apply(config_map(1))
    try:
        await asyncio.gather(*map(start, ("allocator", "watcher", "binder")))
        pool = Pool(name=POOL, max_workers_per_node=1, vram_weight=20, tflops_weight=80, preemption="cluster")
        assert await said(bus, f"gpubus.state.pool.{POOL}", lambda found: found == pool)
        await create_all(cluster, [tensorfusion_pod("one")])
        first = await decided(bus, "one", node="a")
        assert first.policy_hash == Policy.of(pool).hash != Policy.of(Pool(name=POOL)).hash
        await create_all(cluster, [tensorfusion_pod("two")])
        await decided(bus, "two", reason="TooManyWorkers")

        # What cannot be read changes nothing; what can is followed by the processes that run, waiting pods included.
        await cluster.apply(config_map("many"))
        await cluster.apply(config_map(3, mode="hard", unknownTopologyPolicy="reject"))
        rules = TopologyRules(mode="hard", unknown_topology="reject")
        await said(bus, f"gpubus.state.pool.{POOL}", lambda found: found.topology == rules)
        await decided(bus, "two", node="a")
        # Nobody knows how near each other the GPUs of these agents are.
        await create_all(cluster, [tensorfusion_pod("pair", gpu_count="2")])
        await decided(bus, "pair", reason="GpusTooFarApart")
        await cluster.apply(config_map(3, mode="soft"))
        await decided(bus, "pair", node="a")
        replayed = await asyncio.to_thread(
            subprocess.run, [*REPLAY, "--nats", server.url], capture_output=True, text=True, check=False
        )
        found = json.loads(replayed.stdout)
        assert found["reproduced"] == found["decisions"] > 0
    finally:
        await cluster.delete("ConfigMap", NAME, SYSTEM)
