"""Which oversell ratio a history would have borne: against a plain recount, out of a real store."""

import asyncio
import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from consumers.metrics.duckdb import DuckDBStore
from consumers.metrics.tables import WORKER_RESOURCES, WORKER_USAGE
from consumers.scaler.oversell import LEAST_POINTS, Counts, advise
from deploy.cli.main import main


def points(parts: list[float]) -> Counts:
    counts = Counts()
    for part in parts:
        counts.add(part * 70, 70)
    return counts


def test_the_ratio_is_what_all_but_the_risk_would_have_borne():
    dice = random.Random(3)
    parts = [dice.betavariate(2, 6) for _ in range(5000)]
    for risk in (0.0, 0.01, 0.1):
        found = advise(points(parts), points(parts), risk)
        bearable = 100 / sorted(parts)[len(parts) - 1 - math.floor(risk * len(parts))]
        assert bearable * 0.98 <= found.tflops_ratio <= bearable
        overloaded = sum(part * found.tflops_ratio / 100 > 1 for part in parts)
        assert overloaded <= risk * len(parts)


def test_too_little_history_gives_no_advice_and_idle_pods_bear_the_most():
    assert advise(points([0.5] * (LEAST_POINTS - 1)), points([0.5] * LEAST_POINTS), 0.01) is None
    idle = advise(points([0.0] * LEAST_POINTS), points([1.5] * LEAST_POINTS), 0.01)
    assert (idle.tflops_ratio, idle.vram_ratio) == (100_000, 100)


async def record(path: Path, minutes: int) -> None:
    """A GPU that two pods share: they ask for 100 TFLOPS each and use a tenth and three tenths of it."""
    store = await DuckDBStore(path, clock=lambda: datetime.now(UTC).timestamp()).open()
    start = datetime.now(UTC) - timedelta(minutes=minutes)
    used, asked = [], []
    for minute in range(minutes):
        ts = int((start + timedelta(minutes=minute)).timestamp() * 1000)
        for pod, tflops in (("a", 10.0), ("b", 30.0)):
            used.append(
                WORKER_USAGE.row(
                    ts, uuid="GPU-1", node="n", pool="shared", pod_name=pod, namespace="ml", worker=f"uid-{pod}",
                    workload=pod, compute_tflops=tflops, memory_bytes=4 << 30,
                )
            )  # fmt: skip
            asked.append(
                WORKER_RESOURCES.row(
                    ts, namespace="ml", pool="shared", qos="high", worker=pod, workload=pod, tflops_request=100.0,
                    vram_bytes_request=float(8 << 30),
                )
            )  # fmt: skip
    await store.write({WORKER_USAGE: used, WORKER_RESOURCES: asked})
    await store.close()


async def test_the_command_reads_the_metrics_store(tmp_path, monkeypatch, capsys):
    path = tmp_path / "metrics.duckdb"
    await record(path, LEAST_POINTS + 100)
    monkeypatch.setenv("GPUBUS_METRICS", f"duckdb:{path}")

    async def ask(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ("plan", "--from-history", *arguments))
        return (code, *capsys.readouterr())

    code, out, err = await ask("shared", "--json")
    assert code == 0, err
    found = msgspec.json.decode(out)
    assert 490 <= found["tflops_ratio"] <= 500
    assert 195 <= found["vram_ratio"] <= 200
    code, out, _ = await ask("shared", "--risk", "0.05")
    assert "tflopsOversellRatio" in out
    code, _, err = await ask("other")
    assert (code, "pool other has 0 recorded minutes" in err) == (1, True)
    code, _, err = await ask("shared", "--risk", "2")
    assert (code, "--risk is 2" in err) == (2, True)
    code, _, err = await ask("shared", "--pods", "3")
    assert (code, "drop --pods" in err) == (2, True)


def test_the_store_must_be_named(monkeypatch, capsys):
    monkeypatch.delenv("GPUBUS_METRICS", raising=False)
    assert main(("plan", "--from-history", "shared")) != 0
    assert "GPUBUS_METRICS is not set" in capsys.readouterr().err
