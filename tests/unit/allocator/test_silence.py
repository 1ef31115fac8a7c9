"""Agents that fall silent, by the server's time alone."""

from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from bus import codec, subjects
from bus.follower import Record
from consumers.allocator.choice import Trial
from consumers.allocator.cluster import Cluster
from consumers.allocator.engine import Policy, decide
from consumers.allocator.replay import Replay
from schemas.cluster import GpuDevice, GpuInventory, Node, Pool
from schemas.event import Event
from schemas.journal import Place, Saw, Turn
from schemas.pod import GpuRequest
from schemas.registry import TYPE_NAMES, Presence

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = 1_000_000_000
GPU = GpuDevice(uuid="g", index=0, model="m", tflops_milli=1, vram_bytes=1)


class Story:
    """A cluster that is told one record after another, each stored at some second."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.records: list[Record] = []
        self._seq = count(1)
        self.say(0, "pool", "p", Pool(name="p"))
        self.say(0, "node", "n", Node(name="n", pool="p"))

    def say(self, second: int, kind: str, name: str, data: Any) -> None:
        event = Event(id="e", source="/t", type=TYPE_NAMES[type(data)], subject=name, time=NOW, data=data)
        payload = codec.encode(event)
        record = Record(subjects.state(kind, name), next(self._seq), payload, second * SECOND)
        self.records.append(record)
        self.cluster.on_state(record)

    def speak(self, second: int, valid_s: int = 0) -> None:
        self.say(second, "gpu", "n", GpuInventory(node="n", gpus=[GPU], observed_at=NOW, valid_s=valid_s))

    def pass_time(self, second: int) -> None:
        self.say(second, "allocator", "a", Presence(role="allocator", name="a"))

    @property
    def reason(self) -> str:
        return decide(self.cluster.snapshot, GpuRequest(pool="p"), Policy()).reason


@pytest.fixture
def story() -> Story:
    return Story()


def test_gpus_take_no_pods_once_their_agents_word_has_run_out_and_again_when_it_speaks(story: Story) -> None:
    story.speak(0, valid_s=30)
    story.pass_time(30)
    assert story.reason == ""
    story.pass_time(31)
    assert story.reason == "AgentSilent"
    story.speak(40, valid_s=30)
    assert story.reason == ""
    story.pass_time(70)
    assert story.reason == ""
    story.pass_time(71)
    assert story.reason == "AgentSilent"


def test_each_word_renews_the_promise_and_one_without_end_holds(story: Story) -> None:
    story.speak(0, valid_s=30)
    story.speak(20, valid_s=30)
    story.pass_time(45)
    assert story.reason == ""
    story.speak(50)
    story.pass_time(10_000)
    assert story.reason == ""


def test_a_word_that_had_run_out_before_it_was_read_does_not_count(story: Story) -> None:
    story.pass_time(100)
    story.speak(50, valid_s=30)
    assert story.reason == "AgentSilent"


def test_a_heartbeat_that_says_nothing_new_wakes_nobody(story: Story) -> None:
    story.speak(0, valid_s=30)
    cluster = story.cluster
    trial = Trial(cluster.snapshot, cluster.quotas, cluster.gangs, lambda _pool: Policy())
    while cluster.has_grown:
        cluster.wake(trial, busy=lambda _uid: False)
    story.speak(10, valid_s=30)
    story.say(11, "node", "n", Node(name="n", pool="p"))
    assert not cluster.has_grown
    story.pass_time(50)
    story.speak(51, valid_s=30)
    assert cluster.has_grown


def test_a_replay_knows_the_time_though_those_who_told_it_are_gone(story: Story) -> None:
    assert story.cluster.now_ns == 0
    story.speak(0, valid_s=30)
    lasting = list(story.records)
    for second, reason in ((30, ""), (31, "AgentSilent")):
        story.pass_time(second)
        replay = Replay("a", lasting, lambda _node, _seq: ())
        saw = Saw(story.cluster.state_seq, 0, 0, 1, story.cluster.now_ns)
        place = Place(namespace="ns", name="pod", pod_uid="u", request=GpuRequest(pool="p"))
        turn = Turn(allocator="a", number=1, decided=0, engine="", steps=(saw, place))
        assert [decision.reason for decision in replay.play(turn)] == [reason] == [story.reason]
