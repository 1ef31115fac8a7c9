"""``gpubus drift`` lays the ledger beside what agents see, and says what it could not ask."""

import asyncio
import json
from datetime import UTC, datetime

from bus import subjects
from bus.connection import Bus
from deploy.cli.main import main
from deploy.local.server import LocalServer
from schemas.decision import GpuGrant
from schemas.ledger import Allocation, NodeRecord
from schemas.usage import GpuSample, NodeUsage, ProcessUsage
from tests.benchmarks.end_to_end import message


async def publish(bus: Bus, subject: str, data) -> None:
    subject, payload, _ = message(subject, "x", data, datetime.now(UTC))
    await bus.publisher.publish(subject, payload)


async def drift(capsys, server: LocalServer, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = await asyncio.to_thread(main, ["drift", "--nats", server.url, "--no-cluster", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


async def test_what_runs_is_laid_beside_what_is_held(bus: Bus, server: LocalServer, capsys) -> None:
    gpu = GpuGrant(uuid="g0", index=0, tflops_milli=1, vram_bytes=100)
    held = Allocation(pod_uid="u", namespace="ns", name="p", pool="p", gpus=(gpu,))
    await publish(bus, subjects.ledger_node("n"), NodeRecord(node="n", txn="t", allocations=(held,), changes=()))
    assert await drift(capsys, server) == (
        0,
        "0 differences among 1 pods\n",
        "gpubus: 1 nodes hold something and their agents are not heard: n\n",
    )

    def used(uuid: str) -> NodeUsage:
        process = ProcessUsage(pod_uid="u", vram_bytes=7)
        return NodeUsage(node="n", at=datetime.now(UTC), gpus=(GpuSample(uuid=uuid, processes=(process,)),))

    await publish(bus, subjects.usage_gpu("n"), used("g0"))
    assert await drift(capsys, server) == (0, "0 differences among 1 pods\n", "")
    await publish(bus, subjects.usage_gpu("n"), used("g1"))
    code, shown, _ = await drift(capsys, server, "--json")
    (one,) = json.loads(shown)["differences"]
    assert (code, one["kind"], one["gpu"], one["repair"]) == (1, "WrongGpu", "g1", "none")
    assert (one["ledger"], one["api"], one["observed"]) == (
        "it holds g0 on n",
        "it was not asked",
        "it uses 7 bytes of g1 on n",
    )
    _, shown, _ = await drift(capsys, server)
    assert "WrongGpu: pod ns/p on n" in shown

    await bus.publisher.publish(subjects.ledger_node("m"), b"{}")
    code, _, error = await drift(capsys, server)
    assert (code, "half a ledger tells nothing" in error) == (3, True)
    assert (await drift(capsys, server, "--kubeconfig", "x"))[0] == 2
