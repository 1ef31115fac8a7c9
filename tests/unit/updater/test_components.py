"""Pools as templates of their components, pods as their members, and rollouts as the pool's status shows them."""

import re
from typing import Any

import msgspec
import pytest

from consumers.updater.agents import agent_name, agent_pod
from consumers.updater.status import pool_status
from producers.watcher.members import Members
from schemas.kube.components import component_specs
from schemas.kube.core import KubePod
from schemas.kube.isolation import isolation_of
from schemas.kube.pools import GPUPoolSpec
from schemas.kube.resources import TensorFusionWorkload
from schemas.rollout import Replace
from schemas.rollout_template import member_hashes
from tests.unit.updater.world import NEW, World

POLICY = {"autoUpdateHypervisor": True, "batchPercentage": 20, "batchInterval": "5m"}


def pool(policy: dict[str, Any] | None = None, **config: Any) -> GPUPoolSpec:
    manager = {"nodePoolRollingUpdatePolicy": POLICY | (policy or {})}
    return msgspec.convert({"nodeManagerConfig": manager, "componentConfig": config}, GPUPoolSpec)


def agents(image: str, **template: Any) -> dict[str, Any]:
    return {"hypervisor": {"image": image, "podTemplate": {"template": template}}}


def hashes(spec: GPUPoolSpec, revisions: dict[str, str] | None = None) -> dict[str, str]:
    return {str(name): one.template.hash for name, one in component_specs("p", spec, revisions or {}).items()}


def test_only_components_that_a_pool_configures_are_wanted_each_under_its_own_switch() -> None:
    specs = component_specs("p", pool(hypervisor={"image": "h:1"}, client={"remoteModeImage": "c:1"}), {})
    assert {name: spec.policy.auto_update for name, spec in specs.items()} == {"hypervisor": True, "client": False}
    assert specs["hypervisor"].policy.batch_interval_s == 300
    assert component_specs("p", pool(), {}) == {}


def test_an_agent_is_rendered_from_the_pool_s_template_and_the_image_beside_it() -> None:
    template = {
        "metadata": {"labels": {"team": "gpu"}, "name": "ignored"},
        "spec": {"containers": [{"name": "h", "image": "old", "env": []}, {"name": "log"}], "hostPID": False},
    }
    rendered = component_specs("p", pool(**agents("h:2", **template)), {})["hypervisor"].template.rendered
    assert rendered["metadata"] == {"labels": {"team": "gpu"}}
    first, second = rendered["spec"]["containers"]
    assert (first["name"], first["image"], second) == ("h", "h:2", {"name": "log"})
    assert rendered["spec"]["hostNetwork"]
    assert not rendered["spec"]["hostPID"]
    assert template["spec"]["containers"][0]["image"] == "old"  # the pool itself is not touched


def test_what_changes_an_agent_changes_its_template_and_nothing_else_does() -> None:
    base = hashes(pool(**agents("h:1")))
    assert hashes(pool({"batchPercentage": 50}, **agents("h:1"))) == base
    assert hashes(pool(**agents("h:2"))) != base
    assert hashes(pool(**agents("h:1", spec={"priority": 1}))) != base
    assert hashes(pool(**agents("h:1")), {"NVIDIA": "2"}) != base
    assert hashes(pool(**agents("h:1"), worker={"image": "w:1"}))["hypervisor"] == base["hypervisor"]


def test_a_policy_that_cannot_be_followed_updates_nothing_and_says_why() -> None:
    stated = {"autoUpdateHypervisor": True, "maintenanceWindow": {"includes": ["0 3 * * *"]}}
    policy = component_specs("p", pool(stated, **agents("h:1")), {})["hypervisor"].policy
    assert not policy.auto_update
    assert re.search(r"maintenanceWindow.includes\[0\].*single minute", policy.refused)


