"""What the doctor makes of what it sees."""

from datetime import UTC, datetime, timedelta

import pytest

from bus import codec, subjects
from bus.follower import Record
from deploy.certificates.authority import make_authority
from deploy.doctor.bus import agent_findings, drift_findings, rule_findings, stream_findings
from deploy.doctor.cluster import asked_namespace, certificate_finding
from deploy.doctor.findings import Finding, worst
from deploy.doctor.guard import judge, writers
from deploy.doctor.parts import Parts, part_findings
from deploy.doctor.production import deployment_findings
from deploy.doctor.rights import Right, rights_of
from producers.gateway.guard import guard
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
            assert worst(deployment_findings(part, deployment)) == severity, part


PARTS = {"Deployment", "StatefulSet", "DaemonSet"}
RELEASE = "tensor-fusion-sys"


def whole(values: dict | None = None) -> Parts:
    """What the chart makes, with all that it should run running."""
    objects, _ = rendered(values or {})
    workloads = []
    for (kind, _), document in objects.items():
        if kind in PARTS:
            count = document["spec"].get("replicas", 2)
            status = {"observedGeneration": 4, "readyReplicas": count, "updatedReplicas": count}
            daemons = {"desiredNumberScheduled": count, "numberReady": count, "updatedNumberScheduled": count}
            metadata = document["metadata"] | {"generation": 4}
            workloads.append(document | {"metadata": metadata, "status": status | daemons})
    accounts = {name for kind, name in objects if kind == "ServiceAccount"}
    return Parts(tuple(workloads), frozenset(accounts), pools_run_agents=False)


def judged(parts: Parts) -> dict[str, Finding]:
    return {one.check: one for one in part_findings(parts, RELEASE, RELEASE) if one.severity != "ok"}


@pytest.mark.parametrize("values", [{}, production(), {"migration": {"passive": True}}])
def test_all_parts_are_found_where_nothing_is_amiss(values) -> None:
    assert judged(whole(values)) == {}


@pytest.mark.parametrize("part", ["controller", "scheduler", "webhook", "monitor", "nats", "alert-manager", "agent"])
def test_a_part_that_is_gone_or_scaled_to_nothing_is_critical(part: str) -> None:
    parts, name = whole(), f"{RELEASE}-{part}"
    left = tuple(one for one in parts.workloads if one["metadata"]["name"] != name)
    gone = judged(parts._replace(workloads=left))[f"parts/{name}"]
    assert (gone.severity, "helm upgrade" in gone.fix) == ("critical", True)
    if part != "agent":
        idle = tuple(
            one | {"spec": one["spec"] | {"replicas": 0}} if one not in left else one for one in parts.workloads
        )
        found = judged(parts._replace(workloads=idle))[f"parts/{name}"]
        assert (found.severity, found.says) == ("critical", "it is scaled to 0")
        assert f"kubectl scale -n {RELEASE} " in found.fix


def test_roles_without_which_no_pod_gets_a_gpu_are_named() -> None:
    parts = whole()
    controllers = tuple(one for one in parts.workloads if not one["metadata"]["name"].endswith("-controller"))
    assert "nobody plays watcher, binder" in judged(parts._replace(workloads=controllers))["parts/roles"].says
    nothing = judged(Parts((), frozenset(), pools_run_agents=False))
    assert "watcher, allocator, binder, gateway, mutator" in nothing["parts/roles"].says


def test_agents_of_a_pool_have_no_daemon_set() -> None:
    parts = whole({"devicePlugin": {"managedBy": "Pool"}})
    assert list(judged(parts)) == [f"parts/{RELEASE}-agent"]
    assert judged(parts._replace(pools_run_agents=True)) == {}


