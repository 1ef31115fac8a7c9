"""What a deployment looks at: /metrics of every role, and the Grafana dashboard."""

import asyncio
import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec
import pytest

import deploy
from bus import codec, subjects
from bus.connection import Bus
from bus.exposition import render
from bus.follower import Record
from consumers.metrics.duckdb import MEMORY, DuckDBStore
from consumers.recorder import hami
from consumers.recorder.view import View
from deploy.local.exposition import exposed, served
from deploy.local.monitoring import ALERTMANAGER, METRICS, SettingError, alertmanagers, metrics_store
from deploy.local.roles import ROLES, alerter, recorder
from deploy.local.server import free_port
from schemas.cluster import GpuDevice, GpuInventory
from schemas.decision import GpuGrant
from schemas.event import Event
from schemas.hardware import MigInstance
from schemas.ledger import Allocation, NodeRecord
from schemas.quota import Budget, Quota
from schemas.registry import TYPE_NAMES
from tests.behaviour.test_recorder import Cluster, snapshot
from tests.conftest import eventually

DASHBOARD = json.loads(Path(deploy.__file__).with_name("grafana").joinpath("gpubus.json").read_text())


def queries() -> list[str]:
    found = [target["rawSql"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    return found + [v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]


async def test_every_query_of_the_dashboard_can_be_asked() -> None:
    store = await DuckDBStore(MEMORY, clock=time.time).open()
    assert len(queries()) > 20
    for sql in queries():
        text = sql.replace("$__timeFilter(ts)", "ts >= now() - '1h'::INTERVAL")
        text = re.sub(r"\$\{\w+:sqlstring\}", "'a', 'b'", text)
        assert "$" not in text
        await store.query(text, timeout=10)
    await store.close()


async def test_roles_serve_what_they_count_and_the_recorder_what_hami_calls_it(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(METRICS, f"duckdb:{tmp_path}/m.duckdb")
    await Cluster(bus).start()
    stop, ready = asyncio.Event(), [asyncio.Event() for _ in range(3)]
    plays = (ROLES["allocator"], recorder, alerter)
    tasks = [asyncio.create_task(play(bus, f"t{n}", stop, ready[n])) for n, play in enumerate(plays)]
    await eventually(lambda: all(event.is_set() for event in ready), 20)
    port = free_port()
    started = asyncio.Event()
    async with served(bus, port, started), httpx.AsyncClient() as client:
        probe = f"http://127.0.0.1:{port}/readyz"
        assert (await client.get(probe)).text == "still starting\n"
        started.set()
        assert (await client.get(probe)).status_code == 200
        with exposed("watcher", bus.statistics, unready=lambda: "not current: pods"):
            answer = await client.get(probe)
            assert (answer.status_code, answer.text) == (503, "watcher: not current: pods\n")
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        assert (await client.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
        (tmp_path / "m.duckdb").unlink()
        (tmp_path / "m.duckdb").mkdir()  # so that it cannot be made anew
        await snapshot(bus)
        async with asyncio.timeout(20):
            while (await client.get(probe)).status_code == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert "recorder: the metrics file" in (await client.get(probe)).text
    stop.set()
    await asyncio.gather(*tasks)
    for line in (
        "gpubus_connection_connected 1",
        "gpubus_allocator_decided 0",
        "gpubus_recorder_samples 0",
        "gpubus_alerter_rules 15",
        'hami_gpu_shared_count{zone="vGPU",node="n",device_uuid="GPU-0",device_index="0",device_type="NVIDIA-A100"} 1',
        (
            'hami_vgpu_core_allocated_ratio{zone="vGPU",namespace="d",node="n",pod="train-0",container_index="0",'
            'device_uuid="GPU-0"} 50'
        ),
    ):
        assert f"{line}\n" in text
    assert re.search(r'^hami_build_info\{version="[0-9.]+",.*,platform="linux/\w+"\} 1$', text, re.MULTILINE)
    assert 'hami_resource_quota_used{zone="vGPU",namespace="d",quota_name="nvidia.com/gpumem",limit="0"} 8192\n' in text


def test_hami_names_of_an_empty_cluster_are_left_out() -> None:
    assert render(hami.families(View())) == b""


def said(subject: str, data: msgspec.Struct) -> Record:
    kind = TYPE_NAMES[type(data)]
    event = Event(id="e", source="/t", type=kind, subject="s", time=datetime.now(UTC), data=data)
    return Record(subject, 1, codec.encode(event), deleted=False)


def test_quotas_and_mig_devices_have_hamis_names_and_units() -> None:
    view, now = View(), datetime.now(UTC)
    instance = MigInstance(
        uuid="MIG-1", profile="1g.10gb", gpu_instance=7, compute_instance=0, start=4, slots=2, vram_bytes=10 * 2**30
    )
    cut = GpuDevice(
        uuid="G",
        index=3,
        model="NVIDIA A100-SXM4-80GB",
        tflops_milli=312_000,
        vram_bytes=80 * 2**30,
        instances=(instance,),
    )
    old = GpuDevice(uuid="T", index=4, model="Tesla T4", tflops_milli=65_000, vram_bytes=16 * 2**30)
    view.on_state(said(subjects.state("gpu", "n"), GpuInventory(node="n", gpus=[cut, old], observed_at=now)))
    grant = GpuGrant(uuid="T", index=4, tflops_milli=32_500, vram_bytes=8 * 2**30)
    held = Allocation(pod_uid="u", namespace="ml", name="p", pool="", gpus=(grant, grant), compute_milli=1000)
    view.on_ledger(said(subjects.ledger_node("n"), NodeRecord(node="n", txn="t", allocations=(held,), changes=())))
    wide = Quota(namespace="ml", name="ResourceQuota/a", total=Budget(vram_bytes=64 * 2**30, compute_milli=4000))
    zero = Quota(namespace="ml", name="ResourceQuota/b", total=Budget(vram_bytes=20 * 2**30, gpus=0))
    view.on_state(said(subjects.state("quota", "ml", wide.name), wide))
    view.on_state(said(subjects.state("quota", "ml", zero.name), zero))
    lines = render(hami.families(view)).decode().splitlines()
    types = {re.search('device_type="([^"]+)"', line).group(1) for line in lines if "hami_gpu_shared_count{" in line}
    assert types == {"NVIDIA A100-SXM4-80GB", "NVIDIA-Tesla T4"}
    assert [line for line in lines if line.startswith(("hami_resource", "hami_node_gpu_mig"))] == [
        (
            'hami_node_gpu_mig_instance_info{zone="vGPU",node="n",device_uuid="G",device_index="3",mig_uuid="MIG-1",'
            'profile="1g.10gb",gpu_instance_id="7",compute_instance_id="0",placement_start="4",placement_size="2"} 1'
        ),
        'hami_resource_quota_used{zone="vGPU",namespace="ml",quota_name="nvidia.com/gpu",limit="0"} 2',
        'hami_resource_quota_used{zone="vGPU",namespace="ml",quota_name="nvidia.com/gpumem",limit="20480"} 16384',
        'hami_resource_quota_used{zone="vGPU",namespace="ml",quota_name="nvidia.com/gpucores",limit="400"} 100',
        'hami_resource_quota_limit{zone="vGPU",namespace="ml",quota_name="nvidia.com/gpu"} 0',
        'hami_resource_quota_limit{zone="vGPU",namespace="ml",quota_name="nvidia.com/gpumem"} 20480',
        'hami_resource_quota_limit{zone="vGPU",namespace="ml",quota_name="nvidia.com/gpucores"} 400',
    ]
    view.on_state(Record(subjects.state("quota", "ml", zero.name), 2, b"", deleted=True))
    assert b'limit="65536"' in render(hami.families(view))


async def test_roles_of_one_process_share_one_store_and_a_missing_name_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(METRICS, f"duckdb:{tmp_path}/m.duckdb")
    async with metrics_store() as first, metrics_store() as second:
        assert first is second
    async with metrics_store() as third:
        assert third is not first
    monkeypatch.setenv(METRICS, "mysql://u:secret@h")
    with pytest.raises(SettingError, match="GPUBUS_METRICS: metrics store 'h' is not understood"):
        await metrics_store().__aenter__()
    for addresses, problem in (("", "is not set: write every address"), ("http://a:1,b:2", "'b:2' needs http://")):
        monkeypatch.setenv(ALERTMANAGER, addresses)
        with pytest.raises(SettingError, match=problem):
            alertmanagers()
    monkeypatch.setenv(ALERTMANAGER, "http://a:9093/, http://b:9093")
    assert alertmanagers() == ["http://a:9093", "http://b:9093"]
    monkeypatch.delenv(METRICS)
    with pytest.raises(SettingError, match="GPUBUS_METRICS is not set: write where metrics are kept"):
        await metrics_store().__aenter__()
