"""What it costs to look back: events folded a second, decisions thought again a second, and the memory that takes.

Method: an allocator's mind, without a shell around it, decides about pods that come and end on a generated cluster, and what it
writes down, commits and announces goes to an embedded bus as its shell would put it there, until the log has as many events as
asked for. The fold is that of ``gpubus state --at`` over the whole log. Each is measured in a process of its own, by its
processor time, as other processes share the machine; resident is the most it ever had.
"""

import asyncio
import gc
import json
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, cycle

import msgspec
import uvloop

from bus import codec, subjects
from bus.chain import link
from bus.connection import Bus
from bus.follower import Record
from bus.history import Cut
from bus.streams import DECISION, HISTORY, JOURNAL, LEDGER, STATE, StreamLimits, ensure_streams, stream_info
from consumers.allocator.core import Core
from deploy.cli.fold import World
from deploy.replay.jobs import verify
from producers.simulator.build import build_inventory, build_node, build_pod
from producers.simulator.generator import generate
from schemas.cluster import Pool
from schemas.pod import Release, Schedule
from schemas.registry import TYPE_NAMES
from tests.benchmarks.end_to_end import CHUNK, message, publish, running_bus

NODES, RUNNING, STEP, HEARTBEATS = 1213, 6000, 64, 16
POOL = Pool(name="p")

Outgoing = tuple[str, bytes, str]


class Author:
    """Writes a log: one allocator alone, whose every commit wins."""

    def __init__(self, nodes: int, seed: int) -> None:
        self.core = Core("author", lambda: 0)
        self.out: list[Outgoing] = []
        self.events = self._state = self._ledger = 0
        self._turn = ""
        trace = generate(nodes, 20_000, seed=seed)
        self._now = datetime.now(UTC)
        self._inventories = [(node.name, build_inventory(node, observed_at=self._now)) for node in trace.nodes]
        self._requests = cycle([build_pod(pod, pool=POOL.name).request for pod in trace.pods])
        self._beats = cycle(self._inventories)
        self._running: deque[Release] = deque()
        self._numbers = count(1)
        self._say("pool", POOL.name, POOL)
        for node, (_, inventory) in zip(trace.nodes, self._inventories, strict=True):
            self._say("node", node.name, build_node(node, pool=POOL.name))
            self._say("gpu", node.name, inventory)

    def _put(self, subject: str, name: str, data: msgspec.Struct) -> bytes:
        subject, payload, _ = message(subject, name, data, self._now)
        self.events += 1
        self.out.append((subject, payload, f"e{self.events}"))
        return payload

    def _say(self, kind: str, name: str, data: msgspec.Struct) -> None:
        self._state += 1
        payload = self._put(subjects.state(kind, name), name, data)
        self.core.on_state(Record(subjects.state(kind, name), self._state, payload))

    def step(self) -> None:
        """Some agents speak, some pods come, some end."""
        for name, inventory in (next(self._beats) for _ in range(HEARTBEATS)):
            self._say("gpu", name, inventory)
        while len(self._running) > RUNNING:
            self.core.release(self._running.popleft(), None)
        for number in (next(self._numbers) for _ in range(STEP)):
            name = f"pod-{number:07}"
            request = next(self._requests)
            self.core.schedule(Schedule(namespace="bench", name=name, uid=f"{number:036}", request=request), None)
            self._running.append(
                Release(namespace="bench", name=name, uid=f"{number:036}", pool=POOL.name, reason="PodEnded")
            )
        self.core.flush()
        for turn in self.core.journal.take():
            payload = self._put(
                subjects.journal("author"), "author", msgspec.structs.replace(turn, previous=self._turn)
            )
            self._turn = link(payload)
        effects = self.core.take_effects()
        for commit in effects.commits:
            (one,) = commit.commits
            self._ledger += 1
            subject = subjects.ledger_node(one.node)
            one.payload = self._put(subject, one.node, one.record())
            self.core.on_ledger(one.node, Record(subject, self._ledger, one.payload))
        effects.announcements += self.core.take_effects().announcements
        for command, _ in effects.unknown:  # a pod that never found a place
            self.core.release_nothing(command, None)
        for said in effects.announcements + self.core.take_effects().announcements:
            subject = subjects.decision(said.decision.namespace, said.decision.name)
            self.events += 1
            event = {
                "id": said.id, "source": "/bench", "type": TYPE_NAMES[type(said.decision)], "subject": said.decision.name,
                "time": self._now, "data": said.encoded, "specversion": "1.0", "datacontenttype": "application/json",
            }  # fmt: skip
            self.out.append((subject, codec.encode(event), f"e{self.events}"))


async def write(bus: Bus, events: int) -> int:
    """Fill the streams; return how many events they got."""
    author = Author(NODES, seed=1)
    while author.events < events:
        author.step()
        if len(author.out) >= CHUNK:
            out, author.out = author.out, []
            await publish(bus, out)
    await publish(bus, author.out)
    behind = (await stream_info(bus, STATE)).state.last_seq
    while (await stream_info(bus, HISTORY)).state.messages < behind:  # noqa: ASYNC110  the server copies beside us
        await asyncio.sleep(0.1)
    return author.events


async def look(url: str, what: str) -> None:
    """Do one thing and print what it took: the other process of the benchmark."""
    async with await Bus.connect(url, name="bench") as bus:
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
        before, began = time.process_time(), time.perf_counter()
        if what == "verify":
            verdict = await verify(bus)
            sound = not (verdict.different or verdict.unexplained or verdict.violations or verdict.undecodable)
            done, sound = verdict.decisions, sound and verdict.reproduced == verdict.decisions
        else:
            world = await World.load(bus, Cut(time_ns=time.time_ns()))
            done = (await stream_info(bus, LEDGER)).state.messages + (await stream_info(bus, HISTORY)).state.messages
            sound = len(world.held) > 0 and not world.unreadable
        took = {"cpu_s": time.process_time() - before, "wall_s": time.perf_counter() - began}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"done": done, "sound": sound, "peak_mib": peak, **took}))


async def _ask(url: str, what: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.bench_replay", url, what]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    found = json.loads(out)
    if not found["sound"]:
        raise SystemExit(f"the benchmark run is invalid: {found}")
    return found


def _lines(found: dict[str, dict[str, float]]) -> Iterator[str]:
    for what, unit, limit in (("fold", "events", 50_000), ("verify", "decisions", 5_000)):
        one = found[what]
        yield (
            f"  {what:7} {one['done']:9,.0f} {unit:9} {one['done'] / one['cpu_s']:8,.0f}/s of processor  "
            f"{one['done'] / one['wall_s']:8,.0f}/s by the clock   limit {limit:,}/s   resident {one['peak_mib']:.0f} MiB"
        )


async def report(events: int) -> None:
    """Print the limits beside what was measured."""
    async with running_bus() as (server, bus):
        await ensure_streams(bus, StreamLimits(ledger_revisions=-1))
        written = await write(bus, events)
        parts = [
            f"{(await stream_info(bus, name)).state.last_seq:,} {name}" for name in (STATE, LEDGER, JOURNAL, DECISION)
        ]
        print(f"\nlooking back on {written:,} events: {', '.join(parts)}; limit for a million: 1,000 MiB resident")
        found = {what: await _ask(server.url, what) for what in ("fold", "verify")}
        print("\n".join(_lines(found)))


if __name__ == "__main__":
    uvloop.run(look(*sys.argv[1:3]))
