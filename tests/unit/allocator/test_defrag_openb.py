"""Defragmentation of a cluster like the published one, beside a plain way to do it that shares no code with ours."""

import os
import random
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from consumers.allocator.defrag import plan_defrag
from consumers.allocator.engine import Policy, Snapshot, decide
from consumers.allocator.grants import allocation
from producers.simulator.build import build_inventory, build_node, build_pod
from producers.simulator.generator import generate
from producers.simulator.trace import Trace, TracePod, read_trace
from schemas.cluster import Pool
from schemas.defrag import Defrag

NOW = datetime(2026, 5, 1, tzinfo=UTC)
POOL = Pool(name="p")
THRESHOLD = 40
TRACE = "GPUBUS_TEST_TRACE"
"""A folder with the published trace, to be looked at as well."""


class Fragmented(NamedTuple):
    """A cluster that was full and of which most pods have ended."""

    snapshot: Snapshot
    pods: dict[str, TracePod]
    nodes: dict[str, tuple[int, int, int]]
    """CPU, memory in bytes and GPUs of each node."""


def fragmented(trace: Trace, seed: int) -> Fragmented:
    dice = random.Random(seed)
    snapshot, pods, full = Snapshot(), {}, 0
    snapshot.put_pool(POOL)
    nodes = {}
    for one in trace.nodes:
        node = build_node(one, pool="p")
        snapshot.put_node(node)
        snapshot.put_inventory(build_inventory(one, observed_at=NOW))
        nodes[one.name] = node.cpu_milli, node.memory_bytes, one.gpus
    for one in dice.sample(trace.pods, len(trace.pods)):
        pod = build_pod(one, pool="p")
        decision = decide(snapshot, pod.request, Policy.of(POOL))
        if decision.node:
            snapshot.add(decision.node, allocation(pod.command(), decision, snapshot))
            pods[pod.uid] = one
        else:
            full += 1
            if full > 50:
                break
    for uid in list(pods):
        if dice.random() < 0.7:
            node_of = snapshot.node_of(uid)
            assert node_of is not None
            snapshot.remove(node_of, uid)
            del pods[uid]
    return Fragmented(snapshot, pods, nodes)


class Plain:
    """First the nodes of which least is used, each pod to the fullest place that has room: numbers, and no engine.

    GPUs of one node are alike, so a pod's shares may be counted in thousandths wherever it goes.
    """

    def __init__(self, state: Fragmented) -> None:
        self._pods = state.pods
        self.gpus = {name: [1000] * gpus for name, (_, _, gpus) in state.nodes.items()}
        self.host = {name: [cpu, memory] for name, (cpu, memory, _) in state.nodes.items()}
        self.on: dict[str, list[str]] = {name: [] for name in state.nodes}
        self.places: dict[str, list[int]] = {}
        for name in state.nodes:
            for one in state.snapshot.allocations(name):
                self._take(one.pod_uid, name, [gpu.index for gpu in one.gpus])

    def _take(self, uid: str, name: str, places: list[int], sign: int = 1) -> None:
        pod = self._pods[uid]
        for place in places:
            self.gpus[name][place] -= sign * pod.gpu_milli
        self.host[name][0] -= sign * pod.cpu_milli
        self.host[name][1] -= sign * pod.memory_mib * 2**20
        self.places[uid] = places
        (self.on[name].append if sign > 0 else self.on[name].remove)(uid)

    def used(self, name: str) -> float:
        gpus = self.gpus[name]
        return 1 - sum(gpus) / (1000 * len(gpus)) if gpus else 1.0

    def _best(self, uid: str, closed: set[str]) -> tuple[str, list[int]] | None:
        pod, found = self._pods[uid], []
        for name, gpus in self.gpus.items():
            if name in closed or self.host[name][0] < pod.cpu_milli or self.host[name][1] < pod.memory_mib * 2**20:
                continue
            fits = sorted((free, place) for place, free in enumerate(gpus) if free >= pod.gpu_milli)
            if len(fits) >= pod.num_gpu:
                left = sum(gpus) - pod.num_gpu * pod.gpu_milli
                found.append((left, name, [place for _, place in fits[: pod.num_gpu]]))
        return min(found)[1:] if found else None

    def empty(self) -> int:
        """Return how many more nodes are empty when all is moved that can be."""
        idle = {name for name, pods in self.on.items() if not pods}
        emptied: set[str] = set()
        taken: set[str] = set()
        for name in sorted(
            (one for one in self.on if self.on[one] and self.used(one) <= THRESHOLD / 100), key=self.used
        ):
            if name in taken:
                continue
            moved: list[tuple[str, str, list[int]]] = []
            for uid in sorted(self.on[name], key=lambda uid: -self._pods[uid].num_gpu * self._pods[uid].gpu_milli):
                old = self.places[uid]
                self._take(uid, name, old, -1)
                place = self._best(uid, emptied | idle | {name})
                if place is None:
                    self._take(uid, name, old)
                    for other, target, before in reversed(moved):
                        self._take(other, target, self.places[other], -1)
                        self._take(other, name, before)
                    break
                self._take(uid, *place)
                moved.append((uid, place[0], old))
            else:
                emptied.add(name)
                taken |= {target for _, target, _ in moved}
        return sum(not pods for pods in self.on.values()) - len(idle)


def whole(state: Fragmented, plan: Defrag) -> int:
    """Carry a plan out, each move checked, and return how many more nodes are empty then."""
    before = idle(state.snapshot)
    for move in plan.moves:
        request = build_pod(state.pods[move.pod_uid], pool="p").request
        assert state.snapshot.node_of(move.pod_uid) == move.source
        state.snapshot.remove(move.source, move.pod_uid)
        decision = decide(state.snapshot, request, Policy.of(POOL), move.target)
        assert decision.node == move.target  # it has somewhere to go
        command = build_pod(state.pods[move.pod_uid], pool="p").command()
        state.snapshot.add(move.target, allocation(command, decision, state.snapshot))
    return idle(state.snapshot) - before


def idle(snapshot: Snapshot) -> int:
    return sum(not snapshot.allocations(node) for node in snapshot.nodes("p"))


def traces() -> list[str]:
    return ["made", *(["published"] if os.environ.get(TRACE) else [])]


@pytest.mark.parametrize("which", traces())
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_at_least_as_many_whole_nodes_are_freed_as_by_the_plain_way(which: str, seed: int) -> None:
    trace = generate(nodes=120, pods=1200, seed=seed) if which == "made" else read_trace(Path(os.environ[TRACE]))
    state = fragmented(trace, seed)
    plain = Plain(state).empty()
    requests = {uid: build_pod(pod, pool="p").request for uid, pod in state.pods.items()}
    guarded = dict.fromkeys(random.Random(seed).sample(sorted(requests), 5), "its disruption budget allows none")
    plan = plan_defrag(state.snapshot, requests, "p", threshold=THRESHOLD, fixed={})
    kept = plan_defrag(state.snapshot, requests, "p", threshold=THRESHOLD, fixed=guarded)
    assert not guarded.keys() & {move.pod_uid for move in kept.moves}
    freed = whole(state, plan)
    counts = f"{freed} of {plan.candidates} candidates by {len(plan.moves)} moves, by the plain way {plain}"
    assert freed >= plain > 0, counts
    sys.stdout.write(f"{which}, seed {seed}: {counts}\n")
