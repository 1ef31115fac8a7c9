"""How much of a cluster's GPU each placement mode gets allocated, by the published protocol of Weng et al. (USENIX ATC 2023).

Run ``python -m tests.benchmarks.quality --data DIR [--policy P] [--list L] [--seeds 42-51] [--learn]`` from the repository
root. DIR holds the openb trace (Alibaba ``cluster-trace-gpu-v2023``): ``openb_node_list_gpu_node.csv`` and
``openb_pod_list_L.csv``.

The protocol ("workload inflation"): per seed the pods of the list are shuffled, and more are drawn from it with replacement,
until they ask for 130 % of the cluster's GPUs. They come one by one to the empty cluster; each is placed or refused at once,
and none ever leaves. After each arrival x is the GPU asked for so far and y the GPU allocated, both in percent of the
cluster; "at 100" is the mean of y over the arrivals whose x rounds to 100. Each seed draws one order of the nodes for ties.
The target workload comes from the whole list, or with ``--learn`` from the pods as they arrive. Published for FGD
(``FragmentationGradient``) on the default list: 95.23 at 100, 95.39 at 130.
"""

import argparse
import csv
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev
from typing import get_args

from consumers.allocator.engine import Policy, Snapshot, Workload, WorkloadEstimator, decide
from schemas.cluster import GpuDevice, GpuInventory, Node, PlacementMode, Pool
from schemas.ledger import Allocation
from schemas.pod import GpuRequest
from tests.benchmarks.bench_engine import as_in_a_role
from tests.benchmarks.quality_ledger import Ask, Ledger, Machine

POOL = "openb"
LISTS = ("default", "multigpu20", "gpushare40")
POINTS = (95, 100, 130)
LOAD = 1.3
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
# All GPUs are alike, and a thousandth of one is a whole number, so that a share is exactly what the trace says.
TFLOPS_MILLI = 100_000
VRAM_BYTES = 16_000_000_000


@dataclass(frozen=True)
class Run:
    """One seed.

    Attributes:
        allocated: Percent of the cluster's GPU, by percent of it that had arrived.
        wide_refused: Pods with 8 GPUs that were refused.
        rate: Decisions per second, each with its explanation and applied to the snapshot.
    """

    allocated: dict[int, float]
    wide_refused: int
    rate: float


def read_machines(folder: Path) -> list[Machine]:
    with (folder / "openb_node_list_gpu_node.csv").open() as file:
        return [
            Machine(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
            for row in csv.DictReader(file)
        ]


def read_asks(folder: Path, name: str) -> list[Ask]:
    with (folder / f"openb_pod_list_{name}.csv").open() as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["name"])
    return [
        Ask(
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
            int(row["num_gpu"]),
            int(row["gpu_milli"]),
            tuple(filter(None, (row.get("gpu_spec") or "").split("|"))),
        )
        for row in rows
    ]


def arrivals(asks: Sequence[Ask], capacity: int, rng: random.Random) -> list[Ask]:
    """Return the pods in order of arrival."""
    pods = rng.sample(asks, len(asks))
    total, limit = sum(ask.milli for ask in pods), LOAD * capacity
    while pods and total > limit:
        total -= pods.pop().milli
    while True:
        more = rng.choice(asks)
        # The protocol tests with one GPU's share, whatever the number of GPUs.
        if total + more.share > limit:
            return pods
        pods.append(more)
        total += more.milli


def shuffled(machines: Sequence[Machine], rng: random.Random) -> list[Machine]:
    """Return the machines under new names, whose order is random: the engine breaks ties by name."""
    places = rng.sample(range(len(machines)), len(machines))
    return [
        replace(machine, name=f"{place:05d}-{machine.name}") for place, machine in zip(places, machines, strict=True)
    ]


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


def run(machines: Sequence[Machine], asks: Sequence[Ask], policy: Policy, seed: int, *, learn: bool = False) -> Run:
    rng = random.Random(seed)
    capacity = 1000 * sum(machine.gpus for machine in machines)
    pods, machines = arrivals(asks, capacity, rng), shuffled(machines, rng)
    snapshot, ledger = load(machines), Ledger(machines)
    estimator = WorkloadEstimator()
    if learn:
        policy = Policy.of(Pool(name=POOL, placement=policy.name), workload=estimator.workload)
    arrived, refused, seconds = 0, 0, 0.0
    seen = defaultdict(list)
    as_in_a_role()
    for number, ask in enumerate(pods):
        asked = request(ask)
        start = time.perf_counter()
        learnt = estimator.add(asked) if learn else None
        if learnt:
            policy = Policy.of(Pool(name=POOL, placement=policy.name), workload=learnt)
        found = decide(snapshot, asked, policy)
        if found.node:
            held = Allocation(
                pod_uid=f"u{number}", namespace="openb", name="pod", pool=POOL, gpus=found.gpus,
                cpu_milli=asked.cpu_milli, memory_bytes=asked.memory_bytes,
            )  # fmt: skip
            snapshot.add(found.node, held)
        seconds += time.perf_counter() - start
        ledger.enter(ask, found)
        refused += not found.node and ask.gpus == 8
        arrived += ask.milli
        seen[round(100 * arrived / capacity)].append(100 * ledger.allocated / capacity)
    return Run({point: mean(values) for point, values in seen.items()}, refused, len(pods) / seconds)


def policies(names: Sequence[str], asks: Sequence[Ask]) -> Iterator[Policy]:
    workload = Workload.of(map(request, asks))
    for name in names:
        yield Policy.of(Pool(name=POOL, placement=name), workload=workload)


def spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} +- {stdev(values) if len(values) > 1 else 0:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = get_args(PlacementMode)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the openb CSV files")
    parser.add_argument("--policy", choices=modes, action="append", help="may be repeated; default: all")
    parser.add_argument("--list", choices=LISTS, action="append", help="may be repeated; default: all")
    parser.add_argument("--seeds", default="42-51", help="first-last")
    parser.add_argument("--learn", action="store_true", help="learn the workload from the pods as they arrive")
    options = parser.parse_args()
    first, last = (int(part) for part in (options.seeds.split("-") * 2)[:2])
    machines = read_machines(options.data)
    heads = "".join(f"{f'at {point} %':>16}" for point in POINTS)
    print(f"{'list':<12} {'policy':<22}{heads} {'8-GPU refused':>15} {'decisions/s':>12}")
    for name in options.list or LISTS:
        asks = read_asks(options.data, name)
        for policy in policies(options.policy or modes, asks):
            runs = [run(machines, asks, policy, seed, learn=options.learn) for seed in range(first, last + 1)]
            parts = "".join(f"{spread([each.allocated[point] for each in runs]):>16}" for point in POINTS)
            wide, rate = mean(each.wide_refused for each in runs), mean(each.rate for each in runs)
            print(f"{name:<12} {policy.name:<22}{parts} {wide:>15.1f} {rate:>12,.0f}", flush=True)


if __name__ == "__main__":
    main()
