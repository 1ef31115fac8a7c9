"""A history under other rules ends as if those rules had been in force all along."""

from datetime import UTC, datetime
from typing import get_args

import pytest

from bus import codec, subjects
from bus.follower import Record
from consumers.allocator.core import Core
from consumers.allocator.shadow.rules import Rules
from deploy.replay.scenario import Scenario
from producers.simulator.build import build_inventory, build_node, build_pod
from producers.simulator.generator import generate
from schemas.cluster import PlacementMode, Pool
from schemas.event import Event
from schemas.journal import Free, Place, Turn
from schemas.pod import GpuRequest, Schedule
from schemas.registry import TYPE_NAMES

NOW = datetime(2026, 11, 30, tzinfo=UTC)
POOL = Pool(name="p", placement="LowLoadFirst")
TRACE = generate(25, 300, seed=9)
SECOND = 1_000_000_000


def said(seq: int, kind: str, name: str, data) -> Record:
    event = Event(id=str(seq), source="/test", type=TYPE_NAMES[type(data)], subject=name, time=NOW, data=data)
    return Record(subjects.state(kind, name), seq, codec.encode(event))


def cluster(pool: Pool = POOL) -> list[Record]:
    records = [said(1, "pool", "p", pool)]
    for seq, node in enumerate(TRACE.nodes, 2):
        records.append(said(2 * seq, "node", node.name, build_node(node, pool="p")))
        records.append(said(2 * seq + 1, "gpu", node.name, build_inventory(node, observed_at=NOW)))
    return records


def turn(*steps) -> Turn:
    return Turn(allocator="a", number=1, decided=0, engine="1", steps=steps)


def arrival(number: int) -> Place:
    pod = build_pod(TRACE.pods[number], pool="p")
    return Place(pod.namespace, pod.name, pod.uid, pod.request)


@pytest.mark.parametrize("mode", get_args(PlacementMode))
def test_a_scenario_decides_as_an_allocator_of_its_policy_does(mode) -> None:
    rules = Rules("x", mode, {"tflops_ratio": 150})
    scenario = Scenario("x", rules.apply)
    for record in cluster():
        scenario.on_state(record)
    for number in range(len(TRACE.pods)):
        scenario.play(turn(arrival(number)), number * SECOND)
    over = POOL.oversubscription.__class__(tflops_ratio=150)
    core = Core("a", lambda: 0)
    for record in cluster(Pool(name="p", placement=mode, oversubscription=over)):
        core.on_state(record)
    for number, trace_pod in enumerate(TRACE.pods):
        pod = build_pod(trace_pod, pool="p")
        core.schedule(Schedule(namespace=pod.namespace, name=pod.name, uid=pod.uid, request=pod.request), None)
        for learnt in core.take_effects().learnt:
            core.on_state(said(1_000_000 + number, "expected", "p", learnt))
    snapshot = core.snapshot
    places = {held.pod_uid: node for node in snapshot.nodes() for held in snapshot.allocations(node)}
    result = scenario.finish(places)
    total = snapshot.total()
    assert (result.placed, result.elsewhere, result.pods) == (len(places), 0, len(TRACE.pods))
    assert 0 < result.unplaced < result.pods
    assert result.end_tflops_percent == 100 * total.granted_tflops_milli / total.schedulable_tflops_milli


def test_whoever_waits_is_placed_by_priority_when_a_place_falls_free() -> None:
    scenario = Scenario("x", lambda record: record)
    for record in cluster():
        scenario.on_state(record)
    whole = GpuRequest(pool="p", count=8, compute_milli=1000, vram_milli=1000)
    urgent = GpuRequest(pool="p", count=8, compute_milli=1000, vram_milli=1000, priority=5)
    first = [Place("n", f"p{n}", f"u{n}", whole) for n in range(30)]
    scenario.play(turn(*first), SECOND)
    held = sorted(scenario.places)
    waiting = len(first) - len(held)
    assert waiting > 0
    scenario.play(turn(Place("n", "late", "late", urgent)), 2 * SECOND)
    assert "late" not in scenario.places
    scenario.play(turn(Free(held[0], scenario.places[held[0]]), Free("u29", "")), 5 * SECOND)
    assert "late" in scenario.places
    result = scenario.finish({})
    assert (result.placed, result.waited, result.wait_p50_s) == (len(held) + 1, 1, 3.0)
    assert [sample.waiting for sample in result.samples] == [waiting, waiting + 1, waiting - 1]
