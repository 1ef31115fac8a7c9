"""The real source: every GPU that NVML shows on this node."""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pynvml as nvml

from producers.agent.lane import Lane
from producers.agent.nvml import hardware, links, mig
from producers.agent.nvml.hardware import Identity
from producers.agent.nvml.session import Handle, LostError, Session
from producers.agent.nvml.usage import Meter
from producers.agent.source import Fault, Hardware, Reading, Seen, Symptom
from schemas.hardware import PartitionTemplate

MOST_FAULTS: Final = 256
"""Errors taken at once; a GPU that reports more is broken all the same, and the rest comes next time."""

_EVENTS: Final = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
_DOUBLE_BIT_XID: Final = 48


class Driver:
    """NVML on this node; see :class:`producers.agent.source.Source`.

    Args:
        lane: Where its calls are made.
        tflops_milli: Compute by model name, beside the catalogue.
        sysfs: Where the kernel shows PCI devices.
    """

    def __init__(self, lane: Lane, *, tflops_milli: Mapping[str, int], sysfs: Path = Path("/sys")) -> None:
        self._session = Session(lane)
        self._tflops_milli = tflops_milli
        self._sysfs = sysfs
        self._gpus: list[Identity] = []
        self._ports: list[links.Ports] = []
        self._meters: list[Meter] = []
        self._uuids: dict[int, str] = {}
        self._event_set: object = None
        self._versions = ("", "")

    def open(self) -> None:
        """Initialise NVML and learn who the GPUs are."""
        self.close()
        self._session.open()
        root = self._session.root
        cuda = root(nvml.nvmlSystemGetCudaDriverVersion)
        self._versions = (root(nvml.nvmlSystemGetDriverVersion), f"{cuda // 1000}.{cuda % 1000 // 10}")
        self._event_set = root(nvml.nvmlEventSetCreate)
        for index in range(root(nvml.nvmlDeviceGetCount)):
            try:
                handle = self._session.ask(nvml.nvmlDeviceGetHandleByIndex, index)
                identity = hardware.identify(
                    self._session, handle, index, tflops_milli=self._tflops_milli, sysfs=self._sysfs
                )
                ports = links.ports(self._session, handle)
                self._listen(handle)
            except LostError:
                continue  # known from before or not at all: whoever compares notices
            device = msgspec.structs.replace(identity.device, nvlink_mbps=ports.mbps)
            identity = Identity(handle, device)
            self._gpus.append(identity)
            self._ports.append(ports)
            self._meters.append(Meter(self._session, identity))
            self._uuids[_key(handle)] = device.uuid

    def close(self) -> None:
        """Shut NVML down."""
        self._gpus, self._ports, self._meters, self._uuids = [], [], [], {}
        event_set, self._event_set = self._event_set, None
        if event_set is not None:
            self._session.free(nvml.nvmlEventSetFree, event_set)
        self._session.close()

    def hardware(self) -> Hardware:
        """Return the GPUs that answer."""
        seen: list[Seen] = []
        partitions: dict[str, list[PartitionTemplate]] = {}
        for identity in self._gpus:
            try:
                found = hardware.look(self._session, identity)
                model = found.device.model
                if found.device.mode == "mig" and model not in partitions:
                    partitions[model] = mig.templates(self._session, identity.handle, model)
            except LostError as error:
                found = Seen(identity.device, (Symptom("Lost", str(error)),))
            seen.append(found)
        between = links.links(
            self._session, [i.handle for i in self._gpus], [i.device.pci for i in self._gpus], self._ports
        )
        return Hardware(
            tuple(seen), tuple(between), tuple(t for model in partitions.values() for t in model), *self._versions
        )

    def readings(self) -> tuple[Reading, ...]:
        """Read every GPU."""
        return tuple(meter.read() for meter in self._meters)

    def faults(self) -> tuple[Fault, ...]:
        """Take the errors that the driver has reported."""
        found: list[Fault] = []
        while self._event_set is not None and len(found) < MOST_FAULTS:
            try:
                event = self._session.may(None, nvml.nvmlEventSetWait, self._event_set, 0)
            except LostError:
                break  # the GPU whose event it was is gone, and its reading says so
            if event is None:
                break
            xid = event.eventData if event.eventType == nvml.nvmlEventTypeXidCriticalError else _DOUBLE_BIT_XID
            found.append(Fault(self._uuids.get(_key(event.device), ""), int(xid)))
        return tuple(found)

    def _listen(self, handle: Handle) -> None:
        types = self._session.may(0, nvml.nvmlDeviceGetSupportedEventTypes, handle) & _EVENTS
        if types:
            self._session.may(None, nvml.nvmlDeviceRegisterEvents, handle, types, self._event_set)


def _key(handle: Any) -> int:
    """Return a number by which a handle is known again: pynvml makes a new pointer object for each."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
