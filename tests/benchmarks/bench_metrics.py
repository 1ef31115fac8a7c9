"""How fast usage is recorded, and what alert rules cost.

Method: the recorder row queues 120,000 GPU samples on an embedded bus and times a recorder from its first write to its
last, into DuckDB in this process and into a stand-in for GreptimeDB in another one, which decompresses what it gets and
counts lines; the floor beside it decodes the same messages and drops them. The rules row fills an embedded DuckDB with two
million GPU samples of an hour and evaluates 200 rules once, all that the alerter does between a tick and its state; what
counts is CPU time of the whole process, in parts of the 15 seconds that such a round may take.

The row of 10,000 nodes queues what they say in ten seconds at one message every five (20,000 messages, 160,000 samples), with
all of them and their 80,000 GPUs known to the recorder, and counts the processor time of the server, from the first message
stored, and of the recorder, from its first write to its last: that is to fit into ten seconds of two cores.
"""

import asyncio
import multiprocessing
import random
import resource
import time
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec

from bus import codec, subjects
from bus.connection import Bus
from consumers.alerter.rulebook import built_in
from consumers.alerter.rules import CompiledRule
from consumers.alerter.streaks import evaluated
from consumers.metrics.duckdb import MEMORY, DuckDBStore
from consumers.metrics.settings import store as open_store
from consumers.metrics.store import MetricsStore
from consumers.metrics.tables import GPU_USAGE, NODE_METRICS, WORKER_USAGE
from consumers.recorder.service import Recorder
from schemas.alert import RuleState
from schemas.cluster import GpuDevice, GpuInventory, Node
from schemas.usage import GpuSample, NodeUsage, ProcessUsage
from tests.benchmarks.bench_agent import processor_s
from tests.benchmarks.end_to_end import message, running_bus
from tests.stores.greptime import GreptimeStandIn

NODES, GPUS, TICKS = 250, 8, 60
SAMPLES = NODES * GPUS * TICKS
MANY, MANY_TICKS = 10_000, 2
SPAN_S = 5.0 * MANY_TICKS
ROWS = 2_000_000
RULES = 200
ROUND_S = 15.0


def _serve(pipe: Connection) -> None:
    asyncio.run(_stand_in(pipe))


async def _stand_in(pipe: Connection) -> None:
    async with GreptimeStandIn() as server:
        server.keep = False
        pipe.send(server.url)
        while not pipe.poll():  # noqa: ASYNC110  the other process speaks when it speaks
            await asyncio.sleep(0.1)


def _usage(node: int, tick: int, chance: random.Random) -> NodeUsage:
    at = datetime.fromtimestamp(1_764_500_000 + 5 * tick, UTC)
    gpus = tuple(
        GpuSample(
            uuid=f"GPU-{node:04}-{gpu}",
            sm_percent=round(chance.uniform(0, 100), 1),
            vram_used_bytes=chance.randrange(2**36),
            temperature_c=60,
            power_mw=250_000,
            processes=(ProcessUsage(pod_uid=f"pod-{node}-{gpu}", vram_bytes=2**30, sm_percent=50.0),),
        )
        for gpu in range(GPUS)
    )
    return NodeUsage(node=f"node-{node:04}", at=at, gpus=gpus)


async def _fill(bus: Bus, nodes: int = NODES, ticks: int = TICKS) -> list[bytes]:
    chance, now = random.Random(1), datetime.now(UTC)
    facts = []
    for node in range(nodes):
        name = f"node-{node:04}"
        gpus = [
            GpuDevice(uuid=f"GPU-{node:04}-{i}", index=i, model="m", tflops_milli=312_000, vram_bytes=2**36)
            for i in range(GPUS)
        ]
        facts.append(message(subjects.state("node", name), f"n{node}", Node(name=name, pool="p"), now))
        inventory = GpuInventory(node=name, gpus=gpus, observed_at=now)
        facts.append(message(subjects.state("gpu", name), f"g{node}", inventory, now))
    await bus.publisher.publish_all(facts)
    bodies = []
    for tick in range(ticks):
        batch = [
            message(subjects.usage_gpu(f"node-{node:04}"), f"{node}:{tick}", _usage(node, tick, chance), now)
            for node in range(nodes)
        ]
        await bus.publisher.publish_all(batch)
        bodies += [body for _, body, _ in batch]
    return bodies


