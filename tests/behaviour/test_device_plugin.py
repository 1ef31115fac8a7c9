"""GPUs that the native device plugin has given out are no pod's of ours, from the kubelet's word to the ledger."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("grpclib", reason="install the extra `agent`")
pytest.importorskip("grpc", reason="install the test group")

from bus import codec, history, subjects
from bus.connection import Bus
from bus.streams import DECISION, LEDGER, STATE
from consumers.allocator.service import Allocator
from deploy.local.audit import audit
from producers.agent.options import AgentOptions
from producers.agent.service import Agent
from schemas.cluster import GpuInventory, Node, Pool
from schemas.decision import Decision
from schemas.ledger import NodeRecord
from schemas.pod import GpuRequest, Pod
from tests.behaviour.test_agent_node import GIB, NODE, running, say
from tests.nvml.kubelet import Response, kubelet, pod

PODS = 5


async def newest(bus: Bus, stream: str, subject: str, kind: type) -> list:
    records, _ = await history.newest(bus, stream, [subject])
    return [codec.decode_as(kind, record.payload).data for record in records if not record.deleted]


async def all_of(bus: Bus, stream: str, subject: str, kind: type) -> list:
    records: list[history.Record] = []
    await history.read(bus, stream, [subject], records.append)
    return [codec.decode_as(kind, record.payload).data for record in records if not record.deleted]


async def until(bus: Bus, stream: str, subject: str, kind: type, holds) -> list:
    async with asyncio.timeout(20):
        while True:
            if holds(found := await newest(bus, stream, subject, kind)):
                return found
            await asyncio.sleep(0.02)


async def test_a_gpu_of_the_device_plugin_is_never_allocated_and_is_when_it_is_given_back(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producers.agent.kubelet.EVERY_S", 0.1)
    socket, gpus = tmp_path / "kubelet.sock", subjects.state("gpu", NODE)
    options = AgentOptions(
        node=NODE, gpus="simulated:2xA100-80G", every_s=0.05, heartbeat_s=0.2, pod_resources=socket, metrics_port=0
    )
    await say(bus, subjects.state("pool", "p"), Pool(name="p"), "pool")
    node = Node(name=NODE, pool="p", cpu_milli=64_000, memory_bytes=512 * GIB)
    await say(bus, subjects.state("node", NODE), node, "node")
    handed = [b""]
    stop, ready = asyncio.Event(), asyncio.Event()
    with kubelet(socket, lambda _: handed[0]):
        agent = Agent(bus, options)
        async with running(agent):
            (seen,) = await until(bus, STATE, gpus, GpuInventory, lambda all_: all_ and len(all_[0].gpus) == 2)
            ours, plugins = (gpu.uuid for gpu in seen.gpus)
            handed[0] = Response(pod_resources=[pod("x", "y", "z", "nvidia.com/gpu", [plugins])]).SerializeToString()
            await until(
                bus, STATE, gpus, GpuInventory,
                lambda all_: [gpu.used_by for gpu in all_[0].gpus] == ["", "nvidia-device-plugin"],
            )  # fmt: skip
            allocator = Allocator(bus, "a")
            deciding = asyncio.create_task(allocator.run(stop, ready=ready))
            await ready.wait()
            for number in range(PODS):
                request = GpuRequest(pool="p", compute_milli=500, vram_bytes=20 * GIB)
                one = Pod(namespace="ml", name=f"p{number}", uid=f"u{number}", resource_version="1", request=request)
                await say(bus, subjects.state("pod", "ml", one.name), one, f"pod:{number}")
                await say(bus, subjects.work("schedule", "p"), one.command(), f"schedule:{number}")
            await until(bus, DECISION, "gpubus.decision.>", Decision, lambda all_: len(all_) == PODS)
            decided = await all_of(bus, DECISION, "gpubus.decision.>", Decision)
            placed = [one for one in decided if one.outcome == "allocated"]
            assert [grant.uuid for one in placed for grant in one.gpus] == [ours, ours]
            waiting = [one for one in decided if one.outcome == "unschedulable"]
            assert len(waiting) == PODS - 2
            assert "GpuUsedByForeignAllocator" in {removal.reason for one in waiting for removal in one.filters}

            handed[0] = b""  # its pod is gone
            await until(
                bus, LEDGER, subjects.ledger_node(NODE), NodeRecord, lambda all_: all_ and len(all_[0].allocations) == 4
            )
            (record,) = await newest(bus, LEDGER, subjects.ledger_node(NODE), NodeRecord)
            held = sorted(grant.uuid for one in record.allocations for grant in one.gpus)
            assert held == sorted([ours, ours, plugins, plugins])
            stop.set()
            await deciding
    report = await audit(bus)
    assert not report.violations
