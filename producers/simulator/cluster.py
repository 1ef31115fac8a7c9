"""The hardware of the simulated cluster, and its announcement: one pool, its nodes, and the GPUs on them."""

import hashlib
from datetime import datetime
from typing import Final

import msgspec

from bus import subjects
from bus.codec import encode
from producers.simulator.build import build_inventory, build_node
from producers.simulator.speech import SOURCE, Outgoing
from producers.simulator.trace import Trace
from schemas.cluster import Pool
from schemas.event import Event, utc
from schemas.registry import TYPE_NAMES

_HASH_BYTES: Final = 8


class Cluster:
    """The pool, nodes and GPU inventories of a trace.

    Attributes:
        pool: The one pool that all nodes belong to.
        nodes: Nodes by name.
        inventories: GPUs by node name.
        tflops_milli: Physical compute of all GPUs together, in thousandths of a TFLOPS.

    Raises:
        UnknownModelError: A node's GPU model is not in the catalogue.
    """

    def __init__(self, trace: Trace, pool: Pool) -> None:
        self.pool = pool
        self.nodes = {node.name: build_node(node, pool=pool.name) for node in trace.nodes}
        # Inventories are the same fact whenever they are looked at; announcing them gives them their time.
        self.inventories = {node.name: build_inventory(node, observed_at=utc(0)) for node in trace.nodes}
        self.tflops_milli = sum(
            device.tflops_milli for inventory in self.inventories.values() for device in inventory.gpus
        )

    def announcement(self, at: datetime) -> list[Outgoing]:
        """Return everything that exists, as of ``at``: the pool first, then every node with its GPUs.

        Message ids follow the content, so a simulator that starts again says nothing new unless something has changed.
        """
        said = [_fact("pool", self.pool.name, self.pool, self.pool, at)]
        for name, node in self.nodes.items():
            inventory = self.inventories[name]
            said.append(_fact("node", name, node, node, at))
            said.append(_fact("gpu", name, msgspec.structs.replace(inventory, observed_at=at), inventory, at))
        return said


def _fact(kind: str, name: str, data: msgspec.Struct, identity: msgspec.Struct, at: datetime) -> Outgoing:
    """Return a message that states ``data``; ``identity`` is the part of it that makes it news."""
    revision = hashlib.blake2b(encode(identity), digest_size=_HASH_BYTES).hexdigest()
    event = Event(
        id=f"{kind}:{name}:{revision}",
        source=SOURCE,
        type=TYPE_NAMES[type(data)],
        subject=name,
        time=at,
        data=data,
    )
    return subjects.state(kind, name), encode(event), event.id
