"""How a pool grows and shrinks. Pure: the same values give the same plan.

A pool has at least its minimum and at most its maximum, nodes on their way counted, keeps its warm reserve free, and has room
for the pods that wait. It is ordered anew at every look from how things stand, so nothing that was held back is forgotten.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from consumers.scaler.packing import Room, Wanted, held_by, pack, suits, weight
from consumers.scaler.sizes import CapacityPlan, Claim, Machine, Order, PoolView
from schemas.capacity import Failure, Held, Offer, PlanReason, Shape, Size
from schemas.cluster import Oversubscription

CLAIM_WITHIN: Final = timedelta(minutes=10)
"""How long a claimed node may take to come (tensorfusion.md §9), and then again to show its GPUs."""

MOST_IN_FLIGHT: Final = 15
"""Claims on their way at once (likewise)."""

YOUNG: Final = timedelta(minutes=5)
"""Age below which an empty node is left alone (likewise)."""

FORGOTTEN: Final = timedelta(hours=6)
"""How long after its rest an offer of no use is remembered, so that the next rest is longer."""

SETTLING: Final = timedelta(minutes=2)
"""How long a node that has just come is taken to be for the pods that wait."""

BACK_OFF: Final = (timedelta(minutes=1), timedelta(minutes=30))
"""For how long an offer that did not come is left alone: after the first time, and at most."""


def plan_capacity(view: PoolView, now: datetime) -> CapacityPlan:
    """Return what brings a pool to where it should be."""
    late = tuple(one for one in view.claims if not one.ending and now - (one.bare_since or one.made_at) >= CLAIM_WITHIN)
    failures = _failures(view, late, now)
    if view.refused:
        closed = tuple(one for one in view.machines if one.leaving and not one.ending)
        return CapacityPlan(give_up=late, reopen=closed, message=view.refused, failures=failures)
    growth = _Growth(view, now, failures)
    growth.grow()
    spare: tuple[Machine, ...] = ()
    if not growth.orders and growth.held != "TooManyInFlight":
        # A pod that waits beside a node that has long been empty is not helped by it.
        spare = _spare(view, failures, now)
    close = tuple(one for one in spare if not one.leaving or one.adopted)
    reopen = tuple(one for one in view.machines if one.leaving and not one.ending and one not in spare)
    return CapacityPlan(
        orders=() if reopen else tuple(growth.orders),  # what was closed may be all that is short
        give_up=late,
        close=close,
        remove=tuple(one for one in spare if one.leaving and not one.adopted),
        reopen=reopen,
        held=growth.held,
        message=growth.message,
        failures=_useless(view, close, failures, now),
    )


def _failures(view: PoolView, late: Sequence[Claim], now: datetime) -> tuple[Failure, ...]:
    """Return what is known of offers: one that comes late again is left alone for twice as long."""
    known = {one.offer: one for one in view.failures if not one.useless or now - one.until < FORGOTTEN}
    for claim in sorted(late, key=lambda one: (one.made_at, one.name)):
        key, before = claim.offer.key, known.get(claim.offer.key)
        times = before.times + 1 if before is not None else 1
        first, most = BACK_OFF
        until = now + min(first * 2 ** min(times - 1, 10), most)
        known[key] = Failure(offer=key, times=times, until=until, claimed_at=claim.made_at)
    came = {one.offer.key: one.created_at for one in sorted(view.machines, key=lambda one: one.created_at) if one.offer}
    return tuple(
        one for key, one in sorted(known.items()) if one.useless or key not in came or came[key] <= one.claimed_at
    )


def _useless(
    view: PoolView, closed: Sequence[Machine], failures: tuple[Failure, ...], now: datetime
) -> tuple[Failure, ...]:
    """Return what is known of offers when nodes are closed beside pods that they were thought to take."""
    known = {one.offer: one for one in failures}
    for offer in {one.offer.key: one.offer for one in closed if one.offer is not None}.values():
        if any(suits(short.shape, offer, view.oversold) for short in view.missing):
            before = known.get(offer.key)
            times = before.times + 1 if before is not None else 1
            until = now + min(BACK_OFF[0] * 2 ** min(times + 2, 10), BACK_OFF[1])
            known[offer.key] = Failure(offer=offer.key, times=times, until=until, claimed_at=now, useless=True)
    return tuple(known[key] for key in sorted(known))


class _Growth:
    """Orders one node after the other until nothing is short, or something holds it."""

    def __init__(self, view: PoolView, now: datetime, failures: Sequence[Failure]) -> None:
        self._view = view
        resting = {one.offer for one in failures if one.until > now}
        self._offers = [one for one in view.offers if one.key not in resting]
        self._rests = len(self._offers) < len(view.offers)
        self._in_flight = len(view.claims)
        self._numbers = set(view.numbers)
        self._oversold = view.oversold
        coming = [one.offer for one in view.claims if not one.ending]
        settling = [one.offer for one in view.machines if one.offer is not None and _settles(one, now)]
        on_the_way = [Room(offer, view.oversold) for offer in (*coming, *settling)]
        wanted = [(one.shape, one.pods) for one in view.missing]
        self._wanted = sorted(wanted, key=lambda one: _demand(one[0], view), reverse=True)
        self._left = pack(self._wanted, on_the_way)
        # A node that may still come, though given up, counts until its claim is gone: the maximum holds at every instant.
        self.total = _sum([*(one.size for one in view.machines), *(one.offer.size for one in view.claims)])
        staying = [one for one in view.machines if not one.ending]
        self._staying = _sum([*(one.size for one in staying), *(offer.size for offer in coming)])
        self._free = _sum([*(one.free for one in staying), *(offer.size for offer in coming)])
        self._free = self._free.plus(_taken(self._wanted, self._left, view.offers, view.oversold), -1)
        self.orders: list[Order] = []
        self.held: Held = ""
        self.message = ""
        self._stopped = False

    def grow(self) -> None:
        """Order what is short."""
        bounds = self._view.bounds
        while not self._stopped:
            if self._left:
                self._for_pods()
            elif short := _short(self._staying, bounds.minimum):
                self._for_reserve("BelowMinimum", f"the pool is {short} short of its minimum")
            elif short := _short(self._free, bounds.warm):
                self._for_reserve("BelowWarm", f"free capacity is {short} short of the warm reserve")
            else:
                return

    def _for_pods(self) -> None:
        """Order the node that costs least for what it takes of the pods that wait."""
        able = [(held_by(one, self._left, self._oversold), one) for one in self._offers]
        able = [(held, one) for held, one in able if held]
        if not able:
            shape, pods = self._left[0]
            self._say("BackingOff" if self._rests else "NoOffer", f"no offer takes {pods} pods of {_words(shape)}")
            self._left = []
            return
        fitting = [(held, one) for held, one in able if self._under_maximum(one)]
        if not fitting:
            self._stop("MaxResourceConstraintReached", "another node would exceed the maximum of the pool")
            return
        held, offer = min(fitting, key=lambda one: (one[1].microdollars / one[0], -one[0], one[1].key))
        room = Room(offer, self._oversold)
        before = self._left
        self._left = pack(before, [room])
        taken = sum(pods for _, pods in before) - sum(pods for _, pods in self._left)
        if self._order(offer, "Missing", f"takes {taken} waiting pods, {held / 1000:g} GPUs of {offer.gpus}, at "
                       f"{_dollars(offer)} an hour: the least for what it takes among {len(fitting)} offers"):  # fmt: skip
            self._free = self._free.plus(offer.size).plus(_taken(before, self._left, [offer], self._oversold), -1)

    def _for_reserve(self, reason: PlanReason, why: str) -> None:
        """Order the node whose compute costs least."""
        fitting = [one for one in self._offers if self._under_maximum(one)]
        if not self._offers:
            self._stop("BackingOff" if self._rests else "NoOffer", f"{why} and there is no offer")
        elif not fitting:
            self._stop("MaxResourceConstraintReached", f"{why}, and another node would exceed its maximum")
        else:
            offer = min(fitting, key=lambda one: (one.microdollars / one.size.tflops_milli, one.size.gpus, one.key))
            if self._order(
                offer, reason, f"{why}; {_dollars(offer)} an hour is the least per TFLOPS of {len(fitting)} offers"
            ):
                self._free = self._free.plus(offer.size)

    def _order(self, offer: Offer, reason: PlanReason, message: str) -> bool:
        if self._in_flight >= MOST_IN_FLIGHT:
            self._stop(
                "TooManyInFlight", f"{self._in_flight} nodes are on their way; more are ordered when they are there"
            )
            return False
        number = next(n for n in range(len(self._numbers) + 1) if n not in self._numbers)
        self._numbers.add(number)
        self._in_flight += 1
        self.total = self.total.plus(offer.size)
        self._staying = self._staying.plus(offer.size)
        self.orders.append(Order(number=number, offer=offer, reason=reason, message=message))
        return True

    def _under_maximum(self, offer: Offer) -> bool:
        return not exceeds(self.total.plus(offer.size), self._view.bounds.maximum)

    def _say(self, held: Held, message: str) -> None:
        """Say why something is not ordered; what was said first stays."""
        if not self.held:
            self.held, self.message = held, message

    def _stop(self, held: Held, message: str) -> None:
        """Say why nothing more is ordered."""
        self._say(held, message)
        self._stopped = True


def _settles(machine: Machine, now: datetime) -> bool:
    """Return whether a node has just come, so that pods that wait may be about to be placed on it."""
    return not machine.leaving and machine.idle_since is not None and now - machine.idle_since < SETTLING


def _spare(view: PoolView, failures: Sequence[Failure], now: datetime) -> tuple[Machine, ...]:
    """Return the empty nodes that the pool can do without: those closed already first, then the dearest.

    Only nodes that are there and stay count: one that is on its way may never come. One that is closed to the pods that wait
    for it is opened to them, unless nodes like it were of no use to them.
    """
    if view.shrinks is None:
        return ()
    staying = [one for one in view.machines if not one.ending]
    total, free = _sum(one.size for one in staying), _sum(one.free for one in staying)
    useless = {one.offer for one in failures if one.useless and one.until > now}
    idle = [
        one
        for one in staying
        if one.claim and not one.keep and one.idle_since is not None
        and now - one.idle_since >= view.shrinks and now - one.created_at >= YOUNG
        and not (one.leaving and _serves(one, view, useless))
    ]  # fmt: skip
    found = []
    for one in sorted(idle, key=lambda one: (not one.leaving, -_cost(one), one.idle_since, one.name)):
        rest, left = total.plus(one.size, -1), free.plus(one.size, -1)
        if not _short(rest, view.bounds.minimum) and not _short(left, view.bounds.warm):
            total, free = rest, left
            found.append(one)
    return tuple(found)


def _serves(machine: Machine, view: PoolView, useless: Collection[str]) -> bool:
    """Return whether pods wait that a node would take."""
    offer = machine.offer
    return (
        offer is not None
        and offer.key not in useless
        and any(suits(short.shape, offer, view.oversold) for short in view.missing)
    )


def _cost(machine: Machine) -> int:
    return machine.offer.microdollars if machine.offer is not None else 0


def exceeds(size: Size, maximum: Size) -> bool:
    """Return whether a size is over a maximum in anything that it bounds."""
    fields = ("gpus", "tflops_milli", "vram_bytes")
    return any(getattr(maximum, field) and getattr(size, field) > getattr(maximum, field) for field in fields)


def _short(size: Size, wanted: Size) -> str:
    """Return in words what is missing to what is wanted; empty when nothing is."""
    tflops, vram = wanted.tflops_milli - size.tflops_milli, wanted.vram_bytes - size.vram_bytes
    parts = [f"{tflops / 1000:g} TFLOPS" if tflops > 0 else "", f"{vram / 2**30:g} GiB" if vram > 0 else ""]
    return " and ".join(filter(None, parts))


def _sum(sizes: Iterable[Size]) -> Size:
    total = Size()
    for size in sizes:
        total = total.plus(size)
    return total


def _demand(shape: Shape, view: PoolView) -> tuple[int, int, int]:
    """Sort key: the shape that is hardest to place first."""
    suitable = [weight(shape, one, view.oversold) for one in view.offers if suits(shape, one, view.oversold)]
    return (shape.gpus, max(suitable, default=0), shape.vram_bytes)


def _taken(before: Wanted, after: Wanted, offers: Sequence[Offer], oversold: Oversubscription) -> Size:
    """Return what the pods that were placed between two moments take, by the first offer that suits each."""
    left = dict(after)
    total = Size()
    for shape, pods in before:
        offer = next((one for one in offers if suits(shape, one, oversold)), None)
        if offer is not None and (placed := pods - left.get(shape, 0)):
            thousandths = weight(shape, offer, oversold)
            part = Size(
                tflops_milli=thousandths * offer.tflops_milli // 1000, vram_bytes=thousandths * offer.vram_bytes // 1000
            )
            total = total.plus(part, placed)
    return total


def _words(shape: Shape) -> str:
    compute = (
        f"{shape.tflops_milli / 1000:g} TFLOPS" if shape.tflops_milli else f"{shape.compute_milli / 10:g} % compute"
    )
    vram = f"{shape.vram_bytes / 2**30:g} GiB" if shape.vram_bytes else f"{shape.vram_milli / 10:g} % VRAM"
    models = f" of {', '.join(shape.models)}" if shape.models else ""
    other = f", and {shape.other}" if shape.other else ""
    return f"{shape.gpus} GPUs{models} with {compute} and {vram} each{other}"


def _dollars(offer: Offer) -> str:
    return f"${offer.microdollars / 1e6:g}"
