"""What an inventory says of links and partitions: compact, and refused where it contradicts itself."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas.cluster import GpuDevice, GpuInventory
from schemas.hardware import GpuLink, PartitionTemplate

AT = datetime(2026, 1, 1, tzinfo=UTC)
SMALL = PartitionTemplate(id="1g.5gb", vram_bytes=5 << 30, compute_milli=140, slots=1, starts=(0, 1, 2, 3, 4, 5, 6))


def inventory(**changes: Any) -> GpuInventory:
    gpus = [GpuDevice(uuid=f"GPU-{i}", index=i, model="A100", tflops_milli=1, vram_bytes=1) for i in range(3)]
    return GpuInventory(node="n", gpus=gpus, observed_at=AT, **changes)


def test_links_and_partitions_survive_the_wire_and_links_are_short() -> None:
    said = inventory(links=(GpuLink(0, 1, "node", 12), GpuLink(1, 2)), partitions=(SMALL,))
    encoded = msgspec.json.encode(said)
    assert b'"links":[[0,1,"node",12],[1,2,"",0]]' in encoded
    assert msgspec.json.decode(encoded, type=GpuInventory) == said
    assert b"links" not in msgspec.json.encode(inventory())


@pytest.mark.parametrize(
    "changes",
    [
        {"links": (GpuLink(0, 3),)},
        {"links": (GpuLink(1, 0),)},
        {"links": (GpuLink(1, 1),)},
        {"links": (GpuLink(0, 1, "node"), GpuLink(0, 1, "system"))},
        {"partitions": (SMALL, SMALL)},
    ],
)
def test_an_inventory_that_contradicts_itself_is_refused(changes: Any) -> None:
    with pytest.raises(ValueError, match="node n"):
        inventory(**changes)
