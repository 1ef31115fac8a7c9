"""How much of a cluster's GPU each placement mode gets allocated, by the published protocol of Weng et al. (USENIX ATC 2023).

Run ``python -m tests.benchmarks.quality --data DIR [--policy P] [--list L] [--seeds 42-51] [--learn] [--departures PODS]`` from
the repository root. DIR holds the openb trace (Alibaba ``cluster-trace-gpu-v2023``): ``openb_node_list_gpu_node.csv`` and
``openb_pod_list_L.csv``, as many lists as are wanted.

The protocol ("workload inflation"): per seed the pods of the list are shuffled, and more are drawn from it with replacement,
until they ask for 130 % of the cluster's GPUs. They come one by one to the empty cluster; each is placed or refused at once,
and none ever leaves. After each arrival x is the GPU asked for so far and y the GPU allocated, both in percent of the
cluster; "at 100" is the mean of y over the arrivals whose x rounds to 100. Each seed draws one order of the nodes for ties.
The target workload comes from the whole list, or with ``--learn`` from the pods as they arrive. Published for FGD
(``FragmentationGradient``) on the default list: 95.23 at 100, 95.39 at 130.

With ``--departures`` so many pods are drawn from the list with replacement, come at even intervals and run as long as in the
trace; one that does not fit is refused for good. The intervals are such that pods ask for 130 % of the cluster at a time if all
of them run, and what counts is the mean of y over the second half of the arrivals.
"""

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heappop, heappush
from pathlib import Path
from statistics import mean, stdev
from typing import get_args

from consumers.allocator.engine import PACKING, Policy, Snapshot, Workload, WorkloadEstimator, decide
from schemas.cluster import GpuDevice, GpuInventory, Node, PlacementMode, Pool
from schemas.decision import Decision
from schemas.ledger import Allocation
from schemas.pod import WHOLE, GpuRequest
from tests.benchmarks.bench_engine import as_in_a_role
from tests.benchmarks.quality_ledger import Ask, Ledger, Machine
from tests.benchmarks.quality_trace import (
    arrivals,
    gap_s,
    lists,
    read_asks,
    read_lasting_asks,
    read_machines,
    shuffled,
)

POOL = "openb"
POINTS = (95, 100, 130)
WIDE = 8
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
# All GPUs are alike, and a thousandth of one is a whole number, so that a share is exactly what the trace says.
TFLOPS_MILLI = 100_000
VRAM_BYTES = 16_000_000_000


@dataclass(frozen=True)
class Run:
    """One seed.

    Attributes:
        allocated: Percent of the cluster's GPU at each point that is looked at.
        wide_refused: Pods with 8 GPUs that were refused.
        rate: Decisions per second of processor time, each with its explanation and applied to the snapshot.
    """

    allocated: list[float]
    wide_refused: int
    rate: float


def request(ask: Ask) -> GpuRequest:
    return GpuRequest(
        pool=POOL,
        count=ask.gpus,
        compute_milli=ask.share,
        vram_milli=ask.share,
        cpu_milli=ask.cpu_milli,
        memory_bytes=ask.memory_mib << 20,
        models=ask.models,
    )


def load(machines: Sequence[Machine]) -> Snapshot:
    snapshot = Snapshot()
    snapshot.put_pool(Pool(name=POOL))
    for machine in machines:
        snapshot.put_node(
            Node(
                name=machine.name,
                pool=POOL,
                cpu_milli=machine.cpu_milli,
                memory_bytes=machine.memory_mib << 20,
                max_pods=1001,
            )
        )
        gpus = [
            GpuDevice(
                uuid=f"{machine.name}/{index}",
                index=index,
                model=machine.model,
                tflops_milli=TFLOPS_MILLI,
                vram_bytes=VRAM_BYTES,
            )
            for index in range(machine.gpus)
        ]
        snapshot.put_inventory(GpuInventory(node=machine.name, gpus=gpus, observed_at=EPOCH))
    return snapshot


class Bench:
    """An empty cluster, the engine's view of it and the ledger that watches the engine."""

    def __init__(self, machines: Sequence[Machine], policy: Policy, *, learn: bool) -> None:
        self.ledger = Ledger(machines)
        self.seconds = 0.0
        self._snapshot = load(machines)
        self._estimator = WorkloadEstimator() if learn else None
        self._policy = policy
        self._mode: PlacementMode = policy.name
        if self._estimator:
            self._policy = self._learnt(self._estimator.workload)
        self._pods = 0
        as_in_a_role()

    def _learnt(self, workload: Workload) -> Policy:
        return Policy.of(Pool(name=POOL, placement=self._mode), workload=workload)

    def place(self, ask: Ask) -> tuple[str, Decision]:
        """Place a pod if it fits, and return its UID and where it went."""
        self._pods += 1
        asked, uid = request(ask), f"u{self._pods}"
        start = time.process_time()
        if self._estimator and (learnt := self._estimator.add(asked, heavy=self._mode == PACKING)):
            self._policy = self._learnt(learnt)
        found = decide(self._snapshot, asked, self._policy)
        if found.node:
            held = Allocation(
                pod_uid=uid, namespace="openb", name="pod", pool=POOL, gpus=found.gpus,
                cpu_milli=asked.cpu_milli, memory_bytes=asked.memory_bytes,
            )  # fmt: skip
            self._snapshot.add(found.node, held)
        self.seconds += time.process_time() - start
        self.ledger.enter(ask, found)
        return uid, found

    def end(self, ask: Ask, uid: str, found: Decision) -> None:
        """End a pod that was placed."""
        start = time.process_time()
        self._snapshot.remove(found.node, uid)
        self.seconds += time.process_time() - start
        self.ledger.leave(ask, found)


