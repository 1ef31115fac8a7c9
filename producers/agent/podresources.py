"""What the kubelet has handed out through device plugins and DRA drivers: its PodResources API, version 1.

Only ``List`` is called. Its answer may be megabytes long on a busy node, so nothing bounds it but the socket's own deadline.
Source: ``k8s.io/kubelet/pkg/apis/podresources/v1``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, StreamTerminatedError

from producers.agent.drift import HandedOut
from producers.agent.wire import WireError, fields, text

SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
TIMEOUT_S: Final = 10.0

_LIST: Final = "/v1.PodResourcesLister/List"


class PodResourcesError(Exception):
    """The kubelet could not be asked; the message says why."""


class Device(NamedTuple):
    """One device of one container. ``resource`` is a device plugin's resource, or a DRA driver's name with ``dra``."""

    namespace: str
    pod: str
    container: str
    resource: str
    device: str
    dra: bool = False


class PodResources:
    """Asks the kubelet on this node.

    Args:
        socket: The kubelet's socket.
    """

    def __init__(self, socket: Path = SOCKET) -> None:
        self._socket = socket

    async def list(self) -> list[Device]:
        """Return every device that a container has.

        Raises:
            PodResourcesError: The kubelet is not there, refuses, or its answer cannot be read.
        """
        if not self._socket.is_socket():
            raise PodResourcesError(f"{self._socket} is no socket: mount the kubelet's pod-resources directory")
        # A connection for each call: the kubelet may be restarted in between, and a minute is a long time to keep one.
        async with Channel(path=str(self._socket), codec=_Raw()) as channel:
            try:
                answer = await UnaryUnaryMethod(channel, _LIST, bytes, bytes)(b"", timeout=TIMEOUT_S)
                return list(devices(memoryview(answer)))
            except (GRPCError, StreamTerminatedError, WireError, OSError, TimeoutError) as error:
                raise PodResourcesError(f"{self._socket}: {error or type(error).__name__}") from None


class _Raw(CodecBase):
    """Leaves messages as they are on the wire."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        del message_type
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        del message_type
        return data


def devices(answer: memoryview) -> Iterator[Device]:
    """Yield the devices in a ``ListPodResourcesResponse``.

    Raises:
        WireError: It is not one.
    """
    for pod in _messages(answer, 1):
        name, namespace = _texts(pod, 1), _texts(pod, 2)
        for container in _messages(pod, 3):
            whose = ("".join(namespace), "".join(name), "".join(_texts(container, 1)))
            for given in _messages(container, 2):
                for device in _texts(given, 2):
                    yield Device(*whose, "".join(_texts(given, 1)), device)
            for claim in _messages(container, 5):
                for resource in _messages(claim, 4):
                    driver = "".join(_texts(resource, 2))
                    yield Device(*whose, driver, "".join(_texts(resource, 4)), dra=True)


def _messages(message: memoryview, number: int) -> Iterator[memoryview]:
    return (content for field, content in fields(message) if field == number)


def _texts(message: memoryview, number: int) -> list[str]:
    return [text(content) for content in _messages(message, number)]


class Translator:
    """Knows which GPU a device plugin's device is.

    Args:
        allocators: Names of allocators by the beginning of their resources, such as ``nvidia.com/`` and the name to publish.
        drivers: DRA drivers that hand out GPUs.
    """

    def __init__(self, allocators: Mapping[str, str], drivers: Sequence[str]) -> None:
        self._allocators = allocators
        self._drivers = drivers

    def handed_out(
        self, found: Iterable[Device], gpus: Mapping[int, str], instances: Mapping[str, str]
    ) -> tuple[list[HandedOut], list[Device]]:
        """Return what others have handed out, and the devices of theirs that are no GPU of this node.

        Device plugins name a device by UUID, by UUID and the number of a share (``GPU-…::3``, ``GPU-…-3``), by index, or by the
        UUID of a MIG device; NVIDIA's DRA driver by ``gpu-<index>`` and ``gpu-<index>-mig-…``.

        Args:
            found: What the kubelet tells.
            gpus: UUIDs of the node's GPUs by index.
            instances: The GPU of every MIG device, by UUID.
        """
        known, unknown = [], []
        for device in found:
            by = self._by(device)
            if not by:
                continue
            gpu = _gpu(device.device, gpus, instances)
            if gpu:
                known.append(HandedOut(device.namespace, device.pod, device.container, by, gpu))
            else:
                unknown.append(device)
        return known, unknown

    def _by(self, device: Device) -> str:
        if device.dra:
            return device.resource if device.resource in self._drivers else ""
        return next((name for start, name in self._allocators.items() if device.resource.startswith(start)), "")


def _gpu(device: str, gpus: Mapping[int, str], instances: Mapping[str, str]) -> str:
    for uuid in (*gpus.values(), *instances):
        if device == uuid or device.startswith((f"{uuid}::", f"{uuid}-")):
            return instances.get(uuid, uuid)
    number = device.removeprefix("gpu-").split("-", 1)[0].split(":", 1)[0]
    return gpus.get(int(number), "") if number.isdecimal() else ""
