"""The agent in a process of its own, with the real ``pynvml`` over a stand-in library, a real bus and a real allocator."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pynvml", reason="install the extra `agent`")

from bus import codec, subjects
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.streams import CAPACITY, DECISION, STATE, USAGE
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer
from schemas.cluster import GpuInventory, Node, Pool
from schemas.decision import Decision
from schemas.event import Event
from schemas.observed import Drift, PodNotice
from schemas.pod import GpuRequest, Schedule
from schemas.reasons import GPU_UNHEALTHY
from schemas.registry import TYPE_NAMES
from schemas.usage import NodeUsage
from tests.conftest import eventually
from tests.nvml.fixtures import Play, nvml_library, play
from tests.nvml.library import GIB, Scenario, h100s, uuid

__all__ = ["nvml_library", "play"]

NODE = "gpu-1.rack-2"
POOL = Pool(name="p")


class World:
    """Everything that is said, and a cluster of one node."""

    def __init__(self, bus: Bus, host: Path) -> None:
        self.bus = bus
        self.host = host
        self.inventories: list[GpuInventory] = []
        self.usages: list[NodeUsage] = []
        self.decisions: list[Decision] = []
        self.drifts: list[Drift] = []
        self.notices: list[PodNotice] = []
        filters = {
            STATE: "gpubus.state.gpu.*",
            USAGE: "gpubus.usage.>",
            DECISION: "gpubus.decision.>",
            CAPACITY: "gpubus.>",
        }
        self._followers = [Follower(bus, stream, [what], self._hear) for stream, what in filters.items()]

    async def start(self) -> None:
        for follower in self._followers:
            await follower.start()
        await self.say(subjects.state("pool", POOL.name), POOL, "pool")
        await self.say(subjects.state("node", NODE), Node(name=NODE, pool=POOL.name, max_pods=99), "node")

    def _hear(self, record: Record) -> None:
        heard: Any = codec.decode(record.payload).data
        for kind, kept in (
            (GpuInventory, self.inventories),
            (NodeUsage, self.usages),
            (Decision, self.decisions),
            (Drift, self.drifts),
            (PodNotice, self.notices),
        ):
            if isinstance(heard, kind):
                kept.append(heard)

    async def say(self, subject: str, data: msgspec.Struct, event_id: str) -> None:
        kind = TYPE_NAMES[type(data)]
        event = Event(id=event_id, source="/test", type=kind, subject="s", time=datetime.now(UTC), data=data)
        await self.bus.publisher.publish(subject, codec.encode(event), msg_id=event_id)

    async def ask(self, pod: str, **request: Any) -> Decision:
        """Have a pod placed, and return what the allocator decides first."""
        wanted = GpuRequest(pool=POOL.name, **({"compute_milli": 100, "vram_bytes": GIB} | request))
        command = Schedule(namespace="ml", name=pod, uid=pod, request=wanted)
        await self.say(subjects.work("schedule", POOL.name), command, f"{pod}:schedule")
        await eventually(lambda: any(d.pod_uid == pod for d in self.decisions))
        return next(d for d in self.decisions if d.pod_uid == pod)

    def usable(self) -> list[bool]:
        """Whether each GPU may take new pods."""
        return [gpu.healthy and not gpu.used_by for gpu in self.inventories[-1].gpus] if self.inventories else []

    def process(self, pid: int, pod: str) -> None:
        """Have the host run a process, of a pod or of nobody."""
        directory = self.host / "proc" / str(pid)
        directory.mkdir(parents=True)
        path = f"/kubepods/burstable/pod{pod}/{'a' * 64}" if pod else "/system.slice/x.service"
        (directory / "cgroup").write_text(f"0::{path}\n")
        (directory / "stat").write_text(f"{pid} (python) S {' '.join(['0'] * 18)} 12345 0 0\n")


@pytest.fixture
async def world(bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    world = World(bus, tmp_path / "host")
    await world.start()
    yield world
    for follower in world._followers:
        await follower.stop()


@asynccontextmanager
async def running(*processes: RoleProcess) -> AsyncIterator[None]:
    try:
        for process in processes:
            await process.start()
        yield
    finally:
        await asyncio.gather(*(process.stop() for process in processes))


@pytest.fixture
def agent(
    server: LocalServer, nvml_library: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RoleProcess]:
    """An agent that finds the stand-in library as it would find the real one."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))

    def make(*arguments: str) -> RoleProcess:
        quick = ("--every", "0.1", "--heartbeat", "0.3", "--deadline", "0.5", "--xid-settle", "0.5", "--metrics", "-1")
        place = ("--node", NODE, "--host", str(world.host), "--kubelet", "")
        return RoleProcess("agent", [server.url], *quick, *place, *arguments)

    return make