def inflate(machines: Sequence[Machine], asks: Sequence[Ask], policy: Policy, seed: int, *, learn: bool = False) -> Run:
    """Run one seed of the published protocol."""
    rng = random.Random(seed)
    capacity = WHOLE * sum(machine.gpus for machine in machines)
    pods, machines = arrivals(asks, capacity, rng), shuffled(machines, rng)
    bench = Bench(machines, policy, learn=learn)
    arrived, refused = 0, 0
    seen = defaultdict(list)
    for ask in pods:
        _, found = bench.place(ask)
        refused += not found.node and ask.gpus == WIDE
        arrived += ask.milli
        seen[round(100 * arrived / capacity)].append(100 * bench.ledger.allocated / capacity)
    points = [mean(seen[point]) for point in POINTS]
    return Run(points, refused, len(pods) / bench.seconds)


def churn(
    machines: Sequence[Machine], asks: Sequence[Ask], policy: Policy, seed: int, *, pods: int, learn: bool = False
) -> Run:
    """Run one seed with departures: pods are drawn from the list, come at even intervals and run as long as in the trace."""
    rng = random.Random(seed)
    capacity = WHOLE * sum(machine.gpus for machine in machines)
    drawn, machines = rng.choices(asks, k=pods), shuffled(machines, rng)
    gap = gap_s(drawn, capacity)
    bench = Bench(machines, policy, learn=learn)
    running: list[tuple[float, str, Ask, Decision]] = []
    allocated, refused = [], 0
    for number, ask in enumerate(drawn):
        now = number * gap
        while running and running[0][0] <= now:
            _, uid, ended, where = heappop(running)
            bench.end(ended, uid, where)
        uid, found = bench.place(ask)
        if found.node:
            heappush(running, (now + ask.life_s, uid, ask, found))
        refused += not found.node and ask.gpus == WIDE
        allocated.append(100 * bench.ledger.allocated / capacity)
    return Run([mean(allocated[pods // 2 :])], refused, pods / bench.seconds)


def policies(names: Sequence[PlacementMode], asks: Sequence[Ask]) -> Iterator[Policy]:
    for name in names:
        workload = Workload.of(map(request, asks), heavy=name == PACKING)
        yield Policy.of(Pool(name=POOL, placement=name), workload=workload)


def spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} +- {stdev(values) if len(values) > 1 else 0:.2f}"


def seeds(text: str) -> range:
    first, last = (int(part) for part in (text.split("-") * 2)[:2])
    return range(first, last + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = get_args(PlacementMode)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the openb CSV files")
    parser.add_argument("--policy", choices=modes, action="append", help="may be repeated; default: all")
    parser.add_argument("--list", action="append", metavar="L", help="may be repeated; default: all that are there")
    parser.add_argument("--seeds", type=seeds, default="42-51", metavar="FIRST-LAST")
    parser.add_argument("--learn", action="store_true", help="learn the workload from the pods as they arrive")
    parser.add_argument("--departures", type=int, metavar="PODS", help="let pods end, and so many come")
    options = parser.parse_args()
    machines = read_machines(options.data)
    titles = ["in use"] if options.departures else [f"at {point} %" for point in POINTS]
    heads = "".join(f"{title:>16}" for title in titles)
    print(f"{'list':<12} {'policy':<22}{heads} {'8-GPU refused':>15} {'per CPU second':>15}")
    for name in options.list or lists(options.data):
        asks = read_asks(options.data, name)
        lasting = read_lasting_asks(options.data, name, random.Random(0)) if options.departures else asks
        for policy in policies(options.policy or modes, asks):
            runs = [
                churn(machines, lasting, policy, seed, pods=options.departures, learn=options.learn)
                if options.departures
                else inflate(machines, asks, policy, seed, learn=options.learn)
                for seed in options.seeds
            ]
            parts = "".join(f"{spread(point):>16}" for point in zip(*(each.allocated for each in runs), strict=True))
            wide, rate = mean(each.wide_refused for each in runs), mean(each.rate for each in runs)
            print(f"{name:<12} {policy.name:<22}{parts} {wide:>15.1f} {rate:>15,.0f}", flush=True)


if __name__ == "__main__":
    main()
