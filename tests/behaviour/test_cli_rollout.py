"""``gpubus rollout`` against a real nats-server and a running updater: what it shows, what may be ordered, what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from bus import subjects
from bus.connection import Bus
from consumers.updater.hands import AT_ONCE
from consumers.updater.service import Updater
from deploy.cli.main import main
from tests.fault.rollout_player import NEW, OLD, POOL, Player

HYPERVISOR = (POOL, "hypervisor")


@pytest.fixture
def ask(capsys, server):
    """Run a command line in a thread, as its own process would, and return its exit code and what it printed."""

    async def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ("rollout", *arguments, "--nats", server.url))
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
async def player(bus: Bus) -> AsyncIterator[Player]:
    """Five members in sync, and an updater in this process."""
    stop, ready = asyncio.Event(), asyncio.Event()
    playing = Player(bus, 5)
    await playing.start()
    await playing.want(OLD)
    updating = asyncio.create_task(Updater(bus, "u").run(stop, ready=ready))
    await playing.reaches("synced")
    yield playing
    stop.set()
    await updating
    await playing.stop()


async def test_a_rollout_is_paused_resumed_and_rolled_back_by_hand(player: Player, ask) -> None:
    player.blocked = "the disruption budget b allows none"
    await player.want(NEW, batch_percentage=100)
    await player.reaches("canary", then=lambda record: record.reason == "Blocked")
    code, out, _ = await ask("status")
    assert code == 0
    assert f"{NEW.hash}" in out
    assert "canary" in out
    assert "node-00: the disruption budget b allows none" in out
    code, out, _ = await ask("pause", *HYPERVISOR)
    assert (code, out) == (0, f"hypervisor of pool {POOL}: paused, 0 of 5 updated\n")
    player.blocked = ""
    code, out, _ = await ask("resume", *HYPERVISOR)
    assert code == 0
    await player.reaches("synced")
    code, out, _ = await ask("rollback", *HYPERVISOR)
    assert (code, out) == (0, f"hypervisor of pool {POOL}: planned, 0 of 5 updated\n")
    await player.reaches("rolled-back")
    assert len(player.on(OLD)) == 5
    code, out, _ = await ask("status", *HYPERVISOR)
    lines = dict(line.strip().split(None, 1) for line in out.splitlines())
    assert (lines["phase"], lines["updated"]) == ("rolled-back", "5 of 5")
    assert lines["refused"] == NEW.hash
    code, out, _ = await ask("history", *HYPERVISOR, "--json")
    steps = [record["step"] for record in json.loads(out)]
    assert [step for step in steps if step in ("started", "paused", "resumed", "completed", "rolled-back")] == [
        "started", "paused", "resumed", "completed", "rolled-back", "completed",
    ]  # fmt: skip
    assert any("@" in record.get("by", "") for record in json.loads(out))
    code, out, _ = await ask("history", *HYPERVISOR)
    assert len(out.splitlines()) == len(steps) + 1


async def test_an_aborted_rollout_stands_still(player: Player, ask) -> None:
    player.crashing = True
    await player.want(NEW)
    await player.reaches("halted")
    code, out, _ = await ask("abort", *HYPERVISOR)
    assert (code, out) == (0, f"hypervisor of pool {POOL}: aborted, 1 of 5 updated\n")
    code, _, err = await ask("resume", *HYPERVISOR)
    assert code == 1
    assert (
        err
        == f"gpubus: hypervisor of pool {POOL} is aborted: there is nothing to resume; change the pool's template, or roll back\n"
    )


@pytest.mark.usefixtures("player")
async def test_what_makes_no_sense_is_refused(ask, bus: Bus) -> None:
    code, _, err = await ask("pause", *HYPERVISOR)
    assert (code, err) == (1, f"gpubus: hypervisor of pool {POOL} is synced: there is nothing to pause\n")
    code, _, err = await ask("rollback", POOL, "agent")
    assert (code, err) == (2, "gpubus: component 'agent' is unknown: use one of hypervisor, worker, client\n")
    for command in ("pause", "history", "status"):
        code, _, err = await ask(command, "other", "worker")
        assert (code, err) == (
            1, "gpubus: no rollout of worker of pool 'other' is known: `gpubus rollout status` lists them\n",
        )  # fmt: skip
    await bus.publisher.publish(subjects.ledger_rollout("mess", "worker"), b"{half a mess")
    code, out, err = await ask("status")
    assert code == 0
    assert POOL in out
    assert "gpubus.ledger.rollout.mess.worker" in err
    assert "cannot be read" in err


@pytest.mark.usefixtures("bus")
async def test_nothing_known_is_said_so(ask) -> None:
    code, out, _ = await ask("status")
    assert (code, out) == (0, "no rollouts are known: they begin when an updater has seen a pool's components\n")
    code, out, _ = await ask("status", "--json")
    assert (code, json.loads(out)) == (0, [])


async def test_counts_after_an_order_are_those_of_its_template(player: Player, ask) -> None:
    player.crashing = True
    await player.want(NEW)
    await player.reaches("halted")
    player.crashing = False
    code, out, _ = await ask("status", *HYPERVISOR)
    assert [line.split()[-1] for line in out.splitlines() if "new ones get" in line] == [OLD.hash]
    code, out, _ = await ask("resume", *HYPERVISOR)
    assert (code, out) == (
        0, f"hypervisor of pool {POOL}: planned, 1 of 5 updated\n  going on in spite of node-00\n",
    )  # fmt: skip
    await player.reaches("synced")
    code, out, _ = await ask("rollback", *HYPERVISOR)
    assert (code, out) == (0, f"hypervisor of pool {POOL}: planned, 0 of 5 updated\n")


async def test_every_command_names_a_record_that_cannot_be_read_and_what_mends_it(ask, bus: Bus) -> None:
    subject = subjects.ledger_rollout(POOL, "hypervisor")
    await bus.publisher.publish(subject, b"{half a mess")
    mends = f"`gpubus rollout reset {POOL} hypervisor` begins it anew"
    for command in ("pause", "resume", "abort", "rollback", "history"):
        code, _, err = await ask(command, *HYPERVISOR)
        assert code == 1, command
        assert f"the record {subject} at 1 cannot be read" in err, command
        assert "gpubus dead list" in err, command
        assert mends in err, command
    for arguments in ((), HYPERVISOR):
        code, out, err = await ask("status", *arguments)
        assert code == 0
        assert "unreadable" in out
        assert "gpubus dead list" in err
    assert mends in out
    code, out, _ = await ask("status", "--json")
    (shown,) = json.loads(out)
    assert (shown["pool"], shown["phase"], mends in shown["message"]) == (POOL, "unreadable", True)
    code, _, err = await ask("reset", *HYPERVISOR)
    assert (code, "run a watcher, then try again" in err) == (1, True)


async def test_a_record_that_cannot_be_read_stops_everything_until_it_is_begun_anew_and_resumed(
    player: Player, ask
) -> None:
    code, _, err = await ask("reset", *HYPERVISOR)
    assert (code, err) == (
        1,
        f"gpubus: the record of hypervisor of pool {POOL!r} can be read: there is nothing to begin anew\n",
    )
    await player.bus.publisher.publish(subjects.ledger_rollout(POOL, "hypervisor"), b"{half a mess")
    await player.want(NEW)
    code, out, _ = await ask("status", *HYPERVISOR)
    assert "unreadable" in out
    assert player.asked == {}
    code, out, _ = await ask("reset", *HYPERVISOR)
    assert (code, out.splitlines()[0]) == (0, f"hypervisor of pool {POOL}: paused, 5 of 5 updated")
    assert "look at what runs, then resume" in out
    await player.reaches("paused", then=lambda record: record.step == "superseded")
    assert player.asked == {}
    code, _, _ = await ask("resume", *HYPERVISOR)
    assert code == 0
    await player.reaches("synced")
    assert (len(player.on(NEW)), player.record.previous) == (5, OLD)


async def test_what_runs_and_cannot_be_read_is_named_as_what_stops_it(player: Player, ask) -> None:
    subject = subjects.state("member", POOL, "hypervisor", "node-03")
    await player.bus.publisher.publish(subject, b"{half a mess")
    await player.want(NEW)
    code, out, _ = await ask("status", *HYPERVISOR)
    assert (code, f"nothing is updated while {subject} cannot be read" in out) == (0, True)
    assert player.asked == {}
    await player.say(player.members["node-03"])
    await player.reaches("synced", then=lambda record: record.target == NEW)


async def test_nobody_resumes_by_a_policy_that_is_refused(player: Player, ask) -> None:
    await player.want(NEW, auto_update=False, refused="batchPercentage is 0: write a whole number from 1 to 100")
    await player.reaches("outdated")
    code, _, err = await ask("resume", *HYPERVISOR)
    assert (code, err) == (
        1,
        (
            f"gpubus: hypervisor of pool {POOL} cannot go on, as its update policy cannot be followed: "
            "batchPercentage is 0: write a whole number from 1 to 100; mend the pool first\n"
        ),
    )
    assert player.record.phase == "outdated"


@pytest.mark.slow
async def test_an_order_is_taken_in_a_large_pool_while_its_members_are_replaced(bus: Bus, ask) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    playing = Player(bus, 2000)
    await playing.start()
    await playing.want(OLD)
    updating = asyncio.create_task(Updater(bus, "u").run(stop, ready=ready))
    await playing.reaches("synced")
    await playing.want(NEW, batch_percentage=100, canary=False, max_duration_s=3600, ready_within_s=3600)
    await playing.reaches("batch", then=lambda _: sum(playing.asked.values()) > 100)
    code, _, err = await ask("pause", *HYPERVISOR)
    assert (code, err) == (0, "")
    assert playing.record.phase == "paused"
    known = sum(one.replaced_at is not None for one in playing.record.batch)
    assert sum(playing.asked.values()) < 1000
    assert sum(playing.asked.values()) - known <= AT_ONCE  # what was being replaced in that moment
    code, _, err = await ask("rollback", *HYPERVISOR)
    assert (code, err) == (0, "")
    stop.set()
    await updating
    await playing.stop()


async def test_a_pool_that_is_gone_and_a_policy_that_is_refused_are_named(player: Player, ask) -> None:
    await player.want(OLD, auto_update=False, refused="batchPercentage is 0: write a whole number from 1 to 100")
    code, out, _ = await ask("status", "--json")
    (record,) = json.loads(out)
    assert record["message"].endswith("cannot be followed: batchPercentage is 0: write a whole number from 1 to 100")
    await player.bus.publisher.publish(subjects.state("component", POOL, "hypervisor"), b"")
    code, out, _ = await ask("status", *HYPERVISOR)
    assert (code, "the pool is gone, or configures no hypervisors" in out) == (0, True)
