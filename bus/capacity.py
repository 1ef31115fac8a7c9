"""What a node can give, and what is wrong with pods that hold more: the capacity part of the ledger's invariants.

Pure, and of its own: it shares nothing with the allocator, whose work it checks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from schemas.cluster import GpuInventory, Node, Pool
from schemas.hardware import PartitionTemplate
from schemas.ledger import Allocation


class Limits(msgspec.Struct, frozen=True):
    """What one node can give.

    Attributes:
        cpu_milli: CPU in thousandths of a core.
        memory_bytes: Memory.
        gpus: Milli-TFLOPS and bytes of VRAM by GPU UUID.
        slots: Containers that may share a GPU, by UUID; 0 or no entry for no limit.
        workers: Most pods with GPUs; 0 for no limit.
        partitions: What a GPU can be cut into, by UUID.
    """

    cpu_milli: int
    memory_bytes: int
    gpus: dict[str, tuple[int, int]]
    slots: dict[str, int] = {}
    workers: int = 0
    partitions: dict[str, tuple[PartitionTemplate, ...]] = {}


def limits_of(node: Node, inventory: GpuInventory | None, pool: Pool | None) -> Limits:
    """Return what a node can give under its pool's oversubscription."""
    gpus = inventory.gpus if inventory is not None else []
    pool = pool or Pool(name=node.pool)
    over = pool.oversubscription
    extra = (node.memory_bytes * over.host_memory // 100 + node.disk_bytes * over.host_disk // 100) // max(len(gpus), 1)
    return Limits(
        cpu_milli=node.cpu_milli,
        memory_bytes=node.memory_bytes,
        gpus={gpu.uuid: (gpu.tflops_milli * over.tflops_ratio // 100, gpu.vram_bytes + extra) for gpu in gpus},
        slots={gpu.uuid: gpu.slots for gpu in gpus if gpu.slots},
        workers=pool.max_workers_per_node,
        partitions={
            gpu.uuid: tuple(template for template in inventory.partitions if template.model in ("", gpu.model))
            for gpu in gpus
            if inventory is not None and inventory.partitions
        },
    )


def faults(allocations: Iterable[Allocation], limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield each way in which these pods hold more than their node can give: the rule it breaks, and the figures."""
    tflops: Counter[str] = Counter()
    vram: Counter[str] = Counter()
    cpu = memory = 0
    for allocation in allocations:
        cpu += allocation.cpu_milli
        memory += allocation.memory_bytes
        for gpu in allocation.gpus:
            tflops[gpu.uuid] += gpu.tflops_milli
            vram[gpu.uuid] += gpu.vram_bytes
    for uuid in tflops:
        most = limits.gpus.get(uuid)
        if most is None:
            yield "UnknownGpu", f"GPU {uuid} is not in the node's inventory"
        elif tflops[uuid] > most[0] or vram[uuid] > most[1]:
            yield (
                "GpuOverCapacity",
                f"GPU {uuid} gives {tflops[uuid]} of {most[0]} milli-TFLOPS and {vram[uuid]} of {most[1]} bytes of VRAM",
            )
    if cpu > limits.cpu_milli or memory > limits.memory_bytes:
        yield (
            "NodeOverCapacity",
            f"gives {cpu} of {limits.cpu_milli} milli-CPU and {memory} of {limits.memory_bytes} bytes of memory",
        )
