"""Speed of the allocation engine, next to a plain numpy engine that scans every GPU for every pod.

Run ``python -m tests.benchmarks.bench_engine [--trace DIR]`` from the repository root. DIR holds the openb trace (Alibaba
``cluster-trace-gpu-v2023``: ``openb_node_list_gpu_node.csv`` and ``openb_pod_list_default.csv``); without it a seeded
synthetic cluster of the same size and shape stands in. Every decision carries its full explanation and every placement is
applied before the next. Garbage is collected as in an allocator (:func:`as_in_a_role`). Both engines must place every pod
alike, or the run fails; the modes that look ahead, to the workload that the pods amount to, have no full scan beside them.
Times are the process's own: seconds of a processor, so that other work on the machine counts for little.
"""

import argparse
import csv
import gc
import random
import resource
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from consumers.allocator.engine import AHEAD, PACKING, Policy, Snapshot, Workload, decide
from deploy.cli.run import COLLECT_AFTER
from schemas.cluster import GpuDevice, GpuInventory, Node, PlacementMode, Pool
from schemas.ledger import Allocation
from schemas.pod import GpuRequest
from tests.benchmarks.evictions import bench_evictions

POOL = "bench"
MODES: tuple[PlacementMode, ...] = ("NodeCompactGPULowLoad", "CompactFirst", "LowLoadFirst")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 1 << 30
# FP16 TFLOPS (milli) and VRAM per model; the trace hides what G2 and G3 are, so they get those of an A10 and an A100.
MODELS = {
    "G2": (125_000, 24 * GIB),
    "G3": (312_000, 80 * GIB),
    "T4": (65_000, 16 * GIB),
    "P100": (19_000, 16 * GIB),
    "V100M32": (125_000, 32 * GIB),
    "V100M16": (125_000, 16 * GIB),
    "A10": (125_000, 24 * GIB),
}


@dataclass(frozen=True)
class Machine:
    """One node, as the trace lists it."""

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: int
    model: str


