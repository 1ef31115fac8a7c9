"""The generated cluster: reproducible, of the published mix, and busy with some pods waiting."""

from collections import Counter
from collections.abc import Iterator

import pytest

from producers.simulator.generator import SPAN_S, generate
from producers.simulator.timeline import End, Timeline
from producers.simulator.trace import Trace, TracePod


def test_the_same_seed_gives_the_same_trace() -> None:
    assert generate(20, 200, 7) == generate(20, 200, 7)
    assert generate(20, 200, 7) != generate(20, 200, 8)


def test_names_and_order() -> None:
    trace = generate(3, 12, 1)
    assert [node.name for node in trace.nodes] == ["node-0001", "node-0002", "node-0003"]
    assert [pod.name for pod in trace.pods][::11] == ["pod-00001", "pod-00012"]
    arrivals = [pod.arrives_s for pod in trace.pods]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0
    assert arrivals[-1] < SPAN_S
    assert all(pod.runs_s is not None and pod.runs_s >= 1 for pod in trace.pods)


def test_follows_the_published_mix_whatever_the_seed() -> None:
    trace = generate(1213, 8152, 3)
    gpus = Counter[str]()
    for node in trace.nodes:
        gpus[node.model] += node.gpus
    assert gpus == {"G2": 4392, "T4": 842, "G3": 312, "P100": 265, "V100M32": 204, "V100M16": 195, "A10": 2}
    kinds = Counter((pod.num_gpu, pod.gpu_milli < 1000) for pod in trace.pods)
    assert kinds[0, True] == pytest.approx(1088, rel=0.05)
    assert kinds[1, True] == pytest.approx(3078, rel=0.05)
    assert kinds[1, False] == pytest.approx(3911, rel=0.05)
    assert all(kinds[count, False] > 0 for count in (2, 4, 8))
    asked = sum(pod.num_gpu * pod.gpu_milli for pod in trace.pods)
    assert asked / 1000 / 6212 == pytest.approx(0.98, abs=0.03)
    assert Counter(pod.qos for pod in trace.pods)["LS"] == pytest.approx(4647, rel=0.05)


@pytest.mark.parametrize(("nodes", "pods"), [(1, 0), (1, 1), (2, 1), (1, 300), (40, 3)])
def test_any_size_will_do(nodes: int, pods: int) -> None:
    trace = generate(nodes, pods, 0)
    assert (len(trace.nodes), len(trace.pods)) == (nodes, pods)


@pytest.mark.parametrize(("nodes", "pods"), [(0, 1), (-1, 1), (1, -1)])
def test_refuses_no_cluster(nodes: int, pods: int) -> None:
    with pytest.raises(ValueError, match=rf"nodes={nodes}, pods={pods}: generate at least 1 node and 0 pods"):
        generate(nodes, pods, 0)


class Packer:
    """A plain best-fit scheduler, enough to see what a trace does to a cluster."""

    def __init__(self, trace: Trace) -> None:
        self.free = [[node.cpu_milli, node.memory_mib, [1000] * node.gpus] for node in trace.nodes]
        self.held: dict[str, tuple[int, list[int]]] = {}
        self.used = 0

    def place(self, uid: str, pod: TracePod) -> bool:
        best = None
        for place, (cpu, memory, gpus) in enumerate(self.free):
            room = [free for free in gpus if free >= pod.gpu_milli]
            if cpu < pod.cpu_milli or memory < pod.memory_mib or len(room) < pod.num_gpu:
                continue
            rank = (len(gpus) if pod.num_gpu == 0 else min(room) - pod.gpu_milli, sum(gpus), cpu)
            if best is None or rank < best[0]:
                best = rank, place
        if best is None:
            return False
        gpus = self.free[best[1]][2]
        order = sorted((index for index, free in enumerate(gpus) if free >= pod.gpu_milli), key=gpus.__getitem__)
        self.held[uid] = best[1], order[: pod.num_gpu]
        self._take(uid, pod, 1)
        return True

    def release(self, uid: str, pod: TracePod) -> None:
        self._take(uid, pod, -1)
        del self.held[uid]

    def _take(self, uid: str, pod: TracePod, sign: int) -> None:
        place, indexes = self.held[uid]
        self.free[place][0] -= sign * pod.cpu_milli
        self.free[place][1] -= sign * pod.memory_mib
        for index in indexes:
            self.free[place][2][index] -= sign * pod.gpu_milli
        self.used += sign * pod.num_gpu * pod.gpu_milli


def replay(trace: Trace) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield after every event: second, GPU thousandths in use, pods waiting, pods ended, pods let in by a release."""
    timeline = Timeline({pod.name: pod for pod in trace.pods})
    packer = Packer(trace)
    waiting: dict[str, TracePod] = {}
    ended = let_in = 0
    while event := timeline.next():
        if isinstance(event, End):
            packer.release(event.uid, event.pod)
            ended += 1
        else:
            waiting[event.uid] = event.pod
        refused = set()
        for uid, pod in list(waiting.items()) if isinstance(event, End) else [(event.uid, event.pod)]:
            shape = (pod.cpu_milli, pod.memory_mib, pod.num_gpu, pod.gpu_milli)
            if shape in refused:
                continue
            if packer.place(uid, pod):
                timeline.started(uid)
                del waiting[uid]
                let_in += isinstance(event, End)
            else:
                refused.add(shape)
        yield timeline.now, packer.used, len(waiting), ended, let_in


@pytest.mark.parametrize("seed", [1, 2])
def test_keeps_the_cluster_busy_with_pods_waiting_at_times(seed: int) -> None:
    trace = generate(60, 600, seed)
    capacity = 1000 * sum(node.gpus for node in trace.nodes)
    day = [step for step in replay(trace) if SPAN_S * 0.15 < step[0] <= SPAN_S]
    use = [used / capacity for _, used, _, _, _ in day]
    assert 0.90 < sum(use) / len(use) < 0.98
    assert max(waiting for _, _, waiting, _, _ in day) > 5
    assert day[-1][3] > 600 // 6
    assert day[-1][4] > 600 // 20
