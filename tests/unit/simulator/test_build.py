"""Trace records as events: units, identities and requests."""

import re

import msgspec
import pytest

from producers.simulator.build import build_inventory, build_node, build_pod, gpu_uuid
from producers.simulator.generator import generate
from producers.simulator.trace import TraceNode, TracePod
from schemas.catalogue import UnknownModelError
from schemas.cluster import GpuInventory, Node
from schemas.event import utc
from schemas.pod import GpuRequest, Pod

NODE = TraceNode(name="node-0001", cpu_milli=16000, memory_mib=1024, gpus=2, model="P100")
NOW = utc(1_700_000_000)


def make(num_gpu: int, gpu_milli: int, **more: object) -> TracePod:
    fields = {"name": "pod-00001", "cpu_milli": 500, "memory_mib": 3, "arrives_s": 0, "runs_s": 1} | more
    return msgspec.convert(fields | {"num_gpu": num_gpu, "gpu_milli": gpu_milli}, TracePod)


def test_a_node_keeps_its_amounts_and_joins_the_pool() -> None:
    assert build_node(NODE, pool="demo") == Node(
        name="node-0001", pool="demo", cpu_milli=16000, memory_bytes=2**30, max_pods=110
    )


def test_an_inventory_lists_every_gpu_with_what_it_can_do() -> None:
    inventory = build_inventory(NODE, observed_at=NOW)
    assert (inventory.node, inventory.observed_at) == ("node-0001", NOW)
    assert [(gpu.index, gpu.model, gpu.tflops_milli, gpu.vram_bytes) for gpu in inventory.gpus] == [
        (0, "P100", 18_700, 16 * 2**30),
        (1, "P100", 18_700, 16 * 2**30),
    ]
    assert [gpu.uuid for gpu in inventory.gpus] == [gpu_uuid("node-0001", 0), gpu_uuid("node-0001", 1)]
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", gpu.uuid) for gpu in inventory.gpus)


def test_a_node_without_gpus_has_an_empty_inventory() -> None:
    assert build_inventory(msgspec.structs.replace(NODE, gpus=0, model=""), observed_at=NOW).gpus == []


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(UnknownModelError, match="RTX9"):
        build_inventory(msgspec.structs.replace(NODE, model="RTX9"), observed_at=NOW)


def test_a_share_asks_for_as_much_compute_as_vram() -> None:
    pod = build_pod(make(1, 460, gpu_spec=["T4", "P100"], qos="LS"), pool="demo", created_at=NOW)
    assert (pod.namespace, pod.name, pod.phase, pod.node, pod.created_at) == (
        "default",
        "pod-00001",
        "Pending",
        "",
        NOW,
    )
    assert pod.request == GpuRequest(
        pool="demo",
        count=1,
        compute_milli=460,
        vram_milli=460,
        cpu_milli=500,
        memory_bytes=3 * 2**20,
        models=("T4", "P100"),
        qos="high",
    )


def test_whole_gpus_and_pods_without_one() -> None:
    whole = build_pod(make(8, 1000), pool="demo").request
    assert (whole.count, whole.compute_milli, whole.vram_milli, whole.models) == (8, 1000, 1000, ())
    none = build_pod(make(0, 0), pool="demo").request
    assert (none.count, none.compute_milli, none.vram_milli) == (0, 0, 0)


@pytest.mark.parametrize(
    ("qos", "level"),
    [("BE", "low"), ("Burstable", "medium"), ("LS", "high"), ("Guaranteed", "critical"), ("", "medium")],
)
def test_class_of_service(qos: str, level: str) -> None:
    assert build_pod(make(0, 0, qos=qos), pool="demo").request.qos == level


def test_identities_follow_from_names_alone() -> None:
    trace = generate(5, 50, 1)
    uids = [build_pod(pod, pool="a").uid for pod in trace.pods]
    assert uids == [build_pod(pod, pool="b", created_at=NOW).uid for pod in trace.pods]
    assert len(set(uids)) == 50
    uuids = [gpu.uuid for node in trace.nodes for gpu in build_inventory(node, observed_at=NOW).gpus]
    assert len(set(uuids)) == sum(node.gpus for node in trace.nodes)


def test_everything_built_passes_its_schema() -> None:
    trace = generate(15, 100, 2)
    for node in trace.nodes:
        for event in (build_node(node, pool="demo"), build_inventory(node, observed_at=NOW)):
            assert msgspec.json.decode(msgspec.json.encode(event), type=type(event)) == event
            assert isinstance(event, Node | GpuInventory)
    for pod in trace.pods:
        built = build_pod(pod, pool="demo", created_at=NOW)
        assert msgspec.json.decode(msgspec.json.encode(built), type=Pod) == built