async def test_a_gpu_that_fails_takes_no_new_pod_tells_its_pods_and_comes_back(
    world: World, play: Play, agent: Callable[..., RoleProcess], server: LocalServer
) -> None:
    scenario = play(h100s(2))
    scenario.gpus[1]["name"] = "NVIDIA H200"  # so that a pod can choose
    scenario.write()
    h100 = {"models": ("NVIDIA H100 80GB HBM3",)}
    async with running(agent(), RoleProcess("allocator", [server.url])):
        await eventually(lambda: world.usable() == [True, True])
        first = await world.ask("first", **h100)
        assert (first.outcome, first.gpus[0].uuid) == ("allocated", uuid(0))
        failed_at = asyncio.get_running_loop().time()
        scenario.gpus[0]["fields"]["230"] = 1
        scenario.fault(0, 79)
        await eventually(lambda: world.usable() == [False, True], 5.0)
        refused = await world.ask("second", **h100)
        assert asyncio.get_running_loop().time() - failed_at < 5.0
        assert refused.outcome == "unschedulable"
        assert [report.gpus for report in refused.filters if report.reason == GPU_UNHEALTHY] == [1]
        elsewhere = await world.ask("third")
        assert [gpu.uuid for gpu in elsewhere.gpus] == [uuid(1)]
        await eventually(lambda: bool(world.notices))
        (notice,) = world.notices
        assert (notice.name, notice.reason, notice.uuid) == ("first", "GpuUnhealthy", uuid(0))
        assert "XID 79: GPU has fallen off the bus" in notice.message
        scenario.gpus[0]["fields"]["230"] = 0
        scenario.write()
        await eventually(lambda: world.usable() == [True, True])
        await eventually(lambda: any((d.name, d.outcome) == ("second", "allocated") for d in world.decisions))
        await eventually(lambda: [n.reason for n in world.notices] == ["GpuUnhealthy", "GpuRecovered"])
        assert len(world.inventories[-1].gpus[0].troubles) == 0


def hang(scenario: Scenario) -> None:
    scenario.world["hang"] = "nvmlDeviceGetTemperature"


def fall_off(scenario: Scenario) -> None:
    scenario.gpus[1]["lost"] = True


def restart_driver(scenario: Scenario) -> None:
    scenario.world |= {"generation": 2, "init": 9}


def answer_nonsense(scenario: Scenario) -> None:
    scenario.gpus[1]["errors"] = {"nvmlDeviceGetMemoryInfo_v2": 999}


def fail_to_enumerate(scenario: Scenario) -> None:
    scenario.world |= {"generation": 2, "errors": {"nvmlDeviceGetCount_v2": 999}}


BREAKAGES = {
    hang: ("DriverHung", [False, False]),
    fall_off: ("Lost", [True, False]),
    restart_driver: ("DriverError", [False, False]),
    answer_nonsense: ("Lost", [True, False]),
    fail_to_enumerate: ("DriverError", [False, False]),
}


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.__name__)
async def test_no_scenario_stops_the_agent(
    world: World, play: Play, agent: Callable[..., RoleProcess], breakage: Callable[[Scenario], None]
) -> None:
    problem, expected = BREAKAGES[breakage]
    scenario = play(h100s(2))
    whole = msgspec.json.encode(scenario.world)
    async with running(agent()):
        await eventually(lambda: world.usable() == [True, True] and bool(world.usages))
        breakage(scenario)
        scenario.write()
        await eventually(lambda: world.usable() == expected)
        said = len(world.inventories)
        for gpu in world.inventories[-1].gpus:
            assert not gpu.used_by
            assert (problem in [trouble.problem for trouble in gpu.troubles]) is not gpu.healthy
        await eventually(lambda: len(world.inventories) > said + 1)  # heartbeats go on
        scenario.world = msgspec.json.decode(whole) | {"generation": scenario.world["generation"]}
        scenario.write()
        await eventually(lambda: world.usable() == [True, True])
        used = len(world.usages)
        await eventually(lambda: len(world.usages) > used)


