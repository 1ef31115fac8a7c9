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
        self._warned: dict[str, set[str]] = {}
        """Pods that were on a GPU that has failed when last looked at, all of them told, by its UUID."""
        self.told: GpuInventory | None = None
        """The newest inventory."""

    def say(self, inventory: GpuInventory, held: Iterable[Allocation]) -> None:
        """Say what has changed, or what is so when a heartbeat is due.

        Args:
            inventory: What is so.
            held: What pods hold on the node.
        """
        held = tuple(held)
        for gpu in inventory.gpus:
            self._tell_pods(inventory.node, gpu, held, inventory.observed_at)
        told = self.told
        changed = told is None or msgspec.structs.replace(inventory, observed_at=told.observed_at) != told
        if not changed and time.monotonic() - self._at < self._heartbeat_s:
            return
        self.healthy = {gpu.uuid: gpu.healthy for gpu in inventory.gpus}
        self._outbox.state(speech.inventory(inventory))
        self.told, self._at = inventory, time.monotonic()

    def _tell_pods(self, node: str, gpu: GpuDevice, held: Iterable[Allocation], at: Timestamp) -> None:
        """Tell the pods on a GPU that has failed or recovered, those too that were placed before anybody knew."""
        was_healthy = self.healthy.get(gpu.uuid, True)
        on_it = {one.pod_uid: one for one in held if any(grant.uuid == gpu.uuid for grant in one.gpus)}
        if gpu.healthy:
            self._warned.pop(gpu.uuid, None)
            news = [] if was_healthy else list(on_it.values())
        else:
            # Whoever spoke for this node before has told the pods that were there.
            warned = self._warned.get(gpu.uuid, set() if was_healthy else set(on_it))
            news = [one for uid, one in on_it.items() if uid not in warned]
            self._warned[gpu.uuid] = set(on_it)
        place = f"GPU {gpu.index} ({gpu.uuid}) of node {node}"
        why = "; ".join(trouble.detail for trouble in gpu.troubles)
        message = f"{place} is healthy again." if gpu.healthy else f"{place} takes no new pods: {why}."
        if was_healthy != gpu.healthy:
            log.warning("%s", message)
        for allocation in news:
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
