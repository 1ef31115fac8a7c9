"""Who is down by our doing is remembered over templates that follow one another: no more are ever taken than one batch.

The world fails by itself when one more is taken down; these tests say in addition who goes, and that it comes to an end.
"""

from datetime import datetime, timedelta

import msgspec
import pytest

from consumers.updater import orders
from consumers.updater.progress import request_of
from schemas.rollout import BatchMember, Member, Replaced
from tests.unit.updater.world import LAST, NEW, NEWER, OLD, OTHER, OWNER, POLICY, START, World

BROKEN = (NEW, NEWER, OTHER)


def broken(count: int = 10, component: str = "hypervisor", **policy: object) -> World:
    """A world halted on the first of several images that do not start."""
    world = World(count, component, msgspec.structs.replace(POLICY, **policy))
    world.broken = {template.hash for template in BROKEN}
    give(world, NEW)
    assert world.phase == "halted"
    return world


def give(world: World, template, **policy: object) -> None:
    world.want(template, **policy)
    world.settle()
    world.run()


def first_and_last(world: World) -> list[str]:
    """Give all images and then one that starts, and return who went before that one did."""
    for template in BROKEN[1:]:
        give(world, template)
        assert (world.phase, world.record.reason) == ("halted", "CrashLooping")
    touched = sorted(set(world.touched))
    give(world, LAST)
    assert (world.phase, world.on(LAST)) == ("synced", set(world.members))
    assert (world.record.down, world.record.short) == ((), {})
    return touched


def test_however_many_broken_images_follow_one_another_one_canary_is_down() -> None:
    assert first_and_last(broken(canary=True)) == ["n00"]


def test_without_a_canary_it_is_one_batch() -> None:
    assert first_and_last(broken(canary=False)) == ["n00", "n01"]


def test_what_was_aborted_counts() -> None:
    world = broken(canary=True)
    world.order(orders.abort)
    assert first_and_last(world) == ["n00"]


def test_a_change_while_paused_counts_them() -> None:
    world = World(10, policy=msgspec.structs.replace(POLICY, canary=True))
    world.want(NEW)
    world.settle()
    world.rises.clear()
    world.order(orders.pause)
    give(world, NEWER)
    world.order(orders.resume)
    world.settle()
    assert world.touched == ["n00", "n00"]


def test_who_was_under_way_halts_the_next_template_too_although_it_was_down_when_that_came() -> None:
    world = broken(canary=True, ready_within_s=100)
    world.broken = set()
    world.stuck = {"n00"}
    world.members["n00"] = msgspec.structs.replace(world.members["n00"], crash_looping=False)
    world.answers = lambda: Replaced(outcome="done")
    give(world, NEWER)
    assert (world.phase, world.record.reason, world.record.failed) == ("halted", "NotReady", ("n00",))


def test_on_the_way_back_those_that_are_down_go_first_and_no_others_beside_them_until_they_are_up() -> None:
    world = World(10)
    world.want(NEW)
    world.settle()
    world.run(lambda world: len(world.touched) == 4)
    for name in ("n02", "n03"):
        world.members[name] = msgspec.structs.replace(world.members[name], crash_looping=True)
    world.settle()
    assert (world.phase, world.record.failed) == ("halted", ("n02", "n03"))
    world.broken = {OLD.hash}  # they do not start with the old one either
    world.order(orders.rollback)
    world.settle()
    world.run()
    assert world.phase == "halted"
    assert world.touched[4:] == ["n02", "n03"]
    assert world.on(NEW) == {"n00", "n01"}
    world.order(orders.resume)
    world.broken = set()
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD)) == ("rolled-back", set(world.members))


def test_a_rollback_before_anything_came_up_and_a_new_image_after_it_go_on_with_the_same_member() -> None:
    world = broken(canary=True)
    world.stuck = set()
    world.broken |= {OLD.hash}
    world.order(orders.rollback)
    world.settle()
    world.run()
    assert world.phase == "halted"
    give(world, NEWER)
    assert set(world.touched) == {"n00"}


def test_a_lower_percentage_holds_at_once() -> None:
    world = World(10, policy=msgspec.structs.replace(POLICY, batch_percentage=50))
    world.blocked = {f"n{number:02}": "budget" for number in range(1, 5)}
    world.want(NEW)
    world.settle()
    assert [one.name for one in world.record.batch] == ["n00", "n01", "n02", "n03", "n04"]
    world.want(NEW, batch_percentage=20)
    world.blocked = {}
    world.settle()
    assert [one.name for one in world.record.batch] == ["n00", "n01"]
    assert world.touched == ["n00", "n01"]
    world.run()
    assert world.on(NEW) == set(world.members)


def test_a_lower_percentage_with_more_down_than_that_takes_nobody_else() -> None:
    world = broken(batch_percentage=50)
    assert len(world.touched) == 5
    give(world, NEWER, batch_percentage=10)
    assert sorted(set(world.touched)) == ["n00", "n01", "n02", "n03", "n04"]
    assert len(world.record.batch) == 1
    give(world, LAST)
    assert (world.phase, world.on(LAST)) == ("synced", set(world.members))


