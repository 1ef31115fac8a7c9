"""Says what the GPUs of the node are: when something has changed and as a heartbeat, and to the pods that it concerns."""

import logging
import time
from collections.abc import Iterable

import msgspec

from producers.agent import speech
from producers.agent.outbox import Outbox
from schemas.cluster import GpuDevice, GpuInventory
from schemas.event import Timestamp
from schemas.ledger import Allocation
from schemas.observed import PodNotice

log = logging.getLogger("gpubus.agent")


class Spokesman:
    """Keeps in mind what was said.

    Args:
        outbox: Where messages go.
        heartbeat_s: Time after which something is said though nothing has changed.
    """

    def __init__(self, outbox: Outbox, heartbeat_s: float) -> None:
        self._outbox = outbox
        self._heartbeat_s = heartbeat_s
        self._at = 0.0
        self.healthy: dict[str, bool] = {}
        """Whether GPUs are healthy by what was said last, be it by an earlier process, by UUID."""
        self.told: GpuInventory | None = None
        """The newest inventory."""

    def say(self, inventory: GpuInventory, held: Iterable[Allocation]) -> None:
        """Say what has changed, or what is so when a heartbeat is due.

        Args:
            inventory: What is so.
            held: What pods hold on the node.
        """
        told = self.told
        changed = told is None or msgspec.structs.replace(inventory, observed_at=told.observed_at) != told
        if not changed and time.monotonic() - self._at < self._heartbeat_s:
            return
        for gpu in inventory.gpus:
            if self.healthy.get(gpu.uuid, True) != gpu.healthy:
                self._tell_pods(inventory.node, gpu, held, inventory.observed_at)
        self.healthy = {gpu.uuid: gpu.healthy for gpu in inventory.gpus}
        self._outbox.state(speech.inventory(inventory))
        self.told, self._at = inventory, time.monotonic()

    def _tell_pods(self, node: str, gpu: GpuDevice, held: Iterable[Allocation], at: Timestamp) -> None:
        """Tell the pods on a GPU that has failed or recovered."""
        place = f"GPU {gpu.index} ({gpu.uuid}) of node {node}"
        why = "; ".join(trouble.detail for trouble in gpu.troubles)
        message = f"{place} is healthy again." if gpu.healthy else f"{place} takes no new pods: {why}."
        log.warning("%s", message)
        for allocation in held:
            if any(grant.uuid == gpu.uuid for grant in allocation.gpus):
                notice = PodNotice(
                    namespace=allocation.namespace,
                    name=allocation.name,
                    pod_uid=allocation.pod_uid,
                    node=node,
                    uuid=gpu.uuid,
                    reason="GpuRecovered" if gpu.healthy else "GpuUnhealthy",
                    message=message,
                    at=at,
                )
                self._outbox.event(speech.notice(notice))
