"""The folded world as plain objects: what ``gpubus state --json`` prints and its tables are made from."""

from collections import Counter
from itertools import chain
from typing import Any, Final

import msgspec

from consumers.allocator.engine import Capacity, Snapshot
from consumers.allocator.engine.host import Host
from deploy.cli.fold import Held, World, as_fields
from schemas.cluster import GpuDevice

NO_RECORD: Final = "no node record"


def report(world: World) -> dict[str, Any]:
    """Return totals of the cluster and each pool, all nodes with their GPUs and pods, and the sequences reached.

    Nodes that only their agents speak of come last and are in no total: nothing can be given out there.
    """
    snapshot, pools = world.snapshot, world.snapshot.pools()
    waiting = Counter(entry.request.pool for entry in world.waiting)
    on_node: dict[str, list[Held]] = {}
    for held in world.held:
        on_node.setdefault(held.node, []).append(held)
    # One pass over the nodes: asking the snapshot pool by pool would sort them all once for each.
    parts: dict[str, list[Capacity]] = {name: [] for name in (*pools, *waiting)}
    nodes = []
    for name in snapshot.nodes():
        entry, capacity = _node(snapshot, name, on_node.get(name, []))
        nodes.append(entry)
        parts.setdefault(entry["pool"], []).append(capacity)
    nodes += [_unrecorded(host, on_node.get(host.name, [])) for host in snapshot.unrecorded()]
    return {
        "sequences": {"state": world.state_seq, "ledger": world.ledger_seq},
        "cluster": {**_fields(Capacity.total(chain(*parts.values()))), "waiting": waiting.total()},
        "pools": [
            {
                "name": name,
                "placement": pools[name].placement if name in pools else None,
                "oversubscription": _fields(pools[name].oversubscription) if name in pools else None,
                **_fields(Capacity.total(parts[name])),
                "waiting": waiting[name],
            }
            for name in sorted(parts)
        ],
        "nodes": nodes,
        "waiting": [_fields(entry) for entry in world.waiting],
        "unplaced": [as_fields(held) for held in world.unplaced()],
        "unreadable": [_fields(entry) for entry in world.unreadable],
    }


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(struct)
    return fields


def _node(snapshot: Snapshot, name: str, pods: list[Held]) -> tuple[dict[str, Any], Capacity]:
    host, capacity = snapshot.host(name), snapshot.capacity(name)
    if host is None or host.node is None or capacity is None:
        raise AssertionError(f"node {name} is listed and not known")  # the snapshot would contradict itself
    node = host.node
    troubles = {
        "not ready": not node.ready,
        "cordoned": node.unschedulable,
        "frozen": host.frozen,
        "no inventory": host.devices is None,
    }
    entry = {
        "name": name,
        "recorded": True,
        "pool": node.pool,
        "status": ", ".join(trouble for trouble, holds in troubles.items() if holds) or "ready",
        "ready": node.ready,
        "unschedulable": node.unschedulable,
        "frozen": host.frozen,
        "labels": node.labels,
        "cpu_milli": node.cpu_milli,
        "free_cpu_milli": host.cpu_free,
        "memory_bytes": node.memory_bytes,
        "free_memory_bytes": host.memory_free,
        "max_pods": node.max_pods,
        "free_pods": host.pods_free,
        "capacity": _fields(capacity),
        **_contents(host, pods),
    }
    return entry, capacity


def _unrecorded(host: Host, pods: list[Held]) -> dict[str, Any]:
    """Return a node whose agent speaks and of which STATE has no record: nothing but its GPUs and pods is known."""
    return {
        "name": host.name,
        "recorded": False,
        "pool": "",
        "status": NO_RECORD + (", frozen" if host.frozen else ""),
        "ready": False,
        "unschedulable": False,
        "frozen": host.frozen,
        "labels": {},
        **dict.fromkeys(("cpu_milli", "free_cpu_milli", "memory_bytes", "free_memory_bytes", "max_pods", "free_pods")),
        "capacity": _fields(host.capacity()),
        **_contents(host, pods),
    }


def _contents(host: Host, pods: list[Held]) -> dict[str, Any]:
    return {
        "gpus": [
            {
                "uuid": device.uuid,
                "index": device.index,
                "model": device.model,
                "vendor": device.vendor,
                "status": _gpu_status(device),
                "physical_tflops_milli": device.tflops_milli,
                "schedulable_tflops_milli": host.tflops_cap[slot],
                "free_tflops_milli": host.tflops_free[slot],
                "physical_vram_bytes": device.vram_bytes,
                "schedulable_vram_bytes": host.vram_cap[slot],
                "free_vram_bytes": host.vram_free[slot],
            }
            for slot, device in enumerate(host.devices or ())
        ],
        "pods": [as_fields(held) for held in sorted(pods, key=lambda h: (h.allocation.namespace, h.allocation.name))],
    }


def _gpu_status(device: GpuDevice) -> str:
    if not device.healthy:
        return "unhealthy"
    return f"used by {device.used_by}" if device.used_by else "healthy"
