"""Which workers are made and removed: as many as are wanted, none that may stay is touched, none twice."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from consumers.workload.plan import MOST, SETTLE, Plan, Worker, plan_workers, worker_name

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def worker(name: int | str, age_s: float = 60, **state: Any) -> Worker:
    named = worker_name("w", name) if isinstance(name, int) else name
    return Worker(name=named, uid=f"uid-{named}", created_at=NOW - timedelta(seconds=age_s), **state)


def plan(replicas: int, *workers: Worker) -> Plan:
    return plan_workers("w", replicas, workers, NOW)


def removed(found: Plan) -> list[str]:
    return [one.name for one in found.remove]


def test_missing_workers_are_made_in_the_gaps_and_surplus_ones_go_from_the_end() -> None:
    assert plan(3) == Plan(make=("w-tf-worker-0", "w-tf-worker-1", "w-tf-worker-2"))
    assert plan(3, worker(0), worker(2)) == Plan(make=("w-tf-worker-1",))
    assert plan(3, *map(worker, range(3))) == Plan()
    assert plan(4, *map(worker, range(3))) == Plan(make=("w-tf-worker-3",))
    assert plan(2, *map(worker, range(3))) == Plan(remove=(worker(2),))
    assert plan(0, worker(0)) == Plan(remove=(worker(0),))


def test_a_successor_waits_until_the_one_before_is_gone() -> None:
    assert plan(1, worker(0, ending=True)) == Plan()
    assert plan(0, worker(0, ending=True)) == Plan()  # it is deleted already


def test_a_worker_that_has_ended_is_made_anew_but_not_at_once() -> None:
    young = worker(0, age_s=1, ended=True)
    assert plan(1, young) == Plan(again=young.created_at + SETTLE)
    old = worker(0, age_s=SETTLE.total_seconds(), ended=True)
    assert plan(1, old) == Plan(remove=(old,))


def test_workers_under_other_names_count_as_replicas_the_oldest_first() -> None:
    upstream = [worker("w-abc", 30), worker("w-tf-worker-01", 20), worker("w-tf-worker-²", 10)]
    assert plan(4, *upstream) == Plan(make=("w-tf-worker-0",))
    assert removed(plan(2, *upstream)) == ["w-tf-worker-²"]
    assert removed(plan(3, *upstream, worker(0))) == ["w-tf-worker-0"]
    ended = worker("w-abc", 30, ended=True)
    assert plan(1, ended) == Plan(make=("w-tf-worker-0",), remove=(ended,))


def test_a_great_many_are_made_in_parts() -> None:
    found = plan(MOST + 1)
    assert (len(found.make), found.again) == (MOST, NOW)


states = st.fixed_dictionaries(
    {"ready": st.booleans(), "ending": st.booleans(), "ended": st.booleans(), "age_s": st.sampled_from([0, 5, 10, 99])}
)
populations = st.dictionaries(st.one_of(st.integers(0, 9), st.sampled_from(["a", "b", "c"])), states)


@given(populations, st.integers(0, 8), st.integers(0, 8))
def test_from_anywhere_it_comes_to_what_is_wanted_and_a_change_of_that_touches_no_more_than_it_must(
    there: dict[int | str, dict[str, Any]], first: int, then: int
) -> None:
    workers, now = [worker(name, **state) for name, state in there.items()], NOW
    for _ in range(4):  # those that have ended wait, are removed, are gone, and are made anew
        found = plan_workers("w", first, workers, now)
        assert not {one.name for one in workers} & set(found.make)
        gone = {one.uid for one in (*found.remove, *workers) if one.ending or one in found.remove}
        made = [Worker(name=name, uid=f"new-{name}", created_at=now, ready=True) for name in found.make]
        workers = [one for one in workers if one.uid not in gone] + made
        now += SETTLE
    assert len(workers) == first
    assert plan_workers("w", first, workers, now) == Plan()
    found = plan_workers("w", then, workers, now)
    assert (len(found.make), len(found.remove)) == (max(then - first, 0), max(first - then, 0))