def test_the_first_isolation_rule_that_matches_counts() -> None:
    rules = [
        {"mode": "hard", "selector": {"matchLabels": {"zone": "a"}}},
        {"mode": "shared", "selector": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}},
    ]
    manager = msgspec.convert({"nodeManagerConfig": {"isolationModeRules": rules}}, GPUPoolSpec).node_manager_config
    assert [isolation_of(manager, labels) for labels in ({"zone": "a"}, {"zone": "b"}, {})] == [
        "hard",
        "shared",
        "soft",
    ]


def pod(name: str, component: str = "client", *, version: int = 1, phase: str = "Running", **facts: Any) -> KubePod:
    labels = {f"tensor-fusion.ai/{key}": value for key, value in
              {"component": component, "gpupool": "p", "pod-template-hash": "h1"}.items()}  # fmt: skip
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "owner", "controller": True}
    metadata = {
        "name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version), "labels": labels,
        "creationTimestamp": f"2026-01-01T00:00:0{version}Z", "ownerReferences": [owner],
    }  # fmt: skip
    metadata["labels"] |= facts.pop("labels", {})
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]}
    document = {"metadata": metadata | facts.pop("metadata", {}), "spec": {"nodeName": "n"}, "status": status | facts}
    return msgspec.convert(document, KubePod)


