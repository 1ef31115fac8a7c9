"""Learning the target workload: when, and from what."""

import random

from consumers.allocator.engine import VAGUE, WorkloadEstimator
from schemas.cluster import PodKind
from schemas.pod import GpuRequest


def test_learns_often_at_first_and_then_every_thousand() -> None:
    estimator, learnt = WorkloadEstimator(), []
    assert estimator.workload == VAGUE
    for number in range(1, 3001):
        found = estimator.add(GpuRequest(pool="p", compute_milli=300))
        if found is not None:
            learnt.append(number)
            assert estimator.workload is found
    assert learnt == [50, 100, 200, 400, 800, 1000, 2000, 3000]
    assert estimator.workload.kinds == (PodKind(gpus=1, share_milli=300, pods=3000),)


def test_vague_pods_weigh_little_and_less_and_less() -> None:
    estimator = WorkloadEstimator()
    for _ in range(50):
        estimator.add(GpuRequest(pool="p", compute_milli=300))
    assert estimator.workload.kinds[0] == PodKind(gpus=1, share_milli=300, pods=50)
    assert estimator.workload.kinds[1:] == VAGUE.kinds[:2]  # the others are beyond 95 %
    # A kind that is asked for adds to the vague pods of it.
    estimator = WorkloadEstimator()
    for _ in range(50):
        estimator.add(GpuRequest(pool="p", compute_milli=500, cpu_milli=4000))
    assert estimator.workload.kinds[0] == PodKind(cpu_milli=4000, gpus=1, share_milli=500, pods=53)


def test_equal_requests_teach_the_same_in_any_order() -> None:
    requests = [GpuRequest(pool="p", compute_milli=share) for share in (100, 200, 300, 400) for _ in range(share // 4)]
    one, other = WorkloadEstimator(), WorkloadEstimator()
    for request in requests[:200]:
        one.add(request)
    for request in random.Random(1).sample(requests[:200], 200):
        other.add(request)
    assert one.workload == other.workload


def test_amounts_are_shares_of_the_reference() -> None:
    estimator = WorkloadEstimator(reference=(100_000, 1000))
    for _ in range(50):
        estimator.add(GpuRequest(pool="p", tflops_milli=20_000, vram_bytes=300))
    assert estimator.workload.kinds[0].share_milli == 300
