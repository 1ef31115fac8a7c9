"""What GPUs a node has, what is free of them, and whether nobody is on it. Pure."""

from collections.abc import Iterable

from schemas.capacity import Size
from schemas.cluster import GpuInventory, Node, Oversubscription
from schemas.ledger import Allocation


def room_on(
    node: Node, inventory: GpuInventory, held: Iterable[Allocation] | None, oversold: Oversubscription
) -> tuple[Size, Size, bool]:
    """Return the node's GPUs, what is free of them, and whether nobody is known to be on it.

    Free is what may still be asked for, but no more than there is; what we have closed can be opened again.

    Args:
        node: The node.
        inventory: Its GPUs.
        held: What pods hold on it; None where that cannot be read: then nothing is free, and it is not empty.
        oversold: How much more than there is the pool gives out.
    """
    taken: dict[str, tuple[int, int]] = {}
    for allocation in held or ():
        for grant in allocation.gpus:
            tflops, vram = taken.get(grant.uuid, (0, 0))
            taken[grant.uuid] = (tflops + grant.tflops_milli, vram + grant.vram_bytes)
    size = free = Size()
    open_to_pods = held is not None and node.ready and not node.unschedulable
    host = (node.memory_bytes * oversold.host_memory + node.disk_bytes * oversold.host_disk) // 100
    for gpu in inventory.gpus:
        size = size.plus(Size(gpus=1, tflops_milli=gpu.tflops_milli, vram_bytes=gpu.vram_bytes))
        usable = gpu.healthy and not gpu.used_by and gpu.uuid not in (*node.cordoned_gpus, *node.claimed_gpus)
        if open_to_pods and usable:
            tflops, vram = taken.get(gpu.uuid, (0, 0))
            left = gpu.tflops_milli * oversold.tflops_ratio // 100 - tflops
            room = gpu.vram_bytes + host // len(inventory.gpus) - vram
            free = free.plus(
                Size(
                    gpus=int(gpu.uuid not in taken),
                    tflops_milli=max(min(left, gpu.tflops_milli), 0),
                    vram_bytes=max(min(room, gpu.vram_bytes), 0),
                )
            )
    foreign = any(gpu.used_by for gpu in inventory.gpus) or bool(node.claimed_gpus)
    return size, free, held is not None and not held and not foreign
