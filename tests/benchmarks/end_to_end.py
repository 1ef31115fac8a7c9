"""How fast pods get their place, end to end, beside what the bus alone can do in the same run.

Method: an embedded nats-server on R1 file storage, allocators in processes of their own. The throughput rows queue every
pod while the allocators' consumer is paused and then resume it, so that allocators and server are measured and not the
feeder. The rate is that of the last nine tenths of the decisions, by the server's time stamps: resuming a paused consumer
takes the server up to a second, and no decision is stored meanwhile. The latency row offers 500 pods/s to an allocator
that knows the cluster already, and measures from the publish of a pod to the arrival of its decision; meanwhile the agents
of all nodes with pods are played, each every five seconds, spread over them. The floor rows use the project's own publisher
without any allocator: acknowledged publishes, and compare-and-set records, both pipelined. The ceiling row is what two
processes that share nothing, not even a bus, do together against one alone: two cores of a virtual machine seldom give 2.
The rows of processor time take in all pods, from the resume on, and depend less on what else the machine does: with the bus
on a machine of its own two allocators can give at most twice what one takes by what two take.
"""

import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bus import codec, history, subjects
from bus.connection import Bus
from bus.streams import ensure_streams, stream_info
from consumers.allocator.service import SCHEDULE
from deploy.local.audit import audit
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer
from producers.simulator.build import build_inventory, build_node, build_pod
from producers.simulator.cluster import Cluster
from producers.simulator.service import Simulator
from producers.simulator.trace import Trace
from schemas.cluster import Pool
from schemas.event import Event
from schemas.pod import Schedule
from schemas.registry import TYPE_NAMES

POOL = Pool(name="bench")
FLOOR_MESSAGES = 20_000
FLOOR_SUBJECTS = 1_000
CHUNK = 2_000
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def running_bus() -> AsyncIterator[tuple[LocalServer, Bus]]:
    """An empty bus on the disk that holds the temporary directory."""
    with tempfile.TemporaryDirectory(prefix="gpubus-bench-") as store:
        server = LocalServer(Path(store))
        await server.start()
        try:
            async with await Bus.connect(server.url, name="bench") as bus:
                await ensure_streams(bus)
                yield server, bus
        finally:
            await server.stop()


def message(subject: str, name: str, data, now: datetime) -> tuple[str, bytes, str]:
    """Return an event as the publisher takes it."""
    kind = TYPE_NAMES[type(data)]
    event = Event(id=f"{kind}:{name}", source="/bench", type=kind, subject=name, time=now, data=data)
    return subject, codec.encode(event), event.id


async def publish(bus: Bus, messages: list[tuple[str, bytes, str]]) -> None:
    for first in range(0, len(messages), CHUNK):
        await bus.publisher.publish_all(messages[first : first + CHUNK])


