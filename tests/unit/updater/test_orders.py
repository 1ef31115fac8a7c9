"""Orders that need more than the record: a policy to go on by, and a record to begin anew with."""

from datetime import timedelta

import msgspec
import pytest

from consumers.updater import orders
from schemas.rollout import Rollout, UpdatePolicy
from tests.unit.updater.world import NEW, NEWER, OLD, World

REFUSED = UpdatePolicy(refused="batchPercentage is 0: write a whole number from 1 to 100")


def under_way(**policy: object) -> World:
    world = World(10)
    world.want(NEW, **policy)
    world.settle()
    return world


def begin_anew(world: World, last: Rollout | None) -> None:
    world.order(lambda _, now, by: orders.begin_anew(last, world.spec, now, by))
    world.settle()


def test_nobody_goes_on_by_a_policy_that_cannot_be_followed_but_on_the_way_back() -> None:
    world = under_way()
    assert world.record is not None
    with pytest.raises(
        orders.OrderRefusedError, match=r"batchPercentage is 0: write a whole number.*; mend the pool first"
    ):
        orders.check_policy(world.record, REFUSED)
    orders.check_policy(world.record, UpdatePolicy())
    world.order(orders.rollback)
    orders.check_policy(world.record, REFUSED)


def test_what_was_under_way_waits_and_then_goes_on_without_doing_anything_twice() -> None:
    world = under_way()
    last = world.record
    world.run(lambda world: len(world.touched) == 6)  # told by records that can be read no more
    begin_anew(world, last)
    world.run()
    assert (world.phase, len(world.touched)) == ("paused", 6)
    assert world.record is not None
    assert "look at what runs, then resume" in world.record.message
    world.order(orders.resume)
    world.settle()
    world.run()
    assert (world.phase, sorted(world.touched)) == ("synced", sorted(world.members))


def test_what_was_in_sync_waits_with_what_has_changed_since_and_can_go_back() -> None:
    world = World(10)
    last = world.record
    world.want(NEW)
    world.now += timedelta(hours=1)
    begin_anew(world, last)
    assert (world.phase, world.touched) == ("paused", [])
    world.order(orders.resume)
    world.settle()
    world.run()
    world.order(orders.rollback)
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD)) == ("rolled-back", set(world.members))


def test_what_had_halted_stays_so_with_its_reason() -> None:
    world = under_way(canary=True)
    world.members["n00"] = msgspec.structs.replace(world.members["n00"], crash_looping=True)
    world.settle()
    last = world.record
    assert last is not None
    begin_anew(world, last)
    assert world.record is not None
    assert (world.phase, world.record.reason, world.record.failed) == ("halted", "CrashLooping", ("n00",))
    assert world.record.message == f"begun anew by somebody; {last.message}"


def test_where_nothing_can_be_read_it_is_as_on_the_first_day() -> None:
    world = World(10)
    world.want(NEWER)
    begin_anew(world, None)
    world.run()
    assert world.record is not None
    assert (world.phase, world.record.reason, world.touched) == ("outdated", "FirstSeen", [])
    world.order(orders.resume)
    world.settle()
    world.run()
    assert world.on(NEWER) == set(world.members)
    with pytest.raises(orders.OrderRefusedError, match="run a watcher"):
        orders.begin_anew(None, None, world.now, "somebody")
