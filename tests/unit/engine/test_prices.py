"""Prices of shares: the dual of packing them into the fewest GPUs."""

import random
from itertools import combinations, combinations_with_replacement
from typing import Any

import numpy as np
import pytest

from consumers.allocator.engine import Policy, Price, Workload, shadow_prices
from consumers.allocator.engine.prices import _Packer
from consumers.allocator.engine.value import table_of_worth
from schemas.cluster import PodKind, Pool


def shares(*kinds: tuple[int, int]) -> Workload:
    return Workload(tuple(PodKind(gpus=1, share_milli=share, pods=pods) for share, pods in kinds))


def columns(sizes: list[int]) -> list[tuple[int, ...]]:
    """Return all ways to fill a GPU, and the columns that take what is more than wanted."""
    found = [tuple(-(index == other) for other in range(len(sizes))) for index in range(len(sizes))]
    for count in range(1, 100 // min(sizes) + 1):
        for pieces in combinations_with_replacement(range(len(sizes)), count):
            found += [tuple(map(pieces.count, range(len(sizes))))] * (sum(sizes[piece] for piece in pieces) <= 100)
    return found


def fewest_gpus(sizes: list[int], demand: list[float]) -> float:
    """Return the optimum of the linear program, the best of all its corners."""
    every = np.array(list(combinations(columns(sizes), len(sizes))), dtype=float).swapaxes(1, 2)
    every = every[abs(np.linalg.det(every)) > 1e-9]
    amounts = np.linalg.solve(every, np.array(demand)[:, np.newaxis])[..., 0]
    costs = (every.max(axis=1) > 0) * amounts
    return float(costs.sum(axis=1)[(amounts > -1e-9).all(axis=1)].min())


def test_prices_are_those_of_the_fewest_gpus() -> None:
    rng = random.Random(3)
    for _ in range(12):
        sizes = sorted(rng.sample(range(24, 95), rng.randint(1, 3)))
        packer = _Packer(sizes)
        for _ in range(4):
            demand = [rng.randint(0, 60) for _ in sizes]
            prices = packer.duals(demand)
            # By duality these two make an optimum: no GPU holds more than it costs, and all together cost what is needed.
            assert min(prices) > -1e-6
            for column in columns(sizes):
                assert sum(pieces * price for pieces, price in zip(column, prices, strict=True)) <= 1 + 1e-6
            # The program gives every size a trace of demand.
            wanted = [amount + 1 / 64 for amount in demand]
            assert sum(a * b for a, b in zip(wanted, prices, strict=True)) == pytest.approx(fewest_gpus(sizes, wanted))


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([(500, 10)], {500: 0.5}),
        ([(510, 10)], {510: 1.0}),
        ([(340, 9)], {340: 0.5}),
        ([(810, 100), (160, 5)], {810: 1.0, 160: 0.0}),  # the few small ones fit beside the large ones
        (
            [(810, 5), (160, 100)],
            {810: 5 / 6, 160: 1 / 6},
        ),  # six small ones fill a GPU, one large one takes the room of five
    ],
)
def test_worked_out_prices(kinds: list[tuple[int, int]], expected: dict[int, float]) -> None:
    found = {price.share_milli: price.micro for price in shadow_prices(shares(*kinds))}
    assert found == {share: pytest.approx(850_000 * price + 150 * share, abs=3) for share, price in expected.items()}


def test_prices_are_the_same_everywhere() -> None:
    workload = shares((230, 140), (320, 328), (470, 750), (650, 253), (810, 1078), (1000, 3911))
    # Pinned: a policy's hash covers them, so they may not hang on the machine.
    assert [(price.share_milli, price.micro) for price in shadow_prices(workload)] == [
        (230, 247_000), (320, 318_052), (470, 495_500), (650, 677_448), (810, 971_500),
    ]  # fmt: skip
    assert len({shadow_prices(workload, redraws=1, seed=seed) for seed in range(8)}) > 1
    assert shadow_prices(shares((1000, 5))) == shadow_prices(Workload()) == ()


def test_share_that_fits_no_grain_is_priced_as_the_next_larger() -> None:
    found = {price.share_milli: price.micro for price in shadow_prices(shares((496, 10), (996, 3)))}
    assert found == {496: 850_000 // 2 + 150 * 496, 996: 850_000 + 150 * 996}


def test_worth_is_the_best_that_fits_together() -> None:
    worth = table_of_worth((Price(300, 250_000), Price(450, 500_000)))
    assert [worth[free] for free in (0, 299, 300, 449, 450, 750, 899, 900, 999, 1000)] == [
        *(0, 0, 250_000, 250_000, 500_000, 750_000, 750_000, 1_000_000, 1_000_000, 1_000_000),
    ]


def test_policy_wants_a_price_for_every_share_and_has_them_from_its_pool() -> None:
    workload = shares((300, 5), (1000, 5))
    policy = Policy.of(Pool(name="p", placement="PackingValue"), workload=workload)
    assert policy.prices == shadow_prices(workload)
    other = Policy(name="PackingValue", workload=workload, prices=(Price(300, 1),))
    assert other.hash != policy.hash
    refused: list[tuple[str, dict[str, Any]]] = [
        ("share 300 has no price: pass prices=shadow_prices", {"name": "PackingValue", "workload": workload}),
        ("CompactFirst looks at no prices", {"name": "CompactFirst", "prices": (Price(300, 1),)}),
        ("PackingValue looks ahead to a workload", {"name": "PackingValue"}),
    ]
    for words, fields in refused:
        with pytest.raises(ValueError, match=words):
            Policy(**fields)
    assert Policy(name="PackingValue", workload=shares((1000, 5))).prices == ()