async def _record(store: MetricsStore) -> tuple[float, float, float]:
    """Return samples a second, samples a second of CPU time, and what decoding alone could do."""
    async with running_bus() as (_, bus):
        bodies = await _fill(bus)
        began = time.perf_counter()
        for body in bodies:
            codec.decode_as(NodeUsage, body)
        floor = SAMPLES / (time.perf_counter() - began)
        recorder, stop = Recorder(bus, "bench", store), asyncio.Event()
        began, cpu = time.perf_counter(), time.process_time()
        running = asyncio.create_task(recorder.run(stop))
        while recorder.statistics().samples < SAMPLES:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        rate, cost = SAMPLES / (time.perf_counter() - began), SAMPLES / (time.process_time() - cpu)
        stop.set()
        await running
    return rate, cost, floor


class Carried(NamedTuple):
    """What :data:`SPAN_S` seconds of :data:`MANY` nodes cost: seconds, and bytes of memory at most."""

    recorder: float
    server: float
    wall: float
    resident: int


async def _carry() -> Carried:
    store = await DuckDBStore(MEMORY, clock=time.time, memory_bytes=4 << 30).open()
    async with running_bus() as (server, bus):
        before = processor_s(server.pid)
        await _fill(bus, MANY, MANY_TICKS)
        recorder, stop, ready = Recorder(bus, "bench", store), asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(recorder.run(stop, ready=ready))
        await ready.wait()
        began, cpu, first = time.perf_counter(), time.process_time(), recorder.statistics().samples
        while recorder.statistics().samples < MANY * MANY_TICKS * GPUS:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        part = 1 - first / (MANY * MANY_TICKS * GPUS)
        found = Carried(
            (time.process_time() - cpu) / part,
            processor_s(server.pid) - before,
            (time.perf_counter() - began) / part,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )
        stop.set()
        await running
    await store.close()
    return found


async def _rules() -> tuple[float, float]:
    """Return CPU seconds of one round, and wall seconds."""
    store = await DuckDBStore(MEMORY, clock=time.time, memory_bytes=4 << 30).open()
    now = int(time.time() * 1000)
    for table, tags in (
        (GPU_USAGE, GPU_USAGE.tags),
        (WORKER_USAGE, WORKER_USAGE.tags),
        (NODE_METRICS, NODE_METRICS.tags),
    ):
        rows = ROWS if table is GPU_USAGE else ROWS // 20
        named = ", ".join(f"'{tag}-' || (i % 2000) AS {tag}" for tag in tags)
        fields = ", ".join(f"(i * 7919 % 1000) / 10.0 AS {name}" for name, _ in table.fields.items())
        store._file.connection.execute(
            f"INSERT INTO {table.name} SELECT make_timestamp_ms({now} - i * 3600000 // {rows}) AS ts, {named}, {fields} "
            f"FROM range({rows}) AS r(i)"
        ).fetchall()
    base = list(built_in().rules)
    rules = [
        CompiledRule(
            msgspec.structs.replace(
                base[n % len(base)], name=f"{base[n % len(base)].name}{n}", evaluation_interval="15s"
            )
        )
        for n in range(RULES)
    ]
    cpu, wall = time.process_time(), time.perf_counter()
    for rule in rules:
        result = await store.query(rule.sql(), timeout=30)
        evaluated(rule, RuleState(rule=rule.rule.name), result.named()[:1000], slot=10**18)
    spent = time.process_time() - cpu, time.perf_counter() - wall
    await store.close()
    return spent


async def report() -> None:
    """Print the rows."""
    found = await _carry()
    print(
        f"{MANY:,} nodes of {GPUS} GPUs for {SPAN_S:g} s: recorder {found.recorder:.1f} s CPU, server {found.server:.1f} s, "
        f"{(found.recorder + found.server) / (2 * SPAN_S):.0%} of two cores; {found.wall:.1f} s in all, "
        f"{found.resident / 2**20:.0f} MiB resident with the feeder"
    )
    duck = await DuckDBStore(MEMORY, clock=time.time, memory_bytes=4 << 30).open()
    rate, cost, floor = await _record(duck)
    await duck.close()
    print(
        f"recorder into DuckDB           {rate:10,.0f} samples/s, {cost:9,.0f} a CPU second, {cost / floor:.1%} of decoding alone"
    )
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    greptime = await open_store(await asyncio.to_thread(ours.recv)).open()
    rate, cost, floor = await _record(greptime)
    await greptime.close()
    ours.send("stop")
    await asyncio.to_thread(process.join, 10)
    print(
        f"recorder into HTTP stand-in    {rate:10,.0f} samples/s, {cost:9,.0f} a CPU second, {cost / floor:.1%} of decoding alone"
    )
    cpu, wall = await _rules()
    print(
        f"{RULES} rules on {ROWS:,} rows  {cpu:8.2f} s CPU, {wall:.2f} s in all: {cpu / ROUND_S:.1%} of a core at 15 s"
    )
