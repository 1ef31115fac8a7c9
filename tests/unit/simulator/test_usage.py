"""Usage samples: they follow the grants, stay within the device, and come out the same every time."""

import msgspec

from producers.simulator.build import build_inventory
from producers.simulator.trace import TraceNode
from producers.simulator.usage import sample_node
from schemas.decision import GpuGrant
from schemas.event import utc
from schemas.ledger import Allocation
from schemas.usage import GpuSample, NodeUsage

NOW = utc(1_700_000_000)
NODE = TraceNode(name="node-0001", cpu_milli=16000, memory_mib=1024, gpus=2, model="T4")
INVENTORY = build_inventory(NODE, observed_at=NOW)
GPU = INVENTORY.gpus[0]


def holds(uid: str, milli: int, uuid: str = GPU.uuid) -> Allocation:
    grant = GpuGrant(
        uuid=uuid, index=0, tflops_milli=GPU.tflops_milli * milli // 1000, vram_bytes=GPU.vram_bytes * milli // 1000
    )
    return Allocation(pod_uid=uid, namespace="default", name=uid, pool="demo", gpus=(grant,))


def sample(*held: Allocation, tick: int = 0, seed: int = 1) -> NodeUsage:
    return sample_node(INVENTORY, held, tick=tick, seed=seed, at=NOW)


def test_an_idle_node_is_cool_and_empty() -> None:
    usage = sample()
    assert (usage.node, usage.at, len(usage.gpus)) == ("node-0001", NOW, 2)
    assert usage.gpus[1] == GpuSample(uuid=INVENTORY.gpus[1].uuid, temperature_c=32, power_mw=10_500)


def test_each_pod_uses_part_of_what_it_was_given() -> None:
    for tick in range(200):
        gpu = sample(holds("a", 250), holds("b", 500), tick=tick).gpus[0]
        assert [process.pod_uid for process in gpu.processes] == ["a", "b"]
        for process, share in zip(gpu.processes, (0.25, 0.5), strict=True):
            assert 55 * share - 0.1 <= process.sm_percent <= 100 * share
            assert 0.60 * share * GPU.vram_bytes - 1 <= process.vram_bytes <= 0.95 * share * GPU.vram_bytes
        assert gpu.vram_used_bytes == sum(process.vram_bytes for process in gpu.processes)
        assert abs(gpu.sm_percent - sum(process.sm_percent for process in gpu.processes)) < 0.2


def test_the_same_question_gets_the_same_answer_and_another_tick_another() -> None:
    held = holds("a", 500)
    assert sample(held, tick=3) == sample(held, tick=3)
    assert len({sample(held, tick=tick).gpus[0].vram_used_bytes for tick in range(10)}) > 5
    assert sample(held, tick=3, seed=1) != sample(held, tick=3, seed=2)


def test_one_pod_does_not_depend_on_the_others() -> None:
    alone, first = sample(holds("a", 300)), sample(holds("a", 300), holds("b", 300))
    assert alone.gpus[0].processes[0] == first.gpus[0].processes[0]


def test_load_makes_a_gpu_hot() -> None:
    idle, half, full = (sample(*held).gpus[0] for held in ([], [holds("a", 500)], [holds("a", 500), holds("b", 500)]))
    assert idle.temperature_c < half.temperature_c < full.temperature_c <= 78
    assert idle.power_mw < half.power_mw < full.power_mw <= 70_000


def test_oversubscribed_pods_share_what_there_is() -> None:
    gpu = sample(*(holds(f"p-{number}", 1000) for number in range(4))).gpus[0]
    assert gpu.sm_percent == 100.0
    assert gpu.vram_used_bytes <= GPU.vram_bytes
    assert abs(sum(process.sm_percent for process in gpu.processes) - 100) < 0.5
    assert msgspec.json.decode(msgspec.json.encode(sample(holds("a", 1000))), type=NodeUsage)


def test_a_gpu_the_node_does_not_have_is_passed_over() -> None:
    assert all(not gpu.processes for gpu in sample(holds("a", 500, uuid="GPU-gone")).gpus)


def test_a_device_without_compute_does_not_break_the_sample() -> None:
    broken = msgspec.structs.replace(INVENTORY, gpus=[msgspec.structs.replace(GPU, tflops_milli=0)])
    usage = sample_node(broken, [holds("a", 500)], tick=0, seed=0, at=NOW)
    assert usage.gpus[0].sm_percent == 0.0
