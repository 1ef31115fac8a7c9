"""Several roles in one process: they work as they do alone, are ready together, and end together."""

import asyncio
from datetime import UTC, datetime

import httpx
import pytest

from bus import rpc, subjects
from bus.codec import encode
from deploy.cli.main import main
from deploy.local.processes import RoleProcess
from deploy.local.server import free_port
from schemas.cluster import Pool
from schemas.event import Event
from schemas.inspection import Answer, Dump

NOW = datetime(2026, 11, 30, tzinfo=UTC)


async def test_roles_of_a_group_work_and_end_together(server, bus) -> None:
    pool = Event(id="p", source="/t", type="gpubus.pool.v1", subject="shared", time=NOW, data=Pool(name="shared"))
    await bus.publisher.publish(subjects.state("pool", "shared"), encode(pool), msg_id="p")
    metrics = free_port()
    process = RoleProcess("group", [server.url], "allocator,inspector,updater", "--metrics", str(metrics))
    await process.start()
    try:
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{metrics}/readyz")).status_code == 200
            shown = (await client.get(f"http://127.0.0.1:{metrics}/metrics")).text
        assert "gpubus_allocator_" in shown
        assert "gpubus_updater_" in shown
        answer = await rpc.gather(bus, "inspect", Dump(), Answer, timeout=20)
        assert answer is not None
    finally:
        async with asyncio.timeout(10):
            await process.stop()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["allocator,nobody"], "role 'nobody' is unknown in a group"),
        (["allocator,allocator"], "named twice"),
        ([","], "no roles are named"),
        (["allocator,gateway"], "role 'gateway' is unknown in a group"),
    ],
)
def test_what_cannot_be_a_group_is_said(arguments, says, capsys) -> None:
    assert main(["run", "group", *arguments]) == 2
    assert says in capsys.readouterr().err


async def test_a_role_that_cannot_start_ends_the_group_with_its_reason(server, bus, monkeypatch) -> None:
    del bus  # it declares the streams
    monkeypatch.delenv("GPUBUS_METRICS", raising=False)
    process = await asyncio.create_subprocess_exec(
        *RoleProcess("group", [server.url], "allocator,recorder")._command, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, said = await process.communicate()
    assert process.returncode == 2
    assert b"GPUBUS_METRICS is not set" in said
