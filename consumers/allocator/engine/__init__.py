"""The allocation engine: which node and which GPUs a pod gets, as a pure function of values.

No clock, randomness, I/O or bus in here; the allocator's shell feeds events in and commits what comes out.

>>> from datetime import UTC, datetime
>>> from consumers.allocator.engine import Policy, Snapshot, decide
>>> from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
>>> from schemas.ledger import Allocation
>>> from schemas.pod import GpuRequest
>>> pool = Pool(name="train")
>>> gpu = GpuDevice(uuid="GPU-1", index=0, model="L4", tflops_milli=121_000, vram_bytes=24 << 30)
>>> snapshot = Snapshot()
>>> snapshot.put_pool(pool)
>>> _ = snapshot.put_node(Node(name="node-a", pool="train", cpu_milli=16_000, memory_bytes=64 << 30))
>>> _ = snapshot.put_inventory(GpuInventory(node="node-a", gpus=[gpu], observed_at=datetime.now(UTC)))

A pod asks for 60 % of a GPU's compute and 8 GiB of its VRAM, and gets them; a second one of the kind does not fit.

>>> request = GpuRequest(pool="train", compute_milli=600, vram_bytes=8 << 30)
>>> first = decide(snapshot, request, Policy.of(pool))
>>> first.node, first.gpus[0].tflops_milli
('node-a', 72600)
>>> snapshot.add("node-a", Allocation(pod_uid="u1", namespace="ml", name="pod-1", pool="train", gpus=first.gpus))
>>> second = decide(snapshot, request, Policy.of(pool))
>>> second.reason, second.message
('InsufficientCompute', '0 of 1 nodes fit: 1 InsufficientCompute')
"""

from consumers.allocator.engine.decision import decide, fits_on, offers
from consumers.allocator.engine.estimator import STEADY, WorkloadEstimator
from consumers.allocator.engine.host import Capacity
from consumers.allocator.engine.policy import AHEAD, PACKING, Policy
from consumers.allocator.engine.prices import Price, shadow_prices
from consumers.allocator.engine.rules import ENGINE_VERSION
from consumers.allocator.engine.snapshot import Snapshot
from consumers.allocator.engine.workload import VAGUE, Workload

__all__ = [
    "AHEAD",
    "ENGINE_VERSION",
    "PACKING",
    "STEADY",
    "VAGUE",
    "Capacity",
    "Policy",
    "Price",
    "Snapshot",
    "Workload",
    "WorkloadEstimator",
    "decide",
    "fits_on",
    "offers",
    "shadow_prices",
]
