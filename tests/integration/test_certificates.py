"""The issuer against a real API server, with the account that the chart gives it and nothing more."""

import asyncio
import base64
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bus.kube.errors import KubeRefusedError
from tests.chart.render import rendered
from tests.integration.cluster import SYSTEM, Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RELEASE = "tls"
SECRETS = ("ca", "webhook-tls", "nats-tls", "nats-auth")
KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


@pytest.fixture
async def chart(cluster: Cluster) -> AsyncIterator[dict[Any, Any]]:
    """What the chart renders, with the issuer's account in the cluster."""
    objects, _ = rendered({"bus": {"auth": {"enabled": True}}}, name=RELEASE, namespace=SYSTEM)
    mine = [objects[kind, f"{RELEASE}-issuer"] for kind in KINDS]
    for document in mine:
        await cluster.apply(document)
    yield objects
    for document in mine:
        await cluster.delete(
            document["kind"],
            document["metadata"]["name"],
            document["metadata"].get("namespace", ""),
            document["apiVersion"],
        )
    for name in SECRETS:
        with contextlib.suppress(KubeRefusedError):  # not every test makes them
            await cluster.delete("Secret", f"{RELEASE}-{name}", SYSTEM)


async def issue(kubeconfig: Path, job: dict[str, Any]) -> list[str]:
    """Run what the chart's Job runs, and return what it says."""
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "deploy.cli.main", *arguments, "--kubeconfig", str(kubeconfig),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


async def test_the_chart_job_makes_all_and_tells_webhook_and_bus(
    cluster: Cluster, chart: dict[Any, Any], kubeconfig_for
) -> None:
    kubeconfig = await kubeconfig_for(f"{RELEASE}-issuer")
    job = chart["Job", f"{RELEASE}-issuer"]
    before = await issue(kubeconfig, job)  # as before an installation: neither webhook nor bus is there
    assert len(before) == len(SECRETS)
    secrets = {name: await cluster.get("Secret", f"{RELEASE}-{name}", SYSTEM) for name in SECRETS}
    passwords = set(secrets["nats-auth"]["data"])
    nats = chart["StatefulSet", f"{RELEASE}-nats"]["spec"]["template"]["spec"]["containers"][0]
    wanted = {
        one["valueFrom"]["secretKeyRef"]["key"] for one in nats["env"] if "secretKeyRef" in one.get("valueFrom", {})
    }
    assert wanted <= passwords

    hook = chart["MutatingWebhookConfiguration", f"{RELEASE}-mutating-webhook"]
    hook["webhooks"][0]["namespaceSelector"] = {"matchLabels": {"nobody": "here"}}
    bus = chart["StatefulSet", f"{RELEASE}-nats"]
    await cluster.apply(hook)
    await cluster.apply(bus)
    try:
        said = await asyncio.gather(*(issue(kubeconfig, job) for _ in range(2)))  # as after it, and twice at once
        assert any("believes the authority" in line for lines in said for line in lines)
        found = await cluster.get(
            "MutatingWebhookConfiguration", f"{RELEASE}-mutating-webhook", api="admissionregistration.k8s.io/v1"
        )
        assert found["webhooks"][0]["clientConfig"]["caBundle"] == secrets["webhook-tls"]["data"]["ca.crt"]
        template = (await cluster.get("StatefulSet", f"{RELEASE}-nats", SYSTEM, "apps/v1"))["spec"]["template"]
        first = template["metadata"]["annotations"]["gpubus.io/certificate"]

        broken = {**secrets["nats-tls"], "data": {**secrets["nats-tls"]["data"], "tls.crt": _text("expired")}}
        broken["metadata"] = {"name": f"{RELEASE}-nats-tls", "namespace": SYSTEM}
        await cluster.apply(broken)
        await issue(kubeconfig, job)
        template = (await cluster.get("StatefulSet", f"{RELEASE}-nats", SYSTEM, "apps/v1"))["spec"]["template"]
        assert template["metadata"]["annotations"]["gpubus.io/certificate"] != first
        after = {name: await cluster.get("Secret", f"{RELEASE}-{name}", SYSTEM) for name in SECRETS}
        changed = {name for name in SECRETS if after[name]["data"] != secrets[name]["data"]}
        assert changed == {"nats-tls"}
    finally:
        api = "admissionregistration.k8s.io/v1"
        await cluster.delete("MutatingWebhookConfiguration", f"{RELEASE}-mutating-webhook", api=api)
        await cluster.delete("StatefulSet", f"{RELEASE}-nats", SYSTEM, "apps/v1")


async def test_the_issuer_may_touch_no_other_secret(cluster: Cluster, chart: dict[Any, Any], kubeconfig_for) -> None:
    from bus.kube.client import Client

    del chart
    await cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "theirs", "namespace": SYSTEM},
            "stringData": {"a": "b"},
        }
    )
    async with await Client.connect(str(await kubeconfig_for(f"{RELEASE}-issuer"))) as client:
        for method, body in (("GET", None), ("PATCH", b"{}"), ("DELETE", None)):
            path = f"/api/v1/namespaces/{SYSTEM}/secrets/theirs"
            with pytest.raises(KubeRefusedError) as refused:
                await client.call(method, path, body=body, content_type="application/merge-patch+json")
            assert refused.value.code == 403
    await cluster.delete("Secret", "theirs", SYSTEM)


def _text(text: str) -> str:
    return base64.b64encode(json.dumps(text).encode()).decode()
