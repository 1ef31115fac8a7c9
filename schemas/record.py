"""What recorders have counted, kept on the bus so that counters grow across their restarts."""

import msgspec

from schemas.cluster import Amount


class PoolCounters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Decisions about the pods of one pool since the counting began.

    Attributes:
        near: Pods whose GPUs are as near each other as they, or the pool, ask.
        far: Pods whose GPUs are not, and decisions that found none near enough.
        unknown: Pods of whose GPUs it was not known how near they are.
        grown: Nodes that were claimed for the pool.
        shrunk: Claims that were given back, or given up because no node came.
        claims: The pool's claims when last counted; None before they were.
    """

    allocated: Amount = 0
    failed: Amount = 0
    near: Amount = 0
    far: Amount = 0
    unknown: Amount = 0
    grown: Amount = 0
    shrunk: Amount = 0
    claims: tuple[str, ...] | None = None


class RecorderCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Replaced by compare-and-set with every snapshot of the cluster.

    Attributes:
        decisions: DECISION sequence up to which decisions are counted.
        slot: Snapshot that was counted last, as the time of its tick in nanoseconds since the epoch.
        pools: Counters by pool.
        lost_usage: Usage messages that the stream dropped before any recorder got them.
        lost_through: USAGE sequence up to which they are counted.
        refused_at: When the metrics store last refused usage for good, in nanoseconds since the epoch; 0 for never.
    """

    decisions: Amount = 0
    slot: Amount = 0
    pools: dict[str, PoolCounters] = {}
    lost_usage: Amount = 0
    lost_through: Amount = 0
    refused_at: Amount = 0
