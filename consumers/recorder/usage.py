"""A node's usage sample as rows of ``tf_gpu_usage`` and ``tf_worker_usage``. Pure.

Rows are built in the order of their tables: twenty thousand a second leave no time for names.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from consumers.metrics.tables import GPU_USAGE, Row, Table
from consumers.recorder.view import View
from schemas.usage import GpuSample, NodeUsage, ProcessUsage

SKEW_MS: Final = 2_000
"""How far a node's clock may be from the bus's before its samples are dated by the bus: less than any window can miss. A sample
is on its way for milliseconds; one that an outage kept back is dated by the bus as well.
"""


def skewed(usage: NodeUsage, stored_ms: int) -> bool:
    """Whether the clock of a node is wrong: rules would look for its samples where they are not, or find them for ever."""
    return abs(usage.at.timestamp() * 1000 - stored_ms) > SKEW_MS


def usage_rows(view: View, usage: NodeUsage, stored_ms: int, rows: Mapping[Table, list[Row]]) -> None:
    """Append the rows of one sample. What a GPU does not tell is NULL; one that could not be read has no row.

    Args:
        view: What is known of the cluster.
        usage: The sample.
        stored_ms: When the bus stored it, milliseconds since the epoch.
        rows: Lists by table, made where they are missing.
    """
    ts = stored_ms if skewed(usage, stored_ms) else int(usage.at.timestamp() * 1000)
    pool = view.pool_of(usage.node)
    gpu_rows, worker_rows = rows[GPU_USAGE], rows[view.worker_usage]
    for gpu in usage.gpus:
        if not gpu.absent:
            gpu_rows.append(_gpu_row(view, usage.node, pool, ts, gpu))
            worker_rows += _worker_rows(view, usage.node, pool, ts, gpu)


def _gpu_row(view: View, node: str, pool: str, ts: int, gpu: GpuSample) -> Row:
    device = view.device(node, gpu.uuid)
    return (
        ts,
        gpu.uuid,
        node,
        pool,
        float(gpu.pcie_rx_bytes),
        float(gpu.pcie_tx_bytes),
        float(gpu.temperature_c) if gpu.temperature_c else None,
        float(gpu.vram_used_bytes),
        100.0 * gpu.vram_used_bytes / device.vram_bytes if device is not None and device.vram_bytes else None,
        gpu.sm_percent,
        gpu.sm_percent * device.tflops_milli / 100_000 if device is not None else None,
        gpu.power_mw / 1000 if gpu.power_mw else None,
        float(gpu.graphics_clock_mhz) if gpu.graphics_clock_mhz else None,
        float(gpu.sm_clock_mhz) if gpu.sm_clock_mhz else None,
        float(gpu.memory_clock_mhz) if gpu.memory_clock_mhz else None,
        float(gpu.video_clock_mhz) if gpu.video_clock_mhz else None,
        float(gpu.nvlink_rx_bytes),
        float(gpu.nvlink_tx_bytes),
    )


def _worker_rows(view: View, node: str, pool: str, ts: int, gpu: GpuSample) -> Iterable[Row]:
    by_pod: dict[str, list[ProcessUsage]] = {}
    for process in gpu.processes:
        if process.pod_uid:
            by_pod.setdefault(process.pod_uid, []).append(process)
    held = view.held.get(node, {})
    device = view.device(node, gpu.uuid)
    for uid, processes in by_pod.items():
        allocation, pod = held.get(uid), view.pods.get(uid)
        granted = (
            next((g.vram_bytes for g in allocation.gpus if g.uuid == gpu.uuid), 0) if allocation is not None else 0
        )
        limit = max(granted, pod.request.vram_limit_bytes) if pod is not None else granted
        memory = sum(process.vram_bytes for process in processes)
        compute = sum(process.sm_percent for process in processes)
        name = allocation.name if allocation is not None else ""
        yield (
            ts,
            gpu.uuid,
            node,
            pool,
            name,
            allocation.namespace if allocation is not None else "",
            workload(view, uid) or name,
            uid,
            *view.extra_tags(uid),
            memory,
            # Counts of the pod, which all its entries repeat.
            processes[0].throttled_count,
            processes[0].vram_frozen_count,
            processes[0].vram_resumed_count,
            compute,
            compute * device.tflops_milli / 100_000 if device is not None else None,
            100.0 * memory / limit if limit else None,
        )


def workload(view: View, uid: str) -> str:
    """Return the workload that a pod says it belongs to."""
    pod = view.pods.get(uid)
    return pod.labels.get("tensor-fusion.ai/workload", "") if pod is not None else ""
