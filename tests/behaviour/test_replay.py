"""What the log of a disturbed run lets one do afterwards, in other processes: think every decision again."""

import asyncio
import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec
import pytest

from bus import codec, history
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.history import Cut
from bus.streams import DECISION, HISTORY, LEDGER, STATE, StreamLimits, ensure_streams
from consumers.allocator.engine import ENGINE_VERSION
from deploy.cli.fold import World
from deploy.cli.main import main
from deploy.cli.report import report
from deploy.cli.when import nanoseconds_since_epoch
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalBus, LocalServer
from deploy.replay import jobs
from producers.simulator.generator import generate
from producers.simulator.service import Simulator
from schemas.cluster import Pool
from schemas.decision import Decision
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


async def test_a_part_of_the_log_is_verified_by_itself(log: Path, capsys) -> None:
    async def compared(*arguments: str) -> int:
        code, shown = await ask(capsys, "replay", "--verify", "--store", log, "--json", *arguments)
        found = json.loads(shown)
        nothing = not found["decisions"]  # which proves nothing
        assert (code, found["reproduced"], found["unexplained"]) == (int(nothing), found["decisions"], 0)
        return found["decisions"]

    whole, late = await compared(), await compared("--from", "100")
    assert 0 < late < whole == late + await compared("--to", "99")
    assert await compared("--from", "1s") < whole == await compared("--from", "1h")


async def test_an_edited_decision_is_found_and_named_by_replay_and_audit(log: Path, capsys, copy_of) -> None:
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
    code, shown = await ask(capsys, "audit", "verify", "--store", store, "--json")
    assert code == 1
    assert [(entry["stream"], entry["sequence"]) for entry in json.loads(shown)["breaks"]] == [("DECISION", edited[0])]


async def test_a_decision_that_nobody_made_is_found_by_replay_and_audit(log: Path, capsys, copy_of) -> None:
    store = copy_of(log)
    edited: list[int] = []

    def edit(record: Record) -> bytes:
        event = codec.decode_as(Decision, record.payload)
        if edited or event.data.outcome != "allocated":
            return record.payload
        edited.append(record.seq)
        forged = msgspec.structs.replace(event.data, allocator="somebody")
        return codec.encode(msgspec.structs.replace(event, data=forged))

    await rewrite(store, DECISION, edit)
    code, shown = await ask(capsys, "replay", "--verify", "--store", store, "--json")
    assert (code, json.loads(shown)["unfounded"]) == (1, 1)
    code, shown = await ask(capsys, "audit", "verify", "--store", store)
    assert (code, f"DECISION {edited[0]}" in shown, "is in no ledger record" in shown) == (1, True, True)


async def test_an_edited_allocation_is_found_even_if_nobody_decided_by_it(log: Path, capsys, copy_of) -> None:
    store = copy_of(log)
    edited: list[int] = []

    def edit(record: Record) -> bytes:
        event = codec.decode_as(NodeRecord, record.payload)
        held = event.data.allocations
        if edited or not held or not held[0].since:
            return record.payload
        edited.append(record.seq)
        more = msgspec.structs.replace(held[0], cpu_milli=held[0].cpu_milli + 1)
        data = msgspec.structs.replace(event.data, allocations=(more, *held[1:]))
        return codec.encode(msgspec.structs.replace(event, data=data))

    await rewrite(store, LEDGER, edit)
    code, shown = await ask(capsys, "replay", "--verify", "--store", store, "--json")
    assert code == 1
    assert [edited[0], "AllocationChanged"] in [[v["seq"], v["rule"]] for v in json.loads(shown)["violations"]]


