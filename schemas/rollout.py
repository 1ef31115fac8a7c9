"""Rollouts: what a pool wants of its components, what runs of them, and how far an update is.

A component is updated member by member: a hypervisor is one node's agent, a worker one workload's pods, a client one pod.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.event import Timestamp
from schemas.units import Amount

Component = Literal["hypervisor", "worker", "client"]
COMPONENTS: tuple[Component, ...] = ("hypervisor", "worker", "client")

Phase = Literal[
    "synced",
    "outdated",
    "planned",
    "window",
    "canary",
    "batch",
    "interval",
    "paused",
    "halted",
    "aborted",
    "rolled-back",
]
"""Where a rollout stands. ``outdated`` records a change that nothing carries out; ``window`` and ``interval`` wait for their
time; ``canary`` and ``batch`` have members under way; the last three and ``synced`` are at rest.
"""

UNDER_WAY: Final[frozenset[Phase]] = frozenset({"canary", "batch"})

Step = Literal[
    "recorded", "started", "superseded", "batch", "replaced", "asked", "waited", "continued", "passed", "paused", "resumed",
    "halted", "aborted", "rolled-back", "completed",
]  # fmt: skip
"""What one revision of the record did."""

Reason = Literal[
    "", "FirstSeen", "AutoUpdateOff", "AlertsFiring", "WindowClosed", "Blocked", "CrashLooping", "NotReady",
    "MaxDurationExceeded", "PoolGone", "Ordered", "Completed",
]  # fmt: skip

Outcome = Literal["done", "part", "gone", "kept", "blocked"]


class UpdatePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How changes reach what runs (``nodePoolRollingUpdatePolicy``); see :func:`schemas.update_policy.parse_policy`.

    Attributes:
        auto_update: Whether a change is carried out at all, or only recorded.
        batch_percentage: Members of one batch in percent of all, rounded up.
        batch_interval_s: Pause between two batches.
        max_duration_s: Time that all batches together may take. Pauses, intervals and closed windows do not count: they are
            planned.
        windows: Cron expressions; batches begin and members are replaced only in minutes that one of them matches. Empty
            for any time.
        canary: Whether one member goes first, alone.
        ready_within_s: How long a replaced member may take to become ready.
        refused: Why what the pool states cannot be followed. Nothing is updated by itself then.
    """

    auto_update: bool = False
    batch_percentage: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    batch_interval_s: Amount = 1
    max_duration_s: Annotated[int, msgspec.Meta(ge=1)] = 600
    windows: tuple[str, ...] = ()
    canary: bool = True
    ready_within_s: Annotated[int, msgspec.Meta(ge=1)] = 300
    refused: str = ""