def read_trace(folder: Path) -> tuple[list[Machine], list[GpuRequest]]:
    with (folder / "openb_node_list_gpu_node.csv").open() as file:
        machines = [
            Machine(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]) << 20, int(row["gpu"]), row["model"])
            for row in csv.DictReader(file)
        ]
    with (folder / "openb_pod_list_default.csv").open() as file:
        pods = [
            ask(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"]), int(row["gpu_milli"]))
            for row in csv.DictReader(file)
        ]
    return machines, pods


def ask(cpu_milli: int, memory_mib: int, count: int, share: int) -> GpuRequest:
    return GpuRequest(
        pool=POOL,
        count=count,
        compute_milli=share,
        vram_milli=share,
        cpu_milli=cpu_milli,
        memory_bytes=memory_mib << 20,
    )


def synthetic_machines(count: int, rng: random.Random, *, uniform: bool) -> list[Machine]:
    kinds = [(96_000, 393_216, 8, "G2"), (104_000, 524_288, 2, "T4"), (16_000, 65_536, 2, "P100")]
    kinds += [(128_000, 786_432, 8, "G3"), (96_000, 393_216, 4, "V100M32"), (64_000, 262_144, 1, "V100M16")]
    chosen = [kinds[0]] * count if uniform else rng.choices(kinds, weights=[549, 420, 107, 68, 50, 19], k=count)
    return [
        Machine(f"node-{number:05d}", cpu, memory << 20, gpus, model)
        for number, (cpu, memory, gpus, model) in enumerate(chosen)
    ]


def synthetic_pods(count: int, rng: random.Random) -> list[GpuRequest]:
    """Return pods of 91 shapes, as in the trace: a third shares, half single GPUs, a few of several GPUs, some CPU-only."""
    shares = [50, 110, 160, 220, 230, 320, 370, 460, 470, 550, 590, 650, 810]
    sizes = [(0, 0)] * 12 + [(1, share) for share in shares * 3] + [(1, 1000)] * 36 + [(2, 1000), (4, 1000)]
    sizes += [(8, 1000)] * 2
    shapes = [ask(rng.choice([2, 4, 6, 8, 12]) * 1000, rng.choice([4, 8, 12, 16]) << 10, *size) for size in sizes]
    return rng.choices(shapes, k=count)


def arrivals(pods: Sequence[GpuRequest], gpus: int, rng: random.Random, load: float = 1.3) -> list[GpuRequest]:
    """Return the pods shuffled, some drawn again, until they ask for ``load`` times the cluster's GPUs."""
    queue, left = rng.sample(pods, len(pods)), int(load * gpus * 1000)
    taken = []
    while left > 0:
        pod = queue.pop() if queue else rng.choice(pods)
        taken.append(pod)
        left -= pod.count * pod.compute_milli
    return taken


def inventory(machine: Machine) -> GpuInventory:
    tflops, vram = MODELS[machine.model]
    gpus = [
        GpuDevice(uuid=f"{machine.name}/{i}", index=i, model=machine.model, tflops_milli=tflops, vram_bytes=vram)
        for i in range(machine.gpus)
    ]
    return GpuInventory(node=machine.name, gpus=gpus, observed_at=EPOCH)


def node(machine: Machine) -> Node:
    return Node(
        name=machine.name,
        pool=POOL,
        cpu_milli=machine.cpu_milli,
        memory_bytes=machine.memory_bytes,
        max_pods=1001,
    )


def load(machines: Iterable[Machine]) -> Snapshot:
    snapshot = Snapshot()
    snapshot.put_pool(Pool(name=POOL))
    for machine in machines:
        snapshot.put_node(node(machine))
        snapshot.put_inventory(inventory(machine))
    return snapshot


class FullScan:
    """The same rules for healthy single-vendor clusters, as whole-array expressions over every GPU at every decision."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = sorted(machines, key=lambda machine: machine.name)
        width = max(machine.gpus for machine in machines)
        self.exists = np.array([[slot < machine.gpus for slot in range(width)] for machine in self.machines])
        sizes = np.array([MODELS[machine.model] for machine in self.machines])
        self.tflops, self.vram = (np.where(self.exists, sizes[:, [part]], 0) for part in (0, 1))
        self.tflops_free, self.vram_free = self.tflops.copy(), self.vram.copy()
        self.cpu_free = np.array([machine.cpu_milli for machine in self.machines])
        self.memory_free = np.array([machine.memory_bytes for machine in self.machines])
        self.cpu, self.memory = self.cpu_free.copy(), self.memory_free.copy()
        self.gpus = self.exists.sum(axis=1)

    def place(self, request: GpuRequest, policy: Policy) -> tuple[str, list[int], dict[int, int]]:
        free = policy.name == "LowLoadFirst"
        needs = self.tflops * request.compute_milli // 1000, self.vram * request.vram_milli // 1000
        computable = self.exists & (self.tflops_free >= needs[0])
        fits = computable & (self.vram_free >= needs[1])
        fitting = fits.sum(axis=1)
        stage = np.where(self.memory_free < request.memory_bytes, 1, 0)
        stage[self.cpu_free < request.cpu_milli] = 2
        if request.count:
            stage[fitting < request.count] = 3
            stage[fitting == 0] = 4
            stage[computable.sum(axis=1) == 0] = 5
            stage[self.gpus < request.count] = 6
            shares = self._used(self.vram, self.vram_free), self._used(self.tflops, self.tflops_free)
            scores = self._weigh(*shares, policy, free=free)
            score = np.where(self.exists, scores, 0).sum(axis=1) // self.gpus
        else:
            shares = self._used(self.memory, self.memory_free), self._used(self.cpu, self.cpu_free)
            score = self._weigh(*shares, policy, free=free)
        refused = dict(enumerate(np.bincount(stage).tolist()))
        row = int(np.where(stage == 0, score, -1).argmax())
        if stage[row]:
            return "", [], refused
        chosen: list[int] = []
        if request.count:
            inside = self._weigh(*(part[row] for part in shares), policy, free=policy.name != "CompactFirst")
            order = np.argsort(np.where(fits[row], -inside, 1), kind="stable")
            chosen = sorted(order[: request.count].tolist())
            self.tflops_free[row, chosen] -= needs[0][row, chosen]
            self.vram_free[row, chosen] -= needs[1][row, chosen]
        self.cpu_free[row] -= request.cpu_milli
        self.memory_free[row] -= request.memory_bytes
        return self.machines[row].name, chosen, refused

    @staticmethod
    def _used(capacity: np.ndarray, free: np.ndarray) -> np.ndarray:
        return (capacity - free) * 10_000 // np.maximum(capacity, 1)

    @staticmethod
    def _weigh(memory: np.ndarray, compute: np.ndarray, policy: Policy, *, free: bool) -> np.ndarray:
        if free:
            memory, compute = 10_000 - memory, 10_000 - compute
        return np.minimum((memory * policy.vram_weight + compute * policy.tflops_weight + 5_000) // 10_000, 100)


def as_in_a_role() -> None:
    """Collect garbage as ``gpubus run`` has it once a role has loaded the cluster."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def run_engine(
    snapshot: Snapshot, pods: Sequence[GpuRequest], policy: Policy
) -> tuple[float, list[tuple[str, list[int]]]]:
    """Return the processor seconds that deciding and applying took, and where every pod went."""
    as_in_a_role()
    placed = []
    start = time.process_time()
    for number, pod in enumerate(pods):
        found = decide(snapshot, pod, policy)
        if found.node:
            held = Allocation(
                pod_uid=f"u{number}",
                namespace="bench",
                name="pod",
                pool=POOL,
                gpus=found.gpus,
                cpu_milli=pod.cpu_milli,
                memory_bytes=pod.memory_bytes,
            )
            snapshot.add(found.node, held)
        placed.append((found.node, [grant.index for grant in found.gpus]))
    return time.process_time() - start, placed