def test_many_processes_find_what_one_finds(log: Path, capsys, copy_of, monkeypatch) -> None:
    monkeypatch.setattr("deploy.replay.jobs.WORTH", 1)
    helped = []
    obey = jobs.Helper.verify
    monkeypatch.setattr(jobs.Helper, "verify", lambda *given: (helped.append(given), obey(*given))[1])
    store = copy_of(log)
    edited: list[int] = []

    def edit(record: Record) -> bytes:
        if b'"outcome":"allocated"' not in record.payload or record.seq % 5:
            return record.payload
        edited.append(record.seq)
        return record.payload.replace(b'"score":', b'"score":1', 1)

    def verified(place: Path, count: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["replay", "--verify", "--jobs", count, "--store", str(place), "--json"])
        return code, capsys.readouterr().out

    asyncio.run(rewrite(store, DECISION, edit))
    for place, differ in ((log, 0), (store, len(edited))):
        code, alone = verified(place, "1")
        assert (code, json.loads(alone)["different"], helped) == (int(differ > 0), differ, [])
        for count in "23":
            assert verified(place, count) == (code, alone)
            assert helped or json.loads(alone)["allocators"] == 1  # the second may have come when all was decided
            helped.clear()
    assert [one["sequence"] for one in json.loads(alone)["differences"]] == edited[:10]
    assert json.loads(alone)["reproduced"] == json.loads(alone)["decisions"] - differ


async def test_decisions_of_another_engine_are_named_and_not_compared(log: Path, capsys, copy_of, monkeypatch) -> None:
    monkeypatch.setattr("deploy.replay.verify.ENGINE_VERSION", "0")
    code, shown = await ask(capsys, "replay", "--verify", "--store", copy_of(log), "--json")
    found = json.loads(shown)
    assert (code, found["reproduced"], found["different"]) == (1, 0, 0)  # nothing was compared, so nothing is proven
    assert found["unexplained"] == found["decisions"] >= 400
    assert all("this is engine 0" in note for note in found["notes"])


# Time travel


class Live:
    """What somebody who follows STATE and LEDGER sees of them, noted with every record.

    Attributes:
        moments: How far both streams were read, and the newest record of every object.
        heard: All records, as they came.
    """

    def __init__(self, bus: Bus) -> None:
        kinds = ("pool", "node", "gpu", "waiting")
        self.state = Follower(bus, STATE, [f"gpubus.state.{kind}.>" for kind in kinds], self._keep)
        self.ledger = Follower(bus, LEDGER, ["gpubus.ledger.node.>"], self._keep)
        self.moments: list[tuple[int, int, list[Record]]] = []
        self.heard: list[Record] = []
        self._newest: dict[str, Record] = {}

    def _keep(self, record: Record) -> None:
        self.heard.append(record)
        take(self._newest, record)
        self.moments.append((self.state.seq, self.ledger.seq, list(self._newest.values())))

    def at(self, time_ns: int) -> tuple[int, int, list[Record]]:
        """Return what had been stored at a time, of what was heard."""
        newest: dict[str, Record] = {}
        reached = {True: 0, False: 0}
        for record in self.heard:
            if record.time_ns <= time_ns:
                take(newest, record)
                reached[of_ledger(record)] = record.seq
        return reached[False], reached[True], list(newest.values())


def take(newest: dict[str, Record], record: Record) -> None:
    newest.pop(record.subject, None)
    if not record.deleted:
        newest[record.subject] = record


def of_ledger(record: Record) -> bool:
    return record.subject.startswith("gpubus.ledger.")


def told(state: int, ledger: int, newest: list[Record]) -> dict:
    world = World()
    world.state_seq, world.ledger_seq = state, ledger
    for record in newest:
        (world.put_ledger if of_ledger(record) else world.put_state)(record)
    return report(world)


async def churn(bus: Bus, server: LocalServer) -> Live:
    """Follow a run in which pods come, wait and go while two allocators decide."""
    live, stop = Live(bus), asyncio.Event()
    processes = [RoleProcess("allocator", [server.url]) for _ in range(2)]
    simulator = Simulator(bus, generate(12, 240, seed=5), pool=Pool(name="p"), rate=240, seed=5)
    await live.state.start()
    await live.ledger.start()
    try:
        await asyncio.gather(*(process.start() for process in processes))
        playing = asyncio.create_task(simulator.run(stop))
        await simulator.finished.wait()
        stop.set()
        await playing
    finally:
        await asyncio.gather(*(process.stop() for process in processes))
        await live.state.stop()
        await live.ledger.stop()
    return live


