"""Whatever is changed in the announcements of a log, or taken out of them, `replay --verify` names."""

import asyncio
import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from consumers.allocator.engine import ENGINE_VERSION
from deploy.cli.main import main

LOG = Path(__file__).parent.parent / "golden" / f"engine-{ENGINE_VERSION}.log.gz"
Lines = list[dict]
Edit = Callable[[Lines], Lines]


def of(stream: str, lines: Lines, outcome: str = "") -> Lines:
    return [
        line
        for line in lines
        if line.get("stream") == stream
        and "event" in line
        and (not outcome or line["event"]["data"]["outcome"] == outcome)
    ]


def but(lines: Lines, dropped: Lines, *, renumbered: bool) -> Lines:
    """Leave lines out, and close the gap in the numbers, as somebody would who does not want to be noticed."""
    kept = [line for line in lines if not any(line is one for one in dropped)]
    if renumbered:
        for number, line in enumerate(of("DECISION", kept), 1):
            line["seq"] = number
    return kept


def leave_out(outcome: str, which: slice, *, renumbered: bool) -> Edit:
    return lambda lines: but(lines, of("DECISION", lines, outcome)[which], renumbered=renumbered)


def edited(change: Callable[[dict], None], outcome: str = "allocated") -> Edit:
    def edit(lines: Lines) -> Lines:
        some = of("DECISION", lines, outcome)
        change(some[len(some) // 2])
        return lines

    return edit


def set_envelope(field: str, value: str) -> Edit:
    return edited(lambda line: line["event"].__setitem__(field, value))


def another_sequence(line: dict) -> None:
    uid, seq = line["event"]["id"].rsplit(":", 1)
    line["event"]["id"] = f"{uid}:{int(seq) + 1}"


def without_a_journal(lines: Lines) -> Lines:
    subjects = [line["subject"] for line in of("JOURNAL", lines)]
    busiest = max(subjects, key=subjects.count)
    return [line for line in lines if line.get("stream") != "JOURNAL" or line["subject"] != busiest]


def of_another_engine(lines: Lines) -> Lines:
    for line in of("JOURNAL", lines):
        line["event"]["data"]["engine"] = "0"
    return lines


async def verify(lines: Lines, place: Path, capsys, *options: str) -> tuple[int, dict]:
    lines[0]["records"] = len(lines) - 1
    file, store = place / "log.gz", place / "store"
    file.write_bytes(gzip.compress(b"".join(msgspec.json.encode(line) + b"\n" for line in lines), 1))
    assert await asyncio.to_thread(main, ["import", str(file), "--store", str(store)]) == 0
    capsys.readouterr()
    command = ["replay", "--verify", "--json", "--store", str(store), *options]
    code = await asyncio.to_thread(main, command)
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def lines() -> Lines:
    return [json.loads(line) for line in gzip.decompress(LOG.read_bytes()).splitlines()]


ALL, SECOND = slice(None), slice(1, 2)


@pytest.mark.parametrize(
    ("edit", "found_as"),
    [
        (leave_out("unschedulable", ALL, renumbered=True), ("unannounced", "unschedulable of pod")),
        (leave_out("unschedulable", SECOND, renumbered=False), ("unannounced", "no limit drops it")),
        (leave_out("allocated", SECOND, renumbered=True), ("unannounced", "allocated of pod")),
        (leave_out("released", SECOND, renumbered=True), ("unannounced", "released of pod")),
        (leave_out("", slice(-50, None), renumbered=True), ("unannounced", "was never announced")),
        (edited(lambda line: line.update(subject="gpubus.decision.x.other")), ("envelopes", "is not that of pod")),
        (edited(another_sequence), ("envelopes", "its id names ledger record")),
        (set_envelope("id", "else"), ("envelopes", "id else is not that")),
        (set_envelope("source", "/gpubus/allocator/evil"), ("envelopes", "evil does not speak for")),
        (set_envelope("subject", "x/y"), ("envelopes", "it speaks of x/y")),
        (set_envelope("type", "gpubus.other.v1"), ("envelopes", "type gpubus.other.v1")),
        (set_envelope("time", "2020-01-01T00:00:00Z"), ("envelopes", "is before what")),
        (set_envelope("time", "2999-01-01T00:00:00Z"), ("envelopes", "is later than when it was stored")),
        (without_a_journal, ("unfounded", "")),
        (of_another_engine, ("other_engine", "")),
    ],
)
async def test_an_edit_is_named(lines: Lines, edit: Edit, found_as: tuple[str, str], tmp_path, capsys) -> None:
    field, says = found_as
    code, found = await verify(edit(lines), tmp_path, capsys)
    assert (code, found[field] > 0) == (1, True)
    assert not says or any(says in one["detail"] for one in found["astray"]), found["astray"]
    assert found["different"] == 0
    if field == "envelopes":
        assert (found["envelopes"], found["unannounced"]) == (1, 0)


async def test_a_log_that_nobody_edited_is_as_it_should_be_unless_nothing_of_it_is_compared(
    lines: Lines, tmp_path, capsys
) -> None:
    code, found = await verify(lines, tmp_path, capsys)
    assert (code, found["astray"], found["unfounded"]) == (0, [], 0)
    bounded = ["replay", "--verify", "--store", str(tmp_path / "store")]
    assert await asyncio.to_thread(main, [*bounded, "--from", "2999-01-01T00:00Z"]) == 2
    assert "still to come" in capsys.readouterr().err
    assert await asyncio.to_thread(main, [*bounded, "--to", "2999-01-01T00:00Z", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decisions"] == found["decisions"]
    assert await asyncio.to_thread(main, [*bounded, "--from", datetime.now(UTC).isoformat(), "--to", "1"]) == 2
    assert "nothing would be compared" in capsys.readouterr().err
