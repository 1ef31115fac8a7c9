"""What is allocated at one instant, as rows. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from bus.capacity import limits_of
from consumers.metrics.tables import GPU_METRICS, NODE_METRICS, POOL_METRICS, Row, Table
from consumers.recorder.phases import RUNNING, UNKNOWN, node_phase, pool_phases
from consumers.recorder.pricing import HOUR_S, STANDARD, amounts
from consumers.recorder.usage import workload
from consumers.recorder.view import View
from schemas.cluster import GpuDevice, GpuInventory
from schemas.ledger import Allocation
from schemas.pod import Pod


class _Now(NamedTuple):
    """The instant of a snapshot, the seconds since the last one, and the rows so far."""

    ts_ms: int
    seconds: float
    rows: dict[Table, list[Row]]


class _Place(NamedTuple):
    """Where a GPU is."""

    node: str
    pool: str
    phase: str


class _Total(msgspec.Struct):
    """Sums over GPUs: thousandths of a TFLOPS and bytes; physical, schedulable, allocated, and what limits allow."""

    tflops: int = 0
    vram: int = 0
    tflops_virtual: int = 0
    vram_virtual: int = 0
    tflops_used: int = 0
    vram_used: int = 0
    tflops_limited: float = 0.0
    vram_limited: float = 0.0
    gpus: int = 0

    def add(self, other: "_Total") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def columns(self) -> dict[str, float | int | None]:
        return {
            "allocated_tflops": self.tflops_used / 1000,
            "allocated_tflops_percent": _percent(self.tflops_used, self.tflops),
            "allocated_tflops_percent_virtual": _percent(self.tflops_used, self.tflops_virtual),
            "allocated_vram_bytes": float(self.vram_used),
            "allocated_vram_percent": _percent(self.vram_used, self.vram),
            "allocated_vram_percent_virtual": _percent(self.vram_used, self.vram_virtual),
            "limited_tflops": self.tflops_limited,
            "limited_tflops_percent_virtual": _percent(self.tflops_limited * 1000, self.tflops_virtual),
            "limited_vram_bytes": self.vram_limited,
            "limited_vram_percent_virtual": _percent(self.vram_limited, self.vram_virtual),
            "gpu_count": self.gpus,
        }


def _percent(part: float, whole: float) -> float | None:
    return 100.0 * part / whole if whole else None


def snapshot_rows(view: View, *, ts_ms: int, seconds: float) -> dict[Table, list[Row]]:
    """Return the rows of the cluster at one instant; costs are those of the ``seconds`` since the last one."""
    rows: dict[Table, list[Row]] = defaultdict(list)
    phases = pool_phases(view)
    pools: dict[str, _Total] = defaultdict(_Total, {pool: _Total() for pool in phases})
    for name, inventory in view.inventories.items():
        total = _node_rows(view, name, inventory, _Now(ts_ms, seconds, rows))
        pool, phase = view.pool_of(name), node_phase(view, name)
        pools[pool].add(total)
        price = view.node_price(inventory)
        paid = None if price is None else price * seconds / HOUR_S
        rows[NODE_METRICS].append(
            NODE_METRICS.row(ts_ms, node=name, pool=pool, phase=phase, raw_cost=paid, **total.columns())
        )
    for pool, total in pools.items():
        rows[POOL_METRICS].append(
            POOL_METRICS.row(ts_ms, pool=pool, phase=phases.get(pool, UNKNOWN), **total.columns())
        )
    return rows


def _node_rows(view: View, name: str, inventory: GpuInventory, now: _Now) -> _Total:
    node, held = view.nodes.get(name), view.held.get(name, {}).values()
    place = _Place(name, view.pool_of(name), node_phase(view, name))
    schedulable = limits_of(node, inventory, view.pools.get(place.pool)).gpus if node is not None else {}
    used = _granted(held)
    total = _Total(gpus=len(inventory.gpus))
    devices = {gpu.uuid: gpu for gpu in inventory.gpus}
    for gpu in inventory.gpus:
        tflops, vram = used.get(gpu.uuid, (0, 0))
        tflops_virtual, vram_virtual = schedulable.get(gpu.uuid, (gpu.tflops_milli, gpu.vram_bytes))
        total.add(
            _Total(
                tflops=gpu.tflops_milli,
                vram=gpu.vram_bytes,
                tflops_virtual=tflops_virtual,
                vram_virtual=vram_virtual,
                tflops_used=tflops,
                vram_used=vram,
            )
        )
        now.rows[GPU_METRICS].append(_gpu_row(gpu, place, now, (tflops, vram)))
    for allocation in held:
        if allocation.gpus:
            total.add(_worker_rows(view, allocation, devices, name, now))
    return total


def _granted(held: Iterable[Allocation]) -> Mapping[str, tuple[int, int]]:
    used: dict[str, tuple[int, int]] = {}
    for allocation in held:
        for grant in allocation.gpus:
            tflops, vram = used.get(grant.uuid, (0, 0))
            used[grant.uuid] = (tflops + grant.tflops_milli, vram + grant.vram_bytes)
    return used


def _gpu_row(gpu: GpuDevice, place: _Place, now: _Now, used: tuple[int, int]) -> Row:
    tflops, vram = used
    return GPU_METRICS.row(
        now.ts_ms,
        gpu=gpu.uuid,
        node=place.node,
        pool=place.pool,
        gpu_model=gpu.model,
        phase=place.phase if gpu.healthy else UNKNOWN,
        capacity_tflops=gpu.tflops_milli / 1000,
        available_tflops=(gpu.tflops_milli - tflops) / 1000,
        allocated_tflops=tflops / 1000,
        allocated_tflops_percent=_percent(tflops, gpu.tflops_milli),
        capacity_vram_bytes=float(gpu.vram_bytes),
        available_vram_bytes=float(gpu.vram_bytes - vram),
        allocated_vram_bytes=float(vram),
        allocated_vram_percent=_percent(vram, gpu.vram_bytes),
    )


def _worker_rows(view: View, allocation: Allocation, devices: Mapping[str, GpuDevice], node: str, now: _Now) -> _Total:
    """Append the rows of one worker and return what it adds to its node."""
    pod, count = view.pods.get(allocation.pod_uid), len(allocation.gpus)
    granted = (allocation.gpus[0].tflops_milli / 1000, float(allocation.gpus[0].vram_bytes))
    first = devices.get(allocation.gpus[0].uuid)
    if pod is not None and first is not None:
        asked = amounts(pod.request, first.tflops_milli, first.vram_bytes)
    else:
        asked = (*granted, *granted)
    price = view.prices.get(allocation.pool, STANDARD).cost(
        allocation.qos, asked, gpus=count, seconds=now.seconds, protected=_protected(pod, now.ts_ms)
    )
    tags = dict(zip(view.extra_names, view.extra_tags(allocation.pod_uid), strict=True))
    now.rows[view.worker_resources].append(
        view.worker_resources.row(
            now.ts_ms,
            **tags,
            namespace=allocation.namespace,
            pool=allocation.pool,
            qos=allocation.qos,
            worker=allocation.name,
            workload=workload(view, allocation.pod_uid) or allocation.name,
            tflops_request=asked[0],
            vram_bytes_request=asked[1],
            tflops_limit=asked[2],
            vram_bytes_limit=asked[3],
            gpu_count=count,
            raw_cost=price,
            ready=pod is not None and pod.phase == RUNNING,
        )
    )
    model = {uuid: device.model for uuid, device in devices.items()}
    now.rows[view.gpu_allocation].append(
        view.gpu_allocation.row(
            now.ts_ms,
            **tags,
            pod=allocation.name,
            namespace=allocation.namespace,
            pod_uuid=allocation.pod_uid,
            node=node,
            gpu_model_index=",".join(f"{model.get(grant.uuid, '')}:{grant.index}" for grant in allocation.gpus),
            gpu_name=",".join(grant.uuid for grant in allocation.gpus),
            gpu_count=count,
        )
    )
    return _Total(tflops_limited=asked[2] * count, vram_limited=asked[3] * count)


def _protected(pod: Pod | None, ts_ms: int) -> bool:
    """Whether a pod may not be evicted yet: so long after its creation as it says itself."""
    if pod is None or pod.created_at is None:
        return False
    return ts_ms / 1000 < pod.created_at.timestamp() + pod.request.eviction_protection_s
