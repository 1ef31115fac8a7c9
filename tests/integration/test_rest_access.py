"""The REST interface behind the API server's word: whose a token is, and whether they may."""

import asyncio
import json

import httpx
import pytest

from deploy.local.processes import RoleProcess
from deploy.local.server import free_port
from tests.integration.cluster import SYSTEM

pytestmark = pytest.mark.integration


async def token_of(cluster, account: str) -> str:
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    return json.loads(await cluster.client.call("POST", path, body=json.dumps(body).encode()))["status"]["token"]


@pytest.mark.usefixtures("bus")
async def test_who_is_bound_to_the_role_may_ask_and_nobody_else(cluster, server, kubeconfig_of, monkeypatch):
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "dashboard", "namespace": SYSTEM}}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "dashboard"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpubus-rest-reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "dashboard", "namespace": SYSTEM}],
    }
    await cluster.apply(account)
    await cluster.apply(binding)
    monkeypatch.setenv("KUBECONFIG", str(await kubeconfig_of("gateway")))
    port = free_port()
    options = ["--listen", "127.0.0.1:0", "--rest", f"127.0.0.1:{port}", "--rest-auth", "kubernetes"]
    roles = [RoleProcess("inspector", [server.url]), RoleProcess("gateway", [server.url], *options)]
    try:
        await asyncio.gather(*(role.start() for role in roles))
        async with httpx.AsyncClient(timeout=20) as client:

            async def asked(token: str) -> httpx.Response:
                headers = {"Authorization": f"Bearer {token}"}
                return await client.get(f"http://127.0.0.1:{port}/api/v1/pools", headers=headers)

            assert (await asked(await token_of(cluster, "dashboard"))).status_code == 200
            stranger = await asked(await token_of(cluster, "gpubus-binder"))
            assert stranger.status_code == 403
            assert "gpubus-binder may not get /api/v1/pools: bind it to a ClusterRole" in stranger.json()["error"]
            assert (await asked("made.up.token")).status_code == 401
    finally:
        await asyncio.gather(*(role.kill() for role in roles))
        await cluster.delete("ClusterRoleBinding", "dashboard", api="rbac.authorization.k8s.io/v1")
        await cluster.delete("ServiceAccount", "dashboard", SYSTEM)
