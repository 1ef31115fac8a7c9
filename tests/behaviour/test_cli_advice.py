"""``gpubus advice`` against a real nats-server."""

import asyncio
import json
from datetime import UTC, datetime

from bus import subjects
from bus.codec import encode
from bus.connection import Bus
from consumers.scaler.uses import Uses
from deploy.cli.main import main
from schemas.capacity import PoolCapacity, Shape, Shortage, Size
from schemas.dialects.tf_defaults import GpuAmounts, GpuResources
from schemas.event import Event
from schemas.scaling import Advice, WorkloadUse

AT = datetime(2026, 3, 1, tzinfo=UTC)
ADVICE = Advice(
    source="percentile",
    resources=GpuResources(
        requests=GpuAmounts(tflops_milli=12_500, vram_bytes=3 << 30), limits=GpuAmounts(compute_milli=500)
    ),
    reason="from 10 samples of 3600 s",
)


async def test_advice_is_shown_for_people_and_for_programs(bus: Bus, server, capsys) -> None:
    async def ask(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ("advice", *arguments, "--nats", server.url))
        return (code, *capsys.readouterr())

    code, out, _ = await ask()
    assert (code, out) == (
        0,
        "no workload has requests that follow anything; `gpubus run scaler` looks at those that do\n",
    )
    uses = Uses(bus, "/test")
    use = WorkloadUse(namespace="ml", workload="bert.v1", uid="u", until=AT, samples=10, advice=ADVICE)
    assert await uses.replace(0, use)
    assert not await uses.replace(0, use)  # somebody else came first
    await bus.publisher.publish(subjects.state("use", "ml", "broken"), b"no event")
    code, out, err = await ask()
    assert code == 0
    assert "12.5 TFLOPS, 3 GiB" in out
    assert "50 %" in out
    assert "from 10 samples" in out
    assert "gpubus.state.use.ml.broken" in err
    code, out, _ = await ask("ml/bert.v1", "--json")
    assert json.loads(out)["advice"]["resources"]["requests"]["vram_bytes"] == 3 << 30
    code, _, err = await ask("ml/none")
    assert code == 1
    assert "nothing is known of workload ml/none" in err
    code, _, err = await ask("ml")
    assert code == 2
    assert "write NAMESPACE/WORKLOAD" in err


async def test_capacity_is_shown_for_people_and_for_programs(bus: Bus, server, capsys) -> None:
    async def ask(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ("capacity", *arguments, "--nats", server.url))
        return (code, *capsys.readouterr())

    assert (await ask())[1] == "no pool has been looked at; `gpubus run scaler` does\n"
    short = Shortage(shape=Shape(gpus=2, compute_milli=500, models=("A100",)), pods=3, reason="SameNode", since=AT)
    record = PoolCapacity(
        pool="train", total=Size(gpus=8, tflops_milli=8000), missing=(short,), held="NoOffer", message="no offer"
    )
    event = Event(id="1", source="/t", type="gpubus.capacity.v1", subject="train", time=AT, data=record)
    await bus.publisher.publish(subjects.state("capacity", "train"), encode(event))
    code, out, _ = await ask()
    assert code == 0
    assert "8 GPUs, 8 TFLOPS, 0 GiB" in out
    assert "2 GPUs, 50 % compute, of A100" in out
    assert json.loads((await ask("train", "--json"))[1])["held"] == "NoOffer"
    code, _, err = await ask("none")
    assert (code, err.startswith("gpubus: nothing is known of pool none")) == (1, True)
