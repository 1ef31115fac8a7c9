"""The simulated cluster against a real nats-server and a scheduler that is only a list of answers."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from bus import codec, subjects
from bus.connection import Bus
from bus.consumer import PullConsumer
from bus.delivery import ConsumerSpec
from bus.follower import Follower, Record
from bus.streams import stream_info
from producers.simulator.build import gpu_uuid, pod_uid
from producers.simulator.pace import Pace
from producers.simulator.service import Simulator
from producers.simulator.trace import Trace, TraceNode, TracePod
from schemas.cluster import Pool
from schemas.decision import Basis, Decision, GpuGrant
from schemas.event import Event
from schemas.pod import GpuRequest, Pod, Release, Schedule
from tests.conftest import eventually

POOL = Pool(name="p")
A100_MILLI = 312_000


def trace(pods: int, *, runs_s: Callable[[int], int | None] = lambda _: None, nodes: int = 2) -> Trace:
    """One pod a second, each asking for half of one of the nodes' four GPUs."""
    shape = {"cpu_milli": 1000, "memory_mib": 1024, "num_gpu": 1, "gpu_milli": 500}
    return Trace(
        [TraceNode(name=f"n{i}.x", cpu_milli=64_000, memory_mib=2**18, gpus=4, model="A100-80G") for i in range(nodes)],
        [TracePod(name=f"pod-{i}", arrives_s=i, runs_s=runs_s(i), **shape) for i in range(pods)],
    )