@pytest.mark.slow
async def test_the_past_is_as_it_was_when_it_was_present(bus: Bus, server: LocalServer, capsys) -> None:
    live, random = await churn(bus, server), Random(5)
    moments = random.sample(live.moments, 100)
    assert len({(state, ledger) for state, ledger, _ in moments}) == 100
    reports = [told(*moment) for moment in moments]
    assert any(found["waiting"] for found in reports)
    assert len({sum(len(node["pods"]) for node in found["nodes"]) for found in reports}) > 20
    for (state, ledger, _), found in zip(moments, reports, strict=True):
        assert report(await World.load(bus, Cut(state=state, ledger=ledger))) == found
    for at in random.sample(await settled(bus, live), 5):
        code, shown = await ask(capsys, "state", "--at", at.isoformat(), "--nats", server.url, "--json")
        there_was = json.dumps(told(*live.at(nanoseconds_since_epoch(at))))
        assert (code, json.loads(shown)) == (0, json.loads(there_was))


async def settled(bus: Bus, live: Live) -> list[datetime]:
    """Return times within a run, in full microseconds, at which all that STATE had said had been copied to HISTORY."""
    copied: dict[int, int] = {}
    async for batch in history.batches(bus, HISTORY, [">"], original=True):
        copied |= {record.seq: record.time_ns for record in batch}
    said = sorted(live.heard, key=lambda record: record.time_ns)
    times, quiet_from = [], 0
    for record, following in pairwise(said):
        quiet_from = max(quiet_from, record.time_ns, 0 if of_ledger(record) else copied[record.seq])
        if (time_us := quiet_from // 1000 + 1) * 1000 < following.time_ns:
            times.append(datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(microsecond=time_us % 1_000_000))
    return times


async def test_a_difference_leads_from_one_moment_to_the_other(log: Path, capsys) -> None:
    async def pods(*moment: str) -> dict[str, str]:
        _, shown = await ask(capsys, "state", "--store", log, "--json", *moment)
        return {pod["pod_uid"]: node["name"] for node in json.loads(shown)["nodes"] for pod in node["pods"]}

    before, after = await pods("--seq", "20"), await pods()
    code, shown = await ask(capsys, "diff", "20", "--store", log, "--json")
    found = json.loads(shown)
    assert code == 0
    assert found["from"]["ledger"] == 20
    for pod in found["gone"]:
        del before[pod["pod_uid"]]
    before |= {pod["pod_uid"]: pod["node"] for pod in (*found["placed"], *found["moved"])}
    assert before == after
    _, text = await ask(capsys, "diff", "20", "--store", log)
    assert "placed" in text


POD = """
kind: Pod
metadata: {name: trainer, namespace: ml}
spec:
  schedulerName: hami-scheduler
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpucores: 100, cpu: 1}}}
"""


async def test_a_pod_is_tried_without_being_placed(log: Path, tmp_path, capsys) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(POD)

    async def tried(*arguments: str) -> tuple[int, list[str]]:
        code, shown = await ask(capsys, "simulate", "-f", manifest, "--store", log, "--json", *arguments)
        return code, [placed["node"] for placed in json.loads(shown)["outcome"]["placed"]]

    code, nodes = await tried("--seq", "1", "--replicas", "1000")
    assert (code, len(set(nodes)) > 1) == (1, True)
    assert await tried("--seq", "1") == (0, nodes[:1])
    _, without = await tried("--seq", "1", "--replicas", "1000", "--without-node", nodes[0])
    assert sorted(without) == sorted(node for node in nodes if node != nodes[0])
    code, shown = await ask(capsys, "simulate", "-f", manifest, "--store", log, "--replicas", "1000")
    assert "replicas fit: 1 GPU" in shown
    assert "what helps" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("state", "--at", "yesterday"), "such as 2026-11-29T14:03Z"),
        (("state", "--at", "1h", "--seq", "3"), "keep one of them"),
        (("state", "--seq", "99999999"), "holds no such record"),
        (("simulate", "-f", "/nowhere"), "cannot be read"),
    ],
)
async def test_a_moment_that_never_was_is_refused(log: Path, capsys, arguments, says) -> None:
    code = await asyncio.to_thread(main, [*arguments, "--store", str(log)])
    assert (code, says in capsys.readouterr().err) == (2, True)


