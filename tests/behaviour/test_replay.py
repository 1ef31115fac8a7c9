"""What the log of a disturbed run lets one do afterwards, in other processes: think every decision again."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bus import codec, history
from bus.connection import Bus
from bus.follower import Record
from bus.streams import DECISION, LEDGER, StreamLimits, ensure_streams
from deploy.cli.main import main
from deploy.local.server import LocalBus
from schemas.ledger import NodeRecord

GPUBUS = [sys.executable, "-m", "deploy.cli.main"]


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """The store of a run with two allocators on a crowded cluster, one of which is killed half way."""
    kept = tmp_path_factory.mktemp("replay") / "kept"
    command = [*GPUBUS, "demo", "--nodes", "30", "--pods", "400", "--rate", "120", "--keep", str(kept), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    report = json.loads(done.stdout)
    assert (report["killed"], report["pods_lost"]) == (1, 0)
    assert report["pods_unschedulable"] > 0
    assert report["pods_released"] > 0
    return kept


@pytest.fixture
def copy_of(tmp_path) -> Callable[[Path], Path]:
    """Copies a store, for tests that change it."""

    def copy(store: Path) -> Path:
        return Path(shutil.copytree(store, tmp_path / "copy"))

    return copy


async def ask(capsys, *arguments: str | Path) -> tuple[int, str]:
    capsys.readouterr()
    code = await asyncio.to_thread(main, [str(argument) for argument in arguments])
    return code, capsys.readouterr().out


async def rewrite(store: Path, stream: str, change: Callable[[Record], bytes]) -> None:
    """Write a stream's messages anew, as somebody would who has the files in hand."""
    records: list[Record] = []
    async with LocalBus(store) as local, await Bus.connect(local.urls, name="forger") as bus:
        await history.read(bus, stream, [">"], records.append)
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        await bus.api(f"STREAM.DELETE.{stream}")
        await ensure_streams(bus, StreamLimits(ledger_revisions=-1))
        await bus.publisher.publish_all([(record.subject, change(record), f"{record.seq}") for record in records])


def test_every_decision_comes_out_again_in_another_process(log: Path) -> None:
    done = subprocess.run(
        [*GPUBUS, "replay", "--verify", "--store", log, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["allocators"] >= 2  # three if the one that was killed came back in time to decide
    assert found["reproduced"] == found["decisions"] >= 400
    assert not any(found[field] for field in ("different", "violations", "unexplained", "undecodable", "notes"))


async def test_an_edited_decision_is_found_and_shown(log: Path, capsys, copy_of) -> None:
    store = copy_of(log)
    edited: list[int] = []

    def edit(record: Record) -> bytes:
        if edited or b'"outcome":"allocated"' not in record.payload:
            return record.payload
        edited.append(record.seq)
        return record.payload.replace(b'"score":', b'"score":1', 1)

    await rewrite(store, DECISION, edit)
    code, shown = await ask(capsys, "replay", "--verify", "--store", store)
    assert code == 1
    assert f"The first difference, DECISION {edited[0]}: candidates" in shown
    assert "recorded: {" in shown
    assert "replayed: {" in shown


async def test_an_edited_allocation_is_found_even_if_nobody_decided_by_it(log: Path, capsys, copy_of) -> None:
    store = copy_of(log)
    edited: list[int] = []

    def edit(record: Record) -> bytes:
        event = codec.decode_as(NodeRecord, record.payload)
        held = event.data.allocations
        if edited or len(held) < 2:
            return record.payload
        edited.append(record.seq)
        more = msgspec.structs.replace(held[0], cpu_milli=held[0].cpu_milli + 1)
        data = msgspec.structs.replace(event.data, allocations=(more, *held[1:]))
        return codec.encode(msgspec.structs.replace(event, data=data))

    await rewrite(store, LEDGER, edit)
    code, shown = await ask(capsys, "replay", "--verify", "--store", store, "--json")
    assert code == 1
    assert [edited[0], "AllocationChanged"] in [[v["seq"], v["rule"]] for v in json.loads(shown)["violations"]]


async def test_decisions_of_another_engine_are_named_and_not_compared(log: Path, capsys, copy_of, monkeypatch) -> None:
    monkeypatch.setattr("deploy.replay.verify.ENGINE_VERSION", "0")
    code, shown = await ask(capsys, "replay", "--verify", "--store", copy_of(log), "--json")
    found = json.loads(shown)
    assert (code, found["reproduced"], found["different"]) == (0, 0, 0)
    assert found["unexplained"] == found["decisions"] >= 400
    assert all("this is engine 0" in note for note in found["notes"])
