"""The target workload: which kinds of pods are kept, in which order, and how a policy takes them in."""

import pytest

from consumers.allocator.engine import VAGUE, Policy, Workload, shadow_prices
from schemas.cluster import PodKind, Pool
from schemas.pod import GpuRequest


def ask(count: int, share: int = 0, cpu: int = 0, models: tuple[str, ...] = ()) -> GpuRequest:
    return GpuRequest(pool="p", count=count, compute_milli=share, vram_milli=share, cpu_milli=cpu, models=models)


def test_kinds_are_kept_by_frequency_until_they_cover_95_percent() -> None:
    requests = [ask(1, 500)] * 60 + [ask(0, cpu=4)] * 34 + [ask(1, 1000)] * 3 + [ask(8, 1000)] * 2 + [ask(2, 1000)]
    workload = Workload.of(requests)
    assert workload.kinds == (
        PodKind(gpus=1, share_milli=500, pods=60),
        PodKind(cpu_milli=4, pods=34),
        PodKind(gpus=1, share_milli=1000, pods=3),
    )
    assert workload.pods == 97
    assert Workload.of(reversed(requests)) == workload
    # Exactly 95 % is enough.
    assert len(Workload.of([ask(1, 500)] * 95 + [ask(1, 600)] * 5).kinds) == 1


def test_heavy_kinds_are_kept_where_they_are_wanted_though_they_be_few() -> None:
    requests = [ask(1, 500)] * 1900 + [ask(8, 1000, cpu=8)] * 2 + [ask(2, 1000)] * 2 + [ask(0, cpu=4)] * 96
    # Of 970 GPUs the two pods of 8 ask for 1.6 %, those of 2 for 0.4 %.
    frequent, heavy = (
        PodKind(gpus=1, share_milli=500, pods=1900),
        PodKind(cpu_milli=8, gpus=8, share_milli=1000, pods=2),
    )
    assert Workload.of(requests).kinds == (frequent,)
    assert Workload.of(requests, heavy=True).kinds == (frequent, heavy)
    idle = [ask(0, cpu=cpu) for cpu in range(40)]
    assert Workload.of(idle, heavy=True) == Workload.of(idle)  # no GPU is asked for, so none is a share of it


def test_all_kinds_as_wide_as_the_widest_that_count_are_kept_but_the_lightest_are_not_valued() -> None:
    eights = [ask(8, 1000, cpu=64)] * 40 + [ask(8, 1000, cpu=120)]
    requests = [ask(1, 500)] * 8000 + [ask(4, 1000)] + eights + [ask(0, cpu=4)] * 400 + [ask(16, 1000)]
    common, eight, rare = (
        PodKind(gpus=1, share_milli=500, pods=8000),
        PodKind(cpu_milli=64, gpus=8, share_milli=1000, pods=40),
        PodKind(cpu_milli=120, gpus=8, share_milli=1000, pods=1),
    )
    idle = PodKind(cpu_milli=4, pods=400)
    # One pod of 16 is no reason to keep nodes for such, and one of 4 is not among the widest.
    found = Workload.of(requests, heavy=True)
    assert found.kinds == (common, idle, eight, rare)
    assert found.valued.kinds == (common, idle, eight)
    assert shadow_prices(found) == shadow_prices(Workload(found.valued.kinds))
    assert Workload.of(requests).kinds == (common, idle)
    assert Workload.of(requests).valued == Workload.of(requests)
    # Exactly a hundredth of the GPU is enough; one thousandth of a GPU less of it is not.
    edge = PodKind(gpus=8, share_milli=1000, pods=1)
    for rest, valued in ((792_000, True), (792_001, False)):
        both = Workload((PodKind(gpus=1, share_milli=1, pods=rest), edge))
        assert (edge in both.valued.kinds) is valued


def test_kinds_of_equal_frequency_come_by_cpu_then_share_then_gpus_then_models_the_larger_first() -> None:
    ordered = [
        ask(1, 100, cpu=9), ask(1, 900, cpu=5), ask(4, 800, cpu=5), ask(2, 800, cpu=5), ask(1, 800, cpu=5, models=("b",)),
        ask(1, 800, cpu=5, models=("a",)), ask(1, 800, cpu=5),
    ]  # fmt: skip
    found = [(kind.cpu_milli, kind.share_milli, kind.gpus, kind.models) for kind in Workload.of(ordered[::-1]).kinds]
    assert found == [(each.cpu_milli, each.compute_milli, each.count, each.models) for each in ordered]


def test_share_of_a_pod_is_the_larger_of_compute_and_vram() -> None:
    def share(reference: tuple[int, int] = (0, 0), **asks: int) -> int:
        return Workload.of([GpuRequest(pool="p", **asks)], reference).kinds[0].share_milli  # type: ignore[arg-type]

    assert share(compute_milli=300, vram_milli=500) == 500
    assert share(tflops_milli=1, vram_milli=5) == 5  # an amount says nothing without a GPU to compare it with
    assert share((100_000, 3), tflops_milli=30_001, vram_bytes=1) == 334  # shares are rounded up
    assert share((100_000, 3), vram_bytes=9) == 1000
    assert share(count=2, dedicated=True) == 1000  # type: ignore[arg-type]


def test_models_are_a_set() -> None:
    workload = Workload.of([ask(1, 500, models=("a", "b")), ask(1, 500, models=("b", "a", "a"))])
    assert workload.kinds == (PodKind(gpus=1, share_milli=500, models=("a", "b"), pods=2),)


def test_policy_covers_the_workload_with_its_hash() -> None:
    pool = Pool(name="p", placement="FragmentationGradient")
    one, other = (Workload((PodKind(gpus=1, share_milli=share, pods=1),)) for share in (500, 501))
    assert Policy.of(pool).workload == VAGUE
    assert Policy.of(pool, workload=one).workload == one
    stated = Pool(name="p", placement="FragmentationGradient", workload=other.kinds)
    assert Policy.of(stated).workload == other
    assert Policy.of(stated, workload=one).workload == one
    hashes = {Policy.of(pool, workload=workload).hash for workload in (VAGUE, one, other)}
    assert len(hashes) == 3
    # Pinned: hashes are in the log, and a replay compares them.
    assert Policy.of(pool, workload=one).hash == "80f6308c6166c390"


def test_modes_that_do_not_look_ahead_take_no_workload() -> None:
    assert Policy.of(Pool(name="p", workload=VAGUE.kinds), workload=VAGUE) == Policy()
    with pytest.raises(ValueError, match="CompactFirst looks at no workload: leave it out, or use one of Fragm"):
        Policy(name="CompactFirst", workload=VAGUE)
    with pytest.raises(ValueError, match="FragmentationGradient looks ahead to a workload: pass one"):
        Policy(name="FragmentationGradient")
