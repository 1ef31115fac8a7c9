"""Quotas: what their objects say, whom they refuse and in which words, and whom they let go on when there is room.

Rows named after a conformance case hold that case's expected values.
"""

import re

import pytest

from bus import subjects
from bus.capacity import Limits
from bus.follower import Record
from bus.invariants import LedgerChecker
from schemas.decision import GpuGrant
from schemas.dialects import ContainerView, GpuAmounts, GpuResources, HamiConfig, PodSpecView, RequestError, hami
from schemas.dialects.quotas import gpu_resource_quota, resource_quota
from schemas.ledger import Allocation, NodeRecord, QuotaRecord
from schemas.pod import GpuRequest, Release
from schemas.quota import Budget, Quota, Single, Usage
from schemas.reasons import COMPUTE, QUOTA, QUOTA_SINGLE
from tests.unit.allocator.harness import MIB, Allocator, command, encoded

CONFIG = HamiConfig(pool="p")


def container(name="main", **limits) -> ContainerView:
    return ContainerView(
        name=name, limits={f"nvidia.com/{key}": str(value) for key, value in limits.items()}, requests={}
    )


def pod(app, init=()) -> GpuRequest:
    view = PodSpecView(namespace="ns", name="p", containers=tuple(app), init_containers=tuple(init), annotations={})
    request = hami.parse(view, CONFIG)
    assert request is not None
    return request


@pytest.mark.parametrize(
    ("app", "init", "fits"),
    [
        pytest.param([container(gpu=1, gpumem=100)], [], True, id="quota-01"),
        pytest.param([container(gpu=1, gpumem=1024)], [], False, id="quota-02"),
        pytest.param([container(gpu=2, gpumem=400)], [], True, id="quota-03"),
        pytest.param([container(gpu=1, gpumem=100)], [container("i", gpu=1, gpumem=1500)], False, id="quota-06"),
    ],
)
def test_counts_a_pod_against_what_is_left(app, init, fits) -> None:
    quota = resource_quota(
        "ns", "gpu", {"limits.nvidia.com/gpumem": "2000", "limits.nvidia.com/gpucores": "400"}, CONFIG
    )
    allocator = Allocator(quota)
    assert allocator.ask("first", GpuRequest(pool="p", vram_bytes=500 * MIB, compute_milli=1000, count=2)).node
    decision = allocator.ask("second", pod(app, init))
    assert bool(decision.node) == fits
    assert fits or decision.reason == QUOTA


def test_a_written_zero_allows_nothing_and_an_unwritten_limit_everything() -> None:  # quota-07
    quota = resource_quota("ns", "gpu", {"limits.nvidia.com/gpumem": "0", "cpu": "1"}, CONFIG)
    assert quota == Quota(namespace="ns", name="ResourceQuota/gpu", total=Budget(vram_bytes=0))
    allocator = Allocator(quota)
    refused = allocator.ask("a", pod([container(gpu=1, gpumem=500)]))
    assert refused.reason == QUOTA
    assert refused.message == "quota ResourceQuota/gpu of namespace ns: requests.vram 0 of 0 used, 500Mi asked"
    assert allocator.ask("b", GpuRequest(pool="p", count=0, cpu_milli=0)).node
    assert allocator.ask("c", pod([container(gpu=1, gpumem=500)]), namespace="free").node
    assert resource_quota("ns", "gpu", {"cpu": "4", "requests.nvidia.com/gpumem": "7"}, CONFIG) is None


def test_reads_all_that_a_gpu_resource_quota_says() -> None:
    spec = {
        "total": {"requests": {"tflops": "1500m", "vram": "8Gi"}, "limits": {"vram": "0"}, "alertThresholdPercent": 80},
        "single": {
            "maxRequests": {"tflops": "2"},
            "maxLimits": {"vram": "4Gi"},
            "maxGPUCount": 2,
            "defaultRequests": {"tflops": "1", "vram": "1Gi"},
            "defaultLimits": {"compute": "50"},
        },
    }
    quota, defaults = gpu_resource_quota("ns", "team", spec)
    assert quota.total == Budget(workers=32_768, tflops_milli=1500, vram_bytes=8 << 30, vram_limit_bytes=0)
    assert quota.single == Single(gpus=2, tflops_milli=2000, vram_limit_bytes=4 << 30)
    assert quota.alert_percent == 80
    assert defaults == GpuResources(
        requests=GpuAmounts(tflops_milli=1000, vram_bytes=1 << 30), limits=GpuAmounts(compute_milli=500)
    )


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"total": {"requests": {"tflops": "lots"}}}, "total.requests.tflops: 'lots'"),
        ({"total": {"maxWorker": 3}}, "total.maxWorker: '3' is under an unknown key: did you mean maxWorkers?"),
        ({"single": {"maxGPUCount": -1}}, "single.maxGPUCount: '-1'"),
    ],
)
def test_refuses_a_quota_that_it_cannot_read(spec, says) -> None:
    with pytest.raises(RequestError, match=re.escape(says)):
        gpu_resource_quota("ns", "team", spec)
    with pytest.raises(RequestError, match=r"limits\.nvidia\.com/gpumem: '1\.5' is not a whole number"):
        resource_quota("ns", "gpu", {"limits.nvidia.com/gpumem": "1.5"}, CONFIG)


