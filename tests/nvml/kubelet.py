"""A kubelet's PodResources API on a socket, spoken by grpc and protobuf themselves from the published definitions."""

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
def kubelet(socket: Path, answer: Callable[[Any], bytes]) -> Iterator[None]:
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
