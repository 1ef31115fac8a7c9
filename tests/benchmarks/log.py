"""What the log promises, kept over a large and disturbed run: ``python -m tests.benchmarks --only log [--trace DIR]``.

Two allocators in processes of their own place all pods of a trace; one is killed with SIGKILL and comes back, and the NATS server
is killed and comes back. Meanwhile a follower notes how things stand. Afterwards other processes make every decision again, go
back to a hundred of the noted moments, look for a forged record, and take the log elsewhere, with and without its names.
Last, the log under every placement mode is laid beside an allocator of that mode that gets the same pods in the same order, and
beside a run of its own under that mode, at its own pace.
"""

import asyncio
import gzip
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, get_args

import msgspec

from bus import codec, history, subjects
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.history import Cut
from bus.streams import DECISION, JOURNAL, LEDGER, STATE, StreamLimits, ensure_streams
from consumers.allocator.core import Core
from consumers.allocator.shadow.rules import Rules
from deploy.cli.fold import World
from deploy.cli.report import report as state_report
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalBus, LocalServer
from producers.simulator.service import Simulator
from producers.simulator.trace import Trace
from schemas.cluster import PlacementMode, Pool
from schemas.decision import Decision
from schemas.event import Event
from schemas.journal import Free, Place, Turn
from schemas.pod import Release, Schedule

RATE: Final = 400.0
MOMENTS: Final = 100
KINDS: Final = ("pool", "node", "gpu", "waiting")
MODES: Final[tuple[PlacementMode, ...]] = get_args(PlacementMode)
WORDS: Final = re.compile(r"[^\s\"\\,;:()'/\[\]{}]+")
"""What stands by itself in a file of JSON."""

NOW: Final = datetime(2026, 11, 30, tzinfo=UTC)
CLEAN: Final = ("different", "violations", "unexplained", "undecodable", "notes")


class Live:
    """What somebody who follows STATE and LEDGER sees of them."""

    def __init__(self, bus: Bus) -> None:
        self.state = Follower(bus, STATE, [f"gpubus.state.{kind}.>" for kind in KINDS], self._keep)
        self.ledger = Follower(bus, LEDGER, ["gpubus.ledger.node.>"], self._keep)
        self._newest: dict[str, Record] = {}

    def _keep(self, record: Record) -> None:
        self._newest.pop(record.subject, None)
        if not record.deleted:
            self._newest[record.subject] = record

    def note(self) -> "Moment":
        """Return how things stand: cheap, as the run goes on meanwhile."""
        return Moment(self.state.seq, self.ledger.seq, list(self._newest.values()))


class Moment(NamedTuple):
    """How things stood: how far both streams were read, and the newest records."""

    state: int
    ledger: int
    newest: list[Record]

    def report(self) -> dict[str, Any]:
        """Return it as ``gpubus state --json`` does."""
        world = World()
        world.state_seq, world.ledger_seq = self.state, self.ledger
        for record in self.newest:
            (world.put_ledger if record.subject.startswith("gpubus.ledger.") else world.put_state)(record)
        return state_report(world)