@pytest.mark.parametrize(
    ("status", "severity", "says"),
    [
        ({"readyReplicas": 0}, "critical", "0 of 2 pods are ready"),
        ({"readyReplicas": 1}, "warning", "1 of 2 pods are ready"),
        ({"updatedReplicas": 1}, "warning", "1 of 2 pods are of the newest version"),
        ({"observedGeneration": 3}, "warning", "has not been taken up"),
        (
            {"conditions": [{"type": "Progressing", "status": "False", "message": "timed out progressing"}]},
            "critical",
            "its change stands still: timed out progressing",
        ),
        ({"conditions": [{"type": "Progressing", "status": "True"}]}, "ok", ""),
    ],
)
def test_a_change_that_is_not_carried_out_is_told(status: dict, severity: str, says: str) -> None:
    parts, name = whole({"scheduler": {"replicas": 2}}), f"{RELEASE}-scheduler"
    changed = tuple(
        one | {"status": one["status"] | status} if one["metadata"]["name"] == name else one for one in parts.workloads
    )
    found = part_findings(parts._replace(workloads=changed), RELEASE, RELEASE)
    mine = [one for one in found if one.check == f"parts/{name}"]
    assert worst(mine) == severity
    assert any(says in one.says for one in mine)
    assert all(one.fix for one in mine if one.severity != "ok")


def test_admission_is_tried_where_pods_are_sent_to_us() -> None:
    def namespace(name: str, **labels: str) -> dict:
        return {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}}}

    there = [namespace("default"), namespace("kube-system"), namespace("ml", gpus="yes")]
    hook = "MutatingWebhookConfiguration", f"{RELEASE}-mutating-webhook"
    hooks = rendered({})[0][hook]["webhooks"]
    assert asked_namespace(hooks, there) == "default"
    hooks = rendered({"webhook": {"namespaceLabels": {"gpus": "yes"}}})[0][hook]["webhooks"]
    assert asked_namespace(hooks, there) == "ml"
    assert asked_namespace(hooks, there[:2]) == ""
    hooks = rendered({"webhook": {"excludedNamespaces": ["default", "ml"]}})[0][hook]["webhooks"]
    assert asked_namespace(hooks, there) == ""


def test_a_guard_that_shuts_our_own_accounts_out_is_critical() -> None:
    name, users = "gpubus-guard", writers(whole(), RELEASE)
    assert users == [f"system:serviceaccount:{RELEASE}:{RELEASE}-{part}" for part in ("controller", "monitor")]

    def found(*let: str, policy: dict | None = None, **binding: object) -> tuple[str, str]:
        made, bound = guard(name, let)
        made, bound = (one | {"spec": one["spec"] | more} for one, more in ((made, policy or {}), (bound, binding)))
        (finding,) = judge(name, made, bound, users, passive=False)
        return finding.severity, finding.says

    assert found(*users)[0] == "ok"
    assert found(users[0]) == (
        "critical", f"the policy does not let {users[1]} write: bindings or resizes are refused",
    )  # fmt: skip
    assert "is not Fail" in found(*users, policy={"failurePolicy": "Ignore"})[1]
    assert "leaves pods out" in found(*users, matchResources={"namespaceSelector": {"matchLabels": {"a": "b"}}})[1]
    assert "does not deny" in found(*users, validationActions=["Warn"])[1]
    assert found(*users, policy={"validations": [{"expression": "true"}]})[0] == "warning"
    assert judge(name, None, None, [], passive=True) == []
    assert judge(name, guard(name, users)[0], None, users, passive=False)[0].severity == "critical"


def test_what_roles_need_is_what_the_manifests_say() -> None:
    assert Right("create", "", "pods/binding", everywhere=True) in rights_of(["binder"])
    assert Right("list", "", "nodes", everywhere=True) in rights_of(["watcher"])
    assert Right("create", "", "pods", everywhere=False) in rights_of(["actuator"])
    assert Right("watch", "", "configmaps", everywhere=False) in rights_of(["alerter"])
    assert rights_of(["allocator"]) == []
    assert worst([Finding(check="a", severity="unknown", says="b")]) == "unknown"
