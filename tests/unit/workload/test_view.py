"""What workers are made from: what their pool's rollout says, and while that has stopped what all had before."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from bus import codec
from bus.follower import Record
from consumers.workload.view import View
from schemas.event import Event
from schemas.kube.components import component_specs
from schemas.kube.pools import GPUPoolSpec
from schemas.kube.resources import CustomResource
from schemas.registry import TYPE_NAMES
from schemas.rollout import Phase, Rollout, Template

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def template(image: str) -> Template:
    pool = msgspec.convert({"nodeManagerConfig": {}, "componentConfig": {"worker": {"image": image}}}, GPUPoolSpec)
    return component_specs("p", pool, {})["worker"].template


OLD, NEW = template("w:1"), template("w:2")


def said(subject: str, data: Any) -> Record:
    event = Event(id="e", source="/test", type=TYPE_NAMES[type(data)], subject="s", time=NOW, data=data)
    return Record(subject, 1, codec.encode(event))


@pytest.mark.parametrize(
    ("phase", "made"),
    [("batch", NEW), ("paused", NEW), ("halted", OLD), ("aborted", OLD), ("outdated", NEW), ("synced", NEW)],
)
def test_a_rollout_that_has_stopped_gives_new_workers_what_all_had_before(phase: Phase, made: Template) -> None:
    changed: list[tuple[str, str]] = []
    view = View(changed.append)
    spec = {"replicas": 1, "poolName": "p"}
    item = CustomResource(plural="tensorfusionworkloads", namespace="ns", name="w", uid="u", spec=spec)
    view.on_state(said("gpubus.state.config.tensorfusionworkloads.ns.w", item))
    changed.clear()
    record = Rollout(pool="p", component="worker", target=NEW, previous=OLD, changed_at=NOW, step="waited", phase=phase)
    view.on_ledger(said("gpubus.ledger.rollout.p.worker", record))
    assert view.source(("ns", "w")).template == made
    assert changed == [("ns", "w")]