def test_who_came_up_and_crash_looped_after_its_batch_goes_first_with_the_next_template() -> None:
    world = World(10)
    world.want(NEW, canary=True)
    world.settle()
    world.run(lambda world: world.phase == "interval")
    world.members["n00"] = msgspec.structs.replace(world.members["n00"], crash_looping=True, ready=False)
    world.settle()
    assert (world.phase, world.record.failed) == ("halted", ("n00",))
    world.broken = {NEWER.hash}
    give(world, NEWER)
    assert set(world.touched) == {"n00"}


def test_who_was_accepted_as_it_is_goes_first_with_the_next_template() -> None:
    world = broken(canary=True)
    world.order(orders.resume)
    world.settle()
    world.run()
    assert (world.phase, world.touched) == ("halted", ["n00", "n01"])
    give(world, NEWER)
    assert world.touched == ["n00", "n01", "n00"]


def test_updates_that_are_switched_off_and_on_count_them() -> None:
    world = World(10)
    world.want(NEW)
    world.settle()
    world.run(lambda world: world.phase == "interval")
    for name in ("n00", "n01"):
        world.members[name] = msgspec.structs.replace(world.members[name], ready=False, crash_looping=True)
    world.settle()
    world.order(orders.abort)
    world.broken = {NEWER.hash, OTHER.hash}
    give(world, NEWER, auto_update=False)
    assert world.phase == "outdated"
    give(world, NEWER, auto_update=True)
    assert set(world.touched) == {"n00", "n01"}


def test_a_template_that_comes_back_awaits_those_that_run_it_already() -> None:
    world = World(10)
    world.want(NEW)
    world.settle()
    world.want(NEWER, windows=("* 3 * * *",))  # nothing is replaced by it
    world.settle()
    world.want(NEW, windows=())
    world.settle()
    assert world.touched == ["n00", "n01"]
    assert world.record.message == "waiting for n00, n01"
    world.run()
    assert (world.phase, sorted(world.touched)) == ("synced", sorted(world.members))


@pytest.mark.parametrize("canary", [True, False])
def test_clients_that_came_back_broken_are_evicted_before_others(canary: bool) -> None:
    world = broken(10, "client", canary=canary)
    went = 1 if canary else 2
    give(world, NEWER)
    assert (world.phase, {name.rstrip("x") for name in world.touched}) == (
        "halted", {f"n{number:02}" for number in range(went)}
    )  # fmt: skip
    world.order(orders.rollback)
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD)) == ("rolled-back", set(world.members))
    assert {name.rstrip("x") for name in world.touched} == {f"n{number:02}" for number in range(went)}


def test_owners_that_make_no_pods_are_awaited_before_other_clients_go() -> None:
    world = World(10, "client", msgspec.structs.replace(POLICY, batch_percentage=10, ready_within_s=100))
    world.stuck = {"n00"}
    world.want(NEW)
    world.settle()
    world.want(NEWER)
    world.settle()
    assert [one.name for one in world.record.batch] == [f"/{OWNER}"]
    world.run()
    assert (world.phase, world.record.reason, world.record.failed) == ("halted", "NotReady", (f"/{OWNER}",))
    assert world.touched == ["n00"]
    world.order(orders.resume)
    world.settle()
    world.run()
    assert (world.phase, world.on(NEWER)) == ("synced", set(world.members))


def test_an_owner_that_was_scaled_down_meanwhile_lacks_nothing() -> None:
    world = World(10, "client", msgspec.structs.replace(POLICY, batch_percentage=10, ready_within_s=100))
    world.stuck = {"n00"}
    world.want(NEW)
    world.settle()
    world.wanted = {f"/{OWNER}": 9}
    world.ours.clear()
    give(world, NEWER)
    assert (world.phase, world.on(NEWER)) == ("synced", set(world.members))


def test_a_removed_agent_that_is_still_seen_is_down_all_the_same() -> None:
    world = World(10)
    before = dict(world.members)
    world.want(NEW)
    world.settle()
    world.members, came = before, world.members  # news of the two has not come yet
    world.order(orders.rollback)
    world.settle()
    assert (world.phase, world.record.batch) == ("planned", ())
    world.members = came
    world.settle()
    assert {one.name for one in world.record.batch} == {"n00", "n01"}
    world.run()
    assert (world.phase, set(world.touched)) == ("rolled-back", {"n00", "n01"})


def test_those_that_were_only_awaited_when_another_template_came_are_replaced_by_it() -> None:
    world = World(2, policy=msgspec.structs.replace(POLICY, batch_percentage=20, canary=True))
    world.want(NEW)
    world.settle()
    world.want(OLD)
    world.settle()
    world.order(orders.abort)
    world.want(NEW, windows=("* 3 * * *",))
    world.settle()
    world.want(OLD, windows=())
    world.settle()
    assert (world.record.message, world.touched) == ("waiting for n00", ["n00", "n00"])
    world.want(NEWER)
    world.settle()
    assert world.touched == ["n00"] * 3
    world.run()
    assert (world.phase, world.on(NEWER)) == ("synced", {"n00", "n01"})


