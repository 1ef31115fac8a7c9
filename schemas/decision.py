"""What was decided and why: enough to explain a placement, and to compute it again."""

from typing import Annotated, Literal

import msgspec

from schemas.cluster import Amount, Isolation
from schemas.hardware import Partition

Outcome = Literal["allocated", "unschedulable", "released", "evicted"]
Way = Literal["native", "extender", "resize"]


class GpuGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of one GPU given to one pod: compute in thousandths of a TFLOPS and VRAM in bytes.

    With a ``partition`` these are the amounts of its template, and the pod has that partition to itself.

    Attributes:
        exclusive: The GPU was idle, and nothing joins as long as this is held.
        isolation: How the pod is kept apart; what does not go with that does not join.
        slots: Slots of the GPU that it takes, one for each container that runs at the same time.
    """

    uuid: str
    index: Amount
    tflops_milli: Amount
    vram_bytes: Amount
    partition: Partition | None = None
    exclusive: bool = False
    isolation: Isolation = ""
    slots: Annotated[int, msgspec.Meta(ge=1)] = 1


class ContainerGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one container is given. What the pod takes of a GPU follows from these; see ``ContainerRequest.init``."""

    name: str
    gpus: tuple[GpuGrant, ...]


class FilterReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one filter removed.

    Attributes:
        reason: Reason code; see :mod:`schemas.reasons`.
        nodes: Nodes for which this was the first filter that refused them.
        gpus: GPUs that this filter refused, including on nodes that remained feasible.
        examples: The first three such nodes in name order.
    """

    reason: str
    nodes: Amount = 0
    gpus: Amount = 0
    examples: tuple[str, ...] = ()


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node that could have taken the pod, with the parts of its score.

    Used shares count 0..100. ``FragmentationGradient`` and ``PackingValue`` score in steps of their own, the latter in
    thousandths of a GPU, which may be negative.
    """

    node: str
    score: int
    parts: dict[str, int]


class Basis(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the decision had seen.

    Attributes:
        state: STATE sequence that the snapshot had reached.
        ledger: LEDGER sequence that the snapshot had reached.
        ordinal: Number of this decision among those of its allocator. Changes that the allocator had decided with a
            smaller ordinal and that were not in the ledger yet were part of the snapshot too.
    """

    state: Amount
    ledger: Amount
    ordinal: Amount


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An earlier placement of the same pod that another allocator's commit overtook. It was never in the ledger.

    Attributes:
        decided: Ordinal at which it was decided.
        dropped: Ordinal of the first decision after it was given up.
    """

    node: str
    gpus: tuple[GpuGrant, ...]
    decided: Amount
    dropped: Amount


class PodRef(msgspec.Struct, frozen=True, gc=False):
    """A pod by name, and which of those that ever had the name."""

    namespace: str
    name: str
    uid: str


class Preemption(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who leaves a node for whom. The pod that comes and each that leaves are told the same.

    Attributes:
        node: Where room is made.
        preemptor: The pod that room is made for.
        victims: The pods that are evicted, those of least rank first.
        gpus: What is kept for the preemptor until it has it.
        until_s: Second since the epoch up to which it is kept.
    """

    node: str
    preemptor: PodRef
    victims: tuple[PodRef, ...]
    gpus: tuple[GpuGrant, ...]
    until_s: Amount


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One decision about one pod.

    Attributes:
        allocator: Name of the allocator process that decided.
        policy: Name of the placement policy.
        policy_hash: Hash of everything in the policy that can change the result, the tie-break order included.
        engine: Version of the engine's rules; a replay under another version says so.
        containers: What each container is given, in the order of the request, where containers ask for GPUs of their own.
        reason: For ``unschedulable`` the dominant reason code, for ``released`` and ``evicted`` why.
        message: One sentence for people.
        help: What would help; empty when nothing needs to.
        duration_us: Time the engine took.
        way: Who asked for it: ``extender`` when a kube-scheduler did, which then keeps the pod in its own queue.
        preemption: The eviction that the pod waits for, or that it falls victim to.
    """

    outcome: Outcome
    namespace: str
    name: str
    pod_uid: str
    pool: str
    allocator: str
    basis: Basis
    node: str = ""
    gpus: tuple[GpuGrant, ...] = ()
    containers: tuple[ContainerGrant, ...] = ()
    reason: str = ""
    message: str = ""
    help: str = ""
    policy: str = ""
    policy_hash: str = ""
    engine: str = ""
    filters: tuple[FilterReport, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    duration_us: Amount = 0
    way: Way = "native"
    preemption: Preemption | None = None
