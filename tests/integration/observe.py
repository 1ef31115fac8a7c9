"""What must be true of API server and ledger together, read from both."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

from bus import codec, history
from bus.connection import Bus
from bus.errors import BusError
from bus.streams import LEDGER
from schemas.kube.annotations import GPU_IDS, VISIBLE_DEVICES, read_allocation
from schemas.ledger import Allocation, NodeRecord
from tests.integration.cluster import TFLOPS_MILLI, VRAM, Cluster


async def ledger(bus: Bus) -> dict[str, tuple[str, Allocation]]:
    """Return what every pod holds and where, by UID; a pod on two nodes is an error."""
    records, _ = await history.newest(bus, LEDGER, ["gpubus.ledger.node.*"])
    held: dict[str, tuple[str, Allocation]] = {}
    for record in records:
        node = codec.decode_as(NodeRecord, record.payload).data
        for allocation in node.allocations:
            assert allocation.pod_uid not in held, f"pod {allocation.pod_uid} is on two nodes"
            held[allocation.pod_uid] = (node.node, allocation)
    return held


def bound(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [pod for pod in pods if pod["spec"].get("nodeName")]


async def agree(bus: Bus, cluster: Cluster, *, placed: int, timeout: float) -> list[dict[str, Any]]:
    """Wait until ``placed`` pods have a node and the ledger holds exactly those, then check all there is to check."""
    pods: list[dict[str, Any]] = []
    held: dict[str, tuple[str, Allocation]] = {}
    try:
        async with asyncio.timeout(timeout):
            while True:
                pods = bound(await cluster.list("Pod", "default"))
                with contextlib.suppress(BusError):  # the server may be away just then, or choose a leader
                    held = await ledger(bus)
                if len(pods) == placed and held.keys() == {pod["metadata"]["uid"] for pod in pods}:
                    break
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"{len(pods)} pods have a node and {len(held)} hold something, not {placed}") from None
    compute: Counter[str] = Counter()
    vram: Counter[str] = Counter()
    for pod in pods:
        meta = pod["metadata"]
        node, allocation = held[meta["uid"]]
        assert pod["spec"]["nodeName"] == node
        written = read_allocation(meta["annotations"], meta["uid"])
        assert written is not None, meta["name"]
        assert written.says_as(allocation)
        assert meta["annotations"][VISIBLE_DEVICES] == ",".join(gpu.uuid for gpu in allocation.gpus)
        assert meta["annotations"][GPU_IDS] == ",".join(gpu.uuid.lower() for gpu in allocation.gpus)
        for gpu in allocation.gpus:
            assert gpu.uuid.startswith(f"GPU-{node}-")
            compute[gpu.uuid] += gpu.tflops_milli
            vram[gpu.uuid] += gpu.vram_bytes
    assert max(compute.values(), default=0) <= TFLOPS_MILLI
    assert max(vram.values(), default=0) <= VRAM
    return pods
