"""Evicted clients: whether those that do not come back are missed depends on what makes them, and on nothing else."""

from datetime import timedelta

import msgspec
import pytest

from consumers.updater.orders import resume
from tests.unit.updater.world import NEW, OLD, POLICY, World

WEB, BATCH = "apps/v1/ReplicaSet/web", "apps/v1/ReplicaSet/batch"


def evicting(**policy: object) -> World:
    """Six pods of one owner, two of which are evicted and do not come back."""
    world = World(0, "client", msgspec.structs.replace(POLICY, batch_percentage=25, ready_within_s=100, **policy))
    for number in range(6):
        world.add(f"ml/web-{number}", OLD, owner=WEB)
    world.add("ml/batch-0", OLD, owner=BATCH)
    world.settle()
    world.stuck = {"ml/web-0", "ml/web-1"}
    world.want(NEW)
    world.settle()
    assert world.touched == ["ml/web-0", "ml/web-1"]
    return world


def test_an_owner_that_does_not_make_its_pods_again_halts_and_is_named() -> None:
    world = evicting()
    world.wanted = {f"ml/{WEB}": 6}
    world.run()
    assert (world.phase, world.record.reason) == ("halted", "NotReady")
    assert world.record.message == f"2 fewer pods are ready than before the batch, 100 s after their eviction: ml/{WEB}"


@pytest.mark.parametrize(("wanted", "halts"), [(5, True), (4, False), (0, False), (9, True)])
def test_who_was_scaled_down_in_mid_batch_is_missed_by_nobody(*, wanted: int, halts: bool) -> None:
    world = evicting()
    world.wanted = {f"ml/{WEB}": wanted}
    world.settle()
    assert (world.phase == "batch") == halts  # nobody waits for what nobody wants
    world.run(lambda world: world.phase != "batch")
    assert (world.phase == "halted") == halts
    if not halts:
        world.stuck, world.ours = set(), set()
        world.run()
        assert (world.phase, world.on(NEW)) == ("synced", set(world.members))


def test_an_owner_that_cannot_say_is_held_to_what_it_had() -> None:
    world = evicting()
    world.run()
    assert (world.phase, world.record.reason, world.record.wanted) == ("halted", "NotReady", {f"ml/{WEB}": -1})


def test_pods_of_other_owners_neither_halt_it_nor_stand_in_for_those_that_are_missing() -> None:
    world = evicting()
    del world.members["ml/batch-0"]
    for number in range(3):
        world.add(f"ml/other-{number}", NEW, owner="apps/v1/ReplicaSet/other")
    world.wanted = {f"ml/{WEB}": 6}
    world.run()
    assert (world.phase, world.record.reason) == ("halted", "NotReady")
    world = evicting()
    del world.members["ml/batch-0"]
    for number in range(2):
        world.add(f"ml/web-new-{number}", NEW, owner=WEB)
    world.stuck = set()
    world.settle()
    assert world.phase == "interval"


def test_nobody_is_asked_once_it_has_halted() -> None:
    world = evicting()
    world.wanted = {f"ml/{WEB}": 6}
    world.run(lambda world: world.phase == "halted")
    world.wanted = {f"ml/{WEB}": 7}
    world.now += timedelta(hours=1)
    world.settle()
    assert [record.step for record in world.history][-2:] == ["asked", "halted"]


def test_whoever_resumes_accepts_that_pods_did_not_come_back() -> None:
    world = evicting()
    world.run()
    assert (world.phase, world.record.failed) == ("halted", (f"ml/{WEB}",))
    world.order(resume)
    world.stuck.clear()
    world.settle()
    world.run()
    assert (world.phase, world.on(NEW)) == ("synced", set(world.members))


def test_the_owners_are_asked_again_before_anybody_is_blamed() -> None:
    world = evicting()
    world.wanted = {f"ml/{WEB}": 6}
    world.run(lambda world: world.record.wanted != {})
    world.wanted = {f"ml/{WEB}": 0}  # scaled down in the last second
    world.run(lambda world: world.phase != "batch")
    assert world.phase == "interval"
