"""What pods of a pool asked for and used, hour by hour out of the metrics store."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final

from consumers.metrics.store import MetricsStore
from consumers.metrics.tables import Value
from consumers.scaler.oversell import Counts, Used, Worker, count

HOUR: Final = timedelta(hours=1)
TIMEOUT_S: Final = 60.0


async def read_history(
    store: MetricsStore, pool: str, since: datetime, until: datetime
) -> AsyncIterator[tuple[datetime, Counts, Counts]]:
    """Yield after every hour how far it has come, and all that was counted so far of compute and VRAM.

    Raises:
        StoreError: The store did not answer.
    """
    compute, vram = Counts(), Counts()
    at = since
    while at < until:
        end = min(at + HOUR, until)
        where = f"WHERE pool = {quoted(pool)} AND ts >= {quoted(instant_text(at))} AND ts < {quoted(instant_text(end))}"
        asked = await store.query(
            "SELECT namespace, worker, max(tflops_request), max(vram_bytes_request) "  # noqa: S608  names are quoted
            f"FROM tf_worker_resources {where} GROUP BY namespace, worker",
            timeout=TIMEOUT_S,
        )
        used = await store.query(
            "SELECT uuid, date_trunc('minute', ts) AS at, namespace, pod_name, avg(compute_tflops), max(memory_bytes) "  # noqa: S608
            f"FROM tf_worker_usage {where} GROUP BY uuid, date_trunc('minute', ts), namespace, pod_name",
            timeout=TIMEOUT_S,
        )
        stated: dict[Worker, tuple[float, float]] = {
            (str(namespace), str(worker)): (number(tflops), number(size))
            for namespace, worker, tflops, size in asked.rows
        }
        count(
            (
                Used(str(gpu), str(minute), (str(namespace), str(pod)), number(tflops), number(size))
                for gpu, minute, namespace, pod, tflops, size in used.rows
            ),
            stated,
            compute,
            vram,
        )
        at = end
        yield at, compute, vram


def quoted(text: str) -> str:
    """Return text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def instant_text(at: datetime) -> str:
    """Return an instant as both stores compare it."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def number(value: Value) -> float:
    """Return a value as a number; NULL is 0."""
    return float(value) if isinstance(value, (int, float)) else 0.0
