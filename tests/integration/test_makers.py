"""Who has made a pod, by the API server's word: all kinds of controllers of Kubernetes, and those that only a pod speaks of."""

import asyncio
import uuid
from typing import Any

import pytest

from bus.connection import Bus
from bus.makers import Makers
from schemas.kube.base import LabelSelector
from schemas.makers import Made
from schemas.remote import Owner
from tests.integration.cluster import Cluster
from tests.integration.plane import SYSTEM

pytestmark = pytest.mark.integration

LABELS = {"app": "made"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
SELECTOR = LabelSelector(match_labels=LABELS)
ONCE = {"template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}
SELECTED = {"selector": {"matchLabels": LABELS}, "template": TEMPLATE}
CONTROLLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ReplicaSet": ("apps/v1", {"replicas": 0, **SELECTED}),
    "Deployment": ("apps/v1", {"replicas": 0, **SELECTED}),
    "StatefulSet": ("apps/v1", {"replicas": 0, "serviceName": "s", **SELECTED}),
    "DaemonSet": ("apps/v1", SELECTED),
    "Job": ("batch/v1", {"parallelism": 0, **ONCE}),
    "CronJob": ("batch/v1", {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": ONCE}}),
    "ReplicationController": ("v1", {"replicas": 0, "selector": LABELS, "template": TEMPLATE}),
}


async def made(cluster: Cluster, kind: str, name: str, above: Owner | None = None, **template: Any) -> Owner:
    """Create a controller that makes nothing, as no controller-manager runs, and return it as its pods name it."""
    api, spec = CONTROLLERS[kind]
    document = {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec | template,
    }
    if above is not None:
        reference = {"apiVersion": above.api_version, "kind": above.kind, "name": above.name, "uid": above.uid}
        document["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
    found = await cluster.create(document)
    return Owner(api_version=api, kind=kind, name=name, uid=found["metadata"]["uid"])


async def a_kind_outside_of_namespaces(cluster: Cluster, makers: Makers, name: str) -> None:
    api, rbac = "scheduling.k8s.io/v1", "rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": ["get"]}]
    await cluster.apply({"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    account = {"kind": "ServiceAccount", "name": "gpubus-watcher", "namespace": SYSTEM}
    binding = {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": name}, "roleRef": reference}
    await cluster.apply({**binding, "subjects": [account]})
    made = await cluster.create({"apiVersion": api, "kind": "PriorityClass", "metadata": {"name": name}, "value": 1})
    owner = Owner(api_version=api, kind="PriorityClass", name=name, uid=made["metadata"]["uid"])
    try:
        async with asyncio.timeout(20):
            while (await makers.ask("default", owner, 0.0)).top != owner:  # noqa: ASYNC110  the rights count in a moment
                await asyncio.sleep(0.05)
    finally:
        await cluster.delete("PriorityClass", name, api=api)
        await cluster.delete("ClusterRoleBinding", name, api=rbac)
        await cluster.delete("ClusterRole", name, api=rbac)


async def test_a_controller_is_what_the_api_server_has_under_its_name_and_uid(
    cluster: Cluster, bus: Bus, start
) -> None:
    await start("watcher")
    makers, name = Makers(bus), f"made-{uuid.uuid4().hex[:8]}"
    there = {kind: await made(cluster, kind, name) for kind in CONTROLLERS}
    try:
        for kind, owner in there.items():
            found = await makers.ask("default", owner)
            assert (found.top, found.problem) == (owner, ""), kind
        child = await made(cluster, "ReplicaSet", f"{name}-7f", there["Deployment"])
        below = await makers.ask("default", child)
        assert below.top == there["Deployment"]
        assert below.selector is not None
        assert below.selector.match_labels == LABELS
        assert (await makers.ask("default", await made(cluster, "Job", f"{name}-1", there["CronJob"]))).top == there[
            "CronJob"
        ]

        gone = Owner(api_version="apps/v1", kind="Deployment", name=name, uid=str(uuid.uuid4()))
        orphan = await made(cluster, "ReplicaSet", f"{name}-8a", gone)
        assert (await makers.ask("default", orphan)).top == orphan, "what it says of the one above is not so"

        await a_kind_outside_of_namespaces(cluster, makers, name)
        real = there["StatefulSet"]
        for namespace, owner, problem in (
            ("default", Owner(api_version="apps/v1", kind="StatefulSet", name=name, uid=str(uuid.uuid4())), "its UID is not"),
            ("default", Owner(api_version="apps/v1", kind="StatefulSet", name=name, uid=""), "its UID is not said"),
            ("default", Owner(api_version="apps/v1", kind="StatefulSet", name="none", uid=real.uid), "there is no"),
            ("kube-system", real, "there is no StatefulSet"),
            ("default", Owner(api_version="apps/v1", kind="Nothing", name=name, uid=real.uid), "is no kind that"),
            ("default", Owner(api_version="apps/v9", kind="StatefulSet", name=name, uid=real.uid), "is no kind that"),
            ("default", Owner(api_version="../v1", kind="X", name=name, uid=real.uid), "is no controller of pods"),
            ("default", Owner(api_version="v1", kind="Pod", name=name, uid=real.uid), "is no controller of pods"),
            ("default", Owner(api_version="policy/v1", kind="PodDisruptionBudget", name=name, uid=real.uid), "account get pod"),
        ):  # fmt: skip
            found = await makers.ask(namespace, owner)
            assert found.top is None
            # Where nobody can say, or no UID was asked for, nothing is proved against anybody.
            assert found.gone == (problem == "its UID is not" or problem.startswith("there is no"))
            assert problem in found.problem, found
        assert await makers.ask("default", real) == makers.known("default", real) == Made(top=real, selector=SELECTOR)
    finally:
        for kind, owner in there.items():
            await cluster.delete(kind, owner.name, "default", owner.api_version)
