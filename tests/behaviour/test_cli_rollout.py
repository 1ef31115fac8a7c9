"""``gpubus rollout`` against a real nats-server and a running updater: what it shows, what may be ordered, what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from bus import subjects
from bus.connection import Bus
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


async def test_every_command_names_a_record_that_cannot_be_read(ask, bus: Bus) -> None:
    subject = subjects.ledger_rollout(POOL, "hypervisor")
    await bus.publisher.publish(subject, b"{half a mess")
    for command in ("pause", "resume", "abort", "rollback", "history", "status"):
        code, _, err = await ask(command, *HYPERVISOR)
        assert code == 1, command
        assert f"the record {subject} at 1 cannot be read" in err, command
        assert "gpubus dead list" in err, command


async def test_a_pool_that_is_gone_and_a_policy_that_is_refused_are_named(player: Player, ask) -> None:
    await player.want(OLD, auto_update=False, refused="batchPercentage is 0: write a whole number from 1 to 100")
    code, out, _ = await ask("status", "--json")
    (record,) = json.loads(out)
    assert record["message"].endswith("cannot be followed: batchPercentage is 0: write a whole number from 1 to 100")
    await player.bus.publisher.publish(subjects.state("component", POOL, "hypervisor"), b"")
    code, out, _ = await ask("status", *HYPERVISOR)
    assert (code, "the pool is gone, or configures no hypervisors" in out) == (0, True)
