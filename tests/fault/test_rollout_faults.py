"""What the updater promises holds while updaters die: every member once, in batches, to the end."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from bus import codec, history, subjects
from bus.connection import Bus
from bus.deadletter import list_letters
from bus.streams import LEDGER
from consumers.updater.hands import AT_ONCE
from consumers.updater.plan import batch_size
from deploy.cli.main import main
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer
from schemas.rollout import Rollout, Template
from tests.conftest import eventually
from tests.fault.rollout_player import NEW, NEWER, OLD, POOL, Player

pytestmark = pytest.mark.fault


@pytest.fixture
async def updaters(server: LocalServer) -> AsyncIterator[list[RoleProcess]]:
    """Two updater processes, not started yet."""
    processes = [RoleProcess("updater", [server.url]) for _ in range(2)]
    yield processes
    await asyncio.gather(*(process.stop() for process in processes))


async def settled(bus: Bus, count: int) -> Player:
    """Members that all run what the pool has always wanted."""
    player = Player(bus, count)
    await player.start()
    await player.want(OLD)
    return player


def check_steps(player: Player, count: int, most_down: int | None = None) -> None:
    """Every member once, never more than a batch, and a log whose revisions follow from each other."""
    assert player.asked == dict.fromkeys((f"u{number}-0" for number in range(count)), 1)
    assert player.most_down <= (most_down or batch_size(count, 20))
    phases = [record.phase for record in player.history]
    assert phases[-1] == "synced"
    assert len({record.txn for record in player.history}) == len(player.history)


@pytest.mark.slow
async def test_updaters_killed_in_every_state_resume_and_update_nobody_twice(
    bus: Bus, updaters: list[RoleProcess]
) -> None:
    player, seen = await settled(bus, 40), set()
    (victim, _) = updaters
    await victim.start()
    await player.reaches("synced")
    started = datetime.now(UTC)
    # A window that is closed now, and opens with a change of the policy below.
    closed = (started + timedelta(hours=2)).strftime("* %H * * *")
    await player.want(NEW, windows=(closed,))
    for phase in ("window", "canary", "batch", "interval", "batch", "interval"):
        await player.reaches(phase)
        seen.add(player.record.phase)
        await victim.kill()
        await player.want(NEW)
        await victim.start()
    dead: list[str] = []

    async def die() -> None:
        dead.append(player.record.phase)
        await victim.kill()

    player.on_replaced = lambda: die() if not dead else None  # after the deed, before the answer
    await eventually(lambda: bool(dead), 40)
    await victim.start()
    await player.reaches("synced")
    await player.stop()
    assert seen == {"window", "canary", "batch", "interval"}
    assert dead == ["batch"]
    assert len(player.on(NEW)) == 40
    check_steps(player, 40)


async def test_an_updater_killed_in_a_pause_begins_nothing_before_it_is_resumed_and_updates_nobody_twice(
    bus: Bus, server: LocalServer, updaters: list[RoleProcess]
) -> None:
    player, dead = await settled(bus, 10), asyncio.Event()
    (victim, _) = updaters
    await victim.start()
    await player.reaches("synced")

    async def pause_and_die() -> None:  # in the middle of a batch: its members are replaced, and no record says so
        player.on_replaced = None
        await order(server, "pause")
        await victim.kill()
        dead.set()

    player.on_replaced = lambda: pause_and_die() if player.record.phase == "batch" else None
    await player.want(NEW, batch_percentage=50)
    async with asyncio.timeout(40):
        await dead.wait()
    await player.reaches("paused")
    await eventually(lambda: all(member.ready for member in player.members.values()), 10)
    asked = dict(player.asked)
    assert 2 <= len(asked) <= 6  # the canary, and one or more of a batch of five
    for template in (OLD, NEW):
        await victim.start()
        await has_looked(player, template)
        await victim.kill()
        assert (player.record.phase, player.asked) == ("paused", asked)
    await order(server, "resume")
    await victim.start()
    await player.reaches("synced", then=lambda record: record.number == 1)
    await player.stop()
    steps = [record.step for record in player.history]
    assert steps[steps.index("paused") + 1] == "resumed"
    assert len(player.on(NEW)) == 10
    check_steps(player, 10, most_down=5)


async def order(server: LocalServer, name: str) -> None:
    """Give an order as people do."""
    assert await asyncio.to_thread(main, ("rollout", name, POOL, "hypervisor", "--nats", server.url)) == 0


async def has_looked(player: Player, template: Template) -> None:
    """Wait until an updater has taken on another component of the pool: by then it has looked at what it found at its start."""
    await player.want(template, component="client")
    async with asyncio.timeout(20):
        while True:
            records, _ = await history.newest(player.bus, LEDGER, [subjects.ledger_rollout(POOL, "client")])
            if [codec.decode_as(Rollout, record.payload).data.target for record in records] == [template]:
                return
            await asyncio.sleep(0.02)


async def test_of_two_updaters_one_takes_each_step_and_the_other_goes_on_when_it_dies(
    bus: Bus, updaters: list[RoleProcess]
) -> None:
    player = await settled(bus, 12)
    await asyncio.gather(*(process.start() for process in updaters))
    await player.reaches("synced")
    await player.want(NEW, canary=False, batch_percentage=34)
    await player.reaches("batch")
    await updaters[0].kill()
    await player.reaches("synced", then=lambda record: record.number == 1)
    await player.stop()
    assert [len(record.batch) for record in player.history if record.step == "batch"] == [5, 5, 2]
    passed = [r.changed_at for r in player.history if r.step == "passed"]
    begun = [r.changed_at for r in player.history if r.step == "batch"][1:]
    assert all(after - before >= timedelta(seconds=1) for before, after in zip(passed, begun, strict=True))
    check_steps(player, 12, most_down=5)


async def test_a_crash_looping_template_stops_after_the_canary_and_says_so(
    bus: Bus, updaters: list[RoleProcess]
) -> None:
    player = await settled(bus, 10)
    await updaters[0].start()
    await player.reaches("synced")
    player.crashing = True
    await player.want(NEW)
    halted = await player.reaches("halted")
    assert halted.message == f"crash looping with template {NEW.hash}: node-00"
    await updaters[0].kill()
    await updaters[0].start()
    player.crashing = False
    await player.want(NEWER, batch_percentage=100, canary=False)
    await player.reaches("synced")
    await player.stop()
    assert player.asked == dict.fromkeys(("u0-0", "u0-1", *(f"u{number}-0" for number in range(1, 10))), 1)
    assert len(player.on(NEWER)) == 10
    assert [record.step for record in player.history].count("halted") == 1


async def test_without_anybody_who_replaces_members_it_waits_and_says_so(bus: Bus, updaters: list[RoleProcess]) -> None:
    player = await settled(bus, 3)
    await updaters[0].start()
    await player.reaches("synced")
    player.blocked = "the disruption budget b needs 3 healthy pods and has 3 currently"
    await player.want(NEW)
    blocked = await player.reaches("canary", then=lambda record: record.reason == "Blocked")
    assert blocked.message == f"node-00: {player.blocked}"
    await updaters[0].kill()
    player.blocked = ""
    await updaters[0].start()
    await player.reaches("synced")
    await player.stop()
    check_steps(player, 3)


async def test_what_cannot_be_read_stops_its_rollout_and_no_other_until_it_can(
    bus: Bus, updaters: list[RoleProcess]
) -> None:
    player = await settled(bus, 3)
    await updaters[0].start()
    await player.reaches("synced")
    mess, twin = subjects.state("member", POOL, "hypervisor", "node-01"), subjects.ledger_rollout(POOL, "hypervisors")
    for subject in (mess, twin):
        await bus.publisher.publish(subject, b"{half a mess")
    assert await buried(bus, 2) == {mess, twin}
    await player.want(NEW)
    await player.want(NEW, canary=False, batch_percentage=100)
    await updaters[0].kill()
    await updaters[0].start()
    assert player.record.phase == "synced"
    await player.say(player.members["node-01"])
    await player.reaches("synced", then=lambda record: record.number == 1)
    await player.stop()
    check_steps(player, 3, most_down=3)


async def buried(bus: Bus, count: int) -> set[str]:
    """Wait until there are so many dead letters, and return what they are about."""
    async with asyncio.timeout(20):
        while True:
            found = {letter.data.subject async for letter in list_letters(bus)}
            if len(found) == count:
                return found
            await asyncio.sleep(0.02)


async def test_an_order_is_followed_in_the_middle_of_a_batch(
    bus: Bus, server: LocalServer, updaters: list[RoleProcess]
) -> None:
    player = await settled(bus, 3 * AT_ONCE)
    await updaters[0].start()
    await player.reaches("synced")

    async def pause() -> None:
        player.on_replaced = None
        await order(server, "pause")

    player.on_replaced = pause
    await player.want(NEW, canary=False, batch_percentage=100)
    await player.reaches("paused")
    await has_looked(player, OLD)
    assert 1 <= len(player.asked) <= AT_ONCE  # those that it had asked for already
    await order(server, "resume")
    await player.reaches("synced", then=lambda record: record.number == 1)
    await player.stop()
    check_steps(player, 3 * AT_ONCE, most_down=3 * AT_ONCE)