async def gpubus(*arguments: str | Path) -> tuple[int, str]:
    """Run a command in a process of its own; return its exit code and what it printed."""
    command = [sys.executable, "-m", "deploy.cli.main", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def play(store: Path, trace: Trace, pool: Pool, *, rate: float = RATE, disturb: bool = False) -> list[Moment]:
    """Play a trace on an empty store; return how things stood at many moments if it is to be disturbed."""
    server = LocalServer(store)
    await server.start()
    noted: list[Moment] = []
    workers = [RoleProcess("allocator", [server.url]) for _ in range(2 if disturb else 1)]
    try:
        async with await Bus.connect(server.url, name="log") as bus:
            await ensure_streams(bus, StreamLimits(ledger_revisions=-1))
            await asyncio.gather(*(worker.start() for worker in workers))
            simulator, stop, live = Simulator(bus, trace, pool=pool, rate=rate, seed=1), asyncio.Event(), Live(bus)
            await asyncio.gather(live.state.start(), live.ledger.start())
            playing = asyncio.create_task(simulator.run(stop))
            troubles = [(len(trace.pods) // 3, _kill(workers[0])), (len(trace.pods) * 2 // 3, _restart(server))]
            pause, random = max(len(trace.pods) / max(rate, 1) / (3 * MOMENTS), 0.05), Random(1)
            while not simulator.finished.is_set():
                await asyncio.sleep(random.uniform(0, 2 * pause))
                if not disturb:
                    continue
                noted.append(live.note())
                while troubles and simulator.progress().offered >= troubles[0][0]:
                    await troubles.pop(0)[1]
            for _, trouble in troubles:
                trouble.close()
            stop.set()
            await playing
            await asyncio.gather(live.state.stop(), live.ledger.stop())
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))
        await server.stop()
    return noted


async def _kill(worker: RoleProcess) -> None:
    await worker.kill()
    await worker.start()


async def _restart(server: LocalServer) -> None:
    server.kill()
    await server.start()


async def forge(store: Path, copy: Path, change: Callable[[bytes], bytes]) -> int:
    """Copy a store with one DECISION or LEDGER record changed, as somebody would who has the files in hand."""
    file = copy.with_suffix(".gz")
    await gpubus("export", file, "--store", store)
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    where = next(i for i in range(len(lines) // 2, len(lines)) if change(lines[i]) != lines[i])
    lines[where] = change(lines[where])
    file.write_bytes(gzip.compress(b"".join(lines), 1))
    code, said = await gpubus("import", file, "--store", copy)
    if code:
        raise SystemExit(f"the forged log cannot be imported: {said}")
    return int(json.loads(lines[where])["seq"])


def check(holds: bool, what: str) -> None:
    """Print a line of the acceptance, and end with the first that does not hold."""
    print(f"  {'holds' if holds else 'FAILS'}  {what}", flush=True)
    if not holds:
        raise SystemExit(1)


async def verified(store: Path) -> tuple[int, dict[str, Any]]:
    """Return exit code and findings of ``gpubus replay --verify``."""
    code, shown = await gpubus("replay", "--verify", "--json", "--store", store)
    return code, json.loads(shown)


async def names(store: Path) -> set[str]:
    """Return all names that a log has, and all values of labels and annotations."""
    async with LocalBus(store) as local, await Bus.connect(local.urls, name="log") as bus:
        records, _ = await history.newest(bus, DECISION, [">"])
        said, _ = await history.newest(bus, STATE, [">"])
    found = {name for record in said for name in subjects.names(record.subject)[2:]}
    found |= {value for record in said for value in _values(msgspec.json.decode(record.payload))}
    for record in records:
        decision = codec.decode_as(Decision, record.payload).data
        found |= {
            decision.name,
            decision.namespace,
            decision.pool,
            decision.pod_uid,
            decision.allocator,
            *(gpu.uuid for gpu in decision.gpus),
        }
    return found


def _values(tree: Any, *, within: bool = False) -> Iterator[str]:
    """Yield the values of all labels and annotations in a record."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _values(value, within=within or key in ("labels", "annotations"))
    elif isinstance(tree, list):
        for value in tree:
            yield from _values(value, within=within)
    elif within and isinstance(tree, str):
        yield tree


async def travel(store: Path, noted: list[Moment]) -> int:
    """Return how many of a hundred noted moments are told otherwise now."""
    wrong = 0
    async with LocalBus(store) as local, await Bus.connect(local.urls, name="log") as bus:
        for moment in Random(2).sample(noted, min(MOMENTS, len(noted))):
            cut = Cut(state=moment.state, ledger=moment.ledger)
            wrong += state_report(await World.load(bus, cut)) != moment.report()
    return wrong


async def report(trace: Trace, modes: Iterable[PlacementMode] = MODES) -> None:
    """Print what holds and what does not."""
    with tempfile.TemporaryDirectory(prefix="gpubus-log-") as directory:
        place = Path(directory)
        store = place / "store"
        print(f"\nthe log of {len(trace.pods):,} pods, two allocators, one killed, NATS killed")
        noted = await play(store, trace, Pool(name="demo"), disturb=True)
        began = time.perf_counter()
        code, found = await verified(store)
        took = time.perf_counter() - began
        sound = code == 0 and found["reproduced"] == found["decisions"] and not any(found[name] for name in CLEAN)
        check(
            sound and found["decisions"] >= len(trace.pods),
            f"{found['reproduced']:,} of {found['decisions']:,} decisions"
            f" reproduced in another process, {found['attempts']} overtaken placements too, in {took:.1f} s with its start",
        )
        code, shown = await gpubus("audit", "verify", "--json", "--store", store)
        check(code == 0, f"all chains hold: {json.loads(shown)['checked']:,} records")
        wrong = await travel(store, noted)
        check(not wrong and len(noted) >= MOMENTS, f"state at {MOMENTS} of {len(noted)} noted moments is as it was")

        file = away = place
        for redact in ((), ("--redact",)):
            file, away = place / f"log{len(redact)}.gz", place / f"away{len(redact)}"
            await gpubus("export", file, "--store", store, *redact)
            await gpubus("import", file, "--store", away)
            code, again = await verified(away)
            same = code == 0 and again["reproduced"] == found["decisions"]
            check(same, f"the log verifies elsewhere{' without its names' if redact else ''}")
        words = set(WORDS.findall(gzip.decompress(file.read_bytes()).decode()))
        left = [name for name in await names(store) if name in words]
        check(not left, f"nothing of its names is left ({left[:3]})")

        seq = await forge(
            store,
            place / "forged",
            lambda line: line.replace(b'"score":', b'"score":1', 1) if b'"stream":"DECISION"' in line else line,
        )
        code, shown = await gpubus("replay", "--verify", "--store", place / "forged")
        check(code == 1 and f"DECISION {seq}" in shown, f"a forged decision is named by replay: DECISION {seq}")
        code, shown = await gpubus("audit", "verify", "--store", place / "forged")
        check(code == 1 and f"DECISION {seq}" in shown, "and by the audit")
        await policies(place, store, trace, tuple(modes))


async def policies(place: Path, store: Path, trace: Trace, modes: tuple[PlacementMode, ...]) -> None:
    """Lay the log under each mode beside a run of its own."""
    arguments = [part for mode in modes for part in ("--policy", mode)]
    _, shown = await gpubus("replay", *arguments, "--json", "--store", store)
    played = {result["rules"]: result for result in json.loads(shown)}
    for mode in modes:
        placed, peak, end = await directly(store, mode)
        told = played[mode]
        off = max(abs(told["peak_tflops_percent"] - peak), abs(told["end_tflops_percent"] - end))
        check(
            placed + told["waited"] == told["placed"] and off < (1 if told["waited"] else 1e-9),
            f"{mode}: {told['placed']:,} placed, {told['waited']} of them after waiting, and at most "
            f"{told['peak_tflops_percent']:.2f} % given by the log; {placed:,} and {peak:.2f} % by an allocator that gets "
            "the same pods in the same order",
        )
    for mode in modes:
        direct = place / mode
        await play(direct, trace, Pool(name="demo", placement=mode))
        _, shown = await gpubus("replay", "--set", "tflopsOversellRatio=100", "--json", "--store", direct)
        truth, other = json.loads(shown)[0], played[mode]
        print(  # how many pods run at once depends on how fast the machine is at that moment
            f"  {mode}: {other['placed']:,} placed and at most {other['peak_tflops_percent']:.2f} % given by the log, "
            f"{truth['placed']:,} and {truth['peak_tflops_percent']:.2f} % in a run of its own, at its own pace"
        )


async def directly(store: Path, mode: PlacementMode) -> tuple[int, float, float]:
    """Give an allocator of a mode the commands of a log, one after the other, and commit at once what it decides.

    Pods that fit nowhere are not tried again here.

    Returns:
        Pods placed, and the compute given at most and at the end, in percent of what is schedulable.
    """
    async with LocalBus(store) as local, await Bus.connect(local.urls, name="log") as bus:
        said = await history.past_state(bus, ("pool", "node", "gpu"))
        turns: list[Record] = []
        await history.read(bus, JOURNAL, ["gpubus.journal.*"], turns.append)
    core, rules = Core("direct", lambda: 0), Rules(mode, mode)
    for record in said:
        core.on_state(rules.apply(record))
    whole = core.snapshot.total().schedulable_tflops_milli
    known: set[str] = set()
    held: dict[str, int] = {}
    seq = placed = given = most = 0
    for record in turns:
        for step in codec.decode_as(Turn, record.payload).data.steps:
            if isinstance(step, Place) and step.pod_uid not in known:
                known.add(step.pod_uid)
                pod = Schedule(namespace=step.namespace, name=step.name, uid=step.pod_uid, request=step.request)
                core.schedule(pod, None)
            elif isinstance(step, Free):
                given -= held.pop(step.pod_uid, 0)
                core.release(Release(namespace="", name="", uid=step.pod_uid, pool="", reason="PodEnded"), None)
            core.flush()
            effects = core.take_effects()
            for learnt in effects.learnt:
                core.cluster.expected[learnt.pool] = learnt
            for commit in (commit for flight in effects.commits for commit in flight.commits):
                seq += 1
                commit.payload = codec.encode(
                    Event(
                        id=commit.txn,
                        source="/log",
                        type="gpubus.ledger.node.v1",
                        subject=commit.node,
                        time=NOW,
                        data=commit.record(),
                    )
                )
                core.on_ledger(commit.node, Record("s", seq, commit.payload))
            for said_of in core.take_effects().announcements:
                if said_of.decision.outcome == "allocated":
                    held[said_of.decision.pod_uid] = sum(gpu.tflops_milli for gpu in said_of.decision.gpus)
                    given += held[said_of.decision.pod_uid]
                    placed += 1
        most = max(most, given)
    return placed, 100 * most / whole, 100 * given / whole
