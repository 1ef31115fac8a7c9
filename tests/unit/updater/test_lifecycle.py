"""The life of a rollout, from the first change to the end, played with a clock that jumps."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from consumers.updater import orders
from consumers.updater.plan import MOST, batch_size
from schemas.rollout import UpdatePolicy
from schemas.rollout_template import made_from
from tests.unit.updater.world import NEW, NEWER, OLD, OWNER, POLICY, START, World


def changed(count: int = 10, **policy: object) -> World:
    """A world whose pool has just been given a new template."""
    world = World(count)
    world.want(NEW, **policy)
    return world


def test_a_change_goes_round_in_batches_with_the_interval_between_them() -> None:
    world = changed(40)
    world.settle()
    world.run()
    assert world.phase == "synced"
    assert sorted(world.touched) == sorted(world.members)
    batches = [record for record in world.history if record.step == "batch"]
    assert [len(record.batch) for record in batches] == [8, 8, 8, 8, 8]
    passed = [record for record in world.history if record.step == "passed"]
    gaps = [after.changed_at - before.changed_at for before, after in zip(passed, batches[1:], strict=True)]
    assert gaps == [timedelta(seconds=60)] * 4
    assert world.most_down == 8
    assert (world.record.updated, world.record.total, world.record.progress) == (40, 40, 100)
    assert world.touched == [f"n{number:02}" for number in range(40)]  # oldest first


def test_nothing_is_touched_when_updates_are_not_automatic_until_somebody_says_so() -> None:
    world = changed(auto_update=False)
    world.settle()
    assert (world.phase, world.record.reason, world.touched) == ("outdated", "AutoUpdateOff", [])
    assert world.record.target == NEW  # what is made anew takes it
    world.order(orders.resume)
    world.settle()
    world.run()
    assert world.phase == "synced"
    assert world.on(NEW) == set(world.members)


def test_what_picks_the_change_up_by_itself_ends_the_difference() -> None:
    world = changed(2, auto_update=False)
    world.settle()
    for name in list(world.members):
        world.add(name, NEW)
    world.settle()
    assert (world.phase, world.touched) == ("synced", [])


def test_switching_automatic_updates_on_begins_and_off_ends_after_the_batch() -> None:
    world = changed(auto_update=False)
    world.settle()
    world.want(NEW, auto_update=True)
    world.settle()
    assert world.phase == "batch"
    world.want(NEW, auto_update=False)
    world.run()
    assert (world.phase, len(world.touched)) == ("outdated", 2)


def test_whoever_installs_it_over_other_pods_gets_no_restarts() -> None:
    world = World()
    world.record = None
    world.want(NEW)
    world.settle()
    assert (world.phase, world.record.reason, world.touched) == ("outdated", "FirstSeen", [])
    world.want(NEWER)
    world.settle()
    world.run()
    assert world.on(NEWER) == set(world.members)


def test_members_that_are_seen_only_after_their_pool_get_no_restarts_either() -> None:
    world = World(0)
    for name in ("n00", "n01"):
        world.add(name, NEW, created_at=world.now - timedelta(days=1))
    world.settle()
    world.run()
    assert (world.phase, world.record.reason, world.touched) == ("outdated", "FirstSeen", [])
    world.order(orders.resume)
    world.settle()
    world.run()
    world.add("late", NEW)  # by a controller that had not heard of the change
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD)) == ("synced", {"n00", "n01", "late"})


def test_a_crash_looping_image_stops_after_the_canary_and_rollback_restores_it_alone() -> None:
    world = changed(canary=True)
    world.crashing = {"n00"}
    world.settle()
    world.run()
    assert (world.phase, world.record.reason) == ("halted", "CrashLooping")
    assert world.record.message == f"crash looping with template {NEW.hash}: n00"
    assert world.record.updated == 1
    assert world.phases()[-2:] == ["canary", "halted"]
    world.crashing = set()
    world.order(orders.rollback)
    world.settle()
    world.run()
    assert world.phase == "rolled-back"
    assert world.touched == ["n00", "n00"]
    assert world.on(OLD) == set(world.members)
    world.settle()  # and what the pool still asks for is not begun again
    assert world.phase == "rolled-back"
    world.want(NEWER)
    world.settle()
    world.run()
    assert world.on(NEWER) == set(world.members)


def test_bringing_the_pool_back_after_a_rollback_agrees_and_the_refused_template_can_be_tried_again() -> None:
    world = changed(2)
    world.settle()
    world.run()
    world.order(orders.rollback)
    world.settle()
    world.run()
    assert world.phase == "rolled-back"
    world.want(OLD)
    world.settle()
    assert world.phase == "synced"
    world.want(NEW)
    world.settle()
    world.run()
    assert world.on(NEW) == set(world.members)


def test_a_member_that_does_not_come_up_in_time_halts_and_resume_goes_on_without_it() -> None:
    world = changed(ready_within_s=120)
    world.settle()
    del world.rises["n01"]
    world.run()
    assert (world.phase, world.record.reason, world.record.failed) == ("halted", "NotReady", ("n01",))
    assert world.now - world.history[-2].changed_at == timedelta(seconds=120)
    world.order(orders.resume)
    world.settle()
    world.run()
    assert world.phase == "synced"
    assert world.record.message == "left out, as they are not ready: n01"
    assert sorted(world.touched) == sorted(world.members)


def test_a_node_that_was_down_before_proves_nothing_and_is_done_when_it_comes_back() -> None:
    world = World()
    world.members["n05"] = msgspec.structs.replace(world.members["n05"], ready=False)
    world.stuck = {"n05"}  # its agent cannot even be removed
    world.want(NEW, canary=True)
    world._replace_real, world._replace = world._replace, lambda one: _unless(world, one)
    world.settle()
    world.run()
    assert world.phase == "synced"
    assert world.record.skipped == ("n05",)
    assert world.on(OLD) == {"n05"}
    world.stuck = set()
    world.members["n05"] = msgspec.structs.replace(world.members["n05"], ready=True)
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD), world.record.skipped) == ("synced", set(), ())


def _unless(world: World, one):
    from schemas.rollout import Replaced

    return Replaced(outcome="done") if one.name in world.stuck else world._replace_real(one)


def test_alerts_that_begin_after_the_change_hold_the_first_batch_back_and_halt_later_ones() -> None:
    world = World()
    world.alert("OldOne")  # a full pool often has some: they are no fault of the rollout
    world.now += timedelta(seconds=1)
    world.want(NEW, windows=("* 13 * * *",))
    world.settle()
    assert world.phase == "window"
    world.alert("GpuTooHot")
    world.settle()
    assert (world.phase, world.record.reason) == ("planned", "AlertsFiring")
    world.now = world.now.replace(hour=13)
    world.settle()
    assert (world.phase, world.touched) == ("planned", [])
    world.alerts = world.alerts[:1]
    world.settle()
    world.run(lambda w: w.phase == "interval")
    world.alert("GpuTooHot")
    world.settle()
    assert (world.phase, world.record.message) == ("halted", "alerts of the pool fire: GpuTooHot")


def test_alerts_do_not_stop_the_way_back() -> None:
    world = changed()
    world.settle()
    world.alert("GpuTooHot")
    world.settle()
    assert world.phase == "halted"
    world.order(orders.rollback)
    world.settle()
    world.run()
    assert (world.phase, world.on(NEW)) == ("rolled-back", set())


def test_a_newer_change_supersedes_from_where_it_stands() -> None:
    world = changed()
    world.settle()
    world.run(lambda w: len(w.touched) == 4)
    world.want(NEWER)
    world.settle()
    assert [record.step for record in world.history].count("superseded") == 1
    assert world.touched[4:6] == ["n02", "n03"]  # those that were on their way come first: they are down already
    world.run()
    assert world.phase == "synced"
    assert world.on(NEWER) == set(world.members)
    assert len(world.touched) == 10 + 4
    assert world.most_down == 2
    world.order(orders.rollback)  # to the last that all had, not to the one that was overtaken
    assert world.record.target == OLD


def test_a_change_while_paused_stays_paused() -> None:
    world = changed()
    world.settle()
    world.order(orders.pause)
    world.want(NEWER)
    world.settle()
    world.run()
    assert (world.phase, len(world.touched)) == ("paused", 2)
    world.order(orders.resume)
    world.settle()
    world.run()
    assert world.on(NEWER) == set(world.members)


def test_paused_nothing_more_is_begun_and_resumed_nothing_is_done_twice() -> None:
    world = changed()
    world.blocked = {"n01": "budget"}
    world.settle()
    world.order(orders.pause)
    world.blocked = {}
    world.run()
    assert (world.phase, world.touched) == ("paused", ["n00"])
    world.order(orders.resume)
    world.settle()
    world.run()
    assert sorted(world.touched) == sorted(world.members)


def test_aborted_it_stands_still_until_another_change() -> None:
    world = changed()
    world.settle()
    world.order(orders.abort)
    world.run()
    assert (world.phase, len(world.touched)) == ("aborted", 2)
    with pytest.raises(orders.OrderRefusedError, match="change the pool's template, or roll back"):
        world.order(orders.resume)
    world.want(NEWER)
    world.settle()
    world.run()
    assert world.on(NEWER) == set(world.members)


def test_blocked_members_are_tried_again_and_the_record_says_why() -> None:
    world = changed()
    world.blocked = {"n01": "the disruption budget p needs 1 healthy pods"}
    world.settle()
    assert (world.phase, world.record.reason) == ("batch", "Blocked")
    assert world.record.message == "n01: the disruption budget p needs 1 healthy pods"
    for _ in range(5):
        world.step()
    assert (world.phase, world.touched) == ("batch", ["n00"])
    world.blocked = {}
    world.run()
    assert (world.phase, sorted(world.touched)) == ("synced", sorted(world.members))


def test_longer_than_max_duration_halts_with_the_reason_and_waiting_by_plan_does_not_count() -> None:
    world = changed(max_duration_s=40, batch_interval_s=3600)  # three batches of ten seconds would not, five do
    world.settle()
    world.run()
    assert (world.phase, world.record.reason) == ("halted", "MaxDurationExceeded")
    assert "maxDuration, 40 s" in world.record.message
    world.order(orders.resume)
    world.settle()
    world.run()
    assert world.phase == "synced"
    blocked = changed()
    blocked.blocked = {"n00": "budget"}
    blocked.settle()
    blocked.run()
    assert blocked.record.reason == "MaxDurationExceeded"
    assert "could not replace n00: n00: budget" in blocked.record.message
    assert timedelta(0) <= blocked.now - blocked.history[2].changed_at - timedelta(seconds=600) < timedelta(seconds=10)


def test_at_the_end_of_its_window_it_waits_and_goes_on_in_the_next_across_a_change_of_clocks() -> None:
    world = World()
    world.now = datetime(2026, 3, 28, 1, tzinfo=UTC)  # two o'clock in Berlin; the next night has no such hour
    world.want(NEW, windows=("CRON_TZ=Europe/Berlin * 2 * * *",), batch_interval_s=25 * 60)
    world.settle()
    world.run()
    assert world.phase == "synced"
    began = [record.changed_at.isoformat()[:16] for record in world.history if record.step == "batch"]
    assert began == [
        "2026-03-28T01:00", "2026-03-28T01:25", "2026-03-28T01:50", "2026-03-30T00:00", "2026-03-30T00:25",
    ]  # fmt: skip
    (waited,) = [record for record in world.history if record.step == "waited"]
    assert (waited.reason, waited.message) == (
        "WindowClosed",
        "the maintenance window opens at 2026-03-30T00:00:00+00:00",
    )


def test_a_window_that_closes_over_blocked_members_opens_on_the_same_batch() -> None:
    world = World()
    world.now = datetime(2026, 3, 2, 2, 59, 50, tzinfo=UTC)
    world.want(NEW, windows=("* 2 * * *",))
    world.blocked = {"n01": "budget"}
    world.settle()
    world.run(lambda w: w.phase == "window")
    assert world.touched == ["n00"]
    world.blocked = {}
    world.run(lambda w: w.phase == "batch")
    assert (world.now, world.touched) == (datetime(2026, 3, 3, 2, tzinfo=UTC), ["n00", "n01"])


def test_a_rollback_waits_for_no_window_and_needs_no_canary() -> None:
    world = World()
    world.now = datetime(2026, 3, 2, 2, tzinfo=UTC)
    world.want(NEW, windows=("* 2 * * *",), canary=True)
    world.settle()
    world.run(lambda w: len(w.touched) > 2)
    world.now = datetime(2026, 3, 2, 12, tzinfo=UTC)
    world.order(orders.rollback)
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD)) == ("rolled-back", set(world.members))
    ordered = [record.step for record in world.history].index("rolled-back")
    assert "canary" not in {record.phase for record in world.history[ordered:]}
    with pytest.raises(orders.OrderRefusedError, match="is rolling or rolled back already"):
        world.order(orders.rollback)


def test_a_crash_loop_that_somebody_accepts_is_left_out() -> None:
    world = changed(canary=True)
    world.crashing = {"n00"}
    world.settle()
    world.run()
    assert world.phase == "halted"
    world.order(orders.resume)
    world.settle()
    world.run()
    assert (world.phase, world.record.skipped) == ("synced", ("n00",))
    assert sorted(world.touched) == sorted(world.members)
    canaries = [record.batch for record in world.history if record.step == "batch" and record.phase == "canary"]
    assert [[one.name for one in batch] for batch in canaries] == [["n00"], ["n01"]]  # the first proved nothing good


def test_a_node_without_agent_has_nothing_to_replace() -> None:
    world = World()
    world.add("bare", OLD, uid="", ready=False)
    world.want(NEW)
    world.settle()
    world.run()
    assert world.phase == "synced"
    assert "bare" not in world.touched


def test_evicted_pods_are_awaited_under_their_new_names() -> None:
    world = World(10, "client", msgspec.structs.replace(POLICY, ready_within_s=100))
    world.want(NEW)
    world.settle()
    world.run()
    assert world.phase == "synced"
    assert sorted(world.members) == [f"n{number:02}x" for number in range(10)]
    assert world.most_down == 2
    world.stuck = {"n03x"}
    world.want(NEWER)
    world.settle()
    world.run()
    assert (world.phase, world.record.reason) == ("halted", "NotReady")
    assert world.record.message == f"1 fewer pods are ready than before the batch, 100 s after their eviction: /{OWNER}"


def test_a_pod_that_nothing_would_make_anew_is_left_alone() -> None:
    world = World(4, "client")
    world.add("bare", OLD, owned=False)
    world.want(NEW)
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD)) == ("synced", {"bare"})


def test_an_empty_pool_is_in_sync_and_a_pool_that_is_gone_stands_still() -> None:
    world = World(0)
    world.want(NEW)
    world.settle()
    assert world.phase == "synced"
    world = changed()
    world.settle()
    world.spec = None
    world.settle()
    assert (world.record.reason, len(world.touched)) == ("PoolGone", 2)


def test_orders_that_make_no_sense_are_refused_with_the_phase() -> None:
    world = World()
    for order in (orders.pause, orders.resume, orders.abort):
        with pytest.raises(orders.OrderRefusedError, match="hypervisor of pool p is synced: there is nothing to"):
            world.order(order)
    with pytest.raises(orders.OrderRefusedError, match="no previous template"):
        world.order(orders.rollback)


def test_one_at_a_time_is_the_least() -> None:
    assert batch_size(40, 1) == batch_size(1, 1) == 1
    world = changed(3, batch_percentage=1)
    world.settle()
    world.run()
    assert world.most_down == 1
    assert world.phase == "synced"
    assert UpdatePolicy().canary


def halted_canary() -> World:
    """A world whose canary could not be replaced until the time was up."""
    world = changed(canary=True, batch_percentage=100)
    world.blocked = {"n00": "a budget forbids it"}
    world.settle()
    world.run(lambda world: world.phase == "halted")
    assert (world.record.reason, world.touched) == ("MaxDurationExceeded", [])
    world.blocked = {}
    return world


def test_a_canary_that_was_never_replaced_is_tried_again_before_any_batch() -> None:
    world = halted_canary()
    world.crashing = set(world.members)
    world.order(orders.resume)
    world.settle()
    world.run(lambda world: world.phase == "halted")
    assert (world.record.reason, world.touched) == ("CrashLooping", ["n00"])


def test_whoever_goes_on_after_a_halt_accepts_no_member_that_did_not_cause_it() -> None:
    world = halted_canary()
    world.order(orders.resume)
    assert world.record.skipped == ()
    world.settle()
    world.run()
    assert world.on(NEW) == set(world.members)


def test_a_canary_that_leaves_proves_nothing_and_another_takes_its_place() -> None:
    world = changed(canary=True, batch_percentage=100)
    world.crashing = set(world.members) - {"n00"}
    world.settle()
    assert world.touched == ["n00"]
    del world.members["n00"], world.rises["n00"]
    world.settle()
    world.run(lambda world: world.phase == "halted")
    assert world.touched == ["n00", "n01"]


def test_a_client_made_from_the_old_template_proves_nothing_of_the_new_one() -> None:
    world = World(10, "client")
    world.want(NEW, canary=True, batch_percentage=100)
    world.stuck = {"n00"}
    world.settle()
    assert world.touched == ["n00"]
    world.add("scaled-up", OLD)
    world.settle()
    world.run(lambda world: len(world.touched) > 1)
    assert world.phase == "canary"
    assert len(world.record.batch) == 1


def test_a_way_back_that_was_aborted_goes_on_when_ordered_again() -> None:
    world = changed(batch_percentage=50)
    world.settle()
    world.order(orders.rollback)
    world.order(orders.abort)
    assert world.on(NEW)
    world.order(orders.rollback)
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD)) == ("rolled-back", set(world.members))


def test_a_way_back_that_was_aborted_goes_on_when_the_pool_wants_it_too() -> None:
    world = changed(batch_percentage=50)
    world.settle()
    world.order(orders.rollback)
    world.order(orders.abort)
    world.want(OLD)
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD)) == ("synced", set(world.members))


@pytest.mark.parametrize("way", ["rollback", "pool"])
def test_a_change_that_meets_a_way_back_can_still_be_rolled_back_to_where_all_were(way: str) -> None:
    world = changed(batch_percentage=20)
    world.settle()
    world.run(lambda world: world.phase == "interval")
    if way == "rollback":
        world.order(orders.rollback)
    else:
        world.want(OLD)
    world.settle()
    world.want(NEWER)
    world.settle()
    assert world.record.previous == OLD
    world.run()
    world.order(orders.rollback)
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD)) == ("rolled-back", set(world.members))


def test_a_pool_that_has_gone_back_has_nothing_to_roll_back_to() -> None:
    world = changed(batch_percentage=20)
    world.settle()
    world.want(OLD)
    world.settle()
    with pytest.raises(orders.OrderRefusedError, match="no previous template"):
        world.order(orders.rollback)


def test_a_node_that_crash_looped_before_stops_neither_the_way_there_nor_the_way_back() -> None:
    world = World(10)
    world.members["n09"] = msgspec.structs.replace(world.members["n09"], ready=False, crash_looping=True)
    world.crashing = {"n09"}
    world.want(NEW)
    world.settle()
    world.run()
    assert (world.phase, world.on(NEW)) == ("synced", set(world.members))
    world.order(orders.rollback)
    world.settle()
    world.run()
    assert (world.phase, world.on(OLD)) == ("rolled-back", set(world.members))


def test_a_policy_that_cannot_be_followed_is_named_where_people_look_and_ends_what_runs() -> None:
    world = changed()
    world.settle()
    world.want(NEWER, auto_update=False, refused="maintenanceWindow.includes[0] is 'never': write a cron expression")
    world.settle()
    world.run()
    assert (world.phase, world.record.reason) == ("outdated", "AutoUpdateOff")
    assert "maintenanceWindow.includes[0] is 'never'" in world.record.message
    world.want(NEWER, refused="")
    world.settle()
    assert "cannot be followed" not in world.record.message
    world.want(NEWER, auto_update=True)
    world.settle()
    world.run()
    assert world.on(NEWER) == set(world.members)


def test_a_pause_does_not_cut_the_interval_short() -> None:
    world = changed()
    world.settle()
    world.run(lambda world: world.phase == "interval")
    due_at, touched = world.record.due_at, list(world.touched)
    world.order(orders.pause)
    world.order(orders.resume)
    world.settle()
    assert (world.phase, world.record.due_at, world.touched) == ("interval", due_at, touched)
    world.run(lambda world: len(world.touched) > len(touched))
    assert world.now == due_at


def test_whoever_goes_on_in_spite_of_an_alert_is_stopped_by_another_and_not_by_that_one() -> None:
    world = changed()
    world.settle()
    world.alert("GpuTooHot")
    world.settle()
    assert (world.phase, world.record.failed) == ("halted", ("GpuTooHot",))
    world.order(orders.resume)
    world.settle()
    assert (world.phase, world.record.accepted, world.record.skipped) == ("batch", ("GpuTooHot",), ())
    world.run(lambda world: len(world.touched) > 4)
    world.alert("OutOfMemory")
    world.settle()
    assert (world.phase, world.record.message) == ("halted", "alerts of the pool fire: OutOfMemory")
    world.order(orders.resume)
    world.run()
    assert world.phase == "synced"
    world.want(NEWER)
    world.settle()
    assert world.record.accepted == ()


def test_an_alert_that_holds_the_first_batch_back_can_be_accepted_too() -> None:
    world = World()
    world.want(NEW, windows=("* 13 * * *",))
    world.settle()
    world.alert("GpuTooHot")
    world.now = world.now.replace(hour=13)
    world.settle()
    assert (world.phase, world.record.reason, world.touched) == ("planned", "AlertsFiring", [])
    world.order(orders.resume)
    world.settle()
    world.run()
    assert world.on(NEW) == set(world.members)


def test_a_workload_that_is_edited_before_any_rollout_is_updated_unless_it_is_older_than_we_are() -> None:
    world = World(3, "worker")
    assert (world.phase, world.record.number) == ("synced", 0)
    world.members["n01"] = msgspec.structs.replace(world.members["n01"], overrides={"gpuCount": 2})
    world.settle()
    world.run()
    assert (world.phase, world.touched) == ("synced", ["n01"])
    world = World(3, "worker")
    old = msgspec.structs.replace(world.members["n01"], overrides={"gpuCount": 2}, created_at=START - timedelta(days=1))
    world.members["n01"] = old
    world.settle()
    assert (world.phase, world.record.reason, world.touched) == ("outdated", "FirstSeen", [])


def test_without_its_pool_it_waits_is_charged_nothing_and_goes_on_when_that_is_back() -> None:
    world = changed(max_duration_s=60)
    world.blocked = {"n00": "budget", "n01": "budget"}
    world.settle()
    spec, world.spec = world.spec, None
    world.settle()
    assert (world.phase, world.record.reason, len(world.record.batch)) == ("planned", "PoolGone", 2)
    world.settle()
    assert [record.reason for record in world.history].count("PoolGone") == 1
    world.now += timedelta(days=1)
    world.spec, world.blocked = spec, {}
    world.settle()
    world.run()
    assert (world.phase, sorted(world.touched)) == ("synced", sorted(world.members))


@pytest.mark.parametrize("order", [None, orders.abort])
def test_what_has_stopped_spreads_no_further_until_somebody_goes_on(order) -> None:
    world = changed(canary=True)
    assert made_from(world.record) == OLD
    world.settle()
    assert made_from(world.record) == NEW  # the canary is made from it
    world.members["n00"] = msgspec.structs.replace(world.members["n00"], crash_looping=True)
    world.settle()
    assert world.phase == "halted"
    if order is not None:
        world.order(order)
    assert (world.record.target, made_from(world.record)) == (NEW, OLD)
    world.order(orders.rollback)
    assert made_from(world.record) == OLD
    world.order(orders.abort)
    assert made_from(world.record) == OLD


def test_whoever_resumes_gives_the_target_to_new_members_again() -> None:
    world = changed(canary=True)
    world.crashing = {"n00"}
    world.settle()
    world.run()
    world.order(orders.resume)
    assert made_from(world.record) == NEW


def test_a_way_back_that_goes_on_after_a_pause_is_no_canary() -> None:
    world = changed(1)
    world.settle()
    world.order(orders.rollback)
    world.settle()
    world.order(orders.pause)
    world.order(orders.resume)
    world.settle()
    assert "canary" not in world.phases()


def test_a_batch_is_never_more_than_a_record_can_hold() -> None:
    world = changed(MOST + 10, batch_percentage=100)
    world.settle()
    assert len(world.record.batch) == MOST
    assert len(msgspec.json.encode(world.record)) < 400_000
    world.run()
    assert (world.phase, len(world.touched)) == ("synced", MOST + 10)


def test_whoever_resumes_in_a_batch_has_no_more_members_down_than_a_batch() -> None:
    world = changed(batch_percentage=30, max_duration_s=5)  # members take ten seconds
    world.settle()
    for _ in range(20):
        world.run()
        if world.phase == "synced":
            break
        assert world.record.reason == "MaxDurationExceeded"
        world.order(orders.resume)
        world.settle()
    assert (world.phase, world.on(NEW), world.most_down) == ("synced", set(world.members), 3)


def test_a_policy_that_cannot_be_followed_is_not_replaced_by_defaults_when_somebody_resumes() -> None:
    world = changed(auto_update=False, refused="batchPercentage is 0: write a whole number from 1 to 100")
    world.settle()
    world.order(orders.resume)
    world.settle()
    world.run()
    assert (world.phase, world.touched) == ("outdated", [])
    assert "batchPercentage is 0" in world.record.message
