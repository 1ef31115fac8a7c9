"""The phases of nodes and pools as TensorFusion names them. Pure.

Source: the status of ``GPUNode`` and ``GPUPool``. A pool runs when all its nodes do, and without any if none are asked for.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from consumers.recorder.view import View
from schemas.quantity import QuantityError, parse

RUNNING: Final = "Running"
PENDING: Final = "Pending"
UPDATING: Final = "Updating"
UNKNOWN: Final = "Unknown"


def node_phase(view: View, node: str) -> str:
    """Return the phase of a node: it runs when it is ready and its GPUs are known."""
    found, inventory = view.nodes.get(node), view.inventories.get(node)
    if found is None or not found.ready:
        return UNKNOWN
    return RUNNING if inventory is not None and inventory.gpus else PENDING


def pool_phases(view: View) -> Mapping[str, str]:
    """Return the phase of every pool that is defined or has nodes."""
    members: dict[str, list[str]] = defaultdict(list, {pool: [] for pool in view.pools})
    for node in view.nodes.values():
        members[node.pool].append(node_phase(view, node.name))
    return {pool: _pool_phase(view, pool, nodes) for pool, nodes in members.items()}


def _pool_phase(view: View, pool: str, nodes: list[str]) -> str:
    if nodes:
        return RUNNING if all(phase == RUNNING for phase in nodes) else UPDATING
    item = view.settings.pools.items.get(("", pool))
    config = item.spec.capacity_config if item is not None else None
    least = config.min_resources if config is not None else None
    try:
        return UPDATING if least is not None and (parse(str(least.tflops)) or parse(str(least.vram))) else RUNNING
    except QuantityError:
        return UNKNOWN
