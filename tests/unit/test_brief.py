"""What a pod's Event says of a decision."""

import pytest

from schemas.brief import brief
from schemas.decision import Basis, Decision, GpuGrant

GPUS = tuple(GpuGrant(uuid=f"g{i}", index=i, tflops_milli=1, vram_bytes=1) for i in (0, 3))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"outcome": "allocated", "node": "n", "gpus": GPUS, "message": "2 of 3 nodes fit"},
            "Assigned to n, GPU 0, 3: 2 of 3 nodes fit",
        ),
        ({"outcome": "allocated", "node": "n"}, "Assigned to n"),
        (
            {"outcome": "unschedulable", "reason": "GpuVram", "message": "0 of 3 nodes fit", "help": "Ask for less."},
            "GpuVram: 0 of 3 nodes fit. Ask for less.",
        ),
        ({"outcome": "released", "reason": "Succeeded", "message": "Succeeded: gave back"}, "Succeeded: gave back"),
        ({"outcome": "evicted", "reason": "Preempted", "message": "for ns/other"}, "Preempted: for ns/other"),
        ({"outcome": "evicted", "reason": "Preempted"}, "Preempted"),
    ],
)  # fmt: skip
def test_a_decision_in_a_line(fields: dict, said: str) -> None:
    basis = Basis(state=1, ledger=1, ordinal=1)
    decision = Decision(namespace="ns", name="p", pod_uid="u", pool="p", allocator="a", basis=basis, **fields)
    assert brief(decision) == said