def test_no_single_pod_may_ask_for_more_than_the_quota_lets_it() -> None:
    allocator = Allocator(Quota(namespace="ns", name="q", single=Single(gpus=2, vram_bytes=1000 * MIB)))
    many = allocator.ask("a", GpuRequest(pool="p", count=3))
    assert (many.reason, many.message) == (
        QUOTA_SINGLE,
        "quota q of namespace ns allows 2 GPUs per pod or GPU, asked 3",
    )
    assert allocator.ask("b", GpuRequest(pool="p", vram_bytes=1001 * MIB)).reason == QUOTA_SINGLE
    assert allocator.ask("c", GpuRequest(pool="p", vram_bytes=1000 * MIB, count=2)).node


def test_every_quota_of_a_namespace_holds_and_every_gpu_counts() -> None:
    first = Quota(namespace="ns", name="first", total=Budget(gpus=3))
    second = Quota(namespace="ns", name="second", total=Budget(tflops_milli=50_000, tflops_limit_milli=100_000))
    allocator = Allocator(first, second)
    pair = GpuRequest(pool="p", count=2, tflops_milli=10_000, tflops_limit_milli=30_000)
    assert allocator.ask("a", pair).node
    assert "quota first" in allocator.ask("b", pair).message
    limits = allocator.ask("c", GpuRequest(pool="p", tflops_milli=10_000, tflops_limit_milli=50_000))
    assert limits.message == "quota second of namespace ns: limits.tflops 60 of 100 used, 50 asked"
    share = allocator.ask("d", GpuRequest(pool="p", compute_milli=310))
    assert share.message == "quota second of namespace ns: requests.tflops 20 of 50 used, 31 asked"
    assert allocator.ask("e", GpuRequest(pool="p", compute_milli=300)).node


def test_a_share_is_taken_of_a_gpu_that_the_quota_has_room_for() -> None:
    half = GpuRequest(pool="p", vram_milli=500, models=("big", "small"))
    free = Allocator().ask("a", half)
    bound = Allocator(Quota(namespace="ns", name="q", total=Budget(vram_bytes=10_000 * MIB))).ask("a", half)
    assert (free.node, bound.node) == ("big", "small")


def test_a_quota_that_cannot_be_read_keeps_its_last_word_and_allows_nothing_if_it_had_none() -> None:
    allocator = Allocator(Quota(namespace="ns", name="q", total=Budget(workers=1)))
    for namespace in ("ns", "other"):
        with pytest.raises(Exception, match="JSON is malformed"):
            allocator.say("quota", namespace, "q", b"{half a quo")
    request = GpuRequest(pool="p", tflops_milli=1)
    assert allocator.ask("a", request).node
    assert allocator.ask("b", request).reason == QUOTA
    assert allocator.ask("c", request, namespace="other").reason == QUOTA
    allocator.say("quota", "other", "q", None)
    assert allocator.ask("d", request, namespace="other").node


def test_counts_pods_that_were_there_before_the_quota_came() -> None:
    allocator = Allocator()
    request = GpuRequest(pool="p", tflops_milli=1000)
    assert allocator.ask("a", request).node
    allocator.allow(Quota(namespace="ns", name="q", total=Budget(workers=2)))
    assert allocator.ask("b", request).node
    assert "workers 2 of 2 used" in allocator.ask("c", request).message


@pytest.mark.parametrize("cause", ["raised", "deleted", "released"])
def test_room_in_a_quota_wakes_as_many_as_it_has_room_for(cause) -> None:
    quota = Quota(namespace="ns", name="q", total=Budget(workers=1))
    allocator = Allocator(quota)
    request = GpuRequest(pool="p", tflops_milli=1000)
    decision = allocator.ask("a", request)
    for uid in ("b", "c", "d"):
        allocator.wait(uid, request, QUOTA)
    while allocator.core.cluster.has_grown:
        assert not allocator.core.wake()
    if cause == "raised":
        allocator.allow(Quota(namespace="ns", name="q", total=Budget(workers=3)))
    elif cause == "deleted":
        allocator.say("quota", "ns", "q", None)
    else:
        allocator.ledger_seq += 1
        empty = NodeRecord(node=decision.node, txn="b:1", allocations=(), changes=())
        allocator.core.on_ledger(decision.node, Record("s", allocator.ledger_seq, encoded(empty)))
    woken = []
    while allocator.core.cluster.has_grown:
        woken += [pod.uid for pod, _ in allocator.core.wake()]
    assert woken == {"raised": ["b", "c"], "deleted": ["b", "c", "d"], "released": ["b"]}[cause]


