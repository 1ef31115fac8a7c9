"""A small cluster to decide on, in round numbers: GPUs of 100 TFLOPS and 1000 bytes of VRAM unless a test says otherwise."""

from datetime import UTC, datetime
from typing import Any

import pytest

from consumers.allocator.engine import Policy, Snapshot, decide
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.decision import Decision, GpuGrant
from schemas.ledger import Allocation
from schemas.pod import GpuRequest

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Cluster:
    """A snapshot with helpers that fill in what a test does not care about."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.snapshot.put_pool(Pool(name="p"))
        self.pods = 0

    @staticmethod
    def gpu(uuid: str, index: int = 0, **changes: Any) -> GpuDevice:
        return GpuDevice(
            **{"model": "L4", "tflops_milli": 100_000, "vram_bytes": 1000} | changes, uuid=uuid, index=index
        )

    def inventory(self, node: str, gpus: int | list[dict[str, Any]], **more: Any) -> GpuInventory:
        kinds: list[dict[str, Any]] = [{}] * gpus if isinstance(gpus, int) else gpus
        devices = [self.gpu(f"{node}/{index}", index, **changes) for index, changes in enumerate(kinds)]
        return GpuInventory(node=node, gpus=devices, observed_at=AT, **more)

    def node(self, name: str, gpus: int | list[dict[str, Any]] | None = 1, **changes: Any) -> None:
        defaults = {"pool": "p", "cpu_milli": 10_000, "memory_bytes": 10_000}
        hardware = {key: changes.pop(key) for key in ("links", "partitions") if key in changes}
        self.snapshot.put_node(Node(**defaults | changes, name=name))
        if gpus is not None:
            self.snapshot.put_inventory(self.inventory(name, gpus, **hardware))

    def decide(self, policy: Policy | None = None, **ask: Any) -> Decision:
        return decide(self.snapshot, GpuRequest(**{"pool": "p"} | ask), policy or Policy())

    def place(self, policy: Policy | None = None, **ask: Any) -> Decision:
        """Decide and apply."""
        found = self.decide(policy, **ask)
        assert found.node, found.message
        self.snapshot.add(found.node, self.held(found, **ask))
        return found

    def fill(self, node: str, slot: int = 0, tflops: int = 0, vram: int = 0, **more: Any) -> str:
        """Put a pod on a GPU of a node, whatever the engine would say, or on none if it takes nothing; return its UID."""
        return self.hold(node, slot if tflops or vram else None, tflops, vram, **more)

    def hold(self, node: str, slot: int | None, tflops: int = 0, vram: int = 0, **more: Any) -> str:
        """Put a pod on a GPU of a node even if it takes nothing of it."""
        uid = f"filler-{self.pods}"
        self.pods += 1
        gpus = () if slot is None else (Cluster.grant(node, slot, tflops, vram),)
        self.snapshot.add(node, Allocation(pod_uid=uid, namespace="ns", name="pod", pool="p", gpus=gpus, **more))
        return uid

    @staticmethod
    def grant(node: str, slot: int, tflops: int, vram: int) -> GpuGrant:
        return GpuGrant(uuid=f"{node}/{slot}", index=slot, tflops_milli=tflops, vram_bytes=vram)

    def held(self, found: Decision, **ask: Any) -> Allocation:
        self.pods += 1
        return Allocation(
            pod_uid=f"pod-{self.pods}",
            namespace="ns",
            name="pod",
            pool="p",
            gpus=found.gpus,
            cpu_milli=ask.get("cpu_milli", 0),
            memory_bytes=ask.get("memory_bytes", 0),
        )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()
