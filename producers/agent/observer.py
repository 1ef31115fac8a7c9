"""What a sample means: who uses the GPUs, how much, and where that differs from the ledger.

Nothing here waits for the driver or the bus.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from producers.agent import speech
from producers.agent.accounting import Books, account
from producers.agent.drift import PATIENCE, Watch
from producers.agent.health import Health
from producers.agent.holdings import Holdings
from producers.agent.kubelet import ALLOCATORS, DRIVERS, Kubelet
from producers.agent.options import HARMLESS, AgentOptions
from producers.agent.outbox import Outbox
from producers.agent.podresources import PodResources
from producers.agent.processes import Processes
from producers.agent.source import Reading
from producers.agent.tally import Tally, compute_limit
from schemas.cluster import GpuDevice, GpuInventory
from schemas.usage import NodeUsage

log = logging.getLogger("gpubus.agent")

NAMES_EVERY: Final = 10
"""Samples between two looks for the names of containers that had none."""

NOT_LOOKED_YET: Final = "unknown: the agent has just started"


class Observer:
    """Takes samples, and says what follows from them.

    Args:
        options: What the operator set.
        health: What is known of the GPUs.
        holdings: What pods hold on the node.
        outbox: Where messages go.
    """

    def __init__(self, options: AgentOptions, health: Health, holdings: Holdings, outbox: Outbox) -> None:
        self._node = options.node
        self._health = health
        self._holdings = holdings
        self._outbox = outbox
        self._processes = Processes(options.proc, options.logs)
        self._books = Books(self._processes.owner, self._container_name, self._harmless)
        self._tally = Tally(self._processes.owner, self._processes.started)
        self._watch = Watch(options.node)
        self._used_by: dict[str, str] = {}
        self._used_before: dict[str, str] = {}
        self._samples = 0
        self.kubelet = Kubelet(None if options.pod_resources is None else PodResources(options.pod_resources))
        self.usage: NodeUsage | None = None
        """The newest sample."""

    def restore(self, inventory: GpuInventory | None, usage: NodeUsage | None) -> None:
        """Go on from what this node's agent said last."""
        if inventory is not None:
            self._used_before = {gpu.uuid: gpu.used_by for gpu in inventory.gpus if gpu.used_by}
        if usage is not None:
            self._tally.restore(usage)

    def take(self, readings: tuple[Reading, ...]) -> None:
        """Take in a sample and say what follows."""
        at, held = datetime.now(UTC), self._holdings.allocations
        self._health.read(readings, at)
        self._processes.forget_all_but({process.pid for reading in readings for process in reading.processes})
        devices = self._health.devices()
        usage = account(self._node, readings, at, books=self._books, managed=held)
        self.usage = self._tally.count(usage, readings, held, self._limits(devices))
        self._outbox.state(speech.usage(self.usage))
        verdict = self._watch.look(
            self.usage,
            held,
            self.kubelet.handed_out(devices),
            at,
            known={device.uuid: device.model for device in devices},
            limits={uid: request.vram_limit_bytes for uid, request in self._holdings.requests.items()},
        )
        self._used_by = verdict.used_by
        self._samples += 1
        if self._samples % NAMES_EVERY == 0:
            self._processes.look_again()
        for drift in verdict.news:
            over = " is over" if drift.resolved else ""
            log.warning("%s %s%s: %s; the ledger: %s", drift.kind, drift.gpu, over, drift.observed, drift.ledger)
            self._outbox.event(speech.drift(drift))

    def used_by(self) -> dict[str, str]:
        """Return who else uses each GPU, by UUID."""
        return {device.uuid: self._user(device.uuid) for device in self._health.devices()}

    def _user(self, uuid: str) -> str:
        """Return who else uses a GPU. After a start nothing is given out before there was time to look.

        Until then, and while the kubelet has not answered, what was said before this process counts on.
        """
        found = self._used_by.get(uuid, "")
        before = self._used_before.get(uuid, "")
        if self._samples < PATIENCE or not self.kubelet.asked:
            return found or before or NOT_LOOKED_YET
        handed_out = before in (*ALLOCATORS.values(), *DRIVERS)
        return found or (before if handed_out and not self.kubelet.answered else "")

    def _limits(self, devices: list[GpuDevice]) -> Callable[[str, str, str], float | None]:
        by_uuid, requests = {device.uuid: device for device in devices}, self._holdings.requests
        return lambda uid, container, gpu: compute_limit(requests.get(uid), container, by_uuid.get(gpu))

    def _harmless(self, pid: int) -> bool:
        return self._processes.command(pid).startswith(HARMLESS)

    def _container_name(self, container: str) -> str:
        found = self._processes.name(container)
        return found.container if found else ""
