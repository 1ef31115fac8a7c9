"""``gpubus defrag`` against a real nats-server."""

import asyncio
import json
from datetime import UTC, datetime

import msgspec

from bus import subjects
from bus.codec import encode
from bus.connection import Bus
from deploy.cli.main import main
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.decision import GpuGrant
from schemas.defrag import Campaign
from schemas.event import Event
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import GpuRequest, Pod
from schemas.preemption import DisruptionBudget
from schemas.registry import TYPE_NAMES

AT = datetime(2026, 3, 1, tzinfo=UTC)
GIB = 2**30
HALF = GpuRequest(pool="p", compute_milli=500, vram_milli=500)


async def test_what_could_be_emptied_and_what_keeps_the_others(bus: Bus, server, capsys) -> None:
    async def say(where: str, data: msgspec.Struct) -> None:
        event = Event(id=where, source="/t", type=TYPE_NAMES[type(data)], subject="x", time=AT, data=data)
        await bus.publisher.publish(where, encode(event))

    async def ask(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ("defrag", *arguments, "--nats", server.url))
        return (code, *capsys.readouterr())

    await say(subjects.state("pool", "p"), Pool(name="p"))
    for node, pods in (("a", ["one"]), ("b", ["two"]), ("c", [])):
        await say(subjects.state("node", node), Node(name=node, pool="p", cpu_milli=8000, memory_bytes=64 * GIB))
        gpus = [
            GpuDevice(uuid=f"{node}-{n}", index=n, model="T4", tflops_milli=65_000, vram_bytes=16 * GIB) for n in (0, 1)
        ]
        await say(subjects.state("gpu", node), GpuInventory(node=node, gpus=gpus, observed_at=AT))
        held = []
        for name in pods:
            grant = GpuGrant(uuid=f"{node}-0", index=0, tflops_milli=32_500, vram_bytes=8 * GIB)
            held.append(Allocation(pod_uid=name, namespace="ml", name=name, pool="p", gpus=(grant,)))
            pod = Pod(
                namespace="ml", name=name, uid=name, resource_version="1", request=HALF, phase="Running", node=node
            )
            await say(subjects.state("pod", "ml", name), pod)
        record = NodeRecord(node=node, txn=node, allocations=tuple(held), changes=())
        await say(subjects.ledger_node(node), record)
    await say(subjects.state("disruption", "ml", "keep"), DisruptionBudget(namespace="ml", name="keep", pods=("two",)))
    code, out, _ = await ask("p", "--json")
    assert code == 0
    plan = json.loads(out)
    assert (plan["candidates"], plan["emptied"]) == (2, ["a"])
    assert [(move["name"], move["source"], move["target"]) for move in plan["moves"]] == [("one", "a", "b")]
    code, out, _ = await ask("p")
    assert "1 of 2 nodes that are used for 40 % or less could be emptied by moving 1 pods" in out
    campaign = Campaign(pool="p", slot=AT, end="Surprised", message="node a: budget b forbids", reopened=True)
    await say(subjects.state("defrag", "p"), campaign)
    code, out, _ = await ask("p", "--threshold", "10")
    assert "campaign of 2026-03-01T00:00:00.000Z: Surprised, node a: budget b forbids" in out
    assert "0 of 0 nodes" in out
    await say(
        subjects.state("disruption", "ml", "all"), DisruptionBudget(namespace="ml", name="all", pods=("one", "two"))
    )
    code, out, _ = await ask("p")
    assert "PodDisruptionBudget ml/all allows no eviction now" in out
    code, _, err = await ask("q")
    assert (code, err) == (1, "gpubus: pool q is not known: name one of p\n")
