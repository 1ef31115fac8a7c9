"""The API server takes everything that the chart renders, by default, in production and from both production guides."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bus.kube.client import APPLY, resource_path
from bus.kube.errors import KubeRefusedError
from schemas.kube.kinds import KINDS
from tests.chart.render import GUIDES, NAMESPACE, production, rendered, values_of
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.integration

ELSEWHERE = {"cert-manager.io/v1", "monitoring.coreos.com/v1"}
"""Kinds of others, which no API server has by itself."""

PLURALS = {kind.name: kind.plural for kind in KINDS} | {
    "NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses", "Ingress": "ingresses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}  # fmt: skip
CLUSTER_WIDE = {
    "Namespace", "ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration", "PriorityClass",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    *(kind.name for kind in KINDS if kind.scope == "Cluster"),
}  # fmt: skip
OBJECTS = [
    document
    for file in sorted((Path(__file__).parents[1] / "chart" / "guides" / "objects").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]


async def dry_run(cluster: Cluster, document: dict[str, Any]) -> None:
    """Have the API server do everything but store it; unknown fields are errors, as with ``kubectl apply --dry-run=server``."""
    kind, meta = document["kind"], document["metadata"]
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    namespace = "" if kind in CLUSTER_WIDE else meta.get("namespace", NAMESPACE)
    path = resource_path(document["apiVersion"], plural, namespace, meta["name"])
    query = {"fieldManager": "test", "force": "true", "dryRun": "All", "fieldValidation": "Strict"}
    try:
        await cluster.client.call("PATCH", path, query=query, body=json.dumps(document).encode(), content_type=APPLY)
    except KubeRefusedError as error:
        raise AssertionError(f"{kind} {meta['name']}: {error}") from None


async def check(cluster: Cluster, documents: list[dict[str, Any]]) -> int:
    slots = asyncio.Semaphore(8)

    async def one(document: dict[str, Any]) -> None:
        async with slots:
            await dry_run(cluster, document)

    mine = [document for document in documents if document["apiVersion"] not in ELSEWHERE]
    await asyncio.gather(*map(one, mine))
    return len(mine)


@pytest.mark.slow
async def test_everything_rendered_is_taken(cluster: Cluster) -> None:
    sets = {"default": {}, "production": production(), "kube-scheduler": {"kubeScheduler": {"enabled": True}}}
    sets["grouped"] = {"controller": {"roles": ["watcher", "updater"]}, "groups": {"b": {"roles": ["binder"]}}}
    sets["pool"] = {"devicePlugin": {"managedBy": "Pool", "workersDirectory": "/usr/local/vgpu"}}
    sets |= {file.stem: values_of(file) for file in GUIDES} | {"all": production(*GUIDES)}
    seen: dict[str, dict[str, Any]] = {}
    for values in sets.values():
        for document in rendered(values)[0].values():
            seen[json.dumps(document, sort_keys=True)] = document  # most sets differ in a few objects
    assert await check(cluster, list(seen.values())) > 100


async def test_objects_of_the_guides_are_taken(cluster: Cluster) -> None:
    assert await check(cluster, OBJECTS) == len(OBJECTS)


async def test_an_object_with_a_wrong_field_is_not_taken(cluster: Cluster) -> None:
    deployment = rendered({})[0]["Deployment", "tensor-fusion-sys-controller"]
    deployment["spec"]["template"]["spec"]["containers"][0]["ressources"] = {}
    with pytest.raises(AssertionError, match="ressources"):
        await dry_run(cluster, deployment)