async def floor() -> dict[str, float]:
    """Return what the bus alone does, in messages per second."""
    async with running_bus() as (_, bus):
        payload = b"x" * 300
        started = time.perf_counter()
        await publish(bus, [(f"gpubus.decision.d.{i}", payload, f"m{i}") for i in range(FLOOR_MESSAGES)])
        publishes = FLOOR_MESSAGES / (time.perf_counter() - started)

        async def chain(subject: str) -> None:
            expected = 0
            for _ in range(FLOOR_MESSAGES // FLOOR_SUBJECTS):
                expected = (await bus.publisher.publish(subject, payload, expected=expected)).seq

        started = time.perf_counter()
        await asyncio.gather(*(chain(f"gpubus.ledger.node.{i}") for i in range(FLOOR_SUBJECTS)))
        return {"publish": publishes, "cas": FLOOR_MESSAGES / (time.perf_counter() - started)}


def spin(seconds: float) -> float:
    """Return how often a second this process encodes and decodes an event of a node, and does nothing else."""
    payload = codec.encode(
        Event(id="spin", source="/bench", type=TYPE_NAMES[Pool], subject="spin", time=EPOCH, data=POOL)
    )
    done, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        for _ in range(100):
            codec.encode(codec.decode_as(Pool, payload))
        done += 100
    return done / passed


def ceiling() -> float:
    """Return what two processes that share nothing do together, against one alone."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        list(processes.map(spin, [0.2, 0.2]))  # both are there
        alone = processes.submit(spin, 1.0).result()
        return sum(processes.map(spin, [1.0, 1.0])) / alone


def processor_s(*pids: int) -> float:
    """Return the processor time that processes have taken so far, in user and in kernel mode (Linux)."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime of proc(5), counted from behind the command's name
    return ticks / os.sysconf("SC_CLK_TCK")


async def all_decided(bus: Bus, pods: int) -> None:
    """Wait until ``pods`` decisions are stored."""
    while (await stream_info(bus, "DECISION")).state.messages < pods:  # noqa: ASYNC110  the server is what changes
        await asyncio.sleep(0.05)


async def decision_rate(bus: Bus) -> float:
    """Return decisions per second over the last nine tenths of those stored."""
    stored: list[int] = []
    await history.read(bus, "DECISION", ["gpubus.decision.>"], lambda record: stored.append(record.time_ns))
    skipped = len(stored) // 10
    return (len(stored) - skipped) / ((stored[-1] - stored[skipped]) / 1e9)


async def throughput(trace: Trace, allocators: int) -> dict[str, float]:
    """Return pods per second decided and committed when all come at once, and what it took."""
    now = datetime.now(UTC)
    cluster = [message(subjects.state("pool", POOL.name), POOL.name, POOL, now)]
    for node in trace.nodes:
        cluster.append(message(subjects.state("node", node.name), node.name, build_node(node, pool=POOL.name), now))
        inventory = build_inventory(node, observed_at=now)
        cluster.append(message(subjects.state("gpu", node.name), node.name, inventory, now))
    commands = []
    for trace_pod in trace.pods:
        pod = build_pod(trace_pod, pool=POOL.name)
        command = Schedule(namespace=pod.namespace, name=pod.name, uid=pod.uid, request=pod.request)
        commands.append(message(subjects.work("schedule", POOL.name), pod.uid, command, now))
    async with running_bus() as (server, bus):
        await publish(bus, cluster)
        workers = [RoleProcess("allocator", [server.url]) for _ in range(allocators)]
        await asyncio.gather(*(worker.start() for worker in workers))
        pause = f"CONSUMER.PAUSE.{SCHEDULE.stream}.{SCHEDULE.durable}"
        await bus.api(pause, {"pause_until": (now + timedelta(hours=1)).isoformat()})
        await publish(bus, commands)
        pids = [worker.pid for worker in workers]
        deciding, serving = processor_s(*pids), processor_s(server.pid)
        await bus.api(pause, {})
        await all_decided(bus, len(commands))
        deciding, serving = processor_s(*pids) - deciding, processor_s(server.pid) - serving
        rate = await decision_rate(bus)
        await asyncio.gather(*(worker.stop() for worker in workers))
        found = await audit(bus)
    if found.violations or len(found.placed | found.refused) != len(commands):
        raise SystemExit(f"the benchmark run is invalid: {found.violations[:3]}")
    return {
        "rate": rate,
        "deciding": deciding,
        "serving": serving,
        "records": found.records,
        "placed": len(found.placed),
        "overtaken": found.overtaken,
    }


async def latency(trace: Trace, rate: float) -> tuple[float, float]:
    """Return the median and the 99th percentile, in milliseconds, at ``rate`` pods per second offered."""
    async with running_bus() as (server, bus):
        await publish(bus, Cluster(trace, POOL).announcement(datetime.now(UTC)))
        worker = RoleProcess("allocator", [server.url])
        await worker.start()
        stop = asyncio.Event()
        simulator = Simulator(bus, trace, pool=POOL, rate=rate, seed=1)
        running = asyncio.create_task(simulator.run(stop))
        await simulator.finished.wait()
        progress = simulator.progress()
        stop.set()
        await running
        await worker.stop()
    return progress.latency_p50_ms, progress.latency_p99_ms


async def report(trace: Trace, rounds: int) -> None:
    """Run everything ``rounds`` times, alternating, and print a table of medians."""
    floors, ones, twos, ratios, ceilings = [], [], [], [], []
    for number in range(rounds):
        floors.append(await floor())
        ceilings.append(ceiling())
        one, two = await throughput(trace, 1), await throughput(trace, 2)
        ones.append(one)
        twos.append(two)
        ratios.append(two["rate"] / one["rate"])
        print(f"round {number + 1}: 1 allocator {one['rate']:.0f}/s, 2 allocators {two['rate']:.0f}/s", flush=True)
    p50, p99 = await latency(trace, 500.0)
    median = statistics.median
    cas = median(f["cas"] for f in floors)
    one_rate = median(r["rate"] for r in ones)
    per_record = median(r["placed"] / r["records"] for r in ones)
    print(f"\n{len(trace.nodes)} nodes, {len(trace.pods)} pods, R1 file, medians of {rounds} rounds")
    print("| what | result |")
    print("|---|---|")
    print(f"| floor: acknowledged publishes, pipelined | {median(f['publish'] for f in floors):,.0f} /s |")
    print(f"| floor: compare-and-set records, pipelined | {cas:,.0f} /s |")
    print(f"| one allocator, pods decided and committed | {one_rate:,.0f} /s ({one_rate / cas:.2f} of the CAS floor) |")
    print(f"| pods per ledger record | {per_record:.1f} |")
    print(f"| two allocators on the same pool | {median(r['rate'] for r in twos):,.0f} /s |")
    print(f"| two against one, same round | {median(ratios):.2f} x |")
    deciding = [median(r["deciding"] for r in runs) for runs in (ones, twos)]
    serving = [median(r["serving"] for r in runs) for runs in (ones, twos)]
    print(f"| processor time of one allocator / of two together | {deciding[0]:.2f} / {deciding[1]:.2f} s |")
    print(f"| processor time of the server, with one / two | {serving[0]:.2f} / {serving[1]:.2f} s |")
    print(f"| two against one by their processor time, the bus elsewhere | {2 * deciding[0] / deciding[1]:.2f} x |")
    print(f"| ceiling: two processes that share nothing, against one | {median(ceilings):.2f} x |")
    print(f"| placements overtaken, two allocators | {median(r['overtaken'] for r in twos):.0f} |")
    print(f"| latency at 500 pods/s, p50 / p99 | {p50:.1f} / {p99:.1f} ms |")
