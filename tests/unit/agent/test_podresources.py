"""The kubelet's PodResources API, spoken by grpc and protobuf themselves."""

import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="install the test group")
pytest.importorskip("grpclib", reason="install the extra `agent`")

import grpc

from producers.agent import podresources
from producers.agent.drift import HandedOut
from producers.agent.podresources import Device, PodResources, PodResourcesError, Translator, devices
from producers.agent.wire import WireError, fields
from tests.nvml.kubelet import Response, claimed, kubelet, pod
from tests.nvml.library import uuid


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


async def test_a_kubelet_that_takes_connections_and_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podresources, "TIMEOUT_S", 0.1)
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        with pytest.raises(PodResourcesError, match=r"kubelet\.sock"):  # nobody listens
            await PodResources(path).list()
        listening.listen()
        with pytest.raises(PodResourcesError, match=r"kubelet\.sock"):
            await PodResources(path).list()
    path.unlink()
    path.write_text("")
    with pytest.raises(PodResourcesError, match="is no socket"):
        await PodResources(path).list()
