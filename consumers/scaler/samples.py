"""What a workload's workers used, out of the metrics store."""

from datetime import UTC, datetime
from typing import Final

from consumers.metrics.store import MetricsStore
from consumers.metrics.tables import Value
from consumers.scaler.history import instant_text, number, quoted
from consumers.scaler.learn import Sample
from consumers.scaler.workloads import Key
from schemas.scaling import Unit

TIMEOUT_S: Final = 20.0
_COLUMN: Final[dict[Unit, tuple[str, float]]] = {
    "tflops": ("compute_tflops", 1000),
    "percent": ("compute_percentage", 10),
}
"""Where compute is recorded, and how many thousandths one of it is."""


async def read_samples(store: MetricsStore, key: Key, unit: Unit, since: datetime, until: datetime) -> list[Sample]:
    """Return every worker's use of every GPU behind ``since``, up to ``until``.

    Raises:
        StoreError: The store did not answer.
    """
    namespace, workload = key
    column, factor = _COLUMN[unit]
    found = await store.query(
        f"SELECT ts, {column} AS compute, memory_bytes FROM tf_worker_usage "  # noqa: S608  names are quoted
        f"WHERE namespace = {quoted(namespace)} AND workload = {quoted(workload)} "
        f"AND ts > {quoted(instant_text(since))} AND ts <= {quoted(instant_text(until))}",
        timeout=TIMEOUT_S,
    )
    return [
        Sample(_instant(ts), round(number(compute) * factor), round(number(vram))) for ts, compute, vram in found.rows
    ]


def _instant(value: Value) -> datetime:
    return datetime.fromisoformat(str(value)).replace(tzinfo=UTC)
