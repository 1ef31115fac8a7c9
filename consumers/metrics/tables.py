"""The nine tables of TensorFusion's metrics, with every column, those included that upstream declares and never writes.

A row is identified by its time and its tags; writing it again replaces it. Unknown values are NULL.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

Kind = Literal["double", "bigint", "boolean", "string"]
Value = str | int | float | bool | None
Row = tuple[Value, ...]
"""Milliseconds since the epoch, then the tags, then the fields, in the order of the table."""

TIME: Final = "ts"


class Table(msgspec.Struct, frozen=True, eq=False):
    """One table. Tags are strings; ``fields`` says what each field is."""

    name: str
    tags: tuple[str, ...]
    fields: Mapping[str, Kind]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, in the order of a row."""
        return (TIME, *self.tags, *self.fields)

    def with_tags(self, names: Iterable[str]) -> "Table":
        """Return the table with further tags behind its own."""
        return Table(self.name, (*self.tags, *names), self.fields)

    def row(self, ts_ms: int, **values: Value) -> Row:
        """Return a row from named values; what is not named is NULL, a tag the empty text.

        Raises:
            KeyError: The table has no column of that name.
        """
        if unknown := values.keys() - {*self.tags, *self.fields}:
            raise KeyError(f"{self.name} has no column {', '.join(sorted(unknown))}")
        tags = (str(values.get(tag) or "") for tag in self.tags)
        return (ts_ms, *tags, *(values.get(field) for field in self.fields))


def _table(name: str, tags: str, double: str, *, bigint: str = "", string: str = "", boolean: str = "") -> Table:
    fields: dict[str, Kind] = dict.fromkeys(bigint.split(), "bigint")
    fields |= dict.fromkeys(double.split(), "double")
    fields |= dict.fromkeys(string.split(), "string")
    fields |= dict.fromkeys(boolean.split(), "boolean")
    return Table(name, tuple(tags.split()), fields)


_ALLOCATED: Final = (
    "allocated_tflops allocated_tflops_percent allocated_tflops_percent_virtual "
    "allocated_vram_bytes allocated_vram_percent allocated_vram_percent_virtual "
)
_LIMITED: Final = "limited_tflops limited_tflops_percent_virtual limited_vram_bytes limited_vram_percent_virtual "

WORKER_RESOURCES: Final = _table(
    "tf_worker_resources",
    "namespace pool qos worker workload",
    "tflops_limit tflops_request raw_cost vram_bytes_limit vram_bytes_request",
    bigint="gpu_count",
    boolean="ready",
)
NODE_METRICS: Final = _table(
    "tf_node_metrics", "node pool phase", _ALLOCATED + _LIMITED + "raw_cost", bigint="gpu_count"
)
POOL_METRICS: Final = _table("tf_pool_metrics", "pool phase", _ALLOCATED + _LIMITED, bigint="gpu_count")
SYSTEM_METRICS: Final = _table(
    "tf_system_metrics",
    "pool",
    "",
    bigint=(
        "total_workers_cnt total_nodes_cnt total_allocation_fail_cnt total_allocation_success_cnt "
        "total_scale_up_cnt total_scale_down_cnt total_topo_satisfied_cnt total_topo_unsatisfied_cnt "
        "total_topo_fallback_cnt total_topo_search_degraded_cnt"
    ),
)
GPU_ALLOCATION: Final = _table(
    "tf_gpu_allocation", "pod namespace pod_uuid node gpu_model_index gpu_name", "", bigint="gpu_count"
)
GPU_METRICS: Final = _table(
    "tf_gpu_metrics",
    "gpu node pool gpu_model phase",
    "capacity_tflops available_tflops allocated_tflops allocated_tflops_percent "
    "capacity_vram_bytes available_vram_bytes allocated_vram_bytes allocated_vram_percent",
)
WORKER_USAGE: Final = _table(
    "tf_worker_usage",
    "uuid node pool pod_name namespace workload worker",
    "compute_percentage compute_tflops memory_percentage",
    bigint="memory_bytes compute_throttled_cnt vram_freezed_cnt vram_resumed_cnt",
)
GPU_USAGE: Final = _table(
    "tf_gpu_usage",
    "uuid node pool",
    "rx tx temperature memory_bytes memory_percentage compute_percentage compute_tflops power_usage "
    "graphics_clock_mhz sm_clock_mhz memory_clock_mhz video_clock_mhz nvlink_rx nvlink_tx",
)
SYSTEM_LOG: Final = _table("tf_system_log", "component container namespace pod stream", "", string="message timestamp")

TABLES: Final[Mapping[str, Table]] = {
    table.name: table
    for table in (
        WORKER_RESOURCES,
        NODE_METRICS,
        POOL_METRICS,
        SYSTEM_METRICS,
        GPU_ALLOCATION,
        GPU_METRICS,
        WORKER_USAGE,
        GPU_USAGE,
        SYSTEM_LOG,
    )
}

OF_USAGE: Final = (WORKER_USAGE, GPU_USAGE)
"""Tables of what agents say; all others are written with each snapshot of the cluster."""

OF_WORKERS: Final = (WORKER_RESOURCES, GPU_ALLOCATION, WORKER_USAGE)
"""Tables that labels of pods can be added to (``metricsExtraPodLabels``)."""

TAKEN: Final = frozenset(column for table in OF_WORKERS for column in table.columns)
"""Names that no such label can have there."""
