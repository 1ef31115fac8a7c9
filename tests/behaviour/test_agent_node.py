"""The agent and the rest of its node: the ledger, the kubelet, the directories of limiters, and who scrapes it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("grpclib", reason="install the extra `agent`")
pytest.importorskip("grpc", reason="install the test group")

from bus import codec, history, subjects
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.streams import CAPACITY, STATE, USAGE
from bus.tasks import end
from deploy.local.server import LocalServer
from producers.agent.options import AgentOptions
from producers.agent.outbox import MOST_EVENTS, Outbox, Outgoing
from producers.agent.service import Agent
from producers.agent.spokesman import Spokesman
from schemas.cluster import GpuDevice, GpuInventory
from schemas.decision import GpuGrant
from schemas.event import Event
from schemas.ledger import Allocation, NodeRecord
from schemas.observed import Drift, PodNotice
from schemas.pod import GpuRequest, Pod
from schemas.registry import TYPE_NAMES
from schemas.usage import NodeUsage
from tests.conftest import eventually
from tests.nvml.kubelet import Response, kubelet, pod

NODE = "n1.example"
GIB = 2**30
UID = "2c48913c-b29f-41e7-9350-020968147796"
AT = datetime(2026, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def running(agent: Agent) -> AsyncIterator[None]:
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(agent.run(stop, ready=ready))
    await asyncio.wait([task, asyncio.create_task(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 5)


async def say(bus: Bus, subject: str, data: msgspec.Struct, event_id: str) -> None:
    event = Event(id=event_id, source="/test", type=TYPE_NAMES[type(data)], subject="s", time=AT, data=data)
    await bus.publisher.publish(subject, codec.encode(event), msg_id=event_id)


async def hold(bus: Bus, txn: str, *allocations: Allocation) -> None:
    record = NodeRecord(node=NODE, txn=txn, allocations=allocations, changes=())
    await say(bus, subjects.ledger_node(NODE), record, txn)


async def scrape(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_the_node_follows_its_ledger_and_its_kubelet(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producers.agent.kubelet.EVERY_S", 0.2)
    said: dict[type, list] = {GpuInventory: [], NodeUsage: [], Drift: []}

    def hear(record: Record) -> None:
        heard = codec.decode(record.payload).data
        said.setdefault(type(heard), []).append(heard)

    followers = [Follower(bus, stream, ["gpubus.>"], hear) for stream in (STATE, USAGE, CAPACITY)]
    for follower in followers:
        await follower.start()
    socket, workers = tmp_path / "kubelet.sock", tmp_path / "vgpu"
    options = AgentOptions(
        node=NODE,
        gpus="simulated:2xA100-80G",
        every_s=0.05,
        heartbeat_s=0.2,
        pod_resources=socket,
        workers=workers,
        metrics_port=0,
    )
    agent = Agent(bus, options)
    handed: list[bytes] = [b""]
    with kubelet(socket, lambda _: handed[0]):
        async with running(agent):
            await eventually(lambda: bool(said[GpuInventory]) and agent._observer.kubelet.up)
            first, second = (gpu.uuid for gpu in said[GpuInventory][-1].gpus)
            assert said[GpuInventory][-1].valid_s == 1
            await eventually(lambda: [gpu.used_by for gpu in said[GpuInventory][-1].gpus] == ["", ""])
            grant = GpuGrant(uuid=first, index=0, tflops_milli=156_000, vram_bytes=20 * GIB)
            held = Allocation(pod_uid=UID, namespace="ml", name="train", pool="p", gpus=(grant,))
            request = GpuRequest(pool="p", compute_milli=500, vram_bytes=20 * GIB, container_names=("main",))
            pod_state = Pod(namespace="ml", name="train", uid=UID, resource_version="1", request=request)
            await say(bus, subjects.state("pod", "ml", "train"), pod_state, "pod")
            await hold(bus, "t1", held)
            await eventually(lambda: bool(said[NodeUsage][-1].gpus[0].processes))
            (process,) = said[NodeUsage][-1].gpus[0].processes
            assert (process.pod_uid, process.foreign) == (UID, False)
            await eventually((workers / "containers" / f"{UID}_main").is_dir)
            await eventually(lambda: agent.metrics_port is not None)
            text = await scrape(agent.metrics_port or 0)
            labels = f'namespace="ml",pod="train",container="main",vdevice_index="0",device_uuid="{first}",zone="vGPU"'
            host = f'node="{NODE}",device_index="1",device_uuid="{second}",device_type="NVIDIA-A100-80G",zone="vGPU"'
            assert f"hami_vgpu_memory_limit_bytes{{{labels}}} {20 * GIB}\n" in text
            assert f"hami_vgpu_memory_used_bytes{{{labels}}} {process.vram_bytes}\n" in text
            assert f"hami_host_gpu_memory_used_bytes{{{host}}} 0\n" in text
            assert f'gpubus_gpu_healthy{{node="{NODE}",gpu="{first}",index="0",model="A100-80G"}} 1\n' in text
            assert "gpubus_agent_bus_up 1\n" in text
            assert "\ngpubus_agent_messages_lost_total " in text
            await bus.publisher.publish(subjects.ledger_node(NODE), b"{nonsense")  # nothing is let go on its word
            await hold(bus, "t2")
            await eventually(lambda: not (workers / "containers" / f"{UID}_main").exists())
            await eventually(lambda: not said[NodeUsage][-1].gpus[0].processes)
            handed[0] = Response(pod_resources=[pod("x", "y", "z", "nvidia.com/gpu", [second])]).SerializeToString()
            await eventually(lambda: said[GpuInventory][-1].gpus[1].used_by == "nvidia-device-plugin")
            assert [drift.kind for drift in said[Drift]] == ["ForeignAllocation"]
            handed[0] = Response(pod_resources=[pod("x", "y", "z", "nvidia.com/gpu", ["GPU-9"])]).SerializeToString()
            strange = "nvidia.com/gpu GPU-9"  # it may be any of them
            await eventually(lambda: [gpu.used_by for gpu in said[GpuInventory][-1].gpus] == [strange, strange])
    for follower in followers:
        await follower.stop()


async def test_an_outbox_keeps_the_newest_state_and_bounded_events_and_counts_the_rest(
    bus: Bus, server: LocalServer
) -> None:
    outbox = Outbox(bus)
    task = asyncio.create_task(outbox.run())
    server.kill()
    await eventually(lambda: not bus.client.is_connected)
    for number in range(1, 4):
        outbox.state(Outgoing("gpubus.usage.gpu.n", str(number).encode(), f"u{number}"))
        outbox.state(Outgoing("gpubus.state.gpu.n", str(number).encode(), f"s{number}"))
    for number in range(MOST_EVENTS + 5):
        outbox.event(Outgoing("gpubus.drift.n", str(number).encode(), f"d{number}"))
    assert outbox.waiting <= MOST_EVENTS + 4
    await server.start()
    await outbox.drain(20.0)
    assert (outbox.waiting, outbox.lost) == (0, 4 + 5)
    assert outbox.sent == MOST_EVENTS + 2
    seen: list[Record] = []
    for stream in (USAGE, STATE):
        follower = Follower(bus, stream, ["gpubus.*.gpu.>"], seen.append)
        await follower.start()
        await follower.stop()
    assert [record.payload for record in seen] == [b"3", b"3"]
    await end(task)


async def test_a_pod_that_was_placed_before_anybody_knew_is_told_of_its_failed_gpu_once(bus: Bus) -> None:
    outbox = Outbox(bus)
    spokesman = Spokesman(outbox, heartbeat_s=3600.0)

    def say(*names: str, healthy: bool) -> None:
        gpu = GpuDevice(uuid="GPU-1", index=0, model="A100", tflops_milli=1, vram_bytes=1, healthy=healthy)
        grants = (GpuGrant(uuid="GPU-1", index=0, tflops_milli=1, vram_bytes=1),)
        held = [Allocation(pod_uid=name, namespace="d", name=name, pool="p", gpus=grants) for name in names]
        spokesman.say(GpuInventory(node=NODE, gpus=[gpu], observed_at=AT), held)

    for healthy, names in ((True, "a"), (False, "a"), (False, "ab"), (False, "ab"), (True, "ab"), (True, "abc")):
        say(*names, healthy=healthy)
    task = asyncio.create_task(outbox.run())
    await outbox.drain(20.0)
    await end(task)
    told: list[tuple[str, str]] = []

    def keep(record: Record) -> None:
        notice = codec.decode_as(PodNotice, record.payload).data
        told.append((notice.name, notice.reason))

    await history.read(bus, CAPACITY, ["gpubus.notice.>"], keep)
    assert told[:2] == [("a", "GpuUnhealthy"), ("b", "GpuUnhealthy")]
    assert sorted(told[2:]) == [("a", "GpuRecovered"), ("b", "GpuRecovered")]
