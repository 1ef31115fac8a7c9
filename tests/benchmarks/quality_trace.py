"""The openb trace (Alibaba ``cluster-trace-gpu-v2023``) as the benchmark of placement reads it, and the orders pods come in."""

import csv
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.quality_ledger import Ask, Machine

LOAD = 1.3
"""Pods come until they ask for so much of the cluster's GPUs; where pods leave, so much is asked for at a time."""


def read_machines(folder: Path) -> list[Machine]:
    with (folder / "openb_node_list_gpu_node.csv").open() as file:
        return [
            Machine(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
            for row in csv.DictReader(file)
        ]


def lists(folder: Path) -> list[str]:
    """Return the names of the pod lists that are there, the published ones first."""
    found = sorted(file.stem.removeprefix("openb_pod_list_") for file in folder.glob("openb_pod_list_*.csv"))
    return sorted(found, key=lambda name: name != "default")


def read_asks(folder: Path, name: str) -> list[Ask]:
    """Return the pods of a list in order of name."""
    return [
        Ask(
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
            int(row["num_gpu"]),
            int(row["gpu_milli"]),
            tuple(filter(None, (row.get("gpu_spec") or "").split("|"))),
        )
        for row in _rows(folder, name)
    ]


def read_lasting_asks(folder: Path, name: str, rng: random.Random) -> list[Ask]:
    """Return the pods of a list with how long they run.

    Some lists have no times. There a pod runs as long as that of the same name in the default list, and one without
    namesake as long as any pod with as many GPUs there.
    """
    times = {row["name"]: _life(row) for row in _rows(folder, "default")}
    by_gpus = defaultdict(list)
    for row in _rows(folder, "default"):
        by_gpus[row["num_gpu"]].append(times[row["name"]])
    lives = [
        _life(row) if "deletion_time" in row else times.get(row["name"]) or rng.choice(by_gpus[row["num_gpu"]])
        for row in _rows(folder, name)
    ]
    return [replace(ask, life_s=life) for ask, life in zip(read_asks(folder, name), lives, strict=True)]


def _rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"openb_pod_list_{name}.csv").open() as file:
        return sorted(csv.DictReader(file), key=lambda row: row["name"])


def _life(row: dict[str, str]) -> int:
    return int(row["deletion_time"]) - int(row["scheduled_time"] or row["creation_time"])


def arrivals(asks: Sequence[Ask], capacity: int, rng: random.Random) -> list[Ask]:
    """Return the pods in order of arrival, by the published protocol."""
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


def gap_s(pods: Sequence[Ask], capacity: int) -> float:
    """Return the seconds from one arrival to the next with which ``LOAD`` of the cluster is asked for at a time.

    That is the mean over the second half of the pods, and counts pods that will be refused as if they ran.
    """

    def asked_for(gap: float) -> float:
        half = len(pods) // 2
        # In how many arrivals of the second half a pod runs.
        present = (
            ask.milli * max(0, min(len(pods), number + ask.life_s / gap) - max(number, half))
            for number, ask in enumerate(pods)
        )
        return sum(present) / (len(pods) - half)

    tries = [1000 / 1.01**power for power in range(2000)]
    return tries[bisect_left(tries, LOAD * capacity, key=asked_for)]


def shuffled(machines: Sequence[Machine], rng: random.Random) -> list[Machine]:
    """Return the machines under new names, whose order is random: the engine breaks ties by name."""
    places = rng.sample(range(len(machines)), len(machines))
    return [
        replace(machine, name=f"{place:05d}-{machine.name}") for place, machine in zip(places, machines, strict=True)
    ]
