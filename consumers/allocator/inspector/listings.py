"""Pools, nodes and allocations as they stand, for programs; see :mod:`schemas.views`. Pure."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from consumers.allocator.engine import Capacity
from consumers.allocator.engine.host import Host
from consumers.allocator.inspector.view import View
from schemas.cluster import GpuDevice
from schemas.inspection import Allocations, Nodes
from schemas.views import CapacityView, GpuView, Held, Listing, NodeView, PoolView, Sequences

Item = TypeVar("Item")


def sequences(view: View) -> Sequences:
    """Return up to where a view has read the log."""
    return Sequences(state=view.cluster.state_seq, ledger=view.cluster.ledger_seq)


def pools(view: View) -> Listing[PoolView]:
    """Return all pools, those that only nodes name among them."""
    parts: dict[str, list[Capacity]] = {name: [] for name in view.snapshot.pools()}
    for name in view.snapshot.nodes():
        host, capacity = view.snapshot.host(name), view.snapshot.capacity(name)
        if host is not None and host.node is not None and capacity is not None:
            parts.setdefault(host.node.pool, []).append(capacity)
    items = tuple(_pool(view, name, parts[name]) for name in sorted(parts))
    return Listing(items=items, next="", sequences=sequences(view))


def _pool(view: View, name: str, parts: Iterable[Capacity]) -> PoolView:
    stated = view.snapshot.pools().get(name)
    return PoolView(
        name=name,
        placement=stated.placement if stated is not None else None,
        oversubscription=stated.oversubscription if stated is not None else None,
        capacity=_capacity(Capacity.total(parts)),
    )


def nodes(view: View, ask: Nodes) -> Listing[NodeView]:
    """Return nodes with their GPUs."""
    found = [name for name in view.snapshot.nodes(ask.pool or None) if name > ask.after]
    chosen, following = _part(found, ask.limit, str)
    items = (_node(view, name) for name in chosen)
    return Listing(items=tuple(one for one in items if one is not None), next=following, sequences=sequences(view))


def _node(view: View, name: str) -> NodeView | None:
    host, capacity = view.snapshot.host(name), view.snapshot.capacity(name)
    if host is None or host.node is None or capacity is None:
        return None
    node = host.node
    troubles = {
        "not ready": not node.ready,
        "cordoned": node.unschedulable,
        "ledger record unreadable": host.frozen,
        "no inventory": host.devices is None,
        "agent silent": host.silent,
    }
    held = sorted(view.snapshot.allocations(name), key=lambda one: (one.namespace, one.name, one.pod_uid))
    return NodeView(
        name=name,
        pool=node.pool,
        status=", ".join(trouble for trouble, holds in troubles.items() if holds) or "ready",
        labels=node.labels,
        free_cpu_milli=host.cpu_free,
        free_memory_bytes=host.memory_free,
        free_pods=host.pods_free,
        capacity=_capacity(capacity),
        gpus=tuple(_gpu(host, slot, device) for slot, device in enumerate(host.devices or ())),
        pods=tuple(Held.of(name, one) for one in held),
    )


def _gpu(host: Host, slot: int, device: GpuDevice) -> GpuView:
    used = f"used by {device.used_by}" if device.used_by else "healthy"
    return GpuView(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        vendor=device.vendor,
        status=used if device.healthy else "unhealthy",
        schedulable_tflops_milli=host.tflops_cap[slot],
        free_tflops_milli=host.tflops_free[slot],
        schedulable_vram_bytes=host.vram_cap[slot],
        free_vram_bytes=host.vram_free[slot],
    )


def allocations(view: View, ask: Allocations) -> Listing[Held]:
    """Return what pods hold."""
    found = sorted((one for one in _held(view, ask) if _key(one) > ask.after), key=_key)
    items, following = _part(found, ask.limit, _key)
    return Listing(items=items, next=following, sequences=sequences(view))


def _held(view: View, ask: Allocations) -> Iterator[Held]:
    for node in [ask.node] if ask.node else view.snapshot.nodes():
        for one in view.snapshot.allocations(node):
            if ask.namespace in ("", one.namespace) and ask.pool in ("", one.pool):
                yield Held.of(node, one)


def _key(one: Held) -> str:
    return f"{one.namespace}/{one.name}/{one.pod_uid}"


def _part(found: list[Item], limit: int, key: Callable[[Item], str]) -> tuple[tuple[Item, ...], str]:
    return tuple(found[:limit]), key(found[limit - 1]) if len(found) > limit else ""


def _capacity(capacity: Capacity) -> CapacityView:
    return CapacityView(**msgspec.structs.asdict(capacity))
