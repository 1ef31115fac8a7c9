"""How long an allocator looks for pods to evict, by processor time: on nodes of eight GPUs, with two pods on each."""

import random
import time
from typing import Final

from consumers.allocator.engine import Policy, Snapshot, decide
from consumers.allocator.engine.preemption import Terms, select
from consumers.allocator.making import LEARNT_AT_ONCE
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.decision import GpuGrant
from schemas.event import utc
from schemas.ledger import Allocation
from schemas.pod import GpuRequest, Qos

GIB: Final = 1 << 30
POOL: Final = Pool(name="bench", preemption="cluster")
RANKS: Final[dict[str, tuple[Qos, ...]]] = {
    "all may go": ("low",),
    "most may go": ("low", "medium", "high", "critical"),
    "few may go": ("low", *("critical",) * 49),
}
ASKED: Final = {
    "one whole GPU": GpuRequest(pool="bench", compute_milli=1000, vram_milli=1000, qos="high", priority=1),
    "a third of a GPU": GpuRequest(pool="bench", compute_milli=333, vram_milli=333, qos="high", priority=1),
    "eight whole GPUs": GpuRequest(pool="bench", count=8, compute_milli=1000, vram_milli=1000, qos="high", priority=1),
}


def crowded(nodes: int, ranks: tuple[Qos, ...], rng: random.Random) -> Snapshot:
    """Return nodes with no room for another third of a GPU."""
    snapshot = Snapshot()
    snapshot.put_pool(POOL)
    for number in range(nodes):
        name = f"node-{number:05}"
        gpus = [
            GpuDevice(uuid=f"{name}/{index}", index=index, model="A", tflops_milli=312_000, vram_bytes=80 * GIB)
            for index in range(8)
        ]
        snapshot.put_node(Node(name=name, pool=POOL.name, cpu_milli=128_000, memory_bytes=1024 * GIB))
        snapshot.put_inventory(GpuInventory(node=name, gpus=gpus, observed_at=utc(0)))
        snapshot.set_allocations(
            name, [_pod(name, index, place, rng.choice(ranks), rng) for index in range(8) for place in range(2)]
        )
    return snapshot


def _pod(node: str, index: int, place: int, qos: Qos, rng: random.Random) -> Allocation:
    vram = rng.choice((30, 35, 38)) * GIB
    grant = GpuGrant(uuid=f"{node}/{index}", index=index, tflops_milli=125_000, vram_bytes=vram)
    name = f"{node}-{index}-{place}"
    return Allocation(
        pod_uid=name, namespace="ns", name=name, pool=POOL.name, gpus=(grant,), cpu_milli=4000, qos=qos,
        since=rng.randrange(1, 100_000),
    )  # fmt: skip


def bench_evictions(nodes: int, rng: random.Random) -> None:
    """Print the time of searches, and of learning what they look up: all of it once, in parts, and what has changed since."""
    policy = Policy.of(POOL)
    for title, ranks in RANKS.items():
        snapshot = crowded(nodes, ranks, rng)
        table = snapshot.table(POOL.name)
        assert table is not None
        reclaim, started = snapshot.reclaim(table, POOL.name), time.process_time()
        parts = 1
        while not reclaim.advance(LEARNT_AT_ONCE):
            parts += 1
        learnt = time.process_time() - started
        found = []
        for what, request in ASKED.items():
            assert not decide(snapshot, request, policy).node
            started = time.process_time()
            choice = select(snapshot, request, policy, Terms("ns", 1000))
            taken = time.process_time() - started
            found.append(f"{what} {taken * 1e3:6.1f} ms ({len(choice.victims) if choice is not None else 0} go)")
        print(
            f"{nodes:>6} nodes, evictions, {title:<11}: {', '.join(found)}; "
            f"learnt before in {parts} parts of {learnt / parts * 1e3:.1f} ms"
        )
