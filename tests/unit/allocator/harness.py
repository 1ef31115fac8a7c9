"""One allocator's mind without a bus: what it is told, what it commits, and what it says."""

from datetime import UTC, datetime

from bus import codec, subjects
from bus.follower import Record
from consumers.allocator.bundle import Bundle
from consumers.allocator.core import Core
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.event import Event
from schemas.ledger import NodeRecord
from schemas.pod import GpuRequest, Release, Schedule, Waiting
from schemas.quota import Quota
from schemas.registry import TYPE_NAMES

NOW = datetime(2026, 11, 30, tzinfo=UTC)
MIB = 2**20
BIG, SMALL = 80_000, 16_000
"""VRAM in MiB of the GPUs of two nodes."""


def encoded(data) -> bytes:
    event = Event(id="e", source="/test", type=TYPE_NAMES[type(data)], subject="s", time=NOW, data=data)
    return codec.encode(event)


def command(uid: str, request: GpuRequest, namespace: str = "ns", created_s: int = 0) -> Schedule:
    return Schedule(namespace=namespace, name=uid, uid=uid, request=request, created_s=created_s)


class Allocator:
    """A core with a GPU of 80 GB and four of 16 GB, each of 100 TFLOPS, that hears what it says."""

    def __init__(self, *quotas: Quota) -> None:
        self.core = Core("a", lambda: 0)
        self.state_seq = self.ledger_seq = self.now_s = 0
        self.states: list[Record] = []
        self.say("pool", "p", Pool(name="p"))
        for node, count, vram in (("big", 1, BIG), ("small", 4, SMALL)):
            gpus = [
                GpuDevice(uuid=f"{node}{i}", index=i, model=node, tflops_milli=100_000, vram_bytes=vram * MIB)
                for i in range(count)
            ]
            self.say("node", node, Node(name=node, pool="p"))
            self.say("gpu", node, GpuInventory(node=node, gpus=gpus, observed_at=NOW))
        for quota in quotas:
            self.allow(quota)

    def say(self, kind, *name_and_data) -> None:
        *name, data = name_and_data
        self.state_seq += 1
        payload = b"" if data is None else data if isinstance(data, bytes) else encoded(data)
        time_ns = self.now_s * 1_000_000_000
        record = Record(subjects.state(kind, *name), self.state_seq, payload, deleted=not payload, time_ns=time_ns)
        self.states.append(record)
        self.core.on_state(record)

    def allow(self, quota: Quota) -> None:
        self.say("quota", quota.namespace, quota.name, quota)

    def ask(self, uid: str, request: GpuRequest, namespace: str = "ns"):
        """Ask for a place and return the decision, committed if there was one."""
        self.core.schedule(command(uid, request, namespace), None)
        said = self.said()
        return next(announced.decision for announced in reversed(said) if announced.decision.pod_uid == uid)

    def said(self):
        """Let what is decided be committed and heard, and return what is said of it."""
        said = []
        for flight in self.leave(said):
            self.store(flight)
        said += self._heard()
        for announced in said:
            decision = announced.decision
            if announced.refused is None and not announced.waits and self.core.cluster.waiting.get(decision.pod_uid):
                self.say("waiting", "p", decision.namespace, decision.name, None)
        return said

    def leave(self, said=None):
        """Return what leaves for the ledger, and have pods that are refused wait."""
        while self.core.rooms.sought:
            self.core.make_room()
        self.core.flush()
        commits = self.core.effects.commits
        announcements = self._heard()
        if said is not None:
            said += announcements
        return commits

    def _heard(self):
        announcements = self.core.take_effects().announcements
        for announced in announcements:
            if announced.refused is not None:
                self.wait(announced.refused.uid, announced.refused.request, announced.decision.reason)
        return announcements

    def store(self, flight) -> None:
        for commit in flight.commits:
            self.ledger_seq += 1
            self.core.on_ledger(commit.node, Record("s", self.ledger_seq, encoded(commit.record())))
        for seal in flight.seals if isinstance(flight, Bundle) else ():
            self.ledger_seq += 1
            kind = seal.subject.split(".")[2]
            self.core.on_key(kind, seal.name, Record(seal.subject, self.ledger_seq, encoded(seal.record)))

    def hear_node(self, node: str, record: NodeRecord) -> None:
        self.core.on_ledger(node, Record("s", self.ledger_seq, encoded(record)))

    def end(self, uid: str):
        """Have a pod give back what it holds; nothing is committed yet."""
        self.core.release(Release(namespace="ns", name=uid, uid=uid, pool="p"), None)

    def woken(self) -> list[str]:
        """Return the pods that are woken by what has changed."""
        found = []
        while self.core.cluster.has_grown:
            found += [pod.uid for pod, _ in self.core.wake()]
        return found

    def wait(self, uid: str, request: GpuRequest, reason: str) -> None:
        pod = Waiting(
            namespace="ns", name=uid, uid=uid, request=request, reason=reason,
            state_seq=self.state_seq, ledger_seq=self.ledger_seq, since=NOW,
        )  # fmt: skip
        self.say("waiting", "p", "ns", uid, pod)
