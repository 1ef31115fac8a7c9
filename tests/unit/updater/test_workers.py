"""Workers: some pods of a workload at a time, a first one alone, and nobody waits for what was down before."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from consumers.updater.down import FORGET, at_rest
from consumers.updater.evictions import asked_after, choose_workers
from consumers.updater.health import judge_batch
from consumers.updater.progress import request_of, trimmed
from schemas.kube.core import KubePod
from schemas.rollout import BatchMember, Member, Replace, Replaced, Rollout, UpdatePolicy
from tests.unit.updater.world import NEW, OLD, POLICY, World

START = datetime(2026, 1, 1, tzinfo=UTC)


def pod(number: int, made_from: str = "old", *, ready: bool = True, **meta: Any) -> KubePod:
    labels = {"tensor-fusion.ai/pod-template-hash": made_from}
    stated = {
        "name": f"w-{number}",
        "uid": f"u{number}",
        "labels": labels,
        "creationTimestamp": f"2026-01-01T00:0{number}:00Z",
    }
    status = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return msgspec.convert({"metadata": stated | meta, "spec": {}, "status": status}, KubePod)


def choose(
    pods: list[KubePod], up: int = 0, at_once: int = 0, *, first: bool = False, since: datetime | None = None
) -> tuple[list[str], list[str]]:
    request = Replace(
        pool="p",
        component="worker",
        name="ns/w",
        uid="u",
        template=NEW,
        hash="new",
        up=up,
        at_once=at_once,
        first=first,
        since=since,
    )
    now, later = choose_workers(pods, request)
    return [one.metadata.name for one in now], [one.metadata.name for one in later]


def test_the_oldest_go_as_long_as_enough_stay_ready() -> None:
    five = [pod(number) for number in (4, 2, 0, 1, 3)]
    assert choose(five, up=5, at_once=2) == (["w-0", "w-1"], ["w-2", "w-3", "w-4"])
    assert choose([*five[:3], pod(1, "new", ready=False), pod(3, "new")], up=5, at_once=2) == (["w-0"], ["w-2", "w-4"])
    assert choose([*five[:3], pod(1, "new", ready=False)], up=5, at_once=2) == ([], ["w-0", "w-2", "w-4"])
    assert choose([pod(1, "new"), pod(2, "new", ready=False)], up=5, at_once=2) == ([], [])


def test_what_is_down_takes_nothing_away_and_what_is_ending_is_gone_already() -> None:
    ending = pod(5, deletionTimestamp="2026-01-01T01:00:00Z")
    assert choose([pod(0), pod(1, ready=False), ending], up=2, at_once=1) == (["w-1"], ["w-0"])
    assert choose([ending], up=1, at_once=1) == ([], [])


def test_a_canary_s_first_pod_goes_alone_until_it_has_come_up() -> None:
    three, facts = [pod(0, ready=False), pod(1), pod(2)], {"up": 2, "at_once": 2, "first": True}
    assert choose(three, **facts) == (["w-1"], ["w-0", "w-2"])  # one that was down would prove nothing
    gone, ending = three[::2], pod(1, deletionTimestamp="2026-01-01T01:00:00Z")
    assert choose(gone, **facts)[0] == []  # its successor is yet to be made
    assert choose([*gone, ending], **facts)[0] == []
    assert choose([*gone, pod(1, "new", ready=False)], **facts)[0] == []
    assert choose([*gone, pod(1, "new")], **facts) == (["w-0", "w-2"], [])
    lone = {"up": 1, "at_once": 1, "first": True}
    assert choose([pod(0)], **lone) == (["w-0"], [])
    assert choose([pod(0, ready=False)], **lone) == (["w-0"], [])  # it went down meanwhile


def test_the_pods_that_an_earlier_template_left_down_are_the_canary_of_the_next() -> None:
    pods = [pod(0, ready=False), pod(1), pod(2), pod(5, "broken", ready=False), pod(6, "broken", ready=False)]
    began = START + timedelta(minutes=4, seconds=30)
    assert choose(pods, up=4, at_once=2, first=True, since=began) == (["w-6"], ["w-0", "w-1", "w-2", "w-5"])
    assert choose(pods, up=4, at_once=2, since=began) == (["w-0", "w-5", "w-6"], ["w-1", "w-2"])  # nobody who is up
    not_yet = pods[:3]
    assert choose(not_yet, up=3, at_once=2, first=True, since=began) == ([], ["w-0", "w-1", "w-2"])


def test_as_many_may_be_down_as_the_percentage_says_of_those_that_are_wanted() -> None:
    record = Rollout(pool="p", component="worker", target=NEW, changed_at=START, step="batch", phase="canary")

    def asked(ready: int, wanted: int, percentage: int) -> tuple[int, int, bool]:
        member = Member(pool="p", component="worker", name="w", uid="u", hash="", created_at=START, wanted=wanted)
        one = BatchMember(name="w", uid="u", pods_ready=ready)
        request = request_of(record, one, member, UpdatePolicy(batch_percentage=percentage))
        return request.up, request.at_once, request.first

    assert asked(10, 10, 20) == (10, 2, True)
    assert asked(10, 10, 1) == (10, 1, True)
    assert asked(3, 10, 100) == (3, 10, True)
    assert asked(10, 4, 25) == (4, 1, True)  # it was scaled down
    assert asked(0, 4, 25) == (0, 1, False)  # none was up, so none would prove anything


def a_worker(wanted: int, ready: int) -> Member:
    return Member(
        pool="p", component="worker", name="n00", uid="w", hash="", created_at=START, ready=ready == wanted,
        wanted=wanted, pods=wanted, pods_ready=ready,
    )  # fmt: skip


def test_pods_that_come_up_beside_those_that_were_up_before_make_no_room() -> None:
    old, new = [pod(number) for number in range(5)], [pod(number, "new") for number in range(5, 9)]
    for more in (old, [*old, *new]):  # scaled up, or down before
        assert choose(more, up=4, at_once=1)[0] == []
        assert choose(more, up=len(more), at_once=1)[0] == ["w-0"]
        assert choose(more[1:], up=len(more), at_once=1)[0] == []
    # Those that are down take nothing away all the same.
    assert choose([*old, pod(9, ready=False)], up=4, at_once=1)[0] == ["w-9"]


@pytest.mark.parametrize(
    ("before", "after", "up"),
    [
        ((10, 10), (20, 10), 20),  # those that it was scaled up by are yet to come up
        ((10, 10), (20, 19), 20),
        ((10, 5), (10, 10), 10),  # all that were down are up
        ((10, 5), (10, 8), 8),
        ((10, 5), (10, 4), 5),
        ((10, 5), (20, 5), 15),
        ((10, 10), (4, 9), 4),
        ((10, 5), (4, 4), 4),
    ],
)
def test_a_worker_is_held_to_what_it_wants_but_for_what_was_down_before(
    before: tuple[int, int], after: tuple[int, int], up: int
) -> None:
    world = World(0, "worker")
    world.members["n00"] = a_worker(*before)
    world.settle()
    world.answers = lambda: Replaced(outcome="part", message="others wait", pods=1)
    world.want(NEW)
    world.settle()
    world.answers = lambda: Replaced(outcome="part", message="others wait")
    world.members["n00"] = member = a_worker(*after)
    world.now += timedelta(seconds=10)
    world.settle()
    (one,) = world.record.batch
    assert request_of(world.record, one, member, POLICY).up == up
    assert (one.part_at == world.now) == (after[0] > before[0])  # what it was scaled up by has its time


def test_more_pods_that_are_up_than_was_known_are_written_down_before_any_goes() -> None:
    world = World(0, "worker")
    world.members["n00"] = a_worker(10, 5)
    world.settle()
    world.answers = lambda: Replaced(outcome="part", message="others wait", up=10)
    world.want(NEW)
    world.settle()
    (one,) = world.record.batch
    assert (one.pods_ready, one.part_at) == (10, None)


def half_done(**policy: Any) -> World:
    """A workload of which some pods were replaced and others wait."""
    world = World(2, "worker", msgspec.structs.replace(POLICY, **policy))
    for name, member in world.members.items():
        world.members[name] = msgspec.structs.replace(member, wanted=4, pods=4, pods_ready=4)
    evicted = iter([2])
    world.answers = lambda: Replaced(outcome="part", message="2 of 4 pods wait", pods=next(evicted, 0))
    world.want(NEW)
    world.settle()
    return world


def test_a_workload_is_replaced_only_when_all_its_pods_are() -> None:
    world = half_done()
    assert (world.phase, world.record.message, world.record.reason) == ("batch", "n00: 2 of 4 pods wait", "")
    assert world.record.batch[0].replaced_at is None
    world.step()
    world.answers = None
    world.run()
    assert (world.phase, sorted(world.touched)) == ("synced", ["n00", "n01"])


def test_pods_that_do_not_come_up_halt_it_before_more_are_taken() -> None:
    world = half_done(ready_within_s=60)
    began = world.now
    world.run(lambda world: world.phase == "halted")
    assert (world.record.reason, world.record.failed) == ("NotReady", ("n00",))
    assert world.now - began == timedelta(seconds=60)
    assert world.on(OLD) == {"n00", "n01"}


def test_a_budget_that_forbids_the_rest_blames_nobody() -> None:
    world = half_done(ready_within_s=60, max_duration_s=3600)
    world.answers = lambda: Replaced(outcome="blocked", message="the disruption budget b allows none")
    for _ in range(30):
        world.step()
    assert (world.phase, world.record.reason) == ("batch", "Blocked")
    world.answers = None
    world.run()
    assert world.phase == "synced"


def test_a_workload_whose_pods_may_be_down_is_remembered_at_rest_until_they_are_up() -> None:
    one = BatchMember(name="n00", uid="u", pods_ready=4, wanted=4, unsure=True)
    record = Rollout(
        pool="p", component="worker", target=NEW, changed_at=START, step="recorded", phase="outdated", down=(one,)
    )
    later = START + FORGET
    less = msgspec.structs.replace(a_worker(4, 3), uid="u")
    (kept,) = at_rest(record, {"n00": less}, later).down
    assert (kept.unsure, kept.uid) == (False, "")
    assert at_rest(record, {"n00": msgspec.structs.replace(a_worker(4, 4), uid="u")}, later).down == ()


def test_workloads_under_way_are_asked_after_when_fewer_may_be_down_and_those_that_stand_give_up_their_turn() -> None:
    world = half_done(batch_percentage=100)
    assert [one.part_at for one in world.record.batch] == [world.now, None]
    world.answers = lambda: Replaced(outcome="blocked", message="no answer", unsure=True)
    world.step()
    world.want(NEW, batch_percentage=50)
    world.answers = lambda: Replaced(outcome="kept")
    world.settle()
    assert [one.name for one in world.record.batch] == ["n00"]


@pytest.mark.parametrize(
    ("made_from", "ready", "keep", "outcome"),
    [
        ("old", 2, True, "kept"),
        ("old", 1, True, None),
        ("old", 2, False, None),
        ("new", 1, False, "part"),
        ("new", 2, True, None),
    ],
)
def test_what_is_said_of_a_workload_that_is_asked_after(
    made_from: str, ready: int, *, keep: bool, outcome: str | None
) -> None:
    request = Replace(
        pool="p", component="worker", name="ns/w", uid="u", template=NEW, hash="new", up=2, at_once=1, keep=keep
    )
    answer = asked_after([pod(number, made_from, ready=number < ready) for number in range(2)], request)
    assert (answer and answer.outcome) == outcome


def test_of_a_workload_that_is_only_asked_after_nobody_who_is_up_goes() -> None:
    pods = [pod(number, "old", ready=number > 0) for number in range(3)]
    request = Replace(
        pool="p", component="worker", name="ns/w", uid="u", template=NEW, hash="new", up=3, at_once=3, keep=True
    )
    now, later = choose_workers(pods, request)
    assert ([one.metadata.name for one in now], len(later)) == ([pods[0].metadata.name], 2)


def test_a_workload_that_misses_pods_waits_its_turn_too_when_fewer_may_be_down() -> None:
    batch = tuple(BatchMember(name=f"n{n}", uid=f"u{n}", was_ready=False, pods_ready=3, wanted=4) for n in range(2))
    begun = msgspec.structs.replace(batch[0], part_at=START)
    record = Rollout(
        pool="p", component="worker", target=NEW, changed_at=START, step="batch", phase="batch", batch=(begun, batch[1])
    )
    members = {f"n{n}": msgspec.structs.replace(a_worker(4, 3), name=f"n{n}", uid=f"u{n}") for n in range(2)}
    policy = UpdatePolicy(auto_update=True, batch_percentage=10)
    trim = trimmed(record, members, policy, lambda _: False, START)
    assert [one.unsure for one in trim] == [False, True]


def test_a_workload_that_was_not_ready_and_loses_the_pods_it_had_is_to_blame() -> None:
    one = BatchMember(name="n00", uid="u", was_ready=False, pods_ready=2, wanted=4, replaced_at=START)
    record = Rollout(
        pool="p", component="worker", target=NEW, changed_at=START, step="batch", phase="batch", batch=(one,)
    )
    late = START + timedelta(hours=1)
    lost = judge_batch(record, {"n00": a_worker(4, 1)}, UpdatePolicy(), lambda _: False, late)
    assert (lost.reason, lost.left) == ("NotReady", ())
    assert judge_batch(record, {"n00": a_worker(4, 2)}, UpdatePolicy(), lambda _: False, late).left == ("n00",)
