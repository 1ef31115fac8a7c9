"""Groups of roles as the chart's pods have them: processes with the account and the login of their group, and no more rights."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import nats.errors

from bus.connection import Bus
from bus.errors import ApiError
from bus.permissions import agent_user
from deploy.local.processes import RoleProcess
from tests.integration.cluster import SYSTEM, Cluster
from tests.integration.secured import RELEASE, SecuredBus

PATIENCE_S = 60.0
ACCOUNTS = ("ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
PARTS = ("controller", "scheduler", "webhook", "monitor")


class Pod:
    """What one pod of a group runs: its containers as processes.

    Attributes:
        gateway: Port of its gateway; 0 where it has none that admits.
    """

    def __init__(self, containers: list[RoleProcess], gateway: int) -> None:
        self._containers, self.gateway = containers, gateway

    async def start(self) -> None:
        await asyncio.gather(*(one.start() for one in self._containers))

    async def kill(self) -> None:
        """SIGKILL all of it, as a node that is gone."""
        await asyncio.gather(*(one.kill() for one in self._containers))


class Parts:
    """Groups of roles in processes of their own, each with its own account and login."""

    def __init__(self, secured: SecuredBus, kubeconfig_for) -> None:
        self._secured, self._kubeconfig_for = secured, kubeconfig_for
        self._stack = AsyncExitStack()

    async def start(self, *parts: str, **more: str) -> None:
        await asyncio.gather(*(self.pod(part, **more) for part in parts))

    async def pod(self, part: str, **more: str) -> Pod:
        """Start one more pod of a group; ``more`` goes into its environment, where the chart has such a variable."""
        told = {
            "GPUBUS_METRICS": "duckdb::memory:",
            "GPUBUS_ALERTMANAGER": "http://127.0.0.1:9",
            "GPUBUS_NAMESPACE": SYSTEM,
            **more,
        }
        environment = self._secured.environment(part, told)
        environment["KUBECONFIG"] = str(await self._kubeconfig_for(f"{RELEASE}-{part}"))
        containers, gateway = [], 0
        for command, *options in self._secured.commands(part):
            containers.append(RoleProcess(command, self._secured.urls, *options, environment=environment))
            if "--certificate" in options:
                gateway = int(options[options.index("--listen") + 1].rpartition(":")[2])
        pod = Pod(containers, gateway)
        self._stack.push_async_callback(pod.kill)
        await pod.start()
        return pod

    async def agent(self, node: str, token: Path) -> RoleProcess:
        """Start the agent of a node as the DaemonSet does."""
        environment = self._secured.shown(agent_user(node), token)
        options = ["--gpus", "simulated:2xA100-80G", "--replicas", "0", "--metrics", "-1"]
        process = RoleProcess(
            "agent", self._secured.urls, "--node", node, "--kubelet", "", *options, environment=environment
        )
        self._stack.push_async_callback(process.kill)
        await process.start()
        return process

    async def stop(self) -> None:
        await self._stack.aclose()


async def token_of(cluster: Cluster, node: str, account: str = f"{RELEASE}-agent", audience: str = "gpubus-bus") -> str:
    """Return what a kubelet would mount into the agent of a node."""
    name = f"agent-on-{node}"
    spec = {"nodeName": node, "serviceAccountName": account, "containers": [{"name": "agent", "image": "none"}]}
    pod = await cluster.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SYSTEM}, "spec": spec}
    )
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod["metadata"]["uid"]}
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": bound},
    }
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
    answer = json.loads(await cluster.client.call("POST", path, body=json.dumps(request).encode()))
    return answer["status"]["token"]


async def leader(bus: Bus, stream: str) -> str:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                info = json.loads(await bus.api(f"STREAM.INFO.{stream}", timeout=2.0))
            except (nats.errors.Error, TimeoutError, ApiError):
                continue
            if name := info["cluster"].get("leader"):
                return name
