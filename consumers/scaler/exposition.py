"""What pools lack and have to spare as Prometheus metrics, so that any autoscaler can act on it."""

from collections.abc import Iterable

from bus.exposition import Family, Sample
from schemas.capacity import PoolCapacity, Size


def families(pools: Iterable[PoolCapacity]) -> list[Family]:
    """Return the metrics of pools as they were at their last look."""
    known = sorted(pools, key=lambda pool: pool.pool)
    found = []
    for word, text in (
        ("total", "of nodes that have shown their GPUs"),
        ("available", "that is free"),
        ("coming", "of claimed nodes"),
    ):
        for unit, value in (("gpus", _gpus), ("tflops", _tflops), ("vram_bytes", _vram)):
            samples = [Sample(value(getattr(pool, word)), {"pool": pool.pool}) for pool in known]
            found.append(Family(f"gpubus_pool_{word}_{unit}", f"{unit.replace('_', ' ')} {text}", samples))
    pods = [
        Sample(
            float(short.pods),
            {
                "pool": pool.pool,
                "gpus": str(short.shape.gpus),
                "models": ",".join(short.shape.models),
                "reason": short.reason,
            },
        )
        for pool in known
        for short in pool.missing
    ]
    found.append(
        Family("gpubus_pool_missing_pods", "pods that wait for room that more nodes would give", _merged(pods))
    )
    held = [Sample(1.0, {"pool": pool.pool, "reason": pool.held}) for pool in known if pool.held]
    return [*found, Family("gpubus_pool_held", "why a pool does not grow as far as it should", held)]


def _merged(samples: list[Sample]) -> list[Sample]:
    """Return samples with those of the same labels added up."""
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        key = tuple(sorted(sample.labels.items()))
        sums[key] = sums.get(key, 0.0) + sample.value
    return [Sample(value, dict(key)) for key, value in sums.items()]


def _gpus(size: Size) -> float:
    return float(size.gpus)


def _tflops(size: Size) -> float:
    return size.tflops_milli / 1000


def _vram(size: Size) -> float:
    return float(size.vram_bytes)
