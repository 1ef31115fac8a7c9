"""GPUs of other nodes in a real API server: a pod is admitted, gets a worker, and is told where that is, and nobody else is."""

import asyncio
import contextlib
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from bus.connection import Bus
from bus.kube.client import STRATEGIC, resource_path
from bus.kube.errors import KubeRefusedError
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer
from tests.integration.cluster import POOL, Cluster, play_agents, pod
from tests.integration.test_admission import Admission, reached
from tests.integration.test_makers import LABELS, made

pytestmark = [pytest.mark.integration, pytest.mark.slow]

API = "tensor-fusion.ai/v1"
KEY = "tensor-fusion.ai/"
NODES = ("node-a", "node-b")
PATIENCE_S = 60.0
ASKS = {
    f"{KEY}tflops-request": "100", f"{KEY}vram-request": "16Gi", f"{KEY}is-local-gpu": "false",
}  # fmt: skip


class Plane:
    """Everything that a client needs, on a cluster of two nodes with four GPUs each."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        self.cluster, self._url = cluster, url
        self._addresses: dict[str, str] = {}
        self.keepers: list[RoleProcess] = []
        self.patient = False
        """Whether clients that are deleted run on, as in their grace period."""
        self._kubelets = asyncio.create_task(self._play())

    async def stop(self) -> None:
        self._kubelets.cancel()
        await asyncio.gather(self._kubelets, return_exceptions=True)

    async def _play(self) -> None:
        """Play the kubelets: a worker that has its node comes up with an address of its own; a deleted pod goes."""
        while True:
            for one in await self.cluster.list("Pod", "default"):
                try:
                    await self._run(one)
                except KubeRefusedError as error:
                    if error.code not in (404, 409):  # it has gone meanwhile
                        raise
            await asyncio.sleep(0.05)

    async def _run(self, one: dict[str, Any]) -> None:
        meta = one["metadata"]
        if meta.get("deletionTimestamp") and self.patient and meta["labels"].get(f"{KEY}component") == "client":
            return
        if meta.get("deletionTimestamp"):
            await self.cluster.delete("Pod", meta["name"], "default")
        elif one["spec"].get("nodeName") and not one["status"].get("podIP"):
            address = self._addresses.setdefault(meta["uid"], f"10.1.0.{len(self._addresses) + 1}")
            status = {
                "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                "conditions": [{"type": "Ready", "status": "True"}],
            }  # fmt: skip
            path = resource_path("v1", "pods", "default", meta["name"], "status")
            body = json.dumps({"metadata": {"uid": meta["uid"]}, "status": status}).encode()
            await self.cluster.client.call("PATCH", path, body=body, content_type=STRATEGIC)

    def address(self, worker: dict[str, Any]) -> str:
        return self._addresses[worker["metadata"]["uid"]]

    async def token(self, name: str) -> str:
        """Return a token as kubelet mounts it in this pod."""
        one = await self.cluster.get("Pod", name, "default")
        reference = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": one["metadata"]["uid"]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600, "boundObjectRef": reference},
        }
        path = "/api/v1/namespaces/default/serviceaccounts/client/token"
        return str(
            json.loads(await self.cluster.client.call("POST", path, body=json.dumps(body).encode()))["status"]["token"]
        )

    async def ask(self, token: str, connection: str, timeout: float = PATIENCE_S) -> httpx.Response:
        async with httpx.AsyncClient(verify=False, timeout=timeout) as client:
            return await client.get(
                f"{self._url}/api/connection",
                params={"name": connection, "namespace": "default"},
                headers={"Authorization": f"Bearer {token}"} if token else {},
            )

    async def told(self, token: str, connection: str, url: str) -> None:
        """Wait until a client is told this URL."""
        async with asyncio.timeout(PATIENCE_S):
            while (await self.ask(token, connection)).text != url:  # noqa: ASYNC110  another process tells
                await asyncio.sleep(0.05)

    async def workers(self, workload: str, count: int) -> list[dict[str, Any]]:
        """Wait until a workload has as many workers with an address, and return them by name."""
        found: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    pods = await self.cluster.list("Pod", "default")
                    found = [one for one in pods if one["metadata"]["labels"].get(f"{KEY}workload") == workload]
                    if len(found) == count and all(one["status"].get("podIP") for one in found):
                        return sorted(found, key=lambda one: one["metadata"]["name"])
                    await asyncio.sleep(0.05)
        except TimeoutError:
            shown = [(one["metadata"]["name"], one["spec"].get("nodeName"), one["status"]) for one in found]
            raise AssertionError(f"not {count} workers: {shown}") from None

    async def until(self, kind: str, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    found = await self.cluster.get(kind, name, "default", API)
                    if holds(found):
                        return found
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pods = [
                (one["metadata"]["name"], one["spec"].get("nodeName"), one["status"])
                for one in await self.cluster.list("Pod")
            ]
            raise AssertionError(f"{kind} {name} does not come to that: {found}; {pods}") from None


def client(name: str, **annotations: str) -> dict[str, Any]:
    made = pod(name, serviceAccountName="client", nodeName="cpu-only")
    made["metadata"]["labels"] = {f"{KEY}enabled": "true"}
    made["metadata"]["annotations"] = ASKS | {f"{KEY}{key}": value for key, value in annotations.items()}
    return made


@pytest.fixture
async def plane(  # noqa: PLR0917  fixtures
    cluster: Cluster, server: LocalServer, bus: Bus, tls: Path, kubeconfig_of: Callable, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Plane]:
    container = {"name": "vgpu", "image": "worker:1", "resources": {"requests": {"cpu": "10m"}}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}
    await cluster.add_pool()
    stated = await cluster.get("GPUPool", POOL, api=API)
    await cluster.apply(
        {
            "apiVersion": API,
            "kind": "GPUPool",
            "metadata": {"name": POOL, "annotations": {f"{KEY}is-default-pool": "true"}},
            "spec": {
                **stated["spec"],
                "componentConfig": {
                    "worker": {"podTemplate": {"template": template}},
                    "client": {"remoteModeImage": "client:1", "operatorEndpoint": "https://gateway.test"},
                },
            },
        }
    )
    await cluster.add_nodes(NODES)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "client", "namespace": "default"}}
    await cluster.apply(account)
    monkeypatch.setenv("KUBECONFIG", str(await kubeconfig_of("gateway")))
    admission = Admission(cluster, server, tls, await kubeconfig_of("watcher"), gateway_options=("--connections",))
    roles = [RoleProcess("allocator", [server.url])]
    kubeconfigs = {role: str(await kubeconfig_of(role)) for role in ("binder", "workload")}
    roles += [RoleProcess(role, [server.url], "--kubeconfig", file) for role, file in kubeconfigs.items()]
    roles.append(RoleProcess("workload", [server.url], "--kubeconfig", kubeconfigs["workload"]))
    await admission.start()
    made = Plane(cluster, admission.url)
    made.keepers = roles[-2:]
    try:
        await asyncio.gather(*(role.start() for role in roles))
        await play_agents(bus, NODES)
        await reached(cluster)
        yield made
    finally:
        await made.stop()
        await asyncio.gather(*(role.kill() for role in roles))
        await admission.stop()
        await cluster.delete("ServiceAccount", "client", "default")


async def test_a_client_gets_a_worker_of_its_own_and_its_url_and_nobody_else_does(plane: Plane) -> None:
    cluster = plane.cluster
    made = await cluster.create(client("app"))
    assert made["metadata"]["labels"][f"{KEY}component"] == "client"
    assert "gpubus.io/visible-devices" not in json.dumps(made["spec"])
    await cluster.create(client("other"))
    mine, others = await plane.token("app"), await plane.token("other")
    answer = await plane.ask(mine, "app-tf-vgpu")
    (worker,) = await plane.workers("app", 1)
    assert answer.status_code == 200, answer.text
    assert answer.text.startswith(f"native+{plane.address(worker)}+8000+app-tf-vgpu-")
    assert worker["metadata"]["annotations"]["gpubus.io/visible-devices"].startswith("GPU-node-")
    assert worker["spec"]["nodeName"] in NODES
    workload = await plane.until(
        "TensorFusionWorkload", "app", lambda one: one.get("status", {}).get("readyWorkers") == 1
    )
    assert (workload["metadata"]["annotations"][f"{KEY}workload-mode"], workload["status"]["phase"]) == (
        "dynamic",
        "Running",
    )
    assert workload["metadata"]["annotations"][f"{KEY}workload-maker"] == "Pod/app"
    assert "ownerReferences" not in workload["metadata"]
    stated = workload["spec"]
    assert (stated["resources"]["requests"], stated["poolName"]) == ({"tflops": "100", "vram": "16Gi"}, POOL)

    stranger = await plane.ask(others, "app-tf-vgpu")
    assert (stranger.status_code, "native" in stranger.text) == (403, False)
    account = "/api/v1/namespaces/default/serviceaccounts/client/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    unbound = json.loads(await cluster.client.call("POST", account, body=json.dumps(body).encode()))["status"]["token"]
    for token in (unbound, "made.up.token", ""):
        assert (await plane.ask(token, "app-tf-vgpu")).status_code == 401

    # A worker that dies is made anew, and its client is told the new one's address.
    await cluster.delete("Pod", "app-tf-vgpu", "default")
    moved = await plane.until(
        "TensorFusionConnection",
        "app-tf-vgpu",
        lambda one: one.get("status", {}).get("connectionURL", "") not in ("", answer.text),
    )
    (again,) = await plane.workers("app", 1)
    assert again["metadata"]["uid"] != worker["metadata"]["uid"]
    url = moved["status"]["connectionURL"]
    assert url.startswith(f"native+{plane.address(again)}+8000+app-tf-vgpu-")
    await plane.told(mine, "app-tf-vgpu", url)

    # A client that comes back under its name is another: what its predecessor had is neither its own nor told to it.
    await cluster.delete("Pod", "app", "default")
    await cluster.create(client("app"))
    fresh = await plane.ask(await plane.token("app"), "app-tf-vgpu")
    (third,) = await plane.workers("app", 1)
    assert third["metadata"]["uid"] != again["metadata"]["uid"]
    assert fresh.text.startswith(f"native+{plane.address(third)}+")
    with contextlib.suppress(httpx.ReadTimeout):  # an old token counts for a moment, and then waits in vain
        assert (await plane.ask(mine, "app-tf-vgpu", timeout=1)).status_code == 401


async def test_clients_of_one_controller_share_its_workers_and_move_when_one_is_killed(plane: Plane) -> None:
    cluster = plane.cluster
    profile = {"replicas": 2, "resources": {"requests": {"tflops": "50", "vram": "8Gi"}}}
    metadata = {"name": "two", "namespace": "default"}
    await cluster.apply({"apiVersion": API, "kind": "WorkloadProfile", "metadata": metadata, "spec": profile})
    deployment = await made(cluster, "Deployment", "web")
    replicas = await made(cluster, "ReplicaSet", "web-7f", deployment)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7f", "uid": replicas.uid, "controller": True}
    names = [f"web-7f-{number}" for number in range(3)]
    async with asyncio.timeout(PATIENCE_S):
        while True:
            one = client(names[0], **{"workload-profile": "two", "tflops-request": "", "vram-request": ""})
            one["metadata"]["ownerReferences"] = [owner]
            one["metadata"]["labels"] |= LABELS
            try:
                await cluster.create(one)
                break
            except KubeRefusedError as error:  # admission has not heard of the profile yet
                if "names no WorkloadProfile" not in str(error):
                    raise
                await asyncio.sleep(0.1)
    for name in names[1:]:
        one["metadata"]["name"] = name
        await cluster.create(one)
    workers = {one["metadata"]["name"]: one for one in await plane.workers("web", 2)}
    assert sorted(workers) == ["web-tf-worker-0", "web-tf-worker-1"]
    answers = {name: (await plane.ask(await plane.token(name), f"{name}-tf-vgpu")).text for name in names}
    used = Counter(next(worker for worker in workers if f"+{worker}-" in url) for url in answers.values())
    assert sorted(used.values()) == [1, 2], "no worker has more than its share, though two processes seat clients"
    workload = await plane.until(
        "TensorFusionWorkload", "web", lambda one: one.get("status", {}).get("readyWorkers") == 2
    )
    assert workload["metadata"]["annotations"][f"{KEY}workload-mode"] == "fixed"

    lost = max(used, key=lambda worker: used[worker])
    await cluster.delete("Pod", lost, "default")
    for name, url in answers.items():
        connection = f"{name}-tf-vgpu"
        if f"+{lost}-" not in url:
            found = await cluster.get("TensorFusionConnection", connection, "default", API)
            assert found["status"]["connectionURL"] == url, "a client whose worker runs stays with it"
            continue
        moved = await plane.until(
            "TensorFusionConnection",
            connection,
            lambda one, url=url: one.get("status", {}).get("connectionURL", "") not in ("", url),
        )
        await plane.told(await plane.token(name), connection, moved["status"]["connectionURL"])
    again = {one["metadata"]["name"]: one["metadata"]["uid"] for one in await plane.workers("web", 2)}
    assert {name for name in workers if again[name] != workers[name]["metadata"]["uid"]} == {lost}
    await nobody_forges(plane, owner, workload, names)


async def nobody_forges(plane: Plane, owner: dict[str, Any], workload: dict[str, Any], names: list[str]) -> None:
    """Who writes into a pod what admission would write has neither another's workload nor one of a name that is free."""
    cluster = plane.cluster
    for name, called in (("forged", "web"), ("founder", "free")):
        one = pod(name)
        one["metadata"]["labels"] = {f"{KEY}component": "client", **LABELS}
        said = {"poolName": POOL, "replicas": 1}
        one["metadata"]["annotations"] = {
            f"{KEY}selected-workload": called,
            "gpubus.io/workload-spec": json.dumps(said),
        }
        one["metadata"]["ownerReferences"] = [owner | {"uid": str(uuid.uuid4())}]
        await cluster.create(one)
    shown = await plane.until(
        "TensorFusionWorkload",
        "web",
        lambda one: any(said["type"] == "ClientsServed" for said in one.get("status", {}).get("conditions", ())),
    )
    (said,) = (said for said in shown["status"]["conditions"] if said["type"] == "ClientsServed")
    assert (said["status"], said["reason"], "the pods forged is not" in said["message"]) == ("False", "MakerGone", True)
    assert shown["spec"] == workload["spec"]
    there = {one["metadata"]["name"] for one in await cluster.list("TensorFusionConnection", "default", API)}
    assert there == {f"{name}-tf-vgpu" for name in names}
    assert [one["metadata"]["name"] for one in await cluster.list("TensorFusionWorkload", "default", API)] == ["web"]
