"""Each difference comes with what all three sides say, and nothing is given away under running processes."""

import msgspec
import pytest

from consumers.reconciler.sight import NOT_ASKED, SILENT, Sight
from schemas.cluster import GpuDevice, GpuInventory
from schemas.decision import GpuGrant
from schemas.event import utc
from schemas.kube.core import KubePod
from schemas.ledger import Allocation
from schemas.observed import Drift
from schemas.usage import GpuSample, NodeUsage, ProcessUsage


def holder(uid: str, *uuids: str, vram: int = 100, limit: int = 0) -> Allocation:
    gpus = tuple(GpuGrant(uuid=uuid, index=0, tflops_milli=1, vram_bytes=vram) for uuid in uuids)
    return Allocation(pod_uid=uid, namespace="ns", name=uid, pool="p", gpus=gpus, vram_limit_bytes=limit)


def sample(node: str, **uses: dict[str, int]) -> NodeUsage:
    gpus = [
        GpuSample(uuid=uuid, processes=tuple(ProcessUsage(pod_uid=uid, vram_bytes=vram) for uid, vram in by.items()))
        for uuid, by in uses.items()
    ]
    return NodeUsage(node=node, at=utc(0), gpus=tuple(gpus))


def inventory(node: str, *uuids: str) -> GpuInventory:
    gpus = [GpuDevice(uuid=uuid, index=i, model="m", tflops_milli=1, vram_bytes=1) for i, uuid in enumerate(uuids)]
    return GpuInventory(node=node, gpus=gpus, observed_at=utc(0))


def stored(uid: str, node: str = "", phase: str = "Running") -> KubePod:
    return msgspec.convert(
        {
            "metadata": {"name": uid, "namespace": "ns", "uid": uid},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase},
        },
        KubePod,
    )


HELD = {"a": ("n", holder("a", "g0")), "b": ("m", holder("b", "h0", vram=100, limit=300))}
PODS = {"a": stored("a", "n"), "stray": stored("stray", "n", "Pending")}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (sample("n", g0={"a": 100}), []),
        (
            sample("n", g1={"a": 7}),
            [("WrongGpu", "a", "g1", "it holds g0 on n", "the pod is Running on n", "it uses 7 bytes of g1 on n")],
        ),
        (
            sample("m", h0={"a": 7}),
            [("WrongGpu", "a", "h0", "it holds g0 on n", "the pod is Running on n", "it uses 7 bytes of h0 on m")],
        ),
        (
            sample("n", g0={"stray": 5}),
            [
                (
                    "UnmanagedUse",
                    "stray",
                    "g0",
                    "it holds nothing",
                    "the pod is Pending on n",
                    "it uses 5 bytes of g0 on n",
                )
            ],
        ),
        (
            sample("n", g0={"": 9}),
            [("UnmanagedUse", "", "g0", *["it knows nothing of them"] * 2, "processes of the host use 9 bytes of it")],
        ),
        (sample("m", h0={"b": 300}), []),
        (
            sample("m", h0={"b": 301}),
            [
                (
                    "OverLimit",
                    "b",
                    "h0",
                    "it may use 300 bytes of it",
                    "there is no such pod",
                    "it uses 301 bytes of h0 on m",
                )
            ],
        ),
    ],
)
def test_use_is_laid_beside_the_ledger_and_the_api_server(usage: NodeUsage, expected: list[tuple[str, ...]]) -> None:
    sight = Sight([usage], [inventory("n", "g0", "g1"), inventory("m", "h0")])
    found = sight.differences(HELD, PODS)
    assert [(one.kind, one.uid, one.gpu, one.ledger, one.api, one.observed) for one in found] == expected


def test_a_gpu_that_is_gone_and_one_that_another_allocator_gave_out() -> None:
    told = Drift(
        node="n", kind="ForeignAllocation", gpu="g9", ledger="nobody holds it", observed="a plugin did", at=utc(0)
    )
    sight = Sight([], [inventory("n")], [told, msgspec.structs.replace(told, kind="OverLimit")])
    missing, foreign = sight.differences({"a": HELD["a"]}, None)
    assert (missing.kind, missing.gpu, missing.api) == ("MissingGpu", "g0", NOT_ASKED)
    assert (foreign.kind, foreign.gpu, foreign.observed) == ("ForeignAllocation", "g9", "a plugin did")
    assert not list(Sight([], []).differences({"a": HELD["a"]}, None))  # no inventory says nothing is there


def test_what_is_seen_of_a_pod_in_words() -> None:
    sight = Sight([sample("n", g0={"a": 7}), sample("m")], [])
    assert sight.words("a", "n") == "it uses 7 bytes of g0 on n"
    assert (sight.words("b", "m"), sight.words("b", "dark")) == ("it uses no GPU", SILENT)
    assert (sight.uses("a", "n"), sight.uses("a", "m"), sight.uses("b", "n")) == (True, False, False)