class Template(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What members are made from.

    Attributes:
        hash: :func:`schemas.rollout_template.template_hash` of the rest.
        rendered: The rendered template, as JSON.
        revisions: Revision of each vendor's provider configuration.
        images: Images that these name, by vendor and use, such as ``NVIDIA/remoteWorker``; they precede the rendered ones.
    """

    hash: str
    rendered: dict[str, Any]
    revisions: dict[str, str] = {}
    images: dict[str, str] = {}


class ComponentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool wants of one component: ``gpubus.state.component.<pool>.<component>``."""

    pool: str
    component: Component
    template: Template
    policy: UpdatePolicy = UpdatePolicy()


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One member as it runs: ``gpubus.state.member.<pool>.<component>.<name>``.

    A hypervisor stays a member as long as its node is there, and a worker as long as its workload wants pods, between two
    pods too.

    Attributes:
        name: Node, ``namespace/workload`` or ``namespace/pod``.
        uid: UID of the pod or workload; empty while it has no pod.
        hash: Hash that it was made from (label ``pod-template-hash``).
        created_at: When it was created; decides who is updated first.
        ready: Whether it is ready.
        crash_looping: Whether a container of it is waiting in ``CrashLoopBackOff``.
        owned: Whether something makes a new one when it is removed. Others are left alone.
        vendor: Vendor of the GPUs it serves, which names the provider revision that counts for it.
        isolation: Isolation mode of its node.
        overrides: What its workload adds to the template; the number of replicas never counts.
        owner: What makes a client's pods, as ``apiVersion/kind/name``, in the pod's namespace.
        wanted: Pods that a worker wants.
        pods: Pods of a worker, those that are ending too.
        pods_ready: Pods of a worker that are ready.
    """

    pool: str
    component: Component
    name: str
    uid: str
    hash: str
    created_at: Timestamp
    ready: bool = False
    crash_looping: bool = False
    owned: bool = True
    vendor: str = ""
    isolation: str = ""
    overrides: dict[str, Any] = {}
    owner: str = ""
    wanted: Amount = 0
    pods: Amount = 0
    pods_ready: Amount = 0


class BatchMember(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A member of the batch under way.

    Attributes:
        uid: The one to be replaced; one with another UID has been already.
        was_ready: Whether it was ready before. If not, that it is not ready afterwards says nothing about the template.
        pods_ready: Pods of a worker that were ready before, or have become since.
        wanted: Pods that the worker wanted then; 0 where that was not written down.
        since: When it was first taken up. Pods of a worker that are younger were made for those that were replaced.
        part_at: When pods of a worker were last replaced while others of it still wait for their turn.
        replaced_at: When its replacement was confirmed.
        blocked: Why it could not be replaced yet.
        unsure: Whether it may have been replaced unheard: it counts as down until it was asked after.
        stands: Whether it was asked after and stands as it was.
    """

    name: str
    uid: str
    was_ready: bool = True
    pods_ready: Amount = 0
    wanted: Amount = 0
    since: Timestamp | None = None
    part_at: Timestamp | None = None
    replaced_at: Timestamp | None = None
    blocked: str = ""
    unsure: bool = False
    stands: bool = False


class Rollout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of one pool and component, ``gpubus.ledger.rollout.<pool>.<component>``, replaced by compare-and-set.

    Attributes:
        txn: Identity of the commit that wrote it.
        number: Rollouts begun so far.
        back: Whether it goes back to an earlier template.
        since: When it was first seen. Members that are older may have been made by anybody, in whatever way.
        target: What members are brought to.
        previous: The last template that all members had before; what a rollback goes back to. The target itself where the pool
            has gone back to it.
        proven: Whether a member has come up with the target in this rollout; until then batches are canaries.
        rejected: Hash of the pool's template that an operator rolled back. It is not begun again by itself.
        manual: Whether an operator began it although updates are not automatic.
        progress: Percent of the members that the batches begun so far lead to.
        batches: Batches begun, the canary included.
        batch: Members under way.
        down: Members of earlier batches that were dropped, by a newer template or a way back, before they had come up: down by
            our doing. They go first, and as long as they are down so many fewer others are taken. Of clients the pods that
            were evicted, which may still be seen.
        short: Ready clients that owners had before pods of theirs were evicted in such batches.
        skipped: Members that nobody waits for as long as they are not ready: they were not before, nor in time afterwards, or
            an operator went on in spite of them.
        failed: Members or owners of clients that halted it, or alerts that did or that it waits for.
        accepted: Alerts that an operator went on in spite of.
        owners: Ready clients of each owner of clients in the batch when it began.
        wanted: Clients that owners want of those that miss some; -1 for one that cannot say.
        wanted_at: When they were asked.
        busy_s: Time that finished batches took.
        busy_since: Since when the batch under way takes time; None while nothing does.
        changed_at: Time of this revision.
        due_at: Until when the interval or the closed window lasts.
        step: What this revision did.
        reason: Why it stands where it stands.
        message: The same in one sentence for people.
        by: Who ordered this revision; empty when nobody did.
    """

    pool: str
    component: Component
    target: Template
    changed_at: Timestamp
    step: Step
    since: Timestamp | None = None
    txn: str = ""
    phase: Phase = "synced"
    number: Amount = 0
    back: bool = False
    previous: Template | None = None
    rejected: str = ""
    manual: bool = False
    progress: Amount = 0
    batches: Amount = 0
    proven: bool = False
    batch: tuple[BatchMember, ...] = ()
    down: tuple[BatchMember, ...] = ()
    short: dict[str, Amount] = {}
    skipped: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    owners: dict[str, int] = {}
    wanted: dict[str, int] = {}
    wanted_at: Timestamp | None = None
    updated: Amount = 0
    total: Amount = 0
    started_at: Timestamp | None = None
    busy_s: Amount = 0
    busy_since: Timestamp | None = None
    due_at: Timestamp | None = None
    reason: Reason = ""
    message: str = ""
    by: str = ""


class Replace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Request to ``gpubus.rpc.rollout.replace``: make this member anew from the template.

    It may come again; ``uid`` is a precondition, so a member that was replaced already is left alone.

    Attributes:
        hash: What the new one is to be labelled with.
        isolation: Isolation mode of an agent's node.
        up: Pods of a worker that are ready when none is down by our doing, of those that it wants.
        at_once: How many of these may be down; the others are replaced when those have come up.
        first: Whether one of them goes first, alone.
        since: Pods that are younger were made for those that were replaced: they are the first to try another template on.
        keep: Whether it is only asked whether an earlier request has replaced it: what stands is left alone, and a workload whose
            pods are all up.
    """

    pool: str
    component: Component
    name: str
    uid: str
    template: Template
    hash: str
    isolation: str = ""
    up: Amount = 0
    at_once: Amount = 0
    first: bool = False
    since: Timestamp | None = None
    keep: bool = False


class Replaced(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer: ``done``; ``gone`` when there is no member of that UID any more; ``blocked`` with what forbids it at present.

    ``kept`` when it was only asked after and stands.

    ``part`` when pods of a worker remain for a later request; ``pods`` counts those replaced by this one, and ``up`` those that
    were ready before it: when these are more than the request says, none of them is replaced until another says so.

    ``unsure`` when it is not known what became of the request: it may have been carried out before it failed.
    """

    outcome: Outcome
    message: str = ""
    pods: Amount = 0
    up: Amount = 0
    unsure: bool = False


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Request to ``gpubus.rpc.rollout.wanted``: how many pods do these owners want now?"""

    owners: tuple[str, ...]


class WantedPods(msgspec.Struct, frozen=True, kw_only=True):
    """Answer: pods by owner, 0 for one that is gone or has finished, -1 for one that cannot say."""

    pods: dict[str, int]