async def test_an_xid_storm_is_one_change(world: World, play: Play, agent: Callable[..., RoleProcess]) -> None:
    scenario = play(h100s(2))
    async with running(agent("--heartbeat", "30")):
        await eventually(lambda: world.usable() == [True, True])
        scenario.fault(1, 31, times=500)
        scenario.fault(1, 94, times=500)
        await eventually(lambda: world.usable() == [True, False])
        said = len(world.inventories)
        used = len(world.usages)
        await eventually(lambda: len(world.usages) > used + 3)
        assert len(world.inventories) == said


async def test_foreign_processes_are_published_and_their_gpu_avoided(
    world: World, play: Play, agent: Callable[..., RoleProcess], server: LocalServer
) -> None:
    scenario = play(h100s(2))
    stranger = "11111111-2222-4333-8444-555555555555"
    world.process(101, stranger)
    async with running(agent(), RoleProcess("allocator", [server.url])):
        await eventually(lambda: world.usable() == [True, True])
        scenario.gpus[0]["processes"] = [{"pid": 101, "memory": 2 * GIB, "sm": 33}]
        scenario.write()
        await eventually(lambda: world.inventories[-1].gpus[0].used_by == f"pod {stranger}")
        (sample, _) = world.usages[-1].gpus
        (process,) = sample.processes
        assert (process.pod_uid, process.vram_bytes, process.foreign) == (stranger, 2 * GIB, True)
        assert [d.uuid for d in (await world.ask("ours")).gpus] == [uuid(1)]
        (drift,) = world.drifts
        assert (drift.kind, drift.gpu, drift.pod_uid, drift.resolved) == ("UnmanagedUse", uuid(0), stranger, False)
        scenario.gpus[0]["processes"] = []
        scenario.write()
        await eventually(lambda: world.inventories[-1].gpus[0].used_by == "")
        await eventually(lambda: [d.resolved for d in world.drifts] == [False, True])


async def test_a_bus_that_is_away_costs_old_samples_only(
    world: World, play: Play, agent: Callable[..., RoleProcess], server: LocalServer
) -> None:
    scenario = play(h100s(1))
    async with running(agent()):
        await eventually(lambda: bool(world.usages))
        server.kill()
        scenario.fault(0, 79)
        await server.start()
        await eventually(lambda: world.usable() == [False], 20.0)
        used = len(world.usages)
        await eventually(lambda: len(world.usages) > used)


async def test_a_restart_of_the_agent_cures_nothing(
    world: World, play: Play, agent: Callable[..., RoleProcess]
) -> None:
    scenario = play(h100s(2))
    del scenario.gpus[0]["fields"]["230"]
    scenario.write()
    process = agent()
    async with running(process):
        await eventually(lambda: world.usable() == [True, True])
        scenario.fault(0, 79)
        await eventually(lambda: world.usable() == [False, True])
        await process.kill()
        world.process(101, "")  # while nobody looks, somebody takes the other GPU
        scenario.gpus[1]["processes"] = [{"pid": 101, "memory": GIB}]
        scenario.write()
        said = len(world.inventories)
        await process.start()
        await eventually(lambda: world.inventories[-1].gpus[1].used_by == "processes of the host")
        assert all(gpu.used_by for inventory in world.inventories[said:] for gpu in inventory.gpus[1:])
        assert not any(inventory.gpus[0].healthy for inventory in world.inventories[said:])