def bench(title: str, machines: Sequence[Machine], pods: Sequence[GpuRequest], modes: Sequence[PlacementMode]) -> None:
    for mode in modes:
        policy = Policy(name=mode)
        seconds, placed = run_engine(load(machines), pods, policy)
        # The full scan is slow: a part of the pods is enough to time it, and to hold the engine to its choices.
        part = pods[: max(200, min(len(pods), 1_500_000 // len(machines)))]
        scan = FullScan(machines)
        start = time.process_time()
        scanned = [scan.place(pod, policy)[:2] for pod in part]
        baseline = (time.process_time() - start) / len(part)
        if scanned != placed[: len(part)]:
            first = next(i for i, pair in enumerate(zip(scanned, placed, strict=False)) if pair[0] != pair[1])
            raise SystemExit(f"{title} {mode}: pod {first} went to {placed[first]}, a full scan says {scanned[first]}")
        rate = len(pods) / seconds
        print(f"{row(title, mode, rate, placed)} {1 / baseline:>10,.0f} {rate * baseline:>7.1f}x")


def row(title: str, mode: str, rate: float, placed: Sequence[tuple[str, list[int]]]) -> str:
    went = sum(bool(name) for name, _ in placed) / len(placed)
    return f"{title:<24} {mode:<22} {len(placed):>7} {went:>7.1%} {rate:>10,.0f} {1e6 / rate:>8.1f}"


def bench_ahead(title: str, machines: Sequence[Machine], pods: Sequence[GpuRequest]) -> None:
    """Time the modes that look ahead."""
    for mode in AHEAD:
        workload = Workload.of(pods, heavy=mode == PACKING)
        policy = Policy.of(Pool(name=POOL, placement=mode), workload=workload)
        seconds, placed = run_engine(load(machines), pods, policy)
        print(row(title, mode, len(pods) / seconds, placed))


def bench_updates(machines: Sequence[Machine], pods: Sequence[GpuRequest]) -> None:
    """Time single events on a warm snapshot, with the refresh of the shape that asks next."""
    snapshot, policy = load(machines), Policy()
    run_engine(snapshot, pods[:2000], policy)
    probe = pods[0]
    decide(snapshot, probe, policy)
    rng = random.Random(5)
    picked = [rng.choice(machines) for _ in range(300)]
    for what in ("cordon", "inventory"):
        event = look = 0.0
        for machine in picked:
            start = time.process_time()
            if what == "cordon":
                old = node(machine)
                snapshot.put_node(
                    Node(
                        name=old.name,
                        pool=POOL,
                        cpu_milli=old.cpu_milli,
                        memory_bytes=old.memory_bytes,
                        max_pods=1001,
                        unschedulable=True,
                    )
                )
            else:
                snapshot.put_inventory(
                    GpuInventory(node=machine.name, gpus=inventory(machine).gpus[1:], observed_at=EPOCH)
                )
            middle = time.process_time()
            decide(snapshot, probe, policy)
            event, look = event + middle - start, look + time.process_time() - middle
            snapshot.put_node(node(machine))
            snapshot.put_inventory(inventory(machine))
            decide(snapshot, probe, policy)
        print(
            f"{len(machines):>6} nodes, {what:<9} event {event / len(picked) * 1e6:6.1f} us,"
            f" next decision {look / len(picked) * 1e6:6.1f} us"
        )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, metavar="DIR", help="folder of the openb CSV files")
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args(argv)
    rng = random.Random(arguments.seed)
    if arguments.trace:
        title, (machines, pods) = "openb", read_trace(arguments.trace)
    else:
        title, machines = "openb-shaped", synthetic_machines(1213, rng, uniform=False)
        pods = synthetic_pods(8152, rng)
    gpus = sum(machine.gpus for machine in machines)
    print(
        f"{'cluster':<24} {'policy':<22} {'pods':>7} {'placed':>7} {'per s':>10} {'us each':>8} {'full scan':>10} {'ratio':>8}"
    )
    queue = arrivals(pods, gpus, rng)
    bench(f"{title} {len(machines)}x{gpus}", machines, queue, MODES)
    bench_ahead(f"{title} {len(machines)}x{gpus}", machines, queue)
    for size in (100, 1_000, 10_000):
        uniform = synthetic_machines(size, rng, uniform=True)
        offered = synthetic_pods(min(10_000, 14 * size), rng)
        bench(f"synthetic {size}x{size * 8}", uniform, offered, MODES)
        bench_ahead(f"synthetic {size}x{size * 8}", uniform, offered)
    bench_updates(machines, queue)
    bench_updates(uniform, synthetic_pods(2000, rng))
    bench_evictions(6000, rng)
    print(
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, both engines and all clusters"
    )


if __name__ == "__main__":
    main()
