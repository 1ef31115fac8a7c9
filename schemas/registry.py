"""Which payload belongs to which event type. The one list that codecs and documentation are made from."""

from typing import Final

import msgspec

from schemas.alert import AlertNotice, RuleRefusal, RuleSet, RuleState
from schemas.capacity import PoolCapacity
from schemas.cluster import ExpectedPods, GpuInventory, Namespace, Node, Pool
from schemas.deadletter import DeadLetter
from schemas.decision import Decision
from schemas.defrag import Campaign
from schemas.journal import Turn
from schemas.kube.resources import CustomResource
from schemas.ledger import GangRecord, NodeRecord, QuotaRecord
from schemas.observed import Drift, PodNotice
from schemas.pod import Pod, Release, Schedule, Waiting
from schemas.preemption import DisruptionBudget, Evict
from schemas.quota import Quota
from schemas.record import RecorderCounters
from schemas.remote import Connection, RemoteClient, Seats
from schemas.rollout import ComponentSpec, Member, Rollout
from schemas.scaling import WorkloadUse
from schemas.shadow import ShadowReport
from schemas.slots import WorkloadSlots
from schemas.usage import NodeUsage


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """A server-side timer fired. ``name`` says which; ``every_s`` is its interval in seconds if it has one."""

    name: str
    every_s: int = 0


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A process is alive. Said every few seconds, under a TTL; others divide work by it, and nothing depends on it."""

    role: str
    name: str


EVENT_TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    "gpubus.node.v1": Node,
    "gpubus.gpu.v1": GpuInventory,
    "gpubus.pool.v1": Pool,
    "gpubus.expected.v1": ExpectedPods,
    "gpubus.pod.v1": Pod,
    "gpubus.quota.v1": Quota,
    "gpubus.disruption.v1": DisruptionBudget,
    "gpubus.namespace.v1": Namespace,
    "gpubus.resource.v1": CustomResource,
    "gpubus.client.v1": RemoteClient,
    "gpubus.connection.v1": Connection,
    "gpubus.waiting.v1": Waiting,
    "gpubus.presence.v1": Presence,
    "gpubus.usage.v1": NodeUsage,
    "gpubus.use.v1": WorkloadUse,
    "gpubus.capacity.v1": PoolCapacity,
    "gpubus.campaign.v1": Campaign,
    "gpubus.notice.v1": PodNotice,
    "gpubus.drift.v1": Drift,
    "gpubus.ledger.node.v1": NodeRecord,
    "gpubus.ledger.quota.v1": QuotaRecord,
    "gpubus.ledger.workload.v1": WorkloadSlots,
    "gpubus.ledger.gang.v1": GangRecord,
    "gpubus.ledger.seats.v1": Seats,
    "gpubus.decision.v1": Decision,
    "gpubus.journal.v1": Turn,
    "gpubus.shadow.v1": ShadowReport,
    "gpubus.schedule.v1": Schedule,
    "gpubus.release.v1": Release,
    "gpubus.evict.v1": Evict,
    "gpubus.tick.v1": Tick,
    "gpubus.component.v1": ComponentSpec,
    "gpubus.member.v1": Member,
    "gpubus.rollout.v1": Rollout,
    "gpubus.alert.v1": AlertNotice,
    "gpubus.rulestate.v1": RuleState,
    "gpubus.rules.v1": RuleSet,
    "gpubus.rulerefusal.v1": RuleRefusal,
    "gpubus.recorder.v1": RecorderCounters,
    "gpubus.dead.v1": DeadLetter,
}

TYPE_NAMES: Final[dict[type[msgspec.Struct], str]] = {struct: name for name, struct in EVENT_TYPES.items()}
