"""Alerts are a pool's when they are about it, about a node of it, or about a GPU there."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.updater.alarms import Alarms
from schemas.alert import RuleState, Streak
from schemas.cluster import GpuDevice, GpuInventory, Node
from schemas.event import Event
from schemas.registry import TYPE_NAMES

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(kind: str, name: str, data: msgspec.Struct | None) -> Record:
    subject = subjects.state(kind, name)
    if data is None:
        return Record(subject, 1, b"", deleted=True)
    event = Event(id="1", source="/test", type=TYPE_NAMES[type(data)], subject=name, time=NOW, data=data)
    return Record(subject, 1, codec.encode(event))


def rule(*instances: str, firing: bool = True) -> RuleState:
    def streak(instance: str) -> Streak:
        known: dict[str, Any] = {"fingerprint": instance, "annotations": {}, "count": 3, "since": NOW}
        return Streak(labels={"instance": instance}, firing=firing, **known)

    return RuleState(rule="Hot", streaks=tuple(map(streak, instances)))


@pytest.fixture
def alarms() -> Alarms:
    """Pool p with node n and its GPU, and another."""
    known = Alarms()
    gpu = GpuDevice(uuid="GPU-1", index=0, model="m", tflops_milli=1, vram_bytes=1)
    for one in (
        record("node", "n", Node(name="n", pool="p")),
        record("node", "other", Node(name="other", pool="q")),
        record("gpu", "n", GpuInventory(node="n", gpus=[gpu], observed_at=NOW)),
    ):
        assert not known.apply(one)
    return known


@pytest.mark.parametrize(("instance", "ours"), [("p", 1), ("n", 1), ("GPU-1", 1), ("q", 0), ("other", 0), ("GPU-2", 0)])
def test_what_an_alert_is_about(alarms: Alarms, instance: str, ours: int) -> None:
    assert alarms.apply(record("alert", "Hot", rule(instance)))
    found = alarms.firing("p")
    assert [one.name for one in found] == [f"Hot on {instance}"] * ours
    assert not ours or found[0].since == NOW


def test_alerts_come_and_go_and_what_cannot_be_read_changes_nothing(alarms: Alarms) -> None:
    assert not alarms.apply(record("alert", "Hot", rule("n", firing=False)))
    assert alarms.apply(record("alert", "Hot", rule("n", "p")))
    assert not alarms.apply(record("alert", "Hot", rule("n", "p")))
    with pytest.raises(UndecodableError):
        alarms.apply(Record(subjects.state("alert", "Hot"), 2, b"{half a mess"))
    assert len(alarms.firing("p")) == 2
    alarms.apply(record("gpu", "n", None))
    alarms.apply(record("node", "n", None))
    assert [one.name for one in alarms.firing("p")] == ["Hot on p"]
    assert alarms.apply(record("alert", "Hot", None))
    assert alarms.firing("p") == ()
