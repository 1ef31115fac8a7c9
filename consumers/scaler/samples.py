"""What a workload's workers used, out of the metrics store."""

from datetime import UTC, datetime
from typing import Final

from consumers.metrics.store import MetricsStore
from consumers.metrics.tables import Value
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
        f"WHERE namespace = {_quoted(namespace)} AND workload = {_quoted(workload)} "
        f"AND ts > {_quoted(_text(since))} AND ts <= {_quoted(_text(until))}",
        timeout=TIMEOUT_S,
    )
    return [
        Sample(_instant(ts), round(_number(compute) * factor), round(_number(vram))) for ts, compute, vram in found.rows
    ]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _instant(value: Value) -> datetime:
    return datetime.fromisoformat(str(value)).replace(tzinfo=UTC)


def _number(value: Value) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
