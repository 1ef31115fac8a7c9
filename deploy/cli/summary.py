"""An event in half a line: what a person would want to know of it at first sight."""

from functools import singledispatch
from typing import Final

import msgspec

from deploy.cli.output import gib, tflops
from schemas.cluster import GpuInventory, Node, Pool
from schemas.deadletter import DeadLetter
from schemas.decision import Decision, GpuGrant
from schemas.journal import Free, Place, Turn
from schemas.ledger import GangRecord, NodeRecord, QuotaRecord
from schemas.observed import Drift, PodNotice
from schemas.pod import WHOLE, GpuRequest, Pod, Release, Schedule, Waiting
from schemas.quota import Quota
from schemas.registry import Tick
from schemas.usage import NodeUsage

_MODELS: Final = 2
"""Names of GPU models that half a line has room for."""


@singledispatch
def summary(data: object) -> str:
    """Return a short text about an event's payload."""
    return type(data).__name__


def request(asked: GpuRequest) -> str:
    """Return what a pod asks for, in the units it asked in."""
    parts = [f"{asked.count} GPU" if asked.count == 1 else f"{asked.count} GPUs"] if asked.count else []
    if asked.tflops_milli:
        parts.append(f"{tflops(asked.tflops_milli)} TFLOPS")
    if asked.compute_milli:
        parts.append(f"{100 * asked.compute_milli / WHOLE:g}% compute")
    if asked.vram_bytes:
        parts.append(f"{gib(asked.vram_bytes)} GiB VRAM")
    if asked.vram_milli:
        parts.append(f"{100 * asked.vram_milli / WHOLE:g}% VRAM")
    if asked.cpu_milli:
        parts.append(f"{tflops(asked.cpu_milli)} CPU")
    if asked.memory_bytes:
        parts.append(f"{gib(asked.memory_bytes)} GiB memory")
    if asked.models:
        shown, others = asked.models[:_MODELS], len(asked.models) - _MODELS
        parts.append("on " + " or ".join(shown) + (f" or {others} other names" if others > 0 else ""))
    return ", ".join(parts) or "nothing"


def grants(gpus: tuple[GpuGrant, ...]) -> str:
    """Return which GPUs were given, by index."""
    return "gpu " + ",".join(str(gpu.index) for gpu in gpus) if gpus else "no GPU"


@summary.register
def _(data: Node) -> str:
    state = "ready" if data.ready else "not ready"
    cordoned = ", cordoned" if data.unschedulable else ""
    return f"pool {data.pool or '-'}, {tflops(data.cpu_milli)} CPU, {gib(data.memory_bytes)} GiB, {state}{cordoned}"


@summary.register
def _(data: GpuInventory) -> str:
    counts: dict[str, int] = {}
    for gpu in data.gpus:
        counts[gpu.model] = counts.get(gpu.model, 0) + 1
    sick = sum(not gpu.healthy for gpu in data.gpus)
    foreign = sum(bool(gpu.used_by) for gpu in data.gpus)
    listed = ", ".join(f"{count} x {model}" for model, count in counts.items()) or "no GPU"
    return listed + (f", {sick} unhealthy" if sick else "") + (f", {foreign} used by others" if foreign else "")


@summary.register
def _(data: Pool) -> str:
    return data.placement


@summary.register
def _(data: Pod) -> str:
    return f"{data.phase}{' on ' + data.node if data.node else ''}, asks for {request(data.request)}"


@summary.register
def _(data: Waiting) -> str:
    return f"waits: {data.reason}, asks for {request(data.request)}"


@summary.register
def _(data: Turn) -> str:
    decisions = sum(isinstance(step, Place | Free) for step in data.steps)
    return f"turn {data.number}: {decisions} decisions after {data.decided}, {len(data.steps)} steps"


@summary.register
def _(data: NodeUsage) -> str:
    if not data.gpus:
        return "no GPU"
    busiest = max(gpu.sm_percent for gpu in data.gpus)
    used = sum(gpu.vram_used_bytes for gpu in data.gpus)
    return f"{len(data.gpus)} GPUs, busiest {busiest:g}%, {gib(used)} GiB VRAM used"


@summary.register
def _(data: NodeRecord) -> str:
    added = sum(change.op == "add" for change in data.changes)
    return f"+{added} -{len(data.changes) - added}, {len(data.allocations)} allocations"


@summary.register
def _(data: QuotaRecord) -> str:
    return f"{data.used.workers} pods hold {data.used.gpus} GPUs, {gib(data.used.vram_bytes)} GiB VRAM"


@summary.register
def _(data: GangRecord) -> str:
    return f"{len(data.members)} members stand"


@summary.register
def _(data: Quota) -> str:
    limits = {
        **msgspec.to_builtins(data.total),
        **{f"single {k}": v for k, v in msgspec.to_builtins(data.single).items()},
    }
    return ", ".join(f"{name} {limit}" for name, limit in limits.items())


@summary.register
def _(data: Decision) -> str:
    where = f" on {data.node} {grants(data.gpus)}" if data.node else ""
    reason = f": {data.reason}" if data.reason else ""
    return f"{data.outcome}{where}{reason}{' - ' + data.message if data.message else ''}"


@summary.register
def _(data: PodNotice) -> str:
    return f"{data.reason}: {data.message}"


@summary.register
def _(data: Drift) -> str:
    state = "is over" if data.resolved else f"{data.observed}; the ledger: {data.ledger}"
    return f"{data.kind}{' on ' + data.gpu if data.gpu else ''}: {state}"


@summary.register
def _(data: Schedule) -> str:
    return f"{data.namespace}/{data.name} asks for {request(data.request)}"


@summary.register
def _(data: Release) -> str:
    return f"{data.namespace}/{data.name}: {data.reason}{' from ' + data.node if data.node else ''}"


@summary.register
def _(data: Tick) -> str:
    return data.name


@summary.register
def _(data: DeadLetter) -> str:
    return f"{data.consumer} gave up after {data.deliveries}: {data.reason}"