# Other rules


async def test_the_same_pods_are_played_under_other_rules(log: Path, tmp_path, capsys) -> None:
    picture = tmp_path / "course.svg"
    code, shown = await ask(
        capsys,
        "replay",
        "--policy",
        "all",
        "--set",
        "tflopsOversellRatio=1000",
        "--picture",
        picture,
        "--store",
        log,
        "--json",
    )
    truth, *others = json.loads(shown)
    assert (code, truth["rules"], len(others)) == (0, "as it was", 5)
    assert truth["placed"] + truth["unplaced"] == 400 == others[0]["pods"]
    assert all(other["end_tflops_percent"] < truth["end_tflops_percent"] for other in others)
    # The log takes seconds: the fifteen rules that hold where no others do look at longer times, or at what ran.
    assert [len(result["alerts_unknown"]) for result in (truth, *others)] == [15] * 6
    assert {one["rule"]: one["why"] for one in truth["alerts_unknown"]}["GPUVRAMFull"].startswith("tf_gpu_usage")
    assert "PackingValue with tflopsOversellRatio=1000" in picture.read_text()
    _, text = await ask(capsys, "replay", "--policy", "CompactFirst", "--store", log)
    assert "CompactFirst" in text
    assert "not known whether GPUVRAMFull" in text.replace("\n", " ")
    for wrong in (
        ["--policy", "Best"],
        ["--set", "ratio=3"],
        ["--set", "vramExpandToHostMem=101"],
        ["--verify", "--policy", "all"],
    ):
        assert (await ask(capsys, "replay", *wrong, "--store", log))[0] == 2


# Why not there


async def test_any_node_can_be_asked_about_at_the_moment_of_a_decision(log: Path, capsys) -> None:
    async with LocalBus(log) as local, await Bus.connect(local.urls, name="test") as bus:
        records: list[Record] = []
        await history.read(bus, DECISION, [">"], records.append)
    decisions = [codec.decode_as(Decision, record.payload).data for record in records]
    placed = next(d for d in reversed(decisions) if d.outcome == "allocated" and len(d.candidates) > 1 and d.gpus)
    for candidate in placed.candidates:
        code, shown = await ask(
            capsys, "why", f"default/{placed.name}", "--node", candidate.node, "--store", log, "--json"
        )
        alone = json.loads(shown)["alone"]
        assert (code, alone["outcome"], alone["candidates"][0]["score"]) == (0, "allocated", candidate.score)
        assert alone["candidates"][0]["parts"] == candidate.parts
    placed_names = {d.name for d in decisions if d.outcome == "allocated"}
    refused = next(d for d in decisions if d.outcome == "unschedulable" and d.name not in placed_names)
    report = refused.filters[-1]
    code, shown = await ask(
        capsys, "why", f"default/{refused.name}", "--node", report.examples[0], "--store", log, "--json"
    )
    assert (code, json.loads(shown)["alone"]["outcome"]) == (0, "unschedulable")
    _, text = await ask(capsys, "why", f"default/{refused.name}", "--node", report.examples[0], "--store", log)
    assert "it was refused" in text
    assert (await ask(capsys, "why", f"default/{refused.name}", "--node", "nowhere", "--store", log))[0] == 1


# Incident files


def verified(store: Path) -> dict:
    done = subprocess.run(
        [*GPUBUS, "replay", "--verify", "--store", store, "--json"], capture_output=True, text=True, check=False
    )
    return json.loads(done.stdout)