class Scheduler:
    """Answers every command. ``judge`` returns the outcomes to say about a pod, in order, with the node of each."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.judge: Callable[[Schedule], list[tuple[str, str]]] = lambda _: [("allocated", "n0.x")]
        self.schedules: Counter[str] = Counter()
        self.releases: list[Event[Release]] = []
        self.answers_releases = True
        spec = ConsumerSpec(stream="WORK", durable="fake", filters=("gpubus.work.>",), ack_wait_s=2.0)
        self.consumer = PullConsumer(bus, spec)
        self.said = 0

    async def run(self) -> None:
        await self.consumer.start()
        while taken := await self.consumer.take(64):
            decisions: list[Event[Decision]] = []
            for delivery in taken:
                event = delivery.event()
                if isinstance(event.data, Release):
                    assert subjects.names(delivery.subject) == ("work", "release", event.data.node)
                    self.releases.append(event)
                    if self.answers_releases:
                        decisions.append(self.decide(event.data, "released", event.data.node))
                    continue
                assert subjects.names(delivery.subject) == ("work", "schedule", "p")
                self.schedules[event.data.uid] += 1
                decisions += [self.decide(event.data, *answer) for answer in self.judge(event.data)]
            await self.say(*decisions)
            for delivery in taken:
                await delivery.ack()

    def decide(self, pod: Schedule | Release, outcome: str, node: str = "", event_id: str = "") -> Event[Decision]:
        self.said += 1
        half = GpuGrant(uuid=gpu_uuid(node, 0), index=0, tflops_milli=A100_MILLI // 2, vram_bytes=40 * 2**30)
        data = Decision(
            outcome=outcome,
            namespace=pod.namespace,
            name=pod.name,
            pod_uid=pod.uid,
            pool="p",
            allocator="fake",
            basis=Basis(state=0, ledger=0, ordinal=self.said),
            node=node,
            gpus=(half,) if outcome == "allocated" else (),
        )
        return Event(
            id=event_id or f"{pod.uid}:{outcome}:{self.said}",
            source="/fake",
            type="gpubus.decision.v1",
            subject=f"{pod.namespace}/{pod.name}",
            time=datetime.now(UTC),
            data=data,
        )

    async def say(self, *decisions: Event[Decision]) -> None:
        messages = [(subjects.decision(d.data.namespace, d.data.name), codec.encode(d), d.id) for d in decisions]
        await self.bus.publisher.publish_all(messages)


@pytest.fixture
async def scheduler(bus):
    fake = Scheduler(bus)
    task = asyncio.create_task(fake.run())
    yield fake
    await fake.consumer.stop()
    await task


@asynccontextmanager
async def simulated(bus: Bus, of: Trace, **options):
    """Run a simulator, check that it stops cleanly, and that it leaves no task behind."""
    others = asyncio.all_tasks()
    stop = asyncio.Event()
    simulator = Simulator(bus, of, **{"pool": POOL, "rate": 0.0, "seed": 1, **options})
    task = asyncio.create_task(simulator.run(stop))
    try:
        yield simulator
        assert not task.done()
    finally:
        stop.set()
        await asyncio.wait_for(task, 3)
        assert [t.get_name() for t in asyncio.all_tasks() - others if "simulator" in t.get_name()] == []


async def finished(simulator: Simulator, timeout: float = 10.0):
    await asyncio.wait_for(simulator.finished.wait(), timeout)
    return simulator.progress()


def as_schedule(name: str) -> Schedule:
    return Schedule(namespace="default", name=name, uid=pod_uid(name), request=GpuRequest(pool="p"))


async def followed(bus: Bus, filters: str) -> tuple[Follower, list[Record]]:
    seen: list[Record] = []
    follower = Follower(bus, "STATE", [filters], seen.append)
    await follower.start()
    return follower, seen


async def test_every_pod_is_offered_once_runs_where_it_was_placed_and_vanishes_when_it_ends(bus, scheduler):
    follower, seen = await followed(bus, "gpubus.state.pod.>")
    async with simulated(bus, trace(300, runs_s=lambda i: 20 if i % 2 else None), window=16) as simulator:
        result = await finished(simulator)
    assert scheduler.schedules == {pod_uid(f"pod-{i}"): 1 for i in range(300)}
    released = [event.data.uid for event in scheduler.releases]
    assert len(released) == len(set(released)) > 100
    assert {event.data.reason for event in scheduler.releases} == {"Succeeded"}
    assert all(event.causationid.startswith(f"{event.data.uid}:allocated:") for event in scheduler.releases)
    assert (result.offered, result.allocated, result.undecided, result.waiting) == (300, 300, 0, 0)
    assert (result.released, result.running, result.releasing) == (len(released), 300 - len(released), 0)
    assert 0 < result.latency_p50_ms <= result.latency_p99_ms
    assert result.gpu_allocation_percent == pytest.approx(100 * result.running * 0.5 / 8)
    assert result.finished
    assert result.events == 5 + 2 * 300 + 300 + 2 * len(released)
    assert result.double_started == 0

    await follower.reached((await stream_info(bus, "STATE")).state.last_seq)
    histories: dict[str, list[str]] = defaultdict(list)
    for record in seen:
        histories[subjects.names(record.subject)[-1]].append("gone" if record.deleted else phase(record))
    for i in range(300):
        gone = ["gone"] if pod_uid(f"pod-{i}") in released else []
        assert histories[f"pod-{i}"] == ["Pending", "Running n0.x", *gone]
    await follower.stop()


def phase(record: Record) -> str:
    pod = codec.decode_as(Pod, record.payload).data
    return f"{pod.phase} {pod.node}".strip()


async def test_the_cluster_is_announced_once_however_often_it_starts(bus):
    for _ in range(2):
        async with simulated(bus, trace(0)) as simulator:
            result = await finished(simulator)
    assert (result.pods, result.events, result.gpu_allocation_percent) == (0, 5, 0.0)
    follower, seen = await followed(bus, "gpubus.state.>")
    assert [subjects.names(record.subject)[1:] for record in seen] == [
        ("pool", "p"),
        ("node", "n0.x"),
        ("gpu", "n0.x"),
        ("node", "n1.x"),
        ("gpu", "n1.x"),
    ]
    assert [record.seq for record in seen] == [1, 2, 3, 4, 5]
    assert codec.decode(seen[1].payload).data.pool == "p"
    assert len(codec.decode(seen[2].payload).data.gpus) == 4
    await follower.stop()


async def test_a_pod_that_waits_and_is_woken_counts_once(bus, scheduler):
    scheduler.judge = lambda _: [("unschedulable", "")]
    async with simulated(bus, trace(3)) as simulator:
        result = await finished(simulator)
        assert (result.waiting, result.allocated, result.undecided) == (3, 0, 0)
        assert result.latency_p50_ms == 0
        pod = as_schedule("pod-1")
        await scheduler.say(
            scheduler.decide(pod, "unschedulable"),
            scheduler.decide(pod, "allocated", "n1.x"),
            scheduler.decide(pod, "unschedulable"),
        )
        await eventually(lambda: simulator.progress().running == 1)
        result = simulator.progress()
        assert (result.waiting, result.allocated, result.undecided) == (2, 1, 0)


async def test_it_is_not_finished_while_waiting_pods_are_being_woken(bus, scheduler):
    scheduler.judge = lambda _: [("unschedulable", "")]
    async with simulated(bus, trace(2)) as simulator:
        await eventually(lambda: simulator.progress().waiting == 2)
        await asyncio.sleep(0.7)
        await scheduler.say(scheduler.decide(as_schedule("pod-0"), "allocated", "n0.x"))
        await asyncio.sleep(0.7)
        assert not simulator.finished.is_set()
        await finished(simulator)


async def test_a_repeated_decision_changes_nothing_and_a_second_place_is_an_error(bus, scheduler):
    async with simulated(bus, trace(2)) as simulator:
        before = await finished(simulator)
        pod = as_schedule("pod-0")
        await scheduler.say(scheduler.decide(pod, "allocated", "n0.x"))
        await bus.publisher.publish(subjects.decision("default", "pod-0"), b"not an event")
        await scheduler.say(scheduler.decide(pod, "allocated", "n1.x"))
        await eventually(lambda: simulator.progress().double_started == 1)
        after = simulator.progress()
        assert (after.allocated, after.running, after.events) == (2, 2, before.events)
        assert after.gpu_allocation_percent == before.gpu_allocation_percent
        assert scheduler.releases == []


async def test_what_is_given_to_a_pod_that_is_gone_is_released_again(bus, scheduler):
    async with simulated(bus, trace(20, runs_s=lambda i: 1 if i == 0 else None), window=1) as simulator:
        await finished(simulator)
        (first,) = scheduler.releases
        pod = as_schedule("pod-0")
        # The decision that had placed it, once more: the same fact, and its release was asked for already.
        await scheduler.say(scheduler.decide(pod, "allocated", "n0.x", event_id=first.causationid))
        ghost = scheduler.decide(pod, "allocated", "n1.x")
        await scheduler.say(ghost)
        await eventually(lambda: len(scheduler.releases) == 2)
        again = scheduler.releases[1]
        assert (again.data.uid, again.data.node, again.data.reason) == (pod.uid, "n1.x", "Deleted")
        assert again.causationid == ghost.id
        assert again.id != first.id
        await eventually(lambda: simulator.progress().releasing == 0)
        result = simulator.progress()
        assert (result.released, result.running, result.double_started) == (1, 19, 0)


async def test_it_waits_for_every_release_to_be_confirmed(bus, scheduler):
    scheduler.answers_releases = False
    async with simulated(bus, trace(20, runs_s=lambda i: 1 if i == 0 else None), window=1) as simulator:
        await eventually(lambda: len(scheduler.releases) == 1)
        await asyncio.sleep(0.3)
        assert not simulator.finished.is_set()
        assert simulator.progress().releasing == 1
        await scheduler.say(scheduler.decide(scheduler.releases[0].data, "released", "n0.x"))
        await finished(simulator)


async def test_a_pod_that_is_evicted_goes_and_gives_back_what_it_held(bus, scheduler):
    async with simulated(bus, trace(2)) as simulator:
        await finished(simulator)
        await scheduler.say(scheduler.decide(as_schedule("pod-0"), "evicted", "n0.x"))
        await eventually(lambda: simulator.progress().running == 1)
        _, seen = await followed(bus, "gpubus.state.pod.>")
        await eventually(lambda: any(record.deleted for record in seen))
        await eventually(lambda: simulator.progress().released == 1)
        (release,) = scheduler.releases
        assert (release.data.uid, release.data.reason) == (pod_uid("pod-0"), "Deleted")


async def test_never_more_than_a_window_of_pods_is_undecided(bus, scheduler):
    held: list[Schedule] = []
    scheduler.judge = lambda schedule: held.append(schedule) or []
    async with simulated(bus, trace(40), window=8) as simulator:
        for decided in range(0, 40, 8):
            await eventually(lambda: len(held) == 8)
            await asyncio.sleep(0.05)
            assert (len(held), simulator.progress().undecided) == (8, 8)
            assert simulator.progress().offered == decided + 8
            answers = [scheduler.decide(schedule, "allocated", "n0.x") for schedule in held]
            held.clear()
            await scheduler.say(*answers)
        await finished(simulator)


async def test_pods_are_offered_evenly_at_the_rate(bus, scheduler):
    arrived: list[float] = []
    scheduler.judge = lambda _: arrived.append(time.monotonic()) or [("allocated", "n0.x")]
    async with simulated(bus, trace(101), rate=200.0) as simulator:
        await finished(simulator)
    assert arrived[100] - arrived[0] == pytest.approx(0.5, abs=0.15)
    assert arrived[50] - arrived[0] == pytest.approx(0.25, abs=0.15)


def test_a_stall_is_made_up_for_by_a_second_and_no_more():
    pace = Pace(100.0)
    sent = 0
    for step in range(101):
        due = pace.due(step * 0.013, 500)
        pace.spend(due)
        sent += due
    assert sent == 131
    assert pace.due(1.8, 500) == pytest.approx(50, abs=1)
    assert pace.due(99.0, 500) == 100
    assert pace.due(99.0, 7) == 7


@pytest.mark.usefixtures("scheduler")
async def test_nodes_with_pods_report_usage(bus):
    seen: list[Record] = []
    follower = Follower(bus, "USAGE", ["gpubus.usage.gpu.>"], seen.append)
    await follower.start()
    async with simulated(bus, trace(3), usage_every_s=0.1) as simulator:
        await finished(simulator)
        await eventually(lambda: len(seen) >= 2)
    usage = codec.decode(seen[-1].payload).data
    assert {subjects.names(record.subject)[-1] for record in seen} == {"n0.x"}
    assert {process.pod_uid for process in usage.gpus[0].processes} == {pod_uid(f"pod-{i}") for i in range(3)}
    assert usage.gpus[0].sm_percent > 50
    await follower.stop()


async def test_a_simulator_that_starts_again_goes_on_with_what_was_decided(bus, scheduler):
    of = trace(50, runs_s=lambda i: 5 if i % 5 == 0 else None)
    for _ in range(2):
        async with simulated(bus, of, window=4) as simulator:
            result = await finished(simulator)
    assert (result.offered, result.undecided, result.releasing) == (50, 0, 0)
    assert result.released == len({event.data.uid for event in scheduler.releases})
    assert result.running == 50 - result.released
    assert set(scheduler.schedules.values()) == {1}


@pytest.mark.fault
async def test_nothing_is_lost_when_the_server_is_killed_midway(server, bus, scheduler):
    places: dict[str, str] = {}
    scheduler.judge = lambda pod: [("allocated", places.setdefault(pod.uid, f"n{len(places) % 2}.x"))]
    of = trace(600, runs_s=lambda i: 30 if i % 2 else None)
    async with simulated(bus, of, rate=1000.0, window=64, usage_every_s=0.2) as simulator:
        for mark in (150, 400):
            await eventually(lambda: simulator.progress().offered >= mark)  # noqa: B023  read before it changes
            server.kill()
            await asyncio.sleep(0.2)
            await server.start()
        result = await finished(simulator, 20)
    assert set(scheduler.schedules) == {pod_uid(f"pod-{i}") for i in range(600)}
    assert (result.offered, result.allocated, result.undecided, result.waiting) == (600, 600, 0, 0)
    released = {event.data.uid for event in scheduler.releases}
    assert (result.released, result.running) == (len(released), 600 - len(released))
    assert len(released) > 100
    assert result.double_started == 0
    _, seen = await followed(bus, "gpubus.state.pod.>")
    left = {codec.decode_as(Pod, record.payload).data.uid: phase(record) for record in seen if not record.deleted}
    assert left == {uid: f"Running {node}" for uid, node in places.items() if uid not in released}


@pytest.mark.parametrize("wrong", [{"rate": -1.0}, {"window": 0}, {"usage_every_s": 0.0}])
async def test_senseless_options_are_refused(bus, wrong):
    with pytest.raises(ValueError, match="must be"):
        Simulator(bus, trace(1), **{"pool": POOL, "rate": 0.0, "seed": 1, **wrong})


async def test_it_stops_while_the_bus_is_away(server, bus):
    async with simulated(bus, trace(1000), rate=500.0):
        await asyncio.sleep(0.1)
        server.kill()
        await asyncio.sleep(0.2)


async def test_it_can_be_stopped_before_it_began(bus):
    stop = asyncio.Event()
    stop.set()
    await Simulator(bus, trace(1), pool=POOL, rate=0.0, seed=1).run(stop)
