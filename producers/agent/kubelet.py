"""What the kubelet says that others have handed out, asked again and again."""

import asyncio
import logging
from typing import Final

from producers.agent.drift import HandedOut
from producers.agent.podresources import Device, PodResources, PodResourcesError, Translator
from schemas.cluster import GpuDevice

log = logging.getLogger("gpubus.agent")

EVERY_S: Final = 10.0

ALLOCATORS: Final = {"nvidia.com/gpu": "nvidia-device-plugin", "nvidia.com/mig-": "nvidia-device-plugin"}
"""Device plugins that hand out the same GPUs, by the beginning of their resources' names."""

DRIVERS: Final = ("gpu.nvidia.com",)
"""DRA drivers that do."""


class Kubelet:
    """The newest answer of the kubelet. What it said last stays in force while it does not answer.

    Attributes:
        asked: It has been asked, whatever came of it.
        answered: It has answered at least once.
        up: It answered when it was asked last.
    """

    def __init__(self, source: PodResources | None) -> None:
        self._source = source
        self._translator = Translator(ALLOCATORS, DRIVERS)
        self._devices: list[Device] = []
        self._unknown: set[Device] = set()
        self.asked = source is None
        self.answered = False
        self.up = False

    async def run(self) -> None:
        """Ask until cancelled."""
        while self._source is not None:
            try:
                self._devices = await self._source.list()
            except PodResourcesError as error:
                if self.up or not self.asked:
                    log.warning("what other allocators hand out is not known: %s", error)
                self.up = False
            else:
                self.up = self.answered = True
            self.asked = True
            await asyncio.sleep(EVERY_S)

    def handed_out(self, devices: list[GpuDevice]) -> list[HandedOut]:
        """Return the GPUs of this node that others have handed out.

        A device whose GPU cannot be told may be any of them, so it counts as all.
        """
        instances = {instance.uuid: device.uuid for device in devices for instance in device.instances}
        gpus = {device.index: device.uuid for device in devices}
        known, unknown = self._translator.handed_out(self._devices, gpus, instances)
        for strange in set(unknown) - self._unknown:
            log.warning("%s: which GPU this is cannot be told, so no GPU of the node takes new pods", strange)
        self._unknown = set(unknown)
        any_of_them = [
            HandedOut(strange.namespace, strange.pod, strange.container, f"{strange.resource} {strange.device}", uuid)
            for strange in unknown
            for uuid in gpus.values()
        ]
        return known + any_of_them
