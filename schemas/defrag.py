"""Emptying nodes: what could be moved where, and how far a campaign that does it has come."""

from typing import Literal

import msgspec

from schemas.event import Timestamp

CampaignEnd = Literal["", "Done", "Surprised", "OutOfTime"]


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A pod and where it would go."""

    namespace: str
    name: str
    pod_uid: str
    source: str
    target: str


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that cannot be emptied, and the pod that keeps it."""

    node: str
    pod: str
    reason: str


class Defrag(msgspec.Struct, frozen=True, kw_only=True):
    """What could be done.

    Attributes:
        candidates: How many nodes are used little.
        emptied: Nodes that would be empty, in the order to empty them.
        moves: Pods to move, in order.
        kept: Candidates that stay.
    """

    candidates: int
    emptied: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    kept: tuple[Kept, ...] = ()


class Campaign(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A campaign that empties nodes of a pool, one at a time.

    Attributes:
        slot: The instant of the schedule that it belongs to.
        node: The node that is being emptied; empty between two.
        since: Since when.
        evicting: Pods that are to leave it, by UID, as ``namespace/name``.
        emptied: Nodes that are empty. They are closed to pods until the campaign ends.
        skipped: Nodes that it leaves alone, and why.
        end: How it ended; empty while it runs.
        message: What surprised it, for people.
        over_at: When it ended.
        reopened: Whether its nodes are open again.
    """

    pool: str
    slot: Timestamp
    node: str = ""
    since: Timestamp | None = None
    evicting: dict[str, str] = {}
    emptied: tuple[str, ...] = ()
    skipped: dict[str, str] = {}
    end: CampaignEnd = ""
    message: str = ""
    over_at: Timestamp | None = None
    reopened: bool = False

    @property
    def closed(self) -> tuple[str, ...]:
        """Nodes that it keeps closed, or has to open again."""
        return (*self.emptied, self.node) if self.node else self.emptied
