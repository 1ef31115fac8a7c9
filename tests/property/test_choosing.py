"""Which GPUs of one crowded node are taken, by words, NUMA binding and topology, against every set of them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.allocator.engine import Policy, Snapshot, decide
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.decision import GpuGrant
from schemas.hardware import GpuLink
from schemas.ledger import Allocation
from schemas.pod import GpuRequest
from tests.property import choosing

WHOLE = 12
modes = st.sampled_from(["NodeCompactGPULowLoad", "CompactFirst", "LowLoadFirst"])


@dataclass(eq=False)
class Gpu:
    device: GpuDevice
    vram_free: int
    pods: int
    tflops_free: int = WHOLE
    tflops_cap: int = WHOLE
    vram_cap: int = WHOLE


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[Gpu], tuple[GpuLink, ...]]:
    found = []
    for slot in range(draw(st.integers(2, 6))):
        numa = draw(st.sampled_from([0, 0, 1, 1, -1]))
        slots = draw(st.sampled_from([3, 4, 0]))
        device = GpuDevice(
            uuid=f"GPU-{slot}", index=slot, model="A", tflops_milli=WHOLE, vram_bytes=WHOLE, numa_node=numa, slots=slots
        )
        pods = draw(st.integers(0, 2))
        found.append(Gpu(device, WHOLE - sum(draw(st.integers(0, 3)) for _ in range(pods)), pods))
    return found, draw(choosing.links_between(len(found)))


def load(gpus: list[Gpu], links: tuple[GpuLink, ...]) -> Snapshot:
    snapshot = Snapshot()
    snapshot.put_pool(Pool(name="p"))
    snapshot.put_node(Node(name="n", pool="p"))
    inventory = GpuInventory(
        node="n", gpus=[g.device for g in gpus], links=links, observed_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    snapshot.put_inventory(inventory)
    for gpu in gpus:
        for number in range(gpu.pods):
            used = 0 if number else WHOLE - gpu.vram_free
            grant = GpuGrant(uuid=gpu.device.uuid, index=gpu.device.index, tflops_milli=0, vram_bytes=used)
            uid = f"{gpu.device.uuid}/{number}"
            snapshot.add("n", Allocation(pod_uid=uid, namespace="ns", name=uid, pool="p", gpus=(grant,)))
    return snapshot


@settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    node=nodes(), count=st.integers(1, 4), vram=st.integers(0, 2), manner=choosing.manners, mode=modes,
    silent=choosing.for_silent_pods,
)  # fmt: skip
def test_no_other_set_of_gpus_would_have_been_better(
    *,
    node: tuple[list[Gpu], tuple[GpuLink, ...]],
    count: int,
    vram: int,
    manner: dict[str, Any],
    mode: Any,
    silent: dict[str, Any],
) -> None:
    gpus, links = node
    request = GpuRequest(pool="p", count=count, vram_bytes=vram, **manner)
    policy = Policy(name=mode, vram_weight=100, tflops_weight=0, **silent)
    by_pair = {frozenset((gpus[k.first].device.uuid, gpus[k.second].device.uuid)): k for k in links}
    found = decide(load(gpus, links), request, policy)
    room = [gpu for gpu in gpus if not (gpu.pods and choosing.mutex(request, policy))]
    refused, left = choosing.together(by_pair, request, policy, room) if len(room) >= count else ("-", [])
    if refused:
        assert not found.node
        assert refused in ("-", found.reason)
        return
    if choosing.words_of(request, policy):
        preferred = choosing.walk(request, policy, left, gpus)
    else:
        share = {gpu.device.uuid: (WHOLE - gpu.vram_free) * 10_000 // WHOLE for gpu in gpus}
        used = {uuid: (bp + 50) // 100 for uuid, bp in share.items()}
        free = {uuid: (10_000 - bp + 50) // 100 for uuid, bp in share.items()}
        preferred = sorted(left, key=lambda g: -(used if mode == "CompactFirst" else free)[g.device.uuid])
    chosen = choosing.nearest(by_pair, request, policy, preferred)
    assert {grant.uuid for grant in found.gpus} == {gpu.device.uuid for gpu in chosen}
    assert len(chosen) == count
