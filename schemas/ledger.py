"""Who holds what: the ledger record of a node.

A record is complete: it lists every allocation on its node, so the newest record of each node is the whole truth, and a
publish that names the sequence of the record it replaces is a compare-and-set on the node. It also carries what this
revision changed and the decision behind each change, so the log explains itself.
"""

from typing import Final, Literal

import msgspec

from schemas.cluster import Amount
from schemas.decision import ContainerGrant, GpuGrant, PodRef
from schemas.pod import Qos
from schemas.quota import Budget, Usage


class Allocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one pod holds on the node.

    Attributes:
        containers: What of ``gpus`` each container is given, where containers ask for GPUs of their own.
        compute_milli: Compute in thousandths of a whole GPU, summed over the pod's GPUs.
        tflops_limit_milli: Compute it may use, summed likewise; 0 where it states no limit.
        vram_limit_bytes: VRAM it may use, likewise.
        gang: Key of the gang that it is a member of; empty when it is in none.
        protected_until_s: Second since the epoch up to which it may not be preempted (``eviction-protection``); 0 for no such
            promise.
        since: LEDGER sequence of the record that added it; 0 in that record itself, which cannot know its own sequence.
    """

    pod_uid: str
    namespace: str
    name: str
    pool: str
    gpus: tuple[GpuGrant, ...] = ()
    containers: tuple[ContainerGrant, ...] = ()
    cpu_milli: Amount = 0
    memory_bytes: Amount = 0
    qos: Qos = "medium"
    priority: int = 0
    compute_milli: Amount = 0
    tflops_limit_milli: Amount = 0
    vram_limit_bytes: Amount = 0
    gang: str = ""
    protected_until_s: Amount = 0
    since: Amount = 0

    def says_as(self, other: "Allocation") -> bool:
        """Whether both state the same, whenever they were added."""
        return self == other or msgspec.structs.replace(self, since=other.since) == other

    def known_since(self, seq: int) -> "Allocation":
        """Return it as listed by the record at ``seq``, which may have added it and then does not say since when it stands."""
        return self if self.since else msgspec.structs.replace(self, since=seq)

    def usage(self) -> Usage:
        """Return what it counts against a quota."""
        tflops = sum(gpu.tflops_milli for gpu in self.gpus)
        vram = sum(gpu.vram_bytes for gpu in self.gpus)
        return Usage(
            workers=1 if self.gpus else 0,
            gpus=len(self.gpus),
            tflops_milli=tflops,
            compute_milli=self.compute_milli,
            vram_bytes=vram,
            tflops_limit_milli=max(tflops, self.tflops_limit_milli),
            vram_limit_bytes=max(vram, self.vram_limit_bytes),
        )


HOLD: Final = "hold/"
"""How the key of room that is kept for a pod begins, where others are UIDs of pods; no UID has a slash."""


class Hold(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Room that is kept on a node for a pod, while others leave the node for its sake.

    It counts as taken, beside the pods that are still there, so nobody else is given what they leave. The record that adds the
    pod to the node drops it.

    Attributes:
        allocation: What the pod is to hold. ``since`` is the sequence of the record that began to keep it.
        victims: The pods that leave.
        until_s: Second since the epoch up to which it is kept.
    """

    allocation: Allocation
    victims: tuple[PodRef, ...]
    until_s: Amount

    @property
    def key(self) -> str:
        """What it is called where pods are called by UID."""
        return HOLD + self.allocation.pod_uid

    def charge(self) -> Allocation:
        """Return what counts as taken."""
        return msgspec.structs.replace(self.allocation, pod_uid=self.key, gang="")


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One pod added to or removed from the node by this revision; ``decision`` is a :class:`schemas.decision.Decision`.

    It is kept encoded because most readers of the ledger never look at it.

    Attributes:
        pod_uid: The pod, or the key of a hold.
        evicts: The decisions about the pods that are evicted for the sake of a hold that is added.
    """

    op: Literal["add", "remove"]
    pod_uid: str
    decision: msgspec.Raw
    evicts: tuple[msgspec.Raw, ...] = ()


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The complete allocations of one node at one revision.

    Attributes:
        txn: Identity of the commit, unique per attempt: tells a writer whose publish timed out whether it landed.
        previous: Digest of the record that it replaces (:func:`bus.chain.link`); empty for the first.
        holds: Room that is kept for pods which others make it for.
    """

    node: str
    txn: str
    allocations: tuple[Allocation, ...]
    changes: tuple[Change, ...]
    previous: str = ""
    holds: tuple[Hold, ...] = ()

    def charges(self) -> tuple[Allocation, ...]:
        """Return all that counts as taken on the node: what pods hold, and what is kept for some."""
        return (*self.allocations, *(hold.charge() for hold in self.holds)) if self.holds else self.allocations


class QuotaRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the pods of a namespace with a quota hold together.

    Whoever changes what they hold replaces this record in the same atomic batch, as its last message, so two that add to
    one namespace at once cannot both win, and the sum is exact.

    Attributes:
        txn: The batch: the node records before it carry the same.
        used: What the namespace's pods hold after the batch.
        budget: What they might hold, as far as the writer knew; nothing is added beyond it.
        basis: LEDGER sequence up to which the writer had read. What others, who did not know of the quota yet, wrote behind it
            is not in ``used``; the next record counts it.
    """

    namespace: str
    txn: str
    used: Usage
    budget: Budget = Budget()
    basis: Amount = 0


class GangRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who stands of a gang. Replaced in the same atomic batch as the node records that change it, behind them.

    Attributes:
        txn: The batch: the node records before it carry the same.
        min_members: Members without which none may stand; a gang that stood whole may shrink as its pods end.
        members: UIDs of the members that stand after the batch.
    """

    key: str
    txn: str
    min_members: Amount
    members: tuple[str, ...]
