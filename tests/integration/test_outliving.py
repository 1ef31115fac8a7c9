"""Clients outlive what has made them: with real controllers and a real garbage collector, none loses its worker while it runs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from bus.kube.client import resource_path
from tests.integration.cluster import POOL, Cluster, pod
from tests.integration.plane import ControlPlane, find_assets
from tests.integration.test_remote import API, KEY, PATIENCE_S, Plane, client
from tests.integration.test_remote import plane as remote  # noqa: F401  a fixture

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CONTROLLERS = (
    "deployment-controller", "replicaset-controller", "statefulset-controller", "garbage-collector-controller",
)  # fmt: skip
PLURALS = {"Deployment": "deployments", "StatefulSet": "statefulsets", "ReplicaSet": "replicasets"}
LOOKS = 20


@pytest.fixture
async def controllers(plane: ControlPlane, cluster: Cluster) -> AsyncIterator[None]:
    if find_assets("kube-controller-manager") is None:
        pytest.skip("no kube-controller-manager: run `make test-assets`")
    plane.start_controllers(*CONTROLLERS)
    yield
    for kind in PLURALS:
        for one in await cluster.list(kind, "default", "apps/v1"):
            await cluster.delete(kind, one["metadata"]["name"], "default", "apps/v1")
    plane.stop("kube-controller-manager")


def controller(kind: str, name: str, **annotations: str) -> dict[str, Any]:
    template = client("any", **annotations)
    metadata = {
        "labels": {**template["metadata"]["labels"], "app": name},
        "annotations": template["metadata"]["annotations"],
    }
    spec: dict[str, Any] = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": metadata, "spec": template["spec"]},
    }
    if kind == "StatefulSet":
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def delete(cluster: Cluster, kind: str, name: str, policy: str) -> None:
    body = json.dumps({"propagationPolicy": policy}).encode()
    await cluster.client.call("DELETE", resource_path("apps/v1", PLURALS[kind], "default", name), body=body)


async def held(plane: Plane, names: Iterable[str]) -> dict[str, Any]:
    """Return the UIDs of workloads and workers, and where clients are told that theirs are."""
    cluster, found = plane.cluster, {}
    pods = await cluster.list("Pod", "default")
    told = await cluster.list("TensorFusionConnection", "default", API)
    for name in names:
        uids = {
            one["metadata"]["name"]: one["metadata"]["uid"]
            for one in await cluster.list("TensorFusionWorkload", "default", API)
        }
        found[name] = (
            uids.get(name),
            {one["metadata"]["uid"] for one in pods if one["metadata"]["labels"].get(f"{KEY}workload") == name},
            {
                one["metadata"]["name"]: one["status"].get("connectionURL")
                for one in told
                if one["spec"]["workloadName"] == name and one.get("status", {}).get("connectionURL")
            },
        )
    return found


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110  other processes do it
            await asyncio.sleep(0.1)


async def start(plane: Plane, *documents: dict[str, Any]) -> dict[str, Any]:
    """Create controllers, and return what their clients hold when each has its worker."""
    names = [one["metadata"]["name"] for one in documents]
    for one in documents:
        await plane.cluster.create(one)

    async def served() -> bool:
        return all(len(urls) == 2 for _, _, urls in (await held(plane, names)).values())

    await until(served)
    return await held(plane, names)


async def stays(plane: Plane, before: dict[str, Any]) -> None:
    """Look again and again: workloads and workers are those that they were."""
    for _ in range(LOOKS):
        now = await held(plane, before)
        assert {name: one[:2] for name, one in now.items()} == {name: one[:2] for name, one in before.items()}
        await asyncio.sleep(0.1)

    async def told() -> bool:
        return bool(await held(plane, before) == before)

    await until(told)


async def restart(plane: Plane) -> None:
    for one in plane.keepers:
        await one.kill()
        await one.start()


@pytest.mark.usefixtures("controllers")
async def test_clients_in_their_grace_period_keep_workers_that_end_with_them_however_their_maker_is_deleted(
    remote: Plane,  # noqa: F811
) -> None:
    cluster = remote.cluster
    kinds = {
        "back": ("Deployment", "Background"),
        "set": ("StatefulSet", "Background"),
        "fore": ("Deployment", "Foreground"),
    }
    before = await start(remote, *(controller(kind, name) for name, (kind, _) in kinds.items()))
    remote.patient = True
    for name, (kind, policy) in kinds.items():
        await delete(cluster, kind, name, policy)

    async def ending() -> bool:
        pods = await cluster.list("Pod", "default")
        clients = [one for one in pods if one["metadata"]["labels"].get("app") in kinds]
        return len(clients) == 6 and all(one["metadata"].get("deletionTimestamp") for one in clients)

    await until(ending)
    await stays(remote, before)
    await restart(remote)
    await stays(remote, before)
    remote.patient = False

    async def ended() -> bool:
        return await held(remote, kinds) == dict.fromkeys(kinds, (None, set(), {}))

    await until(ended)


@pytest.mark.usefixtures("controllers")
async def test_orphans_keep_their_workers_and_the_last_workload_ends_by_itself(
    remote: Plane,  # noqa: F811
) -> None:
    cluster = remote.cluster
    profile = {"replicas": 2, "resources": {"requests": {"tflops": "10", "vram": "1Gi"}}}
    metadata = {"name": "fixed", "namespace": "default"}
    await cluster.apply({"apiVersion": API, "kind": "WorkloadProfile", "metadata": metadata, "spec": profile})
    sharing = controller("Deployment", "fix", **{"workload-profile": "fixed", "tflops-request": "", "vram-request": ""})
    before = await start(remote, controller("StatefulSet", "db"), controller("Deployment", "old"), sharing)
    by_hand = {
        "apiVersion": API,
        "kind": "TensorFusionWorkload",
        "metadata": {"name": "hand", "namespace": "default"},
        "spec": {"replicas": 0, "poolName": POOL},
    }
    await cluster.create(by_hand)
    for name, kind in (("db", "StatefulSet"), ("old", "Deployment"), ("fix", "Deployment")):
        await delete(cluster, kind, name, "Orphan")

    async def gone() -> bool:
        kinds = [await cluster.list(kind, "default", "apps/v1") for kind in ("Deployment", "StatefulSet")]
        return not any(kinds)

    await until(gone)
    await stays(remote, before)
    await restart(remote)
    await stays(remote, before)

    # Who is made again takes its orphans for its own, and they keep what they have.
    await cluster.create(controller("StatefulSet", "db"))
    await cluster.create(controller("Deployment", "old"))
    await stays(remote, before)

    (orphan,) = [
        one["metadata"]["name"]
        for one in await cluster.list("ReplicaSet", "default", "apps/v1")
        if one["metadata"]["name"].startswith("fix-")
    ]
    await delete(cluster, "ReplicaSet", orphan, "Background")

    async def ended() -> bool:
        return (await held(remote, ["fix"]))["fix"] == (None, set(), {})

    await until(ended)
    del before["fix"]
    await stays(remote, before)
    assert (await held(remote, ["hand"]))["hand"][0] is not None, "what was written by hand is nobody's to end"


async def without(cluster: Cluster, resource: str) -> dict[str, Any]:
    """Let the watcher look at no controllers of this kind, and return its role as it was."""
    role = await cluster.get("ClusterRole", "gpubus-watcher", api="rbac.authorization.k8s.io/v1")
    kept = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
    }
    kept |= {"metadata": {"name": "gpubus-watcher"}}
    rules = [
        {**rule, "resources": [one for one in rule["resources"] if one != resource]} if rule.get("resources") else rule
        for rule in role["rules"]
    ]
    await cluster.apply({**kept, "rules": [rule for rule in rules if rule.get("resources") != []]})
    return {**kept, "rules": role["rules"]}


@pytest.mark.usefixtures("controllers")
async def test_who_may_not_be_looked_at_keeps_what_it_has_and_gets_nothing_new_until_it_may(
    remote: Plane,  # noqa: F811
) -> None:
    cluster = remote.cluster
    before = await start(remote, controller("StatefulSet", "fb"))
    role = await without(cluster, "statefulsets")
    try:
        await restart(remote)
        await stays(remote, before)
        # One made by an older version says nothing of its maker.
        path = resource_path(API, "tensorfusionworkloads", "default", "fb")
        body = json.dumps({"metadata": {"annotations": {f"{KEY}workload-maker": None}}}).encode()
        await cluster.client.call("PATCH", path, body=body, content_type="application/merge-patch+json")
        await restart(remote)
        await stays(remote, before)
    finally:
        await cluster.apply(role)
    await remote.until(
        "TensorFusionWorkload",
        "fb",
        lambda one: one["metadata"]["annotations"].get(f"{KEY}workload-maker") == "StatefulSet/fb",
    )
    await stays(remote, before)
    await cluster.client.call("PATCH", path, body=body, content_type="application/merge-patch+json")
    await remote.until(
        "TensorFusionWorkload",
        "fb",
        lambda one: one["metadata"]["annotations"].get(f"{KEY}workload-maker") == "StatefulSet/fb",
    )

    # Of a kind that the watcher may not look at nothing is known, which makes its pods no strangers and gives them nothing.
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "fb", "namespace": "default"},
    }
    selector = {"selector": {"matchLabels": {"app": "none"}}, "maxUnavailable": 1}
    uid = (await cluster.create({**budget, "spec": selector}))["metadata"]["uid"]
    one = pod("waits")
    one["metadata"]["labels"] = {f"{KEY}component": "client"}
    said = {f"{KEY}selected-workload": "fb", "gpubus.io/workload-spec": json.dumps({"poolName": POOL, "replicas": 1})}
    owner = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "name": "fb", "uid": uid, "controller": True}
    one["metadata"] |= {"annotations": said, "ownerReferences": [owner]}
    await cluster.create(one)
    try:
        shown = await remote.until(
            "TensorFusionWorkload",
            "fb",
            lambda one: any(said["type"] == "ClientsServed" for said in one.get("status", {}).get("conditions", ())),
        )
        (said,) = (said for said in shown["status"]["conditions"] if said["type"] == "ClientsServed")
        assert said["reason"] == "MakerUnknown"
        assert "let the watcher's account get poddisruptionbudgets of policy" in said["message"]
        assert (shown["status"]["phase"], "replicas" in shown["spec"]) == ("Running", False)
        await stays(remote, before)
    finally:
        await cluster.delete("PodDisruptionBudget", "fb", "default", "policy/v1")
