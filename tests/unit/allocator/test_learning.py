"""Pools that state no workload learn one, every allocator decides by what STATE says of it, and a replay finds the same."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.allocator.core import Core
from consumers.allocator.engine import VAGUE, Workload
from consumers.allocator.replay import Replay, completed
from schemas.cluster import ExpectedPods, GpuDevice, GpuInventory, Node, PlacementMode, PodKind, Pool
from schemas.event import Event
from schemas.pod import GpuRequest, Schedule
from schemas.registry import TYPE_NAMES, Presence

NOW = datetime(2026, 11, 30, tzinfo=UTC)
AHEAD = Pool(name="p", placement="PackingValue")


class State:
    """What STATE says, with the sequences that it gives."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def say(self, core: Core, kind: str, name: str, data: msgspec.Struct) -> None:
        event = Event(id="i", source="/t", type=TYPE_NAMES[type(data)], subject=name, time=NOW, data=data)
        record = Record(subjects.state(kind, name), len(self.records) + 1, codec.encode(event))
        self.records.append(record)
        core.on_state(record)


def started(pool: Pool = AHEAD, name: str = "a", **inventory: Any) -> tuple[Core, State]:
    core, state = Core(name, lambda: 0), State()
    state.say(core, "pool", pool.name, pool)
    for node in ("n-1", "n-2"):
        gpus = [
            GpuDevice(uuid=f"{node}/{slot}", index=slot, model="A", tflops_milli=1000, vram_bytes=1000)
            for slot in range(8)
        ]
        state.say(core, "node", node, Node(name=node, pool="p", cpu_milli=64_000, memory_bytes=1 << 40, max_pods=1000))
        state.say(core, "gpu", node, GpuInventory(node=node, gpus=gpus, observed_at=NOW, **inventory))
    return core, state


def ask(core: Core, first: int, last: int, share: int = 300) -> None:
    request = GpuRequest(pool="p", tflops_milli=share, vram_milli=share, cpu_milli=100)
    for number in range(first, last):
        core.schedule(Schedule(namespace="ns", name=f"pod-{number}", uid=f"u{number}", request=request), None)


def test_what_is_learnt_counts_once_state_says_so() -> None:
    core, state = started()
    assert core.decider.policy("p").workload == VAGUE
    ask(core, 0, 49)
    assert not core.effects.learnt
    ask(core, 49, 50)
    (learnt,) = core.effects.learnt
    assert (learnt.pool, learnt.seen) == ("p", 50)
    assert learnt.kinds[0] == PodKind(cpu_milli=100, gpus=1, share_milli=300, pods=50)
    assert core.decider.policy("p").workload == VAGUE
    before = core.decider.policy("p").hash
    state.say(core, "expected", "p", learnt)
    assert core.decider.policy("p").workload == Workload(learnt.kinds)
    assert core.decider.policy("p").hash != before
    core.on_state(Record(subjects.state("expected", "p"), 99, b"", deleted=True))
    assert core.decider.policy("p").workload == VAGUE


@pytest.mark.parametrize(("placement", "knows"), [("PackingValue", True), ("FragmentationGradient", False)])
def test_wide_pods_are_learnt_of_where_nodes_are_kept_for_them_though_they_are_few(
    placement: PlacementMode, *, knows: bool
) -> None:
    core, _ = started(Pool(name="p", placement=placement))
    wide = GpuRequest(pool="p", count=8, compute_milli=1000, cpu_milli=60_000)
    core.schedule(Schedule(namespace="ns", name="wide", uid="wide", request=wide), None)
    ask(core, 0, 49)
    (learnt,) = core.effects.learnt
    assert (PodKind(cpu_milli=60_000, gpus=8, share_milli=1000, pods=1) in learnt.kinds) is knows


def test_a_pod_counts_once_however_often_it_is_tried() -> None:
    core, _ = started()
    for _ in range(3):
        ask(core, 0, 49, share=1001)  # fits nowhere, so each try is a new decision
    assert (core.counters.refused, core.effects.learnt) == (3 * 49, [])


@pytest.mark.parametrize(
    "pool", [Pool(name="p"), msgspec.structs.replace(AHEAD, workload=(PodKind(gpus=1, share_milli=500),))]
)
def test_nothing_is_learnt_where_nobody_asks(pool: Pool) -> None:
    core, state = started(pool)
    ask(core, 0, 60)
    assert not core.effects.learnt
    before = core.decider.policy("p")
    state.say(core, "expected", "p", ExpectedPods(pool="p", seen=50, kinds=(PodKind(gpus=1, share_milli=250),)))
    assert core.decider.policy("p").workload == before.workload


def test_pods_that_take_partitions_are_not_prepared_for() -> None:
    core, _ = started()
    request = GpuRequest(pool="p", isolation="partitioned", vram_bytes=1)
    for number in range(60):
        core.schedule(Schedule(namespace="ns", name=f"pod-{number}", uid=f"u{number}", request=request), None)
    assert (core.counters.refused, core.effects.learnt) == (60, [])


def test_one_allocator_speaks_for_all() -> None:
    core, state = started(name="b")
    state.say(core, "allocator", "a", Presence(role="allocator", name="a"))
    state.say(core, "allocator", "b", Presence(role="allocator", name="b"))
    ask(core, 0, 60)
    assert not core.effects.learnt


def test_few_pods_do_not_replace_what_was_learnt_from_many() -> None:
    core, state = started()
    state.say(core, "expected", "p", ExpectedPods(pool="p", seen=5000, kinds=(PodKind(gpus=1, share_milli=250),)))
    ask(core, 0, 999)
    assert not core.effects.learnt
    ask(core, 999, 1000)
    assert [learnt.seen for learnt in core.effects.learnt] == [1000]


def test_a_record_that_cannot_be_read_changes_nothing() -> None:
    core, state = started()
    state.say(core, "expected", "p", ExpectedPods(pool="p", seen=50, kinds=(PodKind(gpus=1, share_milli=250),)))
    known = core.decider.policy("p")
    with pytest.raises(UndecodableError):
        core.on_state(Record(subjects.state("expected", "p"), 98, b"{}"))
    assert core.decider.policy("p") == known


def test_a_replay_decides_by_the_workload_that_was_in_force() -> None:
    core, state = started()
    ask(core, 0, 50)
    state.say(core, "expected", "p", core.effects.learnt[0])
    ask(core, 50, 60)
    said = [announced.decision for announced in core.effects.announcements]
    said += [item.decision for item in core.mind.pending.values()]
    by_uid = {decision.pod_uid: decision for decision in said}
    assert len({decision.policy_hash for decision in by_uid.values()}) == 2
    replay = Replay("a", state.records, lambda _node, _seq: ())
    again = [decision for turn in core.journal.take() for decision in replay.play(turn)]
    assert len(again) == 60
    for decision in again:
        assert completed(decision, by_uid[decision.pod_uid]) == by_uid[decision.pod_uid]
