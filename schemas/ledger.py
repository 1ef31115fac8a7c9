"""Who holds what: the ledger record of a node.

A record is complete: it lists every allocation on its node, so the newest record of each node is the whole truth, and a
publish that names the sequence of the record it replaces is a compare-and-set on the node. It also carries what this
revision changed and the decision behind each change, so the log explains itself.
"""

from typing import Final, Literal

import msgspec

from schemas.cluster import Amount
from schemas.decision import ContainerGrant, GpuGrant
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


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One pod added to or removed from the node by this revision; ``decision`` is a :class:`schemas.decision.Decision`.

    It is kept encoded because most readers of the ledger never look at it.
    """

    op: Literal["add", "remove"]
    pod_uid: str
    decision: msgspec.Raw


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The complete allocations of one node at one revision.

    Attributes:
        txn: Identity of the commit, unique per attempt: tells a writer whose publish timed out whether it landed.
        previous: Digest of the record that it replaces (:func:`bus.chain.link`); empty for the first.
    """

    node: str
    txn: str
    allocations: tuple[Allocation, ...]
    changes: tuple[Change, ...]
    previous: str = ""


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
