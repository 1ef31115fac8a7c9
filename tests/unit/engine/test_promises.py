"""What cannot be promised is refused by name, never ignored."""

from typing import Any

import msgspec
import pytest

from consumers.allocator.engine import Policy, decide, fits_on
from schemas import reasons
from schemas.pod import GpuRequest
from schemas.requirements import ContainerRequest

IGNORED_SAFELY = {
    "tflops_limit_milli", "compute_limit_milli", "vram_limit_bytes", "workload_profile", "eviction_protection_s",
    "container_names", "container_counts",
}  # fmt: skip
HONOURED = {
    "pool", "count", "tflops_milli", "compute_milli", "vram_bytes", "vram_milli", "cpu_milli", "memory_bytes", "models",
    "vendor", "qos", "priority", "numa_bind", "node_policy", "gpu_policies", "scoring_weights", "topology", "dedicated",
    "gpu_indices", "uuids", "excluded_uuids", "model_words", "excluded_model_words", "vgpu_mode", "nodes", "containers",
    "dialect", "isolation", "gang", "preempts",
}  # fmt: skip
REFUSED: dict[str, Any] = {
    "partition_template": "1g.10gb",
    "remote": True,
}


def test_every_field_of_a_request_is_honoured_refused_or_known_to_be_harmless() -> None:
    assert {field.name for field in msgspec.structs.fields(GpuRequest)} == HONOURED | IGNORED_SAFELY | set(REFUSED)


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, value in REFUSED.items() if value is not None])
def test_what_cannot_be_promised_is_refused_by_name(cluster: Any, field: str, value: Any) -> None:
    cluster.node("n")
    request = msgspec.structs.replace(GpuRequest(pool="p"), **{field: value})
    found = decide(cluster.snapshot, request, Policy())
    assert (found.node, found.reason) == ("", reasons.UNSUPPORTED)
    assert field in found.message
    assert not fits_on(cluster.snapshot, request, "n")


def test_partitions_for_single_containers_are_refused(cluster: Any) -> None:
    cluster.node("n")
    containers = (ContainerRequest(name="a"), ContainerRequest(name="b"))
    request = GpuRequest(pool="p", count=2, isolation="partitioned", containers=containers)
    found = decide(cluster.snapshot, request, Policy())
    assert (found.reason, "containers" in found.message) == (reasons.UNSUPPORTED, True)
