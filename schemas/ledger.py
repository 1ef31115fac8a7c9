"""Who holds what: the ledger record of a node.

A record is complete: it lists every allocation on its node, so the newest record of each node is the whole truth, and a
publish that names the sequence of the record it replaces is a compare-and-set on the node. It also carries what this
revision changed and the decision behind each change, so the log explains itself.
"""

from typing import Literal

import msgspec

from schemas.cluster import Amount
from schemas.decision import GpuGrant
from schemas.pod import Qos


class Allocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one pod holds on the node.

    Attributes:
        since: LEDGER sequence of the record that added it; 0 in that record itself, which cannot know its own sequence.
    """

    pod_uid: str
    namespace: str
    name: str
    pool: str
    gpus: tuple[GpuGrant, ...] = ()
    cpu_milli: Amount = 0
    memory_bytes: Amount = 0
    qos: Qos = "medium"
    priority: int = 0
    since: Amount = 0

    def says_as(self, other: "Allocation") -> bool:
        """Whether both state the same, whenever they were added."""
        return self == other or msgspec.structs.replace(self, since=other.since) == other


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
    """

    node: str
    txn: str
    allocations: tuple[Allocation, ...]
    changes: tuple[Change, ...]
