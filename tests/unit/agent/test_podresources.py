"""The kubelet's PodResources API, spoken by grpc and protobuf themselves."""

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="install the test group")
pytest.importorskip("grpclib", reason="install the extra `agent`")

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from producers.agent.drift import HandedOut
from producers.agent.podresources import Device, PodResources, PodResourcesError, Translator, devices
from producers.agent.wire import WireError, fields
from tests.nvml.library import uuid

TEXT, MESSAGE, INT64 = 9, 11, 3
API = {
    "ListPodResourcesRequest": [],
    "ListPodResourcesResponse": [("pod_resources", 1, "*PodResources")],
    "PodResources": [("name", 1, "text"), ("namespace", 2, "text"), ("containers", 3, "*ContainerResources")],
    "ContainerResources": [
        ("name", 1, "text"),
        ("devices", 2, "*ContainerDevices"),
        ("cpu_ids", 3, "*int"),
        ("memory", 4, "*ContainerMemory"),
        ("dynamic_resources", 5, "*DynamicResource"),
    ],
    "ContainerMemory": [("memory_type", 1, "text"), ("size", 2, "int"), ("topology", 3, "TopologyInfo")],
    "ContainerDevices": [("resource_name", 1, "text"), ("device_ids", 2, "*text"), ("topology", 3, "TopologyInfo")],
    "TopologyInfo": [("nodes", 1, "*NUMANode")],
    "NUMANode": [("ID", 1, "int")],
    "DynamicResource": [
        ("claim_name", 2, "text"),
        ("claim_namespace", 3, "text"),
        ("claim_resources", 4, "*ClaimResource"),
    ],
    "ClaimResource": [
        ("cdi_devices", 1, "*CDIDevice"),
        ("driver_name", 2, "text"),
        ("pool_name", 3, "text"),
        ("device_name", 4, "text"),
    ],
    "CDIDevice": [("name", 1, "text")],
}
"""The published messages: name, number and type of each field; a star repeats it."""


def _response_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, parts in API.items():
        message = file.message_type.add(name=name)
        for field, number, kind in parts:
            added = message.field.add(name=field, number=number, label=3 if kind.startswith("*") else 1)
            bare = kind.lstrip("*")
            added.type = {"text": TEXT, "int": INT64}.get(bare, MESSAGE)
            if added.type == MESSAGE:
                added.type_name = f".v1.{bare}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))


Response = _response_class()


def pod(namespace: str, name: str, container: str, resource: str, ids: list[str]) -> dict[str, Any]:
    devices = [{"resource_name": resource, "device_ids": ids, "topology": {"nodes": [{"ID": 1}]}}]
    main = {"name": container, "devices": devices, "cpu_ids": [1, 2, 300], "memory": [{"memory_type": "m", "size": 9}]}
    return {"namespace": namespace, "name": name, "containers": [{"name": "side"}, main]}


def claimed(namespace: str, name: str, driver: str, device: str) -> dict[str, Any]:
    resource = {"driver_name": driver, "pool_name": "n", "device_name": device, "cdi_devices": [{"name": "x/y=z"}]}
    claim = {"claim_name": "c", "claim_namespace": namespace, "claim_resources": [resource]}
    return {"namespace": namespace, "name": name, "containers": [{"name": "main", "dynamic_resources": [claim]}]}


@contextmanager
def kubelet(socket: Path, answer: Any) -> Iterator[None]:
    """Serve ``List`` on ``socket``; ``answer`` returns a response or raises."""

    def serve(request: bytes, context: Any) -> bytes:
        assert request == b""
        return answer(context)

    handler = grpc.unary_unary_rpc_method_handler(serve)  # bytes in, bytes out
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})])
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


