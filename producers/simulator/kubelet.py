"""Plays binder and kubelet: what decisions do to pods, and what then has to be said.

No I/O. Decisions come in as records of the bus; facts and commands wait in queues until the run loop sends them. Decisions
may come twice, after a crash of an allocator for example, so each is judged by what the pod is at that moment.
"""

import logging
import time
from array import array
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Literal

import msgspec

from bus.codec import decode_as
from bus.errors import UndecodableError
from bus.follower import Record
from producers.simulator.speech import Outgoing, gone, release, running
from producers.simulator.timeline import Timeline
from schemas.decision import GpuGrant, Outcome
from schemas.event import Event
from schemas.ledger import Allocation
from schemas.pod import Pod

log = logging.getLogger("gpubus.simulator")

Stage = Literal["offered", "waiting", "running", "releasing", "gone"]


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The part of a decision that a node acts on. Skipping the explanation makes decoding several times cheaper."""

    outcome: Outcome
    pod_uid: str
    node: str = ""
    gpus: tuple[GpuGrant, ...] = ()


class _Tenant(msgspec.Struct):
    """A pod that was offered. ``cause`` is the id of the decision that gave it its place."""

    pod: Pod
    offered_at: float
    stage: Stage = "offered"
    node: str = ""
    cause: str = ""
    granted_milli: int = 0
    released: bool = False


class Kubelet:
    """All pods of the cluster and where they run.

    Counters are public to read; see :class:`producers.simulator.progress.Progress` for what they mean.
    """

    def __init__(self, timeline: Timeline, uids: Collection[str], on_news: Callable[[], None]) -> None:
        """Take the pods to come by UID; ``on_news`` is called after every change and must only schedule work."""
        self._timeline = timeline
        self._uids = uids
        self._on_news = on_news
        self._tenants: dict[str, _Tenant] = {}
        self._early: dict[str, Event[Verdict]] = {}
        self._starts: list[Outgoing] = []
        self._releases: list[Outgoing] = []
        self._gone: list[tuple[str, str]] = []
        self.nodes: dict[str, dict[str, Allocation]] = {}
        """What runs, by node and pod UID; nodes where nothing runs are left out."""
        self.latencies = array("d")
        """Seconds from offer to allocation of every pod that was placed at the first try."""
        self.undecided = self.waiting = self.running = self.releasing = 0
        self.allocated = self.released = self.double_started = 0
        self.granted_milli = 0
        self.waiting_changed_at = time.monotonic()
        """Monotonic second at which a pod last began or ceased to wait."""

    def admit(self, pod: Pod, now: float) -> bool:
        """Take in a new pod, about to be offered at monotonic second ``now``.

        Returns:
            Whether it is to be offered. A pod that came and went in an earlier life of the simulator is not.
        """
        tenant = self._tenants[pod.uid] = _Tenant(pod, now)
        early = self._early.pop(pod.uid, None)
        if early is not None and early.data.outcome == "released":
            tenant.stage = "gone"
            self._count_release(tenant)
            return False
        self.undecided += 1
        if early is not None:
            # The command may be a duplicate now, so the decision that came back then is all that ever will.
            self._heed(tenant, early, None)
        return True

    def end(self, uid: str) -> None:
        """The pod's time is over: it disappears and what it holds is to be given back."""
        if self._leave(self._tenants[uid], "Succeeded"):
            self._on_news()

    def _leave(self, tenant: _Tenant, reason: Literal["Succeeded", "Deleted"]) -> bool:
        """Have a pod that runs go; return whether it ran."""
        if tenant.stage != "running":
            return False
        self._vacate(tenant)
        tenant.stage = "releasing"
        self.releasing += 1
        self._releases.append(release(tenant.pod, tenant.node, reason, cause=tenant.cause, at=datetime.now(UTC)))
        return True

    def apply(self, record: Record) -> None:
        """Act on one record of the decisions; anything that is not about our pods is passed over."""
        if record.deleted:
            return
        try:
            event = decode_as(Verdict, record.payload)
        except UndecodableError as error:
            log.warning("%s at sequence %d: %s", record.subject, record.seq, error)
            return
        uid = event.data.pod_uid
        tenant = self._tenants.get(uid)
        if tenant is not None:
            self._heed(tenant, event, time.monotonic())
            self._on_news()
        elif uid in self._uids:
            self._early[uid] = event

    def take(self) -> tuple[list[Outgoing], list[Outgoing], list[tuple[str, str]]]:
        """Take what is to be said: starts, releases, and what is gone.

        Starts must be confirmed before the pods that are gone are erased; a pod may be among both.
        """
        taken = self._starts, self._releases, self._gone
        self._starts, self._releases, self._gone = [], [], []
        return taken

    def _heed(self, tenant: _Tenant, event: Event[Verdict], now: float | None) -> None:
        outcome = event.data.outcome
        if outcome == "allocated":
            self._allocated(tenant, event, now)
        elif outcome == "unschedulable":
            if tenant.stage == "offered":
                self._leave_queue(tenant)
                tenant.stage = "waiting"
                self.waiting += 1
                self.waiting_changed_at = time.monotonic()
        elif outcome == "evicted":
            self._leave(tenant, "Deleted")  # it is to go: another pod waits for what it holds
        else:
            self._given_back(tenant)

    def _allocated(self, tenant: _Tenant, event: Event[Verdict], now: float | None) -> None:
        if tenant.stage in ("offered", "waiting"):
            if tenant.stage == "offered" and now is not None:
                self.latencies.append(now - tenant.offered_at)
            self._leave_queue(tenant)
            self._start(tenant, event)
        elif event.id == tenant.cause:
            return  # the same fact again: a second allocation would have an id of its own
        elif tenant.stage == "running":
            if event.data.node != tenant.node:
                self.double_started += 1
                log.error("pod %s runs on %s and was also given %s", tenant.pod.name, tenant.node, event.data.node)
        else:
            self.releasing += tenant.stage == "gone"
            tenant.stage = "releasing"
            ghost = release(tenant.pod, event.data.node, "Deleted", cause=event.id, at=datetime.now(UTC), again=True)
            self._releases.append(ghost)

    def _start(self, tenant: _Tenant, event: Event[Verdict]) -> None:
        pod, verdict = tenant.pod, event.data
        tenant.stage, tenant.node, tenant.cause = "running", verdict.node, event.id
        tenant.granted_milli = sum(grant.tflops_milli for grant in verdict.gpus)
        self.running += 1
        self.allocated += 1
        self.granted_milli += tenant.granted_milli
        self.nodes.setdefault(verdict.node, {})[pod.uid] = Allocation(
            pod_uid=pod.uid, namespace=pod.namespace, name=pod.name, pool=pod.request.pool, gpus=verdict.gpus
        )
        self._timeline.started(pod.uid)
        self._starts.append(running(pod, verdict.node, cause=event.id, at=datetime.now(UTC)))

    def _given_back(self, tenant: _Tenant) -> None:
        if tenant.stage == "gone":
            return
        if tenant.stage == "releasing":
            self.releasing -= 1
        elif tenant.stage == "running":  # not at our wish
            self._vacate(tenant)
        else:
            self._leave_queue(tenant)
            self._gone.append(gone(tenant.pod))
        tenant.stage = "gone"
        self._count_release(tenant)

    def _count_release(self, tenant: _Tenant) -> None:
        self.released += not tenant.released
        tenant.released = True

    def _leave_queue(self, tenant: _Tenant) -> None:
        if tenant.stage == "offered":
            self.undecided -= 1
        else:
            self.waiting -= 1
            self.waiting_changed_at = time.monotonic()

    def _vacate(self, tenant: _Tenant) -> None:
        """Take a running pod off its node."""
        self.running -= 1
        self.granted_milli -= tenant.granted_milli
        on_node = self.nodes[tenant.node]
        del on_node[tenant.pod.uid]
        if not on_node:
            del self.nodes[tenant.node]
        self._gone.append(gone(tenant.pod))