async def test_an_exported_log_replays_where_it_is_imported_and_a_redacted_one_names_nothing(
    log: Path, tmp_path, capsys
) -> None:
    whole = verified(log)
    for redact in ((), ("--redact",)):
        file, store = tmp_path / f"log{len(redact)}.gz", tmp_path / f"store{len(redact)}"
        assert (await ask(capsys, "export", file, "--store", log, *redact))[0] == 0
        assert (await ask(capsys, "import", file, "--store", store))[0] == 0
        found = verified(store)
        assert found["reproduced"] == found["decisions"] == whole["decisions"]
        assert not any(found[field] for field in ("different", "violations", "unexplained", "undecodable", "notes"))
        assert not any(found[field] for field in ("unannounced", "envelopes", "astray"))
    text = gzip.decompress(file.read_bytes()).decode()
    async with LocalBus(log) as local, await Bus.connect(local.urls, name="test") as bus:
        records, _ = await history.newest(bus, DECISION, [">"])
        nodes, _ = await history.newest(bus, STATE, ["gpubus.state.node.*"])
    decisions = [codec.decode_as(Decision, record.payload).data for record in records]
    names = {decision.name for decision in decisions} | {decision.pod_uid for decision in decisions}
    names |= {decision.allocator for decision in decisions} | {record.subject.split(".")[-1] for record in nodes}
    names |= {gpu.uuid for decision in decisions for gpu in decision.gpus}
    assert not [name for name in names if name in text]
    code, _ = await ask(capsys, "import", file, "--store", log)
    assert code == 2


async def test_a_slice_holds_what_led_to_its_decisions(log: Path, tmp_path, capsys) -> None:
    async with LocalBus(log) as local, await Bus.connect(local.urls, name="test") as bus:
        records: list[Record] = []
        await history.read(bus, DECISION, [">"], records.append)
    middle = records[len(records) // 2].time_ns
    since = datetime.fromtimestamp(middle / 1e9, UTC).isoformat()
    file, store = tmp_path / "slice.gz", tmp_path / "store"
    assert (await ask(capsys, "export", file, "--from", since, "--store", log))[0] == 0
    assert (await ask(capsys, "import", file, "--store", store))[0] == 0
    found = verified(store)
    assert (found["different"], found["violations"], found["unfounded"], found["astray"]) == (0, [], 0, [])
    assert found["reproduced"] >= sum(record.time_ns > middle for record in records)


async def test_a_damaged_file_is_refused(log: Path, tmp_path, capsys) -> None:
    file = tmp_path / "log.gz"
    await ask(capsys, "export", file, "--store", log)
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    for number, damaged in enumerate((b"no gzip", gzip.compress(b"".join(lines[:-1])), gzip.compress(b"{}\n"))):
        bad = tmp_path / f"bad{number}"
        bad.write_bytes(damaged)
        assert (await ask(capsys, "import", bad, "--store", tmp_path / f"store{number}"))[0] == 2


def exported(lines: list[dict], file: Path) -> Path:
    header = {**lines[0], "records": len(lines) - 1}
    file.write_bytes(gzip.compress(b"".join(msgspec.json.encode(line) + b"\n" for line in (header, *lines[1:]))))
    return file


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"subject": "gpubus.ledger.node.a\r\nPUB x 0\r\n\r\n"}, "$.subject"),
        ({"subject": "gpubus.ledger.node.>"}, "$.subject"),
        ({"subject": "gpubus.decision.a.b"}, "does not belong to stream LEDGER"),
        ({"seq": 0}, "$.seq"),
        ({"seq": 1 << 50}, "not as `gpubus export` wrote it"),
        ({"time_ns": -5}, "$.time_ns"),
        ({"time_ns": 1 << 80}, "$.time_ns"),
        ({"stream": "WORK"}, "none of"),
    ],
)
async def test_a_file_that_nobody_exported_so_is_refused(log: Path, tmp_path, capsys, change, says) -> None:
    file = tmp_path / "log.gz"
    await ask(capsys, "export", file, "--store", log)
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    place = [number for number, line in enumerate(lines) if line.get("stream") == "LEDGER"][5]
    lines[place] |= change
    code = await asyncio.to_thread(main, ["import", str(exported(lines, file)), "--store", str(tmp_path / "store")])
    shown = capsys.readouterr().err
    assert (code, says in shown) == (2, True), shown
    assert not (tmp_path / "store").exists()