async def test_every_device_of_every_container_is_listed_however_long_the_answer(tmp_path: Path) -> None:
    pods = [
        pod("ml", "train", "main", "nvidia.com/gpu", [uuid(0), uuid(1)]),
        claimed("ml", "dra", "gpu.nvidia.com", "gpu-2"),
        *(pod("many", f"pod-{i}", "main", "example.com/nic", [f"nic-{i}-" + "x" * 1000]) for i in range(5_000)),
    ]
    encoded = Response(pod_resources=pods).SerializeToString()
    assert len(encoded) > 5_000_000  # beyond the four megabytes where clients of gRPC stop by default
    socket = tmp_path / "kubelet.sock"
    with kubelet(socket, lambda _: encoded):
        found = await PodResources(socket).list()
    assert found[:3] == [
        Device("ml", "train", "main", "nvidia.com/gpu", uuid(0)),
        Device("ml", "train", "main", "nvidia.com/gpu", uuid(1)),
        Device("ml", "dra", "main", "gpu.nvidia.com", "gpu-2", dra=True),
    ]
    assert len(found) == 5_003


async def test_a_kubelet_that_cannot_be_asked_says_why(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    with pytest.raises(PodResourcesError, match="is no socket"):
        await PodResources(socket).list()

    def refuse(context: Any) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")

    with kubelet(socket, refuse), pytest.raises(PodResourcesError, match="too many calls"):
        await PodResources(socket).list()
    with kubelet(tmp_path / "2.sock", lambda _: b"\x0a\xff"), pytest.raises(PodResourcesError, match="cut off"):
        await PodResources(tmp_path / "2.sock").list()


def test_unknown_fields_are_skipped_and_broken_messages_refused() -> None:
    plain = Response(pod_resources=[pod("a", "b", "c", "nvidia.com/gpu", ["x"])]).SerializeToString()
    group = b"\x4b\x0a\x01z\x4c"  # field 9 as a group with a field 1 inside
    odd = b"\x38\x80\x01" + b"\x41" + b"\x00" * 8 + b"\x45" + b"\x00" * 4 + group
    assert list(devices(memoryview(odd + plain))) == [Device("a", "b", "c", "nvidia.com/gpu", "x")]
    for cut in range(1, len(plain)):
        with pytest.raises(WireError):
            list(devices(memoryview(plain[:cut])))
    for bad in (b"\x0e", b"\x4b", b"\x4c", b"\x80" * 11, b"\x45\x00"):
        with pytest.raises(WireError):
            list(fields(memoryview(bad)))
    with pytest.raises(WireError, match="not UTF-8"):
        list(devices(memoryview(b"\x0a\x03\x0a\x01\xff")))


def test_devices_are_known_by_every_name_that_plugins_give_them() -> None:
    gpus, instances = {place: uuid(place) for place in range(3)}, {"MIG-1": uuid(1)}
    translator = Translator({"nvidia.com/": "nvidia-device-plugin"}, ("gpu.nvidia.com",))
    names = {
        uuid(2): 2,
        f"{uuid(1)}::3": 1,  # a time-sliced share
        f"{uuid(0)}-7": 0,  # HAMi's vGPU
        "MIG-1": 1,
        "2": 2,
        "1::0": 1,
    }
    found = [Device("n", "p", "c", "nvidia.com/gpu", name) for name in names]
    known, unknown = translator.handed_out(found, gpus, instances)
    assert known == [HandedOut("n", "p", "c", "nvidia-device-plugin", gpus[place]) for place in names.values()]
    assert unknown == []
    strange = Device("n", "p", "c", "nvidia.com/mig-1g.10gb", "MIG-9")
    dra = [Device("n", "p", "c", "gpu.nvidia.com", name, dra=True) for name in ("gpu-0", "gpu-1-mig-19-0-1")]
    others = [Device("n", "p", "c", "rdma/hca", "1"), Device("n", "p", "c", "tpu.google.com", "gpu-1", dra=True)]
    known, unknown = translator.handed_out([strange, *dra, *others], gpus, instances)
    assert [device.gpu for device in known] == [uuid(0), uuid(1)]
    assert {device.by for device in known} == {"gpu.nvidia.com"}
    assert unknown == [strange]
