"""What an allocator was asked and what it knew, in the order in which its mind took it in: enough to think it all again.

The ledger and the decisions say what was decided; they cannot say what else had been placed in memory at that moment, since
a placement that is overtaken, or whose allocator dies, never reaches them. So each allocator writes down its *turns*: every
step that changed its view or asked for a decision. What the bus holds anyway is referred to by sequence and not repeated.

Steps are arrays in JSON, their first element the kind, because there are several for every decision. Fields may be added at
the end of a step, and kinds of step; a reader that meets a kind it does not know must stop.
"""

from collections.abc import Iterable

import msgspec

from schemas.cluster import Amount
from schemas.pod import GpuRequest, Schedule
from schemas.quota import Usage


class Saw(msgspec.Struct, frozen=True, array_like=True, tag="saw", gc=False):
    """How far the streams had been read, and the allocator's part of the nodes; holds for the decisions that follow.

    Attributes:
        now_ns: The server's time, by which agents were silent or not; 0 where none had promised to speak.
    """

    state: Amount
    ledger: Amount
    part: Amount
    parts: Amount
    now_ns: Amount = 0


class Count(msgspec.Struct, frozen=True, array_like=True, tag="count", gc=False):
    """What counted against the quota of a namespace: held by the ledger, and promised by this allocator beyond it."""

    namespace: str
    held: Usage
    promised: Usage


class Place(msgspec.Struct, frozen=True, array_like=True, tag="place", gc=False):
    """A pod was to be placed: a decision. If it found a node, what it granted there counts from then on.

    Room that is kept for the pod is no obstacle to it, and is kept no more once the pod is placed where it is.

    Attributes:
        node: The only node that it could go to; empty: any.
        created_s: When the pod was created.
    """

    namespace: str
    name: str
    pod_uid: str
    request: GpuRequest
    node: str = ""
    created_s: Amount = 0


class Budget(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A disruption budget, as far as it concerned the pods that might have had to go: evictions that it allowed, and pods."""

    allowed: Amount
    pods: tuple[str, ...]


class StandingGang(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A gang of which somebody might have had to go: its key, how many members it could spare, and all of them."""

    key: str
    spare: Amount
    members: tuple[str, ...]


class Preempt(msgspec.Struct, frozen=True, array_like=True, tag="preempt", gc=False):
    """Room was to be made for a pod by evicting others: a decision about it, and one about each of them, in order.

    Attributes:
        now_s: The time by which others were protected or not.
        until_s: Up to when the room is kept.
        budgets: What Kubernetes allowed.
        gangs: The gangs that stood and of which somebody might go; None in journals of those who took no heed of gangs.
    """

    namespace: str
    name: str
    pod_uid: str
    request: GpuRequest
    created_s: Amount
    now_s: Amount
    until_s: Amount
    budgets: tuple[Budget, ...] = ()
    gangs: tuple[StandingGang, ...] | None = None

    def command(self) -> Schedule:
        """Return the pod's command."""
        return Schedule(
            namespace=self.namespace,
            name=self.name,
            uid=self.pod_uid,
            request=self.request,
            created_s=self.created_s,
        )


class Free(msgspec.Struct, frozen=True, array_like=True, tag="free", gc=False):
    """A pod was to give back what it held: a decision. It holds nothing on ``node`` from then on; empty: it held nothing."""

    pod_uid: str
    node: str


class Drop(msgspec.Struct, frozen=True, array_like=True, tag="drop", gc=False):
    """What a pod held on a node counts no more, without a new decision."""

    pod_uid: str
    node: str


class Restore(msgspec.Struct, frozen=True, array_like=True, tag="restore", gc=False):
    """A pod holds on a node again what the node's ledger record at ``seq`` lists for it: what it was to hold instead is not."""

    pod_uid: str
    node: str
    seq: Amount


class Adopt(msgspec.Struct, frozen=True, array_like=True, tag="adopt", gc=False):
    """The node holds what its ledger record at ``seq`` lists and nothing else; 0: nothing."""

    node: str
    seq: Amount


class Freeze(msgspec.Struct, frozen=True, array_like=True, tag="freeze", gc=False):
    """The node's newest ledger record cannot be read."""

    node: str


class Tell(msgspec.Struct, frozen=True, array_like=True, tag="tell", gc=False):
    """A pod was told to wait for other pods: a decision that follows from what they did and not from the nodes."""

    namespace: str
    name: str
    pod_uid: str
    pool: str
    reason: str
    message: str


Step = Saw | Count | Place | Free | Drop | Adopt | Freeze | Tell | Preempt | Restore


def referred(steps: Iterable[Step]) -> list[int]:
    """Return the LEDGER sequences of the records that steps refer to."""
    return [step.seq for step in steps if isinstance(step, (Adopt, Restore)) and step.seq]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A run of steps of one allocator.

    Attributes:
        allocator: Whose.
        number: 1 for its first turn, and so on: a missing number means that its thoughts cannot be followed further.
        decided: How many decisions it had made before: those in here have the ordinals behind.
        engine: Version of the engine's rules.
        previous: Digest of the turn before (:func:`bus.chain.link`); empty for the first.
    """

    allocator: str
    number: Amount
    decided: Amount
    engine: str
    steps: tuple[Step, ...]
    previous: str = ""
