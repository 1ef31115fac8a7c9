"""Batches: upstream's numbers, and for any order of events every member once, never more than a batch, to the end."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.updater.plan import batch_size, next_batch, plan_batch
from schemas.rollout import Member

START = datetime(2026, 1, 1, tzinfo=UTC)


def member(number: int, *, age: int = 0, ready: bool = True, updated: bool = False) -> Member:
    return Member(
        pool="p", component="hypervisor", name=f"n{number:03}", uid=f"u{number}", hash="new" if updated else "old",
        created_at=START - timedelta(days=age), ready=ready,
    )  # fmt: skip


def is_updated(member: Member) -> bool:
    return member.hash == "new"


@pytest.mark.parametrize(
    ("total", "updated", "percentage", "progress", "size", "after", "index"),
    [
        (100, 0, 10, 0, 10, 0, 0),
        (100, 10, 10, 10, 10, 10, 1),
        (95, 0, 30, 0, 29, 0, 0),
        (100, 35, 20, 20, 5, 20, 1),
        (100, 90, 20, 80, 10, 80, 4),
    ],
)
def test_upstream_s_numbers(
    *, total: int, updated: int, percentage: int, progress: int, size: int, after: int, index: int
) -> None:
    batch = next_batch(total, updated, percentage, progress)
    assert (batch.size, batch.progress, batch.index) == (size, after, index)


@pytest.mark.parametrize("percentage", [0, -1, 101])
def test_no_batch_of_no_size(percentage: int) -> None:
    with pytest.raises(ValueError, match=f"batchPercentage {percentage}"):
        next_batch(10, 0, percentage, 0)


def test_the_oldest_go_first_and_of_the_same_age_by_name_and_what_is_down_before_all() -> None:
    members = [
        member(4, age=1),
        member(3, age=2),
        member(2, age=2),
        member(1, ready=False),
        member(5, age=9, updated=True),
    ]
    chosen, _ = plan_batch(members, is_updated, 100, 0)
    assert [one.name for one in chosen] == ["n001", "n002", "n003", "n004"]


def test_a_canary_is_one_and_ready_if_any_is() -> None:
    members = [member(1, age=3, ready=False), member(2, age=1), member(3, age=2)]
    chosen, batch = plan_batch(members, is_updated, 100, 0, canary=True)
    assert ([one.name for one in chosen], batch.size) == (["n003"], 1)
    assert len(plan_batch(members[:1], is_updated, 100, 0, canary=True)[0]) == 1


events = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 10**6), st.booleans()), max_size=30)


@given(st.integers(0, 120), st.integers(1, 100), events, st.booleans())
def test_every_member_is_updated_once_in_batches_while_others_come_and_go(
    total: int, percentage: int, disturbances: list[tuple[int, int, int, bool]], canary: bool
) -> None:
    cluster = {f"n{i:03}": member(i, age=i % 7, ready=i % 5 > 0) for i in range(total)}
    fresh, progress, steps = total, 0, 0
    touched: dict[str, int] = {}
    pending = list(disturbances)
    while True:
        members = list(cluster.values())
        chosen, batch = plan_batch(members, is_updated, percentage, progress, canary=canary and steps == 0)
        assert batch.progress >= progress
        progress = batch.progress
        assert len(chosen) <= math.ceil(percentage * len(cluster) / 100) == batch_size(len(cluster), percentage)
        for one in chosen:
            touched[one.name] = touched.get(one.name, 0) + 1
            cluster[one.name] = member(int(one.name[1:]), updated=True)
        if not chosen and not pending:
            break
        steps += 1
        if pending:
            arrivals, departures, seed, updated = pending.pop()
            for _ in range(arrivals):
                cluster[f"n{fresh:03}"] = member(fresh, updated=updated)
                fresh += 1
            for name in sorted(cluster)[seed % (len(cluster) or 1) :][:departures]:
                del cluster[name]
    assert all(is_updated(one) for one in cluster.values())
    assert set(touched.values()) <= {1}
    assert steps <= len(disturbances) + fresh + 1


@given(st.integers(1, 500), st.integers(1, 100))
def test_an_undisturbed_rollout_takes_as_many_batches_as_the_percentage_says(total: int, percentage: int) -> None:
    updated = progress = batches = 0
    while (batch := next_batch(total, updated, percentage, progress)).size:
        updated, progress, batches = updated + batch.size, batch.progress, batches + 1
    assert updated == total
    assert batches == math.ceil(total / batch_size(total, percentage)) <= math.ceil(100 / percentage)
