"""What is counted of pods from sample to sample: held back by a limit, off the GPU and back on it."""

from datetime import UTC, datetime

import msgspec
import pytest

from producers.agent.cgroups import Owner
from producers.agent.source import Process, Reading
from producers.agent.tally import Tally, compute_limit
from schemas.cluster import GpuDevice
from schemas.decision import GpuGrant
from schemas.ledger import Allocation
from schemas.pod import ContainerRequest, GpuRequest
from schemas.usage import GpuSample, NodeUsage, ProcessUsage

AT = datetime(2026, 1, 1, tzinfo=UTC)
GRANT = GpuGrant(uuid="G", index=0, tflops_milli=1, vram_bytes=1)
HELD = {"a": Allocation(pod_uid="a", namespace="n", name="a", pool="p", gpus=(GRANT,))}


class Node:
    """Processes of pods ``a`` and ``b`` by number, alive as long as they have a start time."""

    def __init__(self) -> None:
        self.alive = {1: "s1", 2: "s2", 9: "s9"}
        self.tally = Tally(lambda pid: Owner("b" if pid == 9 else "a"), lambda pid: self.alive.get(pid, ""))
        self.limit: float | None = None

    def sample(self, *pids: int, percent: float = 0.0, absent: bool = False, entries: int = 1) -> list[ProcessUsage]:
        shown = {"b" if pid == 9 else "a" for pid in pids}
        told = tuple(
            ProcessUsage(pod_uid=uid, sm_percent=percent if uid == "a" else 100.0, foreign=uid == "b", pids=1)
            for uid in sorted(shown)
            for _ in range(entries)
        )
        gpu = GpuSample(uuid="G", processes=told, absent=absent)
        reading = Reading(GpuSample(uuid="G", absent=absent), tuple(Process(pid, 1) for pid in pids))
        usage = NodeUsage(node="n", at=AT, gpus=(gpu,))
        return list(self.tally.count(usage, [reading], HELD, lambda *_: self.limit).gpus[0].processes)


def counts(process: ProcessUsage) -> tuple[int | None, int | None, int | None]:
    return process.throttled_count, process.vram_frozen_count, process.vram_resumed_count


def test_a_sample_at_the_limit_counts_once_however_many_containers_say_so() -> None:
    node = Node()
    (process,) = node.sample(1, percent=100.0)
    assert counts(process) == (None, 0, 0)  # no limit, so nothing that could hold it back
    node.limit = 50.0
    found = [node.sample(1, percent=percent, entries=2) for percent in (50.0, 47.5, 47.0, 0.0, 99.0)]
    assert [[process.throttled_count for process in entries] for entries in found] == [[n, n] for n in (1, 2, 2, 2, 3)]


def test_a_process_that_leaves_the_gpu_and_lives_is_frozen_and_resumed_when_it_is_back() -> None:
    node = Node()
    node.sample(1, 2)
    assert [counts(process) for process in node.sample(2)] == [(None, 0, 0)]  # one sample may miss it
    assert [counts(process) for process in node.sample(2)] == [(None, 1, 0)]
    node.sample()
    (frozen,) = node.sample()
    assert (frozen.pids, frozen.vram_bytes, counts(frozen)) == (0, 0, (None, 2, 0))
    assert [counts(process) for process in node.sample(absent=True)] == []
    assert [counts(process) for process in node.sample(1)] == [(None, 2, 1)]
    assert [counts(process) for process in node.sample(1, 2)] == [(None, 2, 2)]
    for _ in range(3):
        assert [counts(process) for process in node.sample(1, 2)] == [(None, 2, 2)]


def test_processes_that_end_or_flicker_are_neither() -> None:
    node = Node()
    node.sample(1)
    node.sample()
    node.sample(1)
    del node.alive[1]
    for _ in range(3):
        assert node.sample() == []
    node.alive[1] = "another"  # its number is given to a new process
    assert [counts(process) for process in node.sample(1)] == [(None, 0, 0)]
    for _ in range(3):
        node.sample()
    del node.alive[1]
    assert node.sample() == []
    node.alive[1] = "a third"
    assert [counts(process) for process in node.sample(1)] == [(None, 1, 0)]


def test_strangers_are_not_counted_and_pods_that_left_the_ledger_are_forgotten() -> None:
    node = Node()
    (process,) = node.sample(9)
    assert counts(process) == (None, None, None)
    node.sample(1)
    usage = NodeUsage(node="n", at=AT, gpus=(GpuSample(uuid="G"),))
    node.tally.count(usage, [Reading(GpuSample(uuid="G"))], {}, lambda *_: None)
    assert node.tally._counts == {}


def test_counts_go_on_after_a_restart() -> None:
    node, again = Node(), Node()
    node.limit = again.limit = 10.0
    entries = [node.sample(1, percent=10.0) for _ in range(3)][-1]
    again.tally.restore(NodeUsage(node="n", at=AT, gpus=(GpuSample(uuid="G", processes=tuple(entries)),)))
    assert [counts(process) for process in again.sample(1, percent=10.0)] == [(4, 0, 0)]


@pytest.mark.parametrize(
    ("request_", "container", "percent"),
    [
        (GpuRequest(pool="", tflops_milli=1000, tflops_limit_milli=30_000), "", 30.0),
        (GpuRequest(pool="", compute_milli=100, compute_limit_milli=250), "", 25.0),
        (GpuRequest(pool="", compute_milli=100), "", None),
        (GpuRequest(pool="", tflops_limit_milli=100_000), "", None),  # the whole GPU
        (GpuRequest(pool="", tflops_limit_milli=30_000, isolation="shared"), "", None),
        (GpuRequest(pool="", tflops_limit_milli=30_000, isolation="partitioned"), "", None),
        (GpuRequest(pool="", compute_milli=300, dialect="hami"), "", 30.0),
        (
            GpuRequest(
                pool="",
                compute_milli=300,
                dialect="hami",
                containers=(ContainerRequest(name="c", compute_milli=200),),
            ),
            "c",
            20.0,
        ),
        (None, "", None),
    ],
)
def test_the_limit_is_what_the_container_is_told(
    request_: GpuRequest | None, container: str, percent: float | None
) -> None:
    device = GpuDevice(uuid="G", index=0, model="m", tflops_milli=100_000, vram_bytes=1)
    assert compute_limit(request_, container, device) == percent
    assert compute_limit(request_, container, msgspec.structs.replace(device, mode="mps")) is None
    assert compute_limit(request_, container, None) is None
