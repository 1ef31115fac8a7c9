"""The checker sees what allocators must not have put together on one GPU."""

from typing import Any

import msgspec
import pytest

from bus.sharing import faults
from schemas.decision import ContainerGrant, GpuGrant
from schemas.ledger import Allocation


def held(*grants: dict[str, Any]) -> list[Allocation]:
    return [
        Allocation(
            pod_uid=f"u{number}", namespace="ns", name="pod", pool="p",
            gpus=(GpuGrant(**{"uuid": "g", "index": 0, "tflops_milli": 0, "vram_bytes": 0} | grant),),
        )
        for number, grant in enumerate(grants)
    ]  # fmt: skip


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
        ([{"uuid": "two"}, {"uuid": "two"}], []),
        ([{"uuid": "two"}, {"uuid": "two", "slots": 2}], ["GpuOutOfSlots"]),
    ],
)
def test_what_must_not_be_together(grants: list[dict[str, Any]], rules: list[str]) -> None:
    assert [rule for rule, _ in faults(held(*grants), {"two": 2})] == rules


@pytest.mark.parametrize(
    ("uuid", "vram", "rules"), [("g", 5, []), ("g", 6, ["ContainerBeyondPod"]), ("h", 0, ["ContainerBeyondPod"])]
)
def test_no_container_is_given_what_its_pod_does_not_hold(uuid: str, vram: int, rules: list[str]) -> None:
    pod = held({"vram_bytes": 5})[0]
    grant = GpuGrant(uuid=uuid, index=0, tflops_milli=0, vram_bytes=vram)
    pod = msgspec.structs.replace(pod, containers=(ContainerGrant(name="c", gpus=(grant,)),))
    assert [rule for rule, _ in faults([pod], {})] == rules
