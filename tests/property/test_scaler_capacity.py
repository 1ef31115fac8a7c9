"""Plans of a pool's size: bounds that always hold, whatever there is, waits and fails."""

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from consumers.scaler.capacity import MOST_IN_FLIGHT, exceeds, plan_capacity
from consumers.scaler.packing import suits
from consumers.scaler.sizes import Bounds, Claim, Machine, PoolView
from schemas.capacity import Failure, Offer, Shape, Shortage, Size
from schemas.cluster import Oversubscription

PLAIN = Oversubscription()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 2**30
OFFERS = tuple(
    Offer(
        instance_type=f"{model}-{gpus}", gpus=gpus, model=model, tflops_milli=tflops * 1000, vram_bytes=vram * GIB,
        microdollars=gpus * dollars * 10**6,
    )
    for model, tflops, vram, dollars in (("A100", 312, 80, 4), ("T4", 65, 16, 1))
    for gpus in (1, 4, 8)
)  # fmt: skip

minutes = st.integers(0, 120).map(lambda n: NOW - timedelta(minutes=n))
bounds = st.builds(
    Size, tflops_milli=st.integers(0, 20_000_000), vram_bytes=st.integers(0, 5000).map(lambda gib: gib * GIB)
)
shapes = st.builds(
    Shape, gpus=st.sampled_from([1, 2, 4, 8, 16]), tflops_milli=st.integers(0, 400_000),
    vram_bytes=st.integers(0, 100).map(lambda gib: gib * GIB), models=st.sampled_from([(), ("A100",), ("T4",), ("H100",)]),
)  # fmt: skip
missing = st.lists(shapes, max_size=3, unique=True).flatmap(
    lambda found: st.tuples(
        *(st.builds(Shortage, shape=st.just(one), pods=st.integers(1, 6), reason=st.just("TooFewGpus"), since=minutes)
          for one in found)
    )
)  # fmt: skip


@st.composite
def machines(draw):
    found = []
    for number in range(draw(st.integers(0, 8))):
        offer = draw(st.sampled_from(OFFERS))
        idle = draw(st.none() | minutes)
        ours = draw(st.booleans())
        free = offer.size if idle else Size(gpus=0, tflops_milli=draw(st.integers(0, offer.tflops_milli)))
        found.append(
            Machine(
                name=f"n{number}", size=offer.size, free=free, created_at=draw(minutes), idle_since=idle,
                claim=f"pool-{number}" if ours else "", keep=draw(st.booleans()),
                offer=offer, leaving=ours and draw(st.booleans()), ending=draw(st.booleans()),
            )
        )  # fmt: skip
    return tuple(found)


@st.composite
def views(draw):
    claims = tuple(
        Claim(name=f"pool-{n}", offer=draw(st.sampled_from(OFFERS)), made_at=draw(minutes), ending=draw(st.booleans()))
        for n in range(20, 20 + draw(st.integers(0, 16)))
    )
    low, high = draw(bounds), draw(bounds)
    return PoolView(
        bounds=Bounds(minimum=low, maximum=high, warm=draw(bounds)),
        machines=draw(machines()),
        claims=claims,
        missing=draw(missing),
        offers=tuple(draw(st.lists(st.sampled_from(OFFERS), unique_by=lambda offer: offer.key))),
        failures=tuple(
            Failure(
                offer=key,
                claimed_at=draw(minutes),
                times=draw(st.integers(1, 9)),
                until=NOW + timedelta(minutes=draw(st.integers(-60, 30))),
            )
            for key in draw(st.lists(st.sampled_from([offer.key for offer in OFFERS]), unique=True, max_size=3))
        ),
        numbers=frozenset(range(20, 20 + len(claims))),
        shrinks=draw(st.none() | st.just(timedelta(minutes=5))),
    )


def total(view: PoolView) -> Size:
    found = Size()
    for size in (*(one.size for one in view.machines), *(one.offer.size for one in view.claims)):
        found = found.plus(size)
    return found


def below(size: Size, wanted: Size) -> bool:
    return size.tflops_milli < wanted.tflops_milli or size.vram_bytes < wanted.vram_bytes


@given(views())
def test_a_plan_never_exceeds_the_maximum_nor_falls_below_the_minimum_or_the_reserve(view):
    plan = plan_capacity(view, NOW)
    grown = total(view)
    for order in plan.orders:
        grown = grown.plus(order.offer.size)
        assert not exceeds(grown, view.bounds.maximum)
    staying = [one for one in view.machines if not one.ending]
    shrunk = Size()
    for one in staying:
        shrunk = shrunk.plus(one.size)
    for one in (*plan.remove, *plan.close):
        shrunk = shrunk.plus(one.size, -1)
        assert not below(shrunk, view.bounds.minimum)
        assert one.claim
        assert not one.keep
        assert not one.ending
        assert one.free == one.size
        assert NOW - one.idle_since >= view.shrinks
    assert not (plan.orders and (plan.remove or plan.close or plan.reopen))
    decided = {one.name for one in (*plan.remove, *plan.reopen)}
    assert decided == {one.name for one in view.machines if one.leaving and not one.ending}


@given(views())
def test_what_was_ordered_is_known_by_its_own_number_and_may_be_ordered_now(view):
    plan = plan_capacity(view, NOW)
    numbers = [order.number for order in plan.orders]
    assert len(set(numbers)) == len(numbers)
    assert not set(numbers) & view.numbers
    assert len(view.claims) + len(plan.orders) <= max(MOST_IN_FLIGHT, len(view.claims))
    resting = {one.offer for one in plan.failures if one.until > NOW}
    assert all(order.offer in view.offers and order.offer.key not in resting for order in plan.orders)
    assert {one.name for one in plan.give_up} == {
        one.name for one in view.claims if not one.ending and NOW - one.made_at >= timedelta(minutes=10)
    }
    came = {one.offer.key for one in view.machines if one.offer is not None}
    assert {one.offer.key for one in plan.give_up} <= resting | came


@given(views(), st.randoms(use_true_random=False))
def test_the_same_pool_gives_the_same_plan_in_whatever_order_it_is_told(view, dice):
    plan = plan_capacity(view, NOW)
    assert plan_capacity(view, NOW) == plan
    shuffled = {}
    for field in ("machines", "claims", "missing", "offers", "failures"):
        items = list(getattr(view, field))
        dice.shuffle(items)
        shuffled[field] = tuple(items)
    assert {one.offer.key for one in plan_capacity(msgspec.structs.replace(view, **shuffled), NOW).orders} == {
        one.offer.key for one in plan.orders
    }


@given(missing)
def test_orders_are_enough_for_every_pod_that_an_offer_takes_and_for_no_more(found):
    view = PoolView(bounds=Bounds(), missing=found, offers=OFFERS)
    claims = tuple(
        Claim(name=f"pool-{one.number}", offer=one.offer, made_at=NOW) for one in plan_capacity(view, NOW).orders
    )
    again = plan_capacity(msgspec.structs.replace(view, claims=claims, numbers=frozenset(range(len(claims)))), NOW)
    unfit = any(not any(suits(one.shape, offer, PLAIN) for offer in OFFERS) for one in found)
    assert not again.orders
    assert again.held in ({"NoOffer"} if unfit else {""}) | {"TooManyInFlight"}
