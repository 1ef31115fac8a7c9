"""What the log promises, kept over a large and disturbed run: ``python -m tests.benchmarks --only log [--trace DIR]``.

Two allocators in processes of their own place all pods of a trace; one is killed with SIGKILL and comes back, and the NATS server
is killed and comes back. Meanwhile a follower notes how things stand. Afterwards other processes make every decision again, go
back to a hundred of the noted moments, look for a forged record, and take the log elsewhere, with and without its names.
Last, the end of the log under every placement mode is laid beside a run of its own under that mode.
"""

import asyncio
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, get_args

from bus import codec, history
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.history import Cut
from bus.streams import DECISION, LEDGER, STATE, StreamLimits, ensure_streams
from deploy.cli.fold import World
from deploy.cli.report import report as state_report
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalBus, LocalServer
from producers.simulator.service import Simulator
from producers.simulator.trace import Trace
from schemas.cluster import PlacementMode, Pool
from schemas.decision import Decision

RATE: Final = 400.0
MOMENTS: Final = 100
KINDS: Final = ("pool", "node", "gpu", "waiting")
MODES: Final[tuple[PlacementMode, ...]] = get_args(PlacementMode)
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
    """Return all names that a log has."""
    async with LocalBus(store) as local, await Bus.connect(local.urls, name="log") as bus:
        records, _ = await history.newest(bus, DECISION, [">"])
        nodes, _ = await history.newest(bus, STATE, ["gpubus.state.node.*"])
    found = {record.subject.split(".")[-1] for record in nodes}
    for record in records:
        decision = codec.decode_as(Decision, record.payload).data
        found |= {decision.name, decision.pod_uid, decision.allocator, *(gpu.uuid for gpu in decision.gpus)}
    return found


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
        text = gzip.decompress(file.read_bytes()).decode()
        left = [name for name in await names(store) if name in text]
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
        direct = place / mode
        await play(direct, trace, Pool(name="demo", placement=mode))
        _, shown = await gpubus("replay", "--set", "tflopsOversellRatio=100", "--json", "--store", direct)
        truth, other = json.loads(shown)[0], played[mode]
        near = abs(truth["peak_tflops_percent"] - other["peak_tflops_percent"]) < 2
        check(
            near and truth["placed"] == other["placed"],
            f"{mode}: {other['placed']:,} placed and at most "
            f"{other['peak_tflops_percent']:.2f} % given by the log, {truth['placed']:,} and "
            f"{truth['peak_tflops_percent']:.2f} % in a run of its own",
        )