def test_a_pod_is_a_member_as_long_as_it_runs() -> None:
    changed: list[tuple[str, ...]] = []
    members, key = Members(changed.append), ("p", "client", "ns/a")
    members.put(pod("a"))
    found = members.project(key)
    assert found is not None
    assert (found.uid, found.hash, found.ready, found.owned) == ("uid-a", "h1", True, True)
    members.put(pod("a", version=2, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    assert not members.project(key).ready
    looping = [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    members.put(pod("a", version=3, containerStatuses=looping))
    assert members.project(key).crash_looping
    members.put(pod("a", version=4, metadata={"ownerReferences": []}))
    assert not members.project(key).owned
    members.put(pod("a", version=5, phase="Succeeded"))
    assert (members.project(key), members.version(key)) == (None, 5)
    assert set(changed) == {key}
    members.put(pod("other", component="operator"))
    assert set(changed) == {key}


def workload(**spec: Any) -> TensorFusionWorkload:
    metadata = {"name": "w", "namespace": "ns", "uid": "uid-w", "creationTimestamp": "2025-12-31T00:00:00Z"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, TensorFusionWorkload)


def worker(name: str, *, version: int = 1, made_from: str = "h1", owner: str = "uid-w", **facts: Any) -> KubePod:
    reference = {"kind": "TensorFusionWorkload", "name": "w", "uid": owner, "controller": True}
    labels = {"tensor-fusion.ai/pod-template-hash": made_from}
    metadata = {"ownerReferences": [reference]} | facts.pop("metadata", {})
    return pod(name, "worker", version=version, labels=labels, metadata=metadata, **facts)


def test_a_workload_is_what_the_least_of_its_workers_is() -> None:
    changed: list[tuple[str, ...]] = []
    members, two = Members(changed.append), workload(replicas=2)
    members.put(worker("w-1", version=2))
    members.put(worker("w-0"))
    members.put(worker("stranger", version=1, owner="uid-of-one-before"))
    assert set(changed) == {("", "worker", "ns/w")}
    found = members.project_worker("p", two, "NVIDIA")
    assert found is not None
    assert (found.pool, found.name, found.uid, found.hash) == ("p", "ns/w", "uid-w", "h1")
    assert (found.ready, found.owned, found.created_at.second) == (True, True, 1)
    assert (found.pods, found.pods_ready, found.vendor) == (2, 2, "NVIDIA")
    assert not members.project_worker("p", workload(replicas=3), "NVIDIA").ready
    assert not members.project_worker("p", workload(), "NVIDIA").owned  # nobody makes its workers
    members.put(worker("w-1", version=3, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    ending = members.project_worker("p", two, "NVIDIA")
    assert (ending.ready, ending.pods, ending.pods_ready) == (False, 2, 1)
    members.put(worker("w-1", version=4, made_from="h2"))
    assert members.project_worker("p", two, "NVIDIA").hash == ""
    looping = [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    members.put(worker("w-1", version=5, made_from="h2", containerStatuses=looping))
    found = members.project_worker("p", two, "NVIDIA")
    assert (found.hash, found.crash_looping) == ("h2", True)  # what it was made from is to blame


def test_a_workload_is_a_member_as_long_as_it_wants_workers_or_has_any() -> None:
    members = Members(lambda _: None)
    missing = members.project_worker("p", workload(replicas=1), "NVIDIA")
    assert missing is not None
    assert (missing.uid, missing.hash, missing.ready, missing.pods) == ("", "", False, 0)
    assert (missing.created_at.year, missing.created_at.month) == (2025, 12)
    members.put(worker("w-0"))
    assert members.project_worker("p", workload(replicas=0), "NVIDIA").pods == 1
    members.gone("ns", "w-0", 2)
    assert members.project_worker("p", workload(replicas=0), "NVIDIA") is None
    assert members.project_worker("p", workload(), "NVIDIA") is None


def test_what_a_workload_adds_counts_and_how_many_workers_it_wants_does_not() -> None:
    template = component_specs("p", pool(worker={"image": "w:1"}), {})["worker"].template
    members = Members(lambda _: None)

    def wanted(**spec: Any) -> str:
        member = members.project_worker("p", workload(**spec), "NVIDIA")
        assert member is not None
        return member_hashes(template)(member)

    base = wanted(replicas=1, gpuCount=1)
    assert wanted(replicas=9, gpuCount=1) == base
    assert wanted(replicas=1, gpuCount=1, autoScalingConfig={"autoSetResources": {"enable": True}}) == base
    assert wanted(replicas=1, gpuCount=2) != base


def test_a_pod_with_gpus_under_another_controller_is_a_client_however_admission_labels_it() -> None:
    members = Members(lambda _: None)
    members.put(pod("a", "worker", metadata={"annotations": {"tensor-fusion.ai/vendor": "AMD"}}))
    found = members.project(("p", "client", "ns/a"))
    assert found is not None
    assert (found.uid, found.component, found.vendor) == ("uid-a", "client", "AMD")


def test_images_of_providers_are_kept_with_the_template_that_their_revision_stands_for() -> None:
    images = {"NVIDIA/remoteWorker": "w:9", "NVIDIA/middleware": "m:9"}
    specs = component_specs("p", pool(), {"NVIDIA": "4"}, images)
    assert set(specs) == {"worker", "client"}  # a provider alone is enough to make them
    assert specs["worker"].template.images == {"NVIDIA/remoteWorker": "w:9"}
    assert specs["client"].template.images == images
    first = specs["worker"].template.rendered["spec"]["containers"][0]
    assert first["ports"] == [{"name": "remote-vgpu", "containerPort": 8000}]


def test_an_agent_is_a_member_as_long_as_its_node_is_in_the_pool() -> None:
    changed: list[tuple[str, ...]] = []
    members = Members(changed.append)
    facts = {"since": "2026-01-01T00:00:00Z", "isolation": "hard", "vendor": "NVIDIA"}
    missing = members.project_agent("p", "n", **facts)
    assert (missing.uid, missing.hash, missing.ready, missing.isolation) == ("", "", False, "hard")
    members.put(pod("hypervisor-n", "hypervisor", metadata={"ownerReferences": []}))
    assert changed == [("", "hypervisor", "n")]
    agent = members.project_agent("p", "n", **facts)
    assert (agent.uid, agent.owned, agent.ready, agent.vendor) == ("uid-hypervisor-n", True, True, "NVIDIA")


def test_an_agent_that_another_pool_has_made_is_out_of_date_in_the_pool_that_its_node_came_to() -> None:
    members, facts = Members(lambda _: None), {"since": "2026-01-01T00:00:00Z", "isolation": "soft", "vendor": "NVIDIA"}
    members.put(pod("hypervisor-n", "hypervisor"))
    moved = members.project_agent("q", "n", **facts)
    assert (moved.pool, moved.uid, moved.hash, moved.ready) == ("q", "uid-hypervisor-n", "", True)
    assert members.project_agent("p", "n", **facts).hash == "h1"


def test_an_agent_s_name_fits_a_host_name_and_stays_its_own() -> None:
    long = [f"gpu-{number}.rack-2.a-very-long-name-of-a-data-centre.example.com" for number in range(3)]
    names = [agent_name(node) for node in ("n1", *long)]
    assert names[0] == "hypervisor-n1"
    assert len(set(names)) == 4
    assert all(len(name) <= 63 and name[-1].isalnum() for name in names)


def test_an_agent_s_pod_says_what_it_was_made_from() -> None:
    spec = component_specs("p", pool(**agents("h:1", metadata={"labels": {"team": "gpu"}})), {})["hypervisor"]
    request = Replace(
        pool="p", component="hypervisor", name="n", uid="", template=spec.template, hash="abc", isolation="hard"
    )
    made = agent_pod(request, "system")
    assert made["metadata"] == {
        "name": "hypervisor-n",
        "namespace": "system",
        "labels": {
            "team": "gpu",
            "tensor-fusion.ai/component": "hypervisor",
            "tensor-fusion.ai/gpupool": "p",
            "tensor-fusion.ai/pod-template-hash": "abc",
        },
        "annotations": {"tensor-fusion.ai/isolation": "hard"},
    }
    assert (made["spec"]["nodeName"], made["spec"]["containers"][0]["image"]) == ("n", "h:1")


def test_the_pool_s_status_shows_progress_and_why_it_stopped() -> None:
    world = World()
    world.want(NEW, canary=True)
    world.crashing = {"n00"}
    world.settle()
    world.run()
    assert world.record is not None
    status = pool_status(world.record, 1, 10)["status"]
    assert status["componentStatus"] == {
        "hypervisor": NEW.hash, "hypervisorConfigSynced": False, "hypervisorUpdateProgress": 10,
    }  # fmt: skip
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "HypervisorsUpdated", "False", "CrashLooping",
    )  # fmt: skip
    assert condition["message"] == world.record.message


@pytest.mark.parametrize("component", ["hypervisor", "worker"])
@pytest.mark.parametrize(
    "template",
    [
        {"template": "x"},
        {"spec": {"containers": [None]}},
        {"spec": {"containers": "x"}},
        {"metadata": "x"},
        {"spec": {"containers": [{"env": [None]}]}},
    ],
)
def test_a_pod_template_that_is_none_updates_nothing_and_says_where(component, template) -> None:
    stated = {"nodeManagerConfig": {}, "componentConfig": {component: {"image": "a:1", "podTemplate": template}}}
    found = component_specs("p", msgspec.convert(stated, GPUPoolSpec), {})[component]
    assert f"componentConfig.{component}.podTemplate" in found.policy.refused
    assert (
        found.template
        == component_specs("p", msgspec.convert(sound(stated, component), GPUPoolSpec), {})[component].template
    )


@pytest.mark.parametrize(
    ("client", "where"),
    [
        ({"patchToPod": {"spec": {"containers": [{"image": "nameless"}]}}}, "patchToPod"),
        ({"patchToPod": {"spec": "x"}}, "patchToPod"),
        ({"patchToContainer": {"env": [1]}}, "patchToContainer"),
    ],
)
def test_a_patch_that_no_pod_can_take_updates_nothing_and_says_where(client, where) -> None:
    stated = {"nodeManagerConfig": {}, "componentConfig": {"client": client}}
    found = component_specs("p", msgspec.convert(stated, GPUPoolSpec), {})["client"]
    assert f"componentConfig.client.{where}" in found.policy.refused
    assert "new pods get what they got before" in found.policy.refused
    stated["componentConfig"]["client"] = {"patchToPod": {"spec": {"hostPID": True}}}
    assert component_specs("p", msgspec.convert(stated, GPUPoolSpec), {})["client"].policy.refused == ""


def sound(stated: dict, component: str) -> dict:
    return {**stated, "componentConfig": {component: {"image": stated["componentConfig"][component]["image"]}}}
