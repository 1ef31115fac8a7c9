"""The checker sees what allocators must not have put together on one GPU."""

from typing import Any

import msgspec
import pytest

from bus.sharing import faults
from schemas.decision import ContainerGrant, GpuGrant
from schemas.hardware import Partition, PartitionTemplate
from schemas.ledger import Allocation


def held(*grants: dict[str, Any]) -> list[Allocation]:
    return [
        Allocation(
            pod_uid=f"u{number}", namespace="ns", name="pod", pool="p",
            gpus=(GpuGrant(**{"uuid": "g", "index": 0, "tflops_milli": 0, "vram_bytes": 0} | grant),),
        )
        for number, grant in enumerate(grants)
    ]  # fmt: skip


CUTS = (
    PartitionTemplate(id="1g", vram_bytes=1, compute_milli=1, slots=1, starts=(0, 1)),
    PartitionTemplate(id="2g", vram_bytes=2, compute_milli=2, slots=2, starts=(0, 2)),
)


def cut(template: str, start: int, slots: int = 0) -> dict[str, Any]:
    slots = slots or int(template[0])
    return {"isolation": "partitioned", "partition": Partition(template=template, start=start, slots=slots)}


@pytest.mark.parametrize(
    ("grants", "rules"),
    [
        ([{"exclusive": True}], []),
        ([{"exclusive": True}, {}], ["GpuNotExclusive"]),
        ([{"exclusive": True}, {"uuid": "other"}], []),
        ([{"isolation": "soft"}, {"isolation": "soft"}, {}], []),
        ([{"isolation": "hard"}, {}], []),
        ([{"isolation": "soft"}, {"isolation": "hard"}], ["IsolationMixed"]),
        ([{"isolation": "partitioned"}, {"isolation": "partitioned"}], []),
        ([{"isolation": "partitioned"}, {}], ["IsolationMixed"]),
        ([cut("1g", 0), cut("1g", 1), cut("2g", 2)], []),
        ([cut("2g", 0), cut("1g", 1)], ["PartitionOverlap"]),
        ([cut("2g", 0), cut("2g", 0)], ["PartitionOverlap"]),
        ([cut("1g", 0), {"isolation": "partitioned"}], ["PartitionMixed"]),
        ([cut("1g", 0), {}], ["IsolationMixed", "PartitionMixed"]),
        ([cut("2g", 1)], ["UnknownPartition"]),
        ([cut("3g", 0)], ["UnknownPartition"]),
        ([cut("1g", 0, slots=2)], ["UnknownPartition"]),
        ([{"uuid": "two"}, {"uuid": "two"}], []),
        ([{"uuid": "two"}, {"uuid": "two", "slots": 2}], ["GpuOutOfSlots"]),
    ],
)
def test_what_must_not_be_together(grants: list[dict[str, Any]], rules: list[str]) -> None:
    assert [rule for rule, _ in faults(held(*grants), {"two": 2}, {"g": CUTS})] == rules


@pytest.mark.parametrize(
    ("uuid", "vram", "rules"), [("g", 5, []), ("g", 6, ["ContainerBeyondPod"]), ("h", 0, ["ContainerBeyondPod"])]
)
def test_no_container_is_given_what_its_pod_does_not_hold(uuid: str, vram: int, rules: list[str]) -> None:
    pod = held({"vram_bytes": 5})[0]
    grant = GpuGrant(uuid=uuid, index=0, tflops_milli=0, vram_bytes=vram)
    pod = msgspec.structs.replace(pod, containers=(ContainerGrant(name="c", gpus=(grant,)),))
    assert [rule for rule, _ in faults([pod], {}, {})] == rules