async def test_a_turn_that_is_missing_in_the_middle_of_a_journal_is_no_proof(log: Path, tmp_path, capsys) -> None:
    file = tmp_path / "log.gz"
    await ask(capsys, "export", file, "--store", log)
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    turns = [number for number, line in enumerate(lines) if line.get("stream") == "JOURNAL"]
    first = lines[turns[0]]["subject"]
    (_, missing, *_) = [number for number in turns if lines[number]["subject"] == first]
    del lines[missing]
    await ask(capsys, "import", exported(lines, file), "--store", tmp_path / "store")
    code, shown = await ask(capsys, "replay", "--verify", "--store", tmp_path / "store", "--json")
    found = json.loads(shown)
    assert (code, found["gaps"], found["different"]) == (1, 1, 0)
    assert found["unexplained"] > 0


async def test_a_moment_before_the_log_begins_is_not_told_as_an_empty_cluster(log: Path, capsys) -> None:
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["state", "--at", "9999d", "--store", str(log)]) == 0
    assert "is not on record" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["state", "--at", "0s", "--store", str(log)]) == 0
    assert "is not on record" not in capsys.readouterr().err


# Golden logs: recorded by earlier versions, read for ever

GOLDEN = Path(__file__).parent.parent / "golden"
OURS = {
    f"engine-{ENGINE_VERSION}.log.gz": "NodeCompactGPULowLoad",
    f"engine-{ENGINE_VERSION}-gradient.log.gz": "FragmentationGradient",
    f"engine-{ENGINE_VERSION}-packing.log.gz": "PackingValue",
}
"""The golden logs of this engine, with the placement mode that they were recorded with."""


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.log.gz")), ids=lambda file: file.name)
async def test_a_golden_log_replays_or_says_that_other_rules_made_it(file: Path, tmp_path, capsys) -> None:
    assert (await ask(capsys, "import", file, "--store", tmp_path / "store"))[0] == 0
    found = verified(tmp_path / "store")
    assert not any(found[field] for field in ("different", "violations", "undecodable", "unannounced", "envelopes"))
    if file.name in OURS:
        assert found["reproduced"] == found["decisions"] > 0
    else:
        assert found["notes"]


@pytest.mark.parametrize(("name", "placement"), OURS.items())
def test_there_are_golden_logs_of_this_engine(name: str, placement: str) -> None:
    wanted = GOLDEN / name
    assert wanted.exists(), (
        f"record {name}: gpubus demo --nodes 8 --pods 60 --rate 60 --placement {placement} --keep D; "
        f"gpubus export {wanted.relative_to(GOLDEN.parent.parent)} --redact --store D"
    )


# Tamper evidence


async def test_the_chains_hold_and_break_where_something_was_changed(log: Path, capsys, copy_of) -> None:
    code, shown = await ask(capsys, "audit", "verify", "--store", log, "--json")
    whole = json.loads(shown)
    assert (code, whole["broken"]) == (0, 0)
    assert whole["checked"] > 100
    assert whole["announced"] > 100
    assert (await ask(capsys, "audit", "verify", "--store", log, "--head", whole["head"]))[0] == 0
    assert (await ask(capsys, "audit", "verify", "--store", log, "--head", "0" * 32))[0] == 1
    store = copy_of(log)
    records: list[Record] = []
    async with LocalBus(store) as local, await Bus.connect(local.urls, name="test") as bus:
        await history.read(bus, LEDGER, [">"], records.append)
    target, successor = next(
        (one, other) for one in records for other in records if other.seq > one.seq and other.subject == one.subject
    )

    def edit(record: Record) -> bytes:
        spaced = record.payload.replace(b'"outcome":"', b'"outcome": "', 1)  # not even another meaning
        return spaced if record.seq == target.seq else record.payload

    await rewrite(store, LEDGER, edit)
    code, shown = await ask(capsys, "audit", "verify", "--store", store, "--json")
    breaks = [(entry["stream"], entry["sequence"]) for entry in json.loads(shown)["breaks"]]
    assert code == 1
    assert ("LEDGER", successor.seq) == breaks[0]
    assert len([place for place in breaks if place[0] == "LEDGER"]) == 1
    assert (await ask(capsys, "audit", "verify", "--store", store))[1].count("LEDGER") == 1
