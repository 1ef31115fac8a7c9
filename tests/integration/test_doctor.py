"""The doctor against a real API server and a real bus: what it finds, and how it ends."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.main import main
from deploy.doctor.findings import ORDER
from deploy.local.server import LocalServer
from tests.chart.render import rendered
from tests.integration.cluster import SYSTEM, Cluster
from tests.integration.plane import ControlPlane

pytestmark = pytest.mark.integration

RELEASE = "doc"


def ask(capsys, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    code = main(["doctor", "--namespace", SYSTEM, "--release", RELEASE, "--json", *arguments])
    found = json.loads(capsys.readouterr().out)
    return code, {one["check"]: one for one in sorted(found["findings"], key=lambda one: ORDER.index(one["severity"]))}


@pytest.mark.slow
async def test_what_is_missing_is_found_and_what_is_there_is_not(
    plane: ControlPlane, cluster: Cluster, server: LocalServer, bus, capsys
) -> None:
    del bus  # it declares the streams
    objects, _ = rendered({}, name=RELEASE, namespace=SYSTEM)
    kinds = ("ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "Deployment")
    mine = [document for (kind, _), document in objects.items() if kind in kinds]
    for document in mine:
        await cluster.apply(document)
    options = ("--nats", server.url, "--kubeconfig", str(plane.kubeconfig))
    try:
        code, found = await asyncio.to_thread(ask, capsys, *options, "--roles", "watcher,binder")
        assert code == 1
        assert found["cluster/crds"]["severity"] == "ok", found["cluster/crds"]
        assert found["cluster/webhook"]["severity"] == "critical"
        assert found["cluster/guard"]["severity"] == "critical"
        assert "passes untouched" in found["cluster/admission"]["says"]
        assert found[f"cluster/rights/{RELEASE}-controller"]["severity"] == "ok", found
        assert found["cluster/own-rights"]["severity"] == "ok"
        assert found["bus/streams/LEDGER"]["severity"] == "warning"  # one server
        assert "0 of 1 pods are ready" in str(found[f"parts/{RELEASE}-scheduler"])  # no kubelet makes it ready
        assert found[f"parts/{RELEASE}-nats"]["says"] == f"{RELEASE}-nats is gone: nothing runs as it"
        assert "parts/roles" not in found
        await cluster.delete("ClusterRoleBinding", f"{RELEASE}-binder", api="rbac.authorization.k8s.io/v1")
        _, found = await asyncio.to_thread(ask, capsys, *options)
        assert "may not create pods/binding" in found[f"cluster/rights/{RELEASE}-controller"]["says"]
    finally:
        for document in mine:
            if document["kind"] == "Deployment":
                await cluster.delete("Deployment", document["metadata"]["name"], SYSTEM, "apps/v1")


async def test_a_bus_that_is_away_is_told_beside_the_cluster(
    plane: ControlPlane, cluster: Cluster, capsys, monkeypatch, tmp_path: Path
) -> None:
    del cluster, tmp_path
    monkeypatch.setenv("KUBECONFIG", "")
    options = ("--nats", "nats://127.0.0.1:9", "--kubeconfig", str(plane.kubeconfig))
    code, found = await asyncio.to_thread(ask, capsys, *options)
    assert code == 3
    assert found["bus"]["severity"] == "critical"
    assert found["cluster/crds"]["severity"] == "ok"


def test_the_bus_alone_may_be_asked(server: LocalServer, capsys) -> None:
    code = main(["doctor", "--nats", server.url, "--no-cluster"])
    assert code == 3  # no streams yet
    assert "FAIL  bus:" in capsys.readouterr().out