def workload(ready: int) -> Member:
    return Member(
        pool="p", component="worker", name="n00", uid="w", hash="", created_at=START, ready=ready == 10, wanted=10,
        pods=10, pods_ready=ready,
    )  # fmt: skip


def test_a_workload_is_held_to_the_pods_it_had_before_the_first_of_several_templates() -> None:
    world = World(0, "worker", msgspec.structs.replace(POLICY, canary=True))
    world.members["n00"] = workload(10)
    world.settle()
    world.answers = lambda: Replaced(outcome="part", message="9 of 10 pods wait", pods=1)
    world.want(NEW)
    world.settle()
    began: datetime = world.record.batch[0].since
    world.members["n00"] = workload(9)
    world.now += timedelta(seconds=60)
    world.want(NEWER)
    world.settle()
    (one,) = world.record.batch
    assert one == BatchMember(
        name="n00", uid="w", pods_ready=10, wanted=10, since=began, part_at=world.now, was_ready=True, blocked=""
    )


@pytest.mark.parametrize("component", ["hypervisor", "client"])
@pytest.mark.parametrize("template", [OLD, NEWER])
def test_members_that_may_have_been_replaced_count_until_it_is_known(component: str, template) -> None:
    """Answers are outstanding, and news of what was done has not come, when another template comes."""
    world = World(10, component)
    world.blocked = dict.fromkeys(world.members, "no answer")
    world.want(NEW)
    world.settle()
    asked = {one.name for one in world.record.batch}
    assert len(asked) == 2
    world.want(template)
    world.answers = lambda: Replaced(outcome="blocked", message="no answer")
    world.settle()
    assert {one.name for one in world.record.batch} == asked
    assert all(one.unsure for one in world.record.batch)
    world.answers = None
    world.blocked = {}
    world.settle()  # both stand
    world.run()
    assert (world.phase, world.on(template)) == ("synced", set(world.members))
    assert len(world.touched) == (0 if template is OLD else 10)


def test_an_agent_that_an_earlier_request_has_made_from_another_template_is_replaced_again() -> None:
    world = World(10)
    world.blocked = dict.fromkeys(world.members, "no answer")
    world.want(NEW)
    world.settle()
    world.want(OLD)
    for name in ("n00", "n01"):  # it was carried out all the same
        world.add(name, NEW)
    world.blocked = {}
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD), world.touched) == ("synced", set(world.members), ["n00", "n01"])


def test_only_what_is_unsure_is_asked_after() -> None:
    member = Member(pool="p", component="hypervisor", name="n", uid="u", hash="", created_at=START)
    record = World(1).record
    for unsure in (True, False):
        one = BatchMember(name="n", uid="u", unsure=unsure)
        assert request_of(record, one, member, POLICY).keep == unsure


def test_a_node_that_fails_long_after_a_rollout_that_people_gave_up_is_not_its_canary() -> None:
    world = World(10, policy=msgspec.structs.replace(POLICY, canary=True))
    world.blocked = {"n00": "no answer"}
    world.want(NEW)
    world.settle()
    world.want(OLD, auto_update=False)
    world.settle()
    world.run(lambda world: world.phase == "synced", steps=100)
    assert (world.record.down, world.record.short) == ((), {})
    world.now += timedelta(days=30)
    world.members["n00"] = msgspec.structs.replace(world.members["n00"], ready=False)
    world.blocked = {}
    world.want(NEWER, auto_update=True)
    world.settle()
    assert [one.name for one in world.record.batch] == ["n01"]


def test_who_came_up_while_updates_were_off_is_not_down_any_more() -> None:
    world = World(10, policy=msgspec.structs.replace(POLICY, canary=True))
    world.want(NEW)
    world.settle()
    world.want(NEWER, auto_update=False)
    world.settle()
    assert [one.name for one in world.record.down] == ["n00"]
    while world.rises:
        world.now = max(world.now, min(world.rises.values()))
        world.step()
    world.now += timedelta(days=30)
    world.settle()
    world.members["n00"] = msgspec.structs.replace(world.members["n00"], ready=False)
    world.want(NEWER, auto_update=True)
    world.settle()
    assert [one.name for one in world.record.batch] == ["n01"]


def test_it_is_not_completed_while_a_client_that_was_evicted_has_no_successor() -> None:
    world = World(2, "client", msgspec.structs.replace(POLICY, batch_percentage=50))
    world.stuck = {"n00"}
    world.want(NEW)
    world.settle()
    world.want(OLD, auto_update=False)
    world.settle()
    world.run()
    assert (world.phase, world.record.short) == ("outdated", {f"/{OWNER}": 2})
    world.add("n00x", OLD, owner=OWNER)
    world.settle()
    assert (world.phase, world.record.down, world.record.short) == ("synced", (), {})
