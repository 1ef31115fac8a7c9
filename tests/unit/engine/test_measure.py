"""The fragmentation measure as tables, against its definition as a plain loop, on random states of nodes."""

import random
from fractions import Fraction

import pytest

from consumers.allocator.engine import Workload
from consumers.allocator.engine.measure import Measure
from schemas.cluster import PodKind

MODELS = ("a", "b", "c")
SHARES = (0, 50, 110, 230, 320, 460, 470, 650, 810, 1000)


def plain(free: list[tuple[int, str]], cpu: int, workload: Workload) -> Fraction:
    """Return the expected fragmentation: all of the free GPU for kinds that cannot run, else the GPUs with too little."""
    total = Fraction(0)
    everything = sum(share for share, _ in free)
    for kind in workload.kinds:
        enough = [share for share, model in free if share >= kind.share_milli and model in (kind.models or MODELS)]
        fragmented = everything
        if kind.gpus and cpu >= kind.cpu_milli and len(enough) >= kind.gpus:
            fragmented -= sum(enough)
        total += Fraction(kind.pods, workload.pods) * fragmented
    return total


def random_workload(rng: random.Random, *, bound: bool) -> Workload:
    def kind() -> PodKind:
        gpus = rng.choice([0, 1, 1, 1, 1, 2, 4, 8])
        share = 1000 if gpus > 1 and rng.random() < 0.7 else rng.choice(SHARES)
        models = rng.choice([(), ("a",), ("a", "b")]) if bound else ()
        cpu = rng.choice([0, 2, 4, 8, 12]) * 1000
        return PodKind(
            cpu_milli=cpu, gpus=gpus, share_milli=share if gpus else 0, models=models, pods=rng.randint(1, 900)
        )

    return Workload(tuple(kind() for _ in range(rng.randint(1, 30))))


@pytest.mark.parametrize("bound", [False, True])
def test_measure_equals_the_plain_loop(bound: bool) -> None:
    rng = random.Random(7)
    for _ in range(60):
        workload = random_workload(rng, bound=bound)
        measure = Measure(workload)
        for model in MODELS:
            measure.learn(model)
        for _ in range(25):
            shares = [rng.choice((0, 1000, 1000, rng.randint(0, 1000))) for _ in range(rng.choice([1, 2, 4, 8]))]
            sorts, cpu = [rng.randint(1, 3) for _ in shares], rng.randint(0, 14_000)
            free = [(share, MODELS[sort - 1]) for share, sort in zip(shares, sorts, strict=True)]
            found = measure.fragmented(shares, sorts, cpu)
            assert Fraction(found, workload.pods) == plain(free, cpu, workload)


def test_gpus_that_no_pod_can_get_are_neither_free_nor_fragmented() -> None:
    measure = Measure(Workload((PodKind(gpus=2, share_milli=0, pods=1), PodKind(gpus=1, share_milli=0, pods=1))))
    measure.learn("a")
    assert measure.fragmented([0, 700], [0, 1], 0) == 700  # only the kind of two cannot run
    assert measure.fragmented([300, 700], [1, 1], 0) == 0


def test_workload_of_pods_without_gpus_finds_everything_fragmented() -> None:
    measure = Measure(Workload((PodKind(cpu_milli=1, pods=3),)))
    measure.learn("a")
    assert measure.fragmented([300, 1000], [1, 1], 5) == 3 * 1300
