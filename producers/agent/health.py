"""Which GPUs may take new pods: what was seen of each, remembered for as long as it counts. No I/O, no clock.

A GPU is unhealthy while anything is wrong with it, and healthy again when that is seen to be over:

* a symptom (memory rows, memory errors, a recovery action the driver asks for, readings that cannot be true): when it is not
  seen any more;
* a lost GPU: when it answers again;
* an XID: when the driver says that no recovery action is due and ``xid_settle_s`` have passed without another; a driver that
  cannot say so is believed after ``xid_quiet_s``;
* a driver that hangs or fails: when it answers for that GPU.

A GPU that was seen once stays in the inventory, lost at worst: pods may still hold it. One that is replaced is forgotten at the
next start of the agent, as soon as no pod holds it.
"""

from collections.abc import Container, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from producers.agent.source import Fault, Hardware, Reading, Symptom
from schemas.cluster import GpuDevice, GpuInventory, VgpuMode
from schemas.hardware import GpuLink, GpuProblem, Trouble

IGNORED_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of applications, not of GPUs: NVIDIA's device plugin and HAMi ignore the same."""

_XIDS: Final = {
    48: "double bit memory error",
    62: "halt of an internal micro-controller",
    63: "memory row or page to be remapped",
    64: "remapping memory has failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "many single bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
}
_READ: Final[frozenset[GpuProblem]] = frozenset({"Lost", "InvalidReading"})
"""Problems that readings show; looking at the hardware shows the others, and ``Lost`` too."""

_ASKED: Final[frozenset[GpuProblem]] = frozenset({"Lost", "RowRemap", "EccErrors", "RecoveryRequired"})


