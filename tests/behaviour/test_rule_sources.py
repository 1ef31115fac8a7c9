"""From what a GPU does to the alert: the agent's counters, through recorder and tables, make the rules about workers fire."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pynvml", reason="install the extra `agent`")

from bus import codec, subjects
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.streams import ALERT
from consumers.alerter.rulebook import built_in
from consumers.alerter.service import Alerter
from consumers.alerter.sources import FileSource
from consumers.metrics.duckdb import MEMORY, DuckDBStore
from consumers.recorder.service import Recorder
from deploy.local.processes import RoleProcess
from schemas.alert import AlertNotice
from schemas.decision import GpuGrant
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import GpuRequest, Pod
from tests.behaviour.test_agent import NODE, World, agent, running, world
from tests.conftest import eventually
from tests.nvml.fixtures import Play, nvml_library, play
from tests.nvml.library import GIB, h100s, uuid

__all__ = ["agent", "nvml_library", "play", "world"]

BUSY = "11111111-2222-4333-8444-555555555555"
CALM = "2c48913c-b29f-41e7-9350-020968147796"
PIDS = {BUSY: 101, CALM: 102}
RULES = {"WorkerTFlopsThrottled": 2, "WorkerVRAMSwitchCountIncreasing": 3}
"""The two rules with the seconds that stand for their intervals here."""


def rules(path: Path) -> Path:
    found = [rule for rule in built_in().rules if rule.name in RULES]
    quick = [msgspec.structs.replace(rule, evaluation_interval=f"{RULES[rule.name]}s") for rule in found]
    path.write_bytes(msgspec.yaml.encode({"alertRules": msgspec.to_builtins(quick)}))
    return path


@asynccontextmanager
async def alerting(bus: Bus, path: Path) -> AsyncIterator[tuple[list[AlertNotice], DuckDBStore]]:
    """Recorder and alerter; yields what they tell."""
    notices: list[AlertNotice] = []

    def hear(record: Record) -> None:
        notices.append(codec.decode_as(AlertNotice, record.payload).data)

    follower = Follower(bus, ALERT, ["gpubus.alert.>"], hear)
    await follower.start()
    store, stop = await DuckDBStore(MEMORY, clock=time.time).open(), asyncio.Event()
    roles = (Recorder(bus, "r", store), Alerter(bus, "a", store, rules=FileSource(path)))
    tasks = [asyncio.create_task(role.run(stop)) for role in roles]
    try:
        yield notices, store
    finally:
        stop.set()
        await asyncio.gather(*tasks)
        await follower.stop()
        await store.close()


async def place(world: World) -> None:
    """Have both pods on GPUs of their own, each with half of one's compute as its limit."""
    allocations = []
    for index, uid in enumerate(PIDS):
        request = GpuRequest(pool="p", compute_milli=100, compute_limit_milli=500, vram_bytes=2 * GIB)
        pod = Pod(namespace="ml", name=f"w{index}", uid=uid, resource_version="1", request=request, phase="Running")
        await world.say(subjects.state("pod", "ml", pod.name), pod, f"pod:{uid}")
        grant = GpuGrant(uuid=uuid(index), index=index, tflops_milli=100_000, vram_bytes=2 * GIB)
        allocations.append(Allocation(pod_uid=uid, namespace="ml", name=pod.name, pool="p", gpus=(grant,)))
        world.process(PIDS[uid], uid)
    record = NodeRecord(node=NODE, txn="t", allocations=tuple(allocations), changes=())
    await world.say(subjects.ledger_node(NODE), record, "ledger")


@pytest.mark.slow
async def test_workers_at_their_limit_and_workers_that_switch_vram_ring_and_others_do_not(
    world: World, play: Play, agent: Callable[..., RoleProcess], tmp_path: Path
) -> None:
    scenario = play(h100s(2))
    on_gpu = [{"pid": pid, "memory": GIB, "sm": sm} for pid, sm in ((101, 49), (102, 40))]
    for gpu, process in zip(scenario.gpus, on_gpu, strict=True):
        gpu["processes"] = [process]
    scenario.write()
    await place(world)
    async with running(agent("--every", "0.2")), alerting(world.bus, rules(tmp_path / "r.yaml")) as (notices, store):

        def rang(rule: str) -> set[tuple[str, str]]:
            told = [alert for notice in notices if notice.rule == rule for alert in notice.alerts]
            return {(alert.status, alert.labels["instance"]) for alert in told}

        await eventually(lambda: bool(rang("WorkerTFlopsThrottled")), 30)
        assert rang("WorkerTFlopsThrottled") == {("firing", f"{BUSY}-{uuid(0)}")}
        assert not rang("WorkerVRAMSwitchCountIncreasing")
        scenario.gpus[0]["processes"] = []  # frozen: it is off the GPU, and lives
        scenario.write()
        await eventually(lambda: any(p.vram_frozen_count == 1 and not p.pids for p in seen(world)))
        await eventually(lambda: ("resolved", f"{BUSY}-{uuid(0)}") in rang("WorkerTFlopsThrottled"), 30)
        assert not rang("WorkerVRAMSwitchCountIncreasing")
        scenario.gpus[0]["processes"] = [{"pid": 101, "memory": GIB, "sm": 10}]
        scenario.write()
        await eventually(lambda: bool(rang("WorkerVRAMSwitchCountIncreasing")), 30)
        assert rang("WorkerVRAMSwitchCountIncreasing") == {("firing", f"{BUSY}-{uuid(0)}")}
        await eventually(lambda: len(rang("WorkerVRAMSwitchCountIncreasing")) == 2, 30)  # it stays: over
        sql = "SELECT max(vram_freezed_cnt) AS f, max(vram_resumed_cnt) AS r FROM tf_worker_usage WHERE worker = "
        assert (await store.query(f"{sql}'{BUSY}'", timeout=5)).rows == [(1, 1)]
        assert (await store.query(f"{sql}'{CALM}'", timeout=5)).rows == [(0, 0)]


def seen(world: World) -> list:
    return [process for gpu in world.usages[-1].gpus for process in gpu.processes] if world.usages else []
