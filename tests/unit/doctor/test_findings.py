"""What the doctor makes of what it sees."""

from datetime import UTC, datetime, timedelta

import pytest

from bus import codec, subjects
from bus.follower import Record
from deploy.certificates.authority import make_authority
from deploy.doctor.bus import agent_findings, drift_findings, rule_findings, stream_findings
from deploy.doctor.cluster import certificate_finding, deployment_findings
from deploy.doctor.findings import Finding, worst
from deploy.doctor.rights import Right, rights_of
from schemas.cluster import GpuInventory, Node
from schemas.event import Event
from schemas.observed import Drift
from schemas.registry import TYPE_NAMES
from tests.chart.render import production, rendered

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def record(subject: str, data, *, ago_s: float = 0.0) -> Record:
    event = Event(id="1", source="/t", type=TYPE_NAMES[type(data)], subject="x", time=NOW, data=data)
    at = NOW - timedelta(seconds=ago_s)
    return Record(subject, 1, codec.encode(event), int(at.timestamp() * 1e9))


def info(**changes) -> dict:
    found = {
        "config": {"num_replicas": 3, "max_bytes": 100},
        "state": {"bytes": 10, "messages": 1},
        "cluster": {"leader": "n0", "replicas": [{"name": "n1", "current": True}, {"name": "n2", "current": True}]},
        "ts": NOW.isoformat(),
    }
    return found | changes


@pytest.mark.parametrize(
    ("stream", "changes", "severity", "says"),
    [
        ("LEDGER", {}, "ok", "3 copies, all current"),
        ("LEDGER", {"config": {"num_replicas": 1, "max_bytes": 100}}, "warning", "1 copy"),
        ("LEDGER", {"state": {"bytes": 96}}, "critical", "96% full: when it is full writes are refused"),
        ("LEDGER", {"state": {"bytes": 85}}, "warning", "85% full"),
        ("USAGE", {"state": {"bytes": 99}}, "warning", "the oldest is dropped"),
        ("LEDGER", {"cluster": {"replicas": [{"name": "n1", "offline": True}]}}, "warning", "on n1 is away"),
        (
            "LEDGER",
            {"cluster": {"replicas": [{"name": "n1", "current": False, "lag": 7}]}},
            "warning",
            "7 messages behind",
        ),
        ("DEAD", {"state": {"bytes": 1, "messages": 4}}, "warning", "4 messages could not be handled"),
        ("STATE", {"ts": (NOW - timedelta(seconds=9)).isoformat()}, "warning", "+9.0 s"),
    ],
)
def test_streams_are_judged(stream, changes, severity, says) -> None:
    found = stream_findings(stream, info(**changes), NOW)
    assert worst(found) == severity
    assert any(says in finding.says for finding in found)
    assert all(finding.fix for finding in found if finding.severity != "ok")


def test_agents_that_are_silent_missing_or_wrong_about_the_time_are_named() -> None:
    def inventory(node: str, *, ago_s: float = 0.0, off_s: float = 0.0) -> Record:
        at = NOW - timedelta(seconds=ago_s - off_s)
        said = GpuInventory(node=node, gpus=[], observed_at=at, valid_s=30)
        return record(subjects.state("gpu", node), said, ago_s=ago_s)

    node = record(subjects.state("node", "d"), Node(name="d", pool="p", cpu_milli=1, memory_bytes=1))
    found = agent_findings([inventory("a"), inventory("b", ago_s=31), inventory("c", off_s=60), node], NOW)
    said = {finding.check: finding for finding in found}
    assert "b (31 s)" in said["agents/silent"].says
    assert said["agents/silent"].severity == "critical"
    assert said["agents/missing"].says.endswith("never had an agent: d")
    assert said["agents/clock"].says.endswith("from the bus's: c")
    assert worst(agent_findings([inventory("a")], NOW)) == "ok"


def test_drift_counts_until_it_is_resolved() -> None:
    def drift(node: str, *, resolved: bool) -> Record:
        said = Drift(node=node, kind="UnmanagedUse", ledger="none", observed="1", at=NOW, resolved=resolved)
        return record(subjects.drift(node), said)

    assert worst(drift_findings([drift("a", resolved=True)])) == "ok"
    (found,) = drift_findings([drift("a", resolved=True), drift("b", resolved=False)])
    assert (found.severity, "b: UnmanagedUse" in found.says) == ("warning", True)
    assert worst(rule_findings([])) == "warning"


def test_certificates_are_judged_by_what_is_left_of_them() -> None:
    made = make_authority("x", NOW).certificate
    ends = NOW + timedelta(days=3650)
    for now, severity in ((NOW, "ok"), (ends - timedelta(days=13), "warning"), (ends + timedelta(days=1), "critical")):
        assert certificate_finding("s", made, now).severity == severity
    assert certificate_finding("s", b"junk", NOW).severity == "critical"


def test_the_production_overlay_passes_the_checklist_and_the_default_does_not() -> None:
    for values, severity in ((production(), "ok"), ({}, "warning")):
        objects, _ = rendered(values)
        for part in ("controller", "scheduler", "webhook", "monitor"):
            deployment = objects["Deployment", f"tensor-fusion-sys-{part}"]
            deployment["status"] = {"readyReplicas": deployment["spec"]["replicas"]}
            assert worst(deployment_findings(part, deployment)) == severity, part
            deployment["status"] = {}
            assert worst(deployment_findings(part, deployment)) == "critical"


def test_what_roles_need_is_what_the_manifests_say() -> None:
    assert Right("create", "", "pods/binding", everywhere=True) in rights_of(["binder"])
    assert Right("list", "", "nodes", everywhere=True) in rights_of(["watcher"])
    assert Right("create", "", "pods", everywhere=False) in rights_of(["actuator"])
    assert Right("watch", "", "configmaps", everywhere=False) in rights_of(["alerter"])
    assert rights_of(["allocator"]) == []
    assert worst([Finding(check="a", severity="unknown", says="b")]) == "unknown"
