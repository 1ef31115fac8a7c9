"""Clusters and workloads as published: the openb format, one CSV of nodes and one of pods.

Format: Alibaba ``clusterdata``, ``cluster-trace-gpu-v2023/csv``, described in Weng et al., "Beware of Fragmentation:
Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from producers.simulator.csvfile import Row, TraceError, read_rows
from schemas.catalogue import MODELS
from schemas.pod import WHOLE

NODES_FILE: Final = "openb_node_list_gpu_node.csv"
PODS_FILE: Final = "openb_pod_list_default.csv"

MOST_GPUS: Final = 16
"""GPUs in the largest node that is accepted; real machines stop at 16."""

POD_GPUS: Final = (0, 1, 2, 4, 8)
QOS: Final = ("LS", "BE", "Burstable", "Guaranteed", "")

_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
LONGEST_NAME: Final = 253
"""Characters in the longest name that Kubernetes takes (a DNS subdomain)."""

_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_TIMED_COLUMNS: Final = ("gpu_spec", "qos", "creation_time", "deletion_time", "scheduled_time")
"""Columns that the multi-GPU pod lists lack, all of them."""


class TraceNode(msgspec.Struct, frozen=True, kw_only=True):
    """One machine. CPU in thousandths of a core, memory in MiB; ``model`` is empty when it has no GPUs."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class TracePod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod and the time it takes.

    Attributes:
        name: Unique within the trace.
        cpu_milli: CPU in thousandths of a core.
        memory_mib: Memory in MiB.
        num_gpu: GPUs, each on a different device of one node.
        gpu_milli: Share of each GPU in thousandths; below 1000 only with one GPU, 0 without.
        gpu_spec: GPU models the pod accepts; empty accepts all.
        qos: ``LS`` (latency-sensitive), ``BE`` (best effort), ``Burstable``, ``Guaranteed`` or empty.
        arrives_s: Second of the trace at which it is created.
        runs_s: Seconds it runs once it has started; None runs for ever.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    arrives_s: int
    runs_s: int | None
    gpu_spec: tuple[str, ...] = ()
    qos: str = ""


class Trace(msgspec.Struct, frozen=True):
    """A cluster and the pods that come to it, in file order."""

    nodes: list[TraceNode]
    pods: list[TracePod]


def read_trace(directory: Path, pods_file: str | None = None) -> Trace:
    """Return the trace in ``directory``, completely checked.

    A pod's running time is counted from when the published cluster started it, or from its creation if that never
    happened. In a pod list without times, pods arrive one second apart in file order and never end.

    Args:
        directory: Folder with ``openb_node_list_gpu_node.csv`` and the pod list.
        pods_file: Name of the pod list; ``openb_pod_list_default.csv`` when None.

    Raises:
        TraceError: Something is missing or malformed; the message names file, line, column, value and what was expected.
    """
    if not directory.is_dir():
        raise TraceError(f"a directory with {NODES_FILE} and a pod list", file=directory)
    pods_path = directory / (pods_file or PODS_FILE)
    for file in (directory / NODES_FILE, pods_path):
        if not file.is_file():
            raise TraceError("a file of this name", file=file)
    node_rows = read_rows(directory / NODES_FILE, _NODE_COLUMNS)
    pod_rows = read_rows(pods_path, _POD_COLUMNS, together=_TIMED_COLUMNS)
    _check_names(node_rows, "sn")
    _check_names(pod_rows, "name")
    return Trace([_node(row) for row in node_rows], [_pod(row, place) for place, row in enumerate(pod_rows)])


def _check_names(rows: Sequence[Row], column: str) -> None:
    lines: dict[str, int] = {}
    for row in rows:
        name = row.text(column)
        if not name.strip():
            raise row.error(column, "a name")
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise row.error(column, f"a name of at most {LONGEST_NAME} printable characters")
        first = lines.setdefault(name, row.line)
        if first != row.line:
            raise row.error(column, f"a name of its own, line {first} has the same")


def _node(row: Row) -> TraceNode:
    gpus = row.whole("gpu", most=MOST_GPUS)
    if gpus:
        _check_model(row, "model", row.text("model"))
    return TraceNode(
        name=row.text("sn"),
        cpu_milli=row.whole("cpu_milli"),
        memory_mib=row.whole("memory_mib"),
        gpus=gpus,
        model=row.text("model") if gpus else "",
    )


def _check_model(row: Row, column: str, model: str) -> None:
    if model not in MODELS:
        raise row.error(column, f"one of the GPU models {', '.join(MODELS)}")


def _pod(row: Row, place: int) -> TracePod:
    num_gpu, gpu_milli = _gpus(row)
    arrives_s, runs_s = _times(row) if "creation_time" in row.fields else (place, None)
    models = tuple(row.text("gpu_spec").split("|")) if row.text("gpu_spec") else ()
    for model in models:
        _check_model(row, "gpu_spec", model)
    if row.text("qos") not in QOS:
        raise row.error("qos", f"one of {', '.join(filter(None, QOS))}, or nothing")
    return TracePod(
        name=row.text("name"),
        cpu_milli=row.whole("cpu_milli"),
        memory_mib=row.whole("memory_mib"),
        num_gpu=num_gpu,
        gpu_milli=gpu_milli,
        arrives_s=arrives_s,
        runs_s=runs_s,
        gpu_spec=models,
        qos=row.text("qos"),
    )


def _gpus(row: Row) -> tuple[int, int]:
    """Return the number of GPUs and the share of each, checked against one another."""
    num_gpu = row.whole("num_gpu")
    if num_gpu not in POD_GPUS:
        raise row.error("num_gpu", f"one of {', '.join(map(str, POD_GPUS))}")
    gpu_milli = row.whole("gpu_milli", most=WHOLE)
    if num_gpu == 0 and gpu_milli:
        raise row.error("gpu_milli", "0, because num_gpu is 0")
    if num_gpu == 1 and not gpu_milli:
        raise row.error("gpu_milli", f"1 to {WHOLE}, because num_gpu is 1")
    if num_gpu > 1 and gpu_milli != WHOLE:
        raise row.error("gpu_milli", f"{WHOLE}, because num_gpu is {num_gpu} and only single GPUs are shared")
    return num_gpu, gpu_milli


def _times(row: Row) -> tuple[int, int]:
    """Return when the pod was created and for how many seconds it then held its place."""
    created = row.whole("creation_time")
    deleted = row.whole("deletion_time")
    if deleted < created:
        raise row.error("deletion_time", f"{created} (creation_time) or later")
    if not row.text("scheduled_time"):
        return created, deleted - created
    scheduled = row.whole("scheduled_time")
    if not created <= scheduled <= deleted:
        raise row.error("scheduled_time", f"{created} (creation_time) to {deleted} (deletion_time), or nothing")
    return created, deleted - scheduled
