"""The values that plans of a pool's size are made from, and what a plan is."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.capacity import Failure, Held, Offer, PlanReason, Shortage, Size
from schemas.cluster import Oversubscription

LEAVING_LABEL: Final = "tensor-fusion.ai/should-delete"
"""Label of a node that is to be given back (likewise)."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """A pool's size (``capacityConfig``). Amounts of 0 state nothing; as a maximum they set no bound."""

    minimum: Size = Size()
    maximum: Size = Size()
    warm: Size = Size()


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the pool.

    Attributes:
        claim: The claim it came from; only such a node can be given back.
        offer: What was claimed.
        idle_since: Since when no pod has been on it; None while one is.
        keep: Whether it must not be disrupted.
        leaving: Whether we have closed it to pods, to give it back.
        ending: Whether its claim is gone or going: it counts for the maximum, and nobody waits for it any more.
        adopted: Whether no record says that we have closed it: it is closed once more before it is given back.
    """

    name: str
    size: Size
    free: Size
    created_at: datetime
    claim: str = ""
    idle_since: datetime | None = None
    keep: bool = False
    leaving: bool = False
    ending: bool = False
    adopted: bool = False
    offer: Offer | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was claimed.

    Attributes:
        made_at: Since when it has been known.
        node: What it is to be called.
        uid: UID of its object.
        ending: Whether the claim has been deleted and is not gone yet, or nobody counts on its node any more.
        bare_since: Since when its node has been there, or was, without GPUs that we know of; None before it came.
    """

    name: str
    offer: Offer
    made_at: datetime
    node: str = ""
    uid: str = ""
    ending: bool = False
    bare_since: datetime | None = None


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """All that a plan depends on.

    Attributes:
        claims: Those whose node is not there yet, or has not shown its GPUs.
        numbers: Claims are named by the lowest numbers that are not among these.
        oversold: How far the pool sells more than there is.
        shrinks: How long a node must have been empty before it is given back; None keeps all.
        ended: Nodes whose claim is gone.
        refused: What of the pool's size cannot be followed; nothing is ordered or given back before that is mended.
    """

    bounds: Bounds
    machines: tuple[Machine, ...] = ()
    claims: tuple[Claim, ...] = ()
    missing: tuple[Shortage, ...] = ()
    offers: tuple[Offer, ...] = ()
    failures: tuple[Failure, ...] = ()
    numbers: frozenset[int] = frozenset()
    oversold: Oversubscription = Oversubscription()
    shrinks: timedelta | None = None
    ended: tuple[str, ...] = ()
    refused: str = ""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A node to claim, and why this one."""

    number: int
    offer: Offer
    reason: PlanReason
    message: str


class CapacityPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do.

    Attributes:
        give_up: Claims that took too long.
        close: Nodes to close to pods, because the pool can do without them.
        remove: Closed nodes that are still empty and still not needed: to be given back.
        reopen: Closed nodes that are needed after all.
        held: Why it does not order what it should.
        failures: What is known of offers after this.
    """

    orders: tuple[Order, ...] = ()
    give_up: tuple[Claim, ...] = ()
    close: tuple[Machine, ...] = ()
    remove: tuple[Machine, ...] = ()
    reopen: tuple[Machine, ...] = ()
    held: Held = ""
    message: str = ""
    failures: tuple[Failure, ...] = ()


def claim_name(pool: str, number: int) -> str:
    """Return the name of a pool's claim of that number."""
    return f"{pool}-{number}"


def claim_number(pool: str, name: str) -> int | None:
    """Return the number of a claim of ours; None for others'."""
    number = name.removeprefix(f"{pool}-")
    return int(number) if number.isascii() and number.isdigit() and claim_name(pool, int(number)) == name else None