def held(uid: str, namespace: str = "ns") -> Allocation:
    gpu = GpuGrant(uuid="g", index=0, tflops_milli=10, vram_bytes=5)
    return Allocation(pod_uid=uid, namespace=namespace, name=uid, pool="p", gpus=(gpu,), vram_limit_bytes=7)


ONE = Usage(workers=1, gpus=1, tflops_milli=10, vram_bytes=5, tflops_limit_milli=10, vram_limit_bytes=7)


@pytest.mark.parametrize(
    ("used", "budget", "basis", "found"),
    [
        (ONE + ONE, Budget(workers=2), 0, []),
        (ONE + ONE, Budget(workers=1), 0, ["QuotaExceeded"]),
        (ONE, Budget(workers=2), 0, ["QuotaSum"]),
        (ONE, Budget(), 2, ["QuotaSum"]),
    ],
)
def test_the_checker_adds_up_what_a_quota_record_says(used, budget, basis, found) -> None:
    checker = LedgerChecker({"n": Limits(cpu_milli=9, memory_bytes=9, gpus={"g": (99, 99)})})
    steps = [
        ("node", "n", NodeRecord(node="n", txn="1", allocations=(held("a"), held("x", "other")), changes=())),
        ("quota", "ns", QuotaRecord(namespace="ns", txn="1", used=ONE)),
        ("node", "n", NodeRecord(node="n", txn="2", allocations=tuple(map(held, "ab")), changes=())),
        ("quota", "ns", QuotaRecord(namespace="ns", txn="2", used=used, budget=budget, basis=basis)),
    ]
    for seq, (kind, name, record) in enumerate(steps, 1):
        checker.apply(seq, subjects.subject("ledger", kind, name), encoded(record))
    rules = [violation.rule for violation in checker.violations if violation.rule != "ChangesDoNotAddUp"]
    assert rules == found
    assert checker.sums.unsealed.total() == 0


def test_a_pod_that_its_quota_allows_by_now_and_that_fits_nowhere_is_told_the_new_reason() -> None:
    allocator = Allocator(Quota(namespace="ns", name="q", total=Budget(workers=1)))
    whole = GpuRequest(pool="p", compute_milli=1000, models=("big",))
    assert allocator.ask("a", whole).node
    assert allocator.ask("b", whole).reason == QUOTA
    allocator.allow(Quota(namespace="ns", name="q", total=Budget(workers=2)))
    assert allocator.woken() == ["b"]
    assert allocator.ask("b", whole).reason == COMPUTE
    allocator.allow(Quota(namespace="ns", name="q", total=Budget(workers=3)))
    assert allocator.woken() == []  # it has been told


def test_what_somebody_adds_who_does_not_know_of_the_quota_yet_takes_back_what_was_promised() -> None:
    allocator = Allocator(Quota(namespace="ns", name="q", total=Budget(workers=3)))
    request = GpuRequest(pool="p", compute_milli=500, models=("small",))
    allocator.core.schedule(command("first", request), None)
    (flying,) = allocator.leave()
    for uid in ("a", "b"):  # they wait behind it
        allocator.core.schedule(command(uid, request), None)
    assert allocator.leave() == []
    gpu = GpuGrant(uuid="big0", index=0, tflops_milli=10, vram_bytes=5)
    stranger = Allocation(pod_uid="x", namespace="ns", name="x", pool="p", gpus=(gpu,))
    allocator.ledger_seq += 1
    allocator.hear_node("big", NodeRecord(node="big", txn="b:1", allocations=(stranger,), changes=()))
    assert allocator.leave() == []
    assert allocator.core.pending == 2  # the last one is refused at once, not only when a record tells the sum
    allocator.core.stored(flying, allocator.ledger_seq + 1)
    (bundle,) = allocator.leave()
    assert [item.uid for commit in bundle.commits for item in commit.items] == ["a"]
    assert bundle.seals[0].record.used.workers == 3


def test_a_release_that_names_another_namespace_gives_back_in_that_of_the_ledger() -> None:
    allocator = Allocator(*(Quota(namespace=name, name="q", total=Budget(workers=1)) for name in ("ns", "other")))
    assert allocator.ask("a", GpuRequest(pool="p")).node
    allocator.core.release(Release(namespace="other", name="x", uid="a", pool="p"), None)
    (gone,) = allocator.said()
    assert (gone.decision.namespace, gone.decision.name, gone.decision.pod_uid) == ("ns", "a", "a")
    assert allocator.ask("b", GpuRequest(pool="p")).node, "its own namespace has room again"
    assert allocator.ask("c", GpuRequest(pool="p"), namespace="other").node
    assert allocator.ask("d", GpuRequest(pool="p"), namespace="other").reason == QUOTA, "nothing is counted below zero"