class Health:
    """What is known of a node's GPUs.

    Args:
        ignored_xids: XIDs that say nothing about a GPU.
        xid_settle_s: Seconds after the last XID before a driver that asks for no recovery is believed.
        xid_quiet_s: Seconds after the last XID before a driver that cannot tell is believed.
    """

    def __init__(
        self, *, ignored_xids: frozenset[int] = IGNORED_XIDS, xid_settle_s: float = 30.0, xid_quiet_s: float = 300.0
    ) -> None:
        self._ignored = ignored_xids
        self._settle = timedelta(seconds=xid_settle_s)
        self._quiet = timedelta(seconds=xid_quiet_s)
        self._devices: dict[str, GpuDevice] = {}
        self._troubles: dict[str, dict[GpuProblem, Trouble]] = {}
        self._last_xid: dict[str, datetime] = {}
        self._links: dict[tuple[str, str], GpuLink] = {}
        self._hardware = Hardware(())
        self._restored: set[str] = set()
        self.xids = 0
        """XIDs counted since the start, ignored ones included."""

    def restore(self, inventory: GpuInventory) -> None:
        """Remember what was said before this process: GPUs that may be gone now, and XIDs that a restart must not cure."""
        self._restored = {device.uuid for device in inventory.gpus}
        for device in inventory.gpus:
            self._devices[device.uuid] = msgspec.structs.replace(device, healthy=True, troubles=(), used_by="")
            self._troubles[device.uuid] = {}
            for trouble in device.troubles:
                if trouble.problem == "Xid":
                    self._troubles[device.uuid]["Xid"] = trouble
                    self._last_xid[device.uuid] = inventory.observed_at

    def look(self, hardware: Hardware, at: datetime) -> None:
        """Take in what there is: the driver answers, so only what it shows is wrong."""
        self._hardware = hardware
        seen = {found.device.uuid: found for found in hardware.seen}
        self._restored -= seen.keys()
        for uuid, found in seen.items():
            self._devices[uuid] = msgspec.structs.replace(found.device, index=self._index(found.device))
            troubles = self._troubles.setdefault(uuid, {})
            for problem in ("DriverHung", "DriverError"):
                troubles.pop(problem, None)
            self._symptoms(uuid, found.symptoms, _ASKED, at)
            self._settle_xid(uuid, found.reset_wanted, at)
        for uuid in self._devices.keys() - seen.keys():
            self._symptoms(uuid, (Symptom("Lost", "the driver does not list it any more"),), _ASKED, at)
        order = [found.device.uuid for found in hardware.seen]
        self._links = {(order[link.first], order[link.second]): link for link in hardware.links}

    def forget_replaced(self, held: Container[str]) -> None:
        """Forget GPUs that an earlier process saw, that a working driver does not list, and that no pod holds."""
        for uuid in [uuid for uuid in self._restored if uuid not in held]:
            self._restored.discard(uuid)
            del self._devices[uuid]
            self._troubles.pop(uuid, None)
            self._last_xid.pop(uuid, None)
            self._links = {pair: link for pair, link in self._links.items() if uuid not in pair}

    def read(self, readings: Iterable[Reading], at: datetime) -> None:
        """Take in what the GPUs do."""
        for reading in readings:
            self._symptoms(reading.sample.uuid, reading.symptoms, _READ, at)

    def fault(self, fault: Fault, at: datetime) -> None:
        """Take in an XID."""
        self.xids += 1
        if fault.xid in self._ignored:
            return
        words = f"XID {fault.xid}" + (f": {_XIDS[fault.xid]}" if fault.xid in _XIDS else "")
        # An error of no GPU in particular may be any one's.
        for uuid in [fault.uuid] if fault.uuid else self._devices:
            self._last_xid[uuid] = at
            self._add(uuid, Trouble(problem="Xid", detail=words, since=at, xid=fault.xid))

    def fail(self, problem: GpuProblem, detail: str, at: datetime, *, mode: VgpuMode | None = None) -> None:
        """Something is wrong with the node as a whole: none of its GPUs, or none operated in ``mode``, takes new pods."""
        for uuid, device in self._devices.items():
            if mode is None or device.mode == mode:
                self._add(uuid, Trouble(problem=problem, detail=detail, since=at))

    def heal(self, problem: GpuProblem) -> None:
        """What was wrong with the node as a whole is over."""
        for troubles in self._troubles.values():
            troubles.pop(problem, None)

    def devices(self) -> list[GpuDevice]:
        """Return the known GPUs in order of index; their health is in :meth:`inventory`."""
        return sorted(self._devices.values(), key=lambda device: (device.index, device.uuid))

    def troubles(self, uuid: str) -> tuple[Trouble, ...]:
        """Return what is wrong with a GPU."""
        return tuple(self._troubles.get(uuid, {}).values())

    def healthy(self) -> dict[str, bool]:
        """Return whether each GPU may take new pods."""
        return {uuid: not self._troubles.get(uuid) for uuid in self._devices}

    def inventory(self, node: str, at: datetime, *, used_by: Mapping[str, str], valid_s: int) -> GpuInventory:
        """Return what is to be published, GPUs in order of index."""
        devices = self.devices()
        gpus = [
            msgspec.structs.replace(
                device,
                healthy=not self._troubles.get(device.uuid),
                troubles=self.troubles(device.uuid),
                used_by=used_by.get(device.uuid, ""),
            )
            for device in devices
        ]
        return GpuInventory(
            node=node,
            gpus=gpus,
            observed_at=at,
            valid_s=valid_s,
            links=tuple(self._placed(devices)),
            partitions=self._hardware.partitions,
            driver=self._hardware.driver,
            cuda=self._hardware.cuda,
        )

    def _placed(self, devices: list[GpuDevice]) -> Iterable[GpuLink]:
        places = {device.uuid: place for place, device in enumerate(devices)}
        for (one, other), link in sorted(self._links.items(), key=lambda item: [places[uuid] for uuid in item[0]]):
            first, second = sorted((places[one], places[other]))
            yield GpuLink(first, second, link.path, link.nvlinks)

    def _index(self, device: GpuDevice) -> int:
        """Return the index that a GPU had first: NVML counts anew when one is lost, and pods were told the old numbers."""
        before = self._devices.get(device.uuid)
        if before is not None:
            return before.index
        taken = {other.index for other in self._devices.values()}
        return device.index if device.index not in taken else max(taken) + 1

    def _symptoms(self, uuid: str, symptoms: Iterable[Symptom], judged: frozenset[GpuProblem], at: datetime) -> None:
        shown = {symptom.problem: symptom for symptom in symptoms}
        troubles = self._troubles.setdefault(uuid, {})
        for problem in judged - shown.keys():
            troubles.pop(problem, None)
        for symptom in shown.values():
            self._add(uuid, Trouble(problem=symptom.problem, detail=symptom.detail, since=at))

    def _add(self, uuid: str, trouble: Trouble) -> None:
        troubles = self._troubles.setdefault(uuid, {})
        before = troubles.get(trouble.problem)
        since = trouble.since if before is None else before.since
        troubles[trouble.problem] = msgspec.structs.replace(trouble, since=since)

    def _settle_xid(self, uuid: str, reset_wanted: bool | None, at: datetime) -> None:  # noqa: FBT001  a fact, no option
        last = self._last_xid.get(uuid)
        if last is None or reset_wanted or "Lost" in self._troubles[uuid]:
            return
        if at - last >= (self._quiet if reset_wanted is None else self._settle):
            del self._last_xid[uuid]
            self._troubles[uuid].pop("Xid", None)
