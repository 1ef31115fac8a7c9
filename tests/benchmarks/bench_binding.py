"""How fast pods are bound on a real API server: by us, by a stock kube-scheduler, and by one that asks an extender.

Method: one etcd and one kube-apiserver for everything, nodes with GPUs, and the same number of pods in every case. Pods are
created while nobody looks at them, then whoever binds them is started, so that neither the creating nor the starting counts:
the rate is that of the last nine tenths to get a node, as a watch of pods tells it. Ours is a watcher, an allocator and a
binder in processes of their own, on an embedded bus. The stock kube-scheduler may make 1,000 requests a second (by default 50)
and its pods ask for one of an extended resource, for ours ask for half a GPU. The extender that does nothing offers all nodes,
prefers none, and where it has to bind makes the one request that takes; it is there with and without that verb. All of it shares
the processors of this machine with the API server: what costs more processor time here binds fewer pods.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trustme
import yaml

from bus.kube.client import Client, resource_path
from deploy.cli.schema import render_crds
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer, free_port
from producers.gateway.scheduler import scheduler_configuration
from tests.benchmarks.bench_agent import processor_s
from tests.benchmarks.end_to_end import running_bus
from tests.integration.cluster import Cluster, create_all, mixed, node, play_agents, tensorfusion_pod
from tests.integration.plane import ControlPlane, find_assets

NODES, GPUS, PODS = 200, 5, 1000
PATIENCE_S = 120.0
DEVICE = "example.com/gpu"
STOCK, NAME = "stock", "gpubus-extender"
ROUNDS = 2
NAMES = [f"node-{number:03}" for number in range(NODES)]
PODS_PATH = resource_path("v1", "pods", "default")
SHM = "/dev/shm" if Path("/dev/shm").is_dir() else None


class _Spec(msgspec.Struct, frozen=True):
    node_name: str = msgspec.field(name="nodeName", default="")


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()


class _Event(msgspec.Struct, frozen=True):
    object: _Pod


_event = msgspec.json.Decoder(_Event)


Processes = Callable[[], dict[str, int]]
"""Returns the processes that run beside the control plane, by name."""


class Bench:
    """What all cases share: one API server, and one way of counting."""

    def __init__(self, plane: ControlPlane, cluster: Cluster, home: Path) -> None:
        self.plane, self.cluster, self.home = plane, cluster, home
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(home / "tls.key"))
        (home / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        self.ca = authority.cert_pem.bytes()

    async def rate(
        self, name: str, pods: list[dict[str, Any]], begin: Callable[[], Awaitable[None]], others: Processes
    ) -> float:
        """Create pods, start who binds them, and return how many a second got a node; print what that took."""
        await create_all(self.cluster, pods)
        bound: dict[str, float] = {}
        version = json.loads(await self.cluster.client.call("GET", PODS_PATH, query={"limit": "1"}))["metadata"]
        watching = asyncio.create_task(self._watch(version["resourceVersion"], bound, len(pods)))
        before = {part: processor_s(pid) for part, pid in (self.plane.pids() | others()).items()}
        await begin()
        async with asyncio.timeout(PATIENCE_S):
            await watching
        spent = {part: processor_s(pid) - before.get(part, 0.0) for part, pid in (self.plane.pids() | others()).items()}
        times = sorted(bound.values())
        skipped = len(times) // 10
        found = (len(times) - skipped) / (times[-1] - times[skipped])
        shown = ", ".join(f"{part.removeprefix('kube-')} {1e3 * s / len(pods):.1f}" for part, s in spent.items())
        print(f"  {name:34} {found:6.0f} /s   processor, ms a pod: {shown}", flush=True)
        await self._clear()
        return found

    async def _watch(self, version: str, bound: dict[str, float], wanted: int) -> None:
        while len(bound) < wanted:
            query = {"watch": "1", "resourceVersion": version}
            async for lines in self.cluster.client.lines(PODS_PATH, query, silence_s=PATIENCE_S):
                now = time.perf_counter()
                for pod in (_event.decode(line).object for line in lines if line):
                    version = pod.metadata.resource_version
                    if pod.spec.node_name:
                        bound.setdefault(pod.metadata.name, now)
                if len(bound) >= wanted:
                    return

    async def _clear(self) -> None:
        body = json.dumps({"gracePeriodSeconds": 0}).encode()
        for path in (PODS_PATH, resource_path("events.k8s.io/v1", "events", "default")):
            await self.cluster.client.call("DELETE", path, body=body, timeout=180)

    # Who binds

    async def native(self) -> float:
        """Our own path."""
        async with running_bus() as (server, bus), self._roles(server, "allocator", "binder", "watcher") as roles:
            await play_agents(bus, NAMES, gpus=GPUS)
            for role in ("allocator", "binder"):
                await roles[role].start()
            return await self.rate("our native path", mixed(PODS), roles["watcher"].start, partial(pids, roles))

    async def stock(self) -> float:
        """kube-scheduler as it comes."""
        config = self._config({"profiles": [{"schedulerName": STOCK}]})
        return await self._scheduler("stock kube-scheduler", config, [counted(number) for number in range(PODS)], dict)

    async def extender(self) -> float:
        """kube-scheduler with us as its extender."""
        port = free_port()
        config = scheduler_configuration(
            NAME, ca_bundle=self.ca, url=f"https://127.0.0.1:{port}", kubeconfig=str(self.plane.kubeconfig)
        )
        names = ("allocator", "binder", "watcher", "gateway")
        async with running_bus() as (server, bus), self._roles(server, *names, port=port) as roles:
            await play_agents(bus, NAMES, gpus=GPUS)
            for role in names:
                await roles[role].start()
            return await self._scheduler("kube-scheduler, our extender", config, shared(), partial(pids, roles))

    async def idle(self, *, binds: bool) -> float:
        """kube-scheduler with an extender that does nothing."""
        port = free_port()
        config = scheduler_configuration(
            NAME, ca_bundle=self.ca, url=f"https://127.0.0.1:{port}", kubeconfig=str(self.plane.kubeconfig)
        )
        if not binds:
            del config["extenders"][0]["bindVerb"]
        command = [str(port), str(self.home / "tls.crt"), str(self.home / "tls.key"), str(self.plane.kubeconfig)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.benchmarks.idle_extender", *command, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            await process.stdout.readline()
            title = f"kube-scheduler, idle extender{' that binds' if binds else ''}"
            return await self._scheduler(title, config, shared(), lambda: {"extender": process.pid})
        finally:
            process.kill()
            await process.wait()

    async def _scheduler(
        self, title: str, config: dict[str, Any], pods: list[dict[str, Any]], others: Processes
    ) -> float:
        file = self.home / "scheduler.yaml"
        file.write_text(yaml.safe_dump(config))

        async def begin() -> None:
            self.plane.start_scheduler(file)

        try:
            return await self.rate(title, pods, begin, others)
        finally:
            self.plane.stop("kube-scheduler")

    def _extended(self, port: int) -> dict[str, Any]:
        account = str(self.plane.kubeconfig)
        return scheduler_configuration(NAME, ca_bundle=self.ca, url=f"https://127.0.0.1:{port}", kubeconfig=account)

    def _config(self, more: dict[str, Any]) -> dict[str, Any]:
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.plane.kubeconfig), "qps": 1000, "burst": 1000},
        } | more

    @asynccontextmanager
    async def _roles(self, server: LocalServer, *names: str, port: int = 0) -> AsyncIterator[dict[str, RoleProcess]]:
        certificate = ["--certificate", str(self.home / "tls.crt"), "--key", str(self.home / "tls.key")]
        options = {
            "allocator": [],
            "gateway": ["--listen", f"127.0.0.1:{port}", *certificate],
        }
        kubeconfig = ["--kubeconfig", str(self.plane.kubeconfig)]
        roles = {name: RoleProcess(name, [server.url], *options.get(name, kubeconfig)) for name in names}
        try:
            yield roles
        finally:
            for role in roles.values():
                await role.kill()


def pids(roles: dict[str, RoleProcess]) -> dict[str, int]:
    """Return the processes of roles that run."""
    return {name: role.pid for name, role in roles.items() if role.running}


def counted(number: int) -> dict[str, Any]:
    """A pod as ours are, with a device that kube-scheduler itself counts."""
    made = tensorfusion_pod(f"pod-{number:05}")
    made["spec"]["schedulerName"] = STOCK
    made["spec"]["containers"][0]["resources"]["limits"] = {DEVICE: "1"}
    return made


def shared() -> list[dict[str, Any]]:
    """Pods of half a GPU that go through the kube-scheduler with an extender."""
    pods = [tensorfusion_pod(f"pod-{number:05}", tflops="156", vram="40Gi") for number in range(PODS)]
    for pod in pods:
        pod["spec"]["schedulerName"] = NAME
    return pods


def equipped(name: str) -> dict[str, Any]:
    """A node with room for two pods on each of its GPUs, for whoever counts."""
    made = node(name)
    for amounts in (made["status"]["allocatable"], made["status"]["capacity"]):
        amounts[DEVICE] = str(2 * GPUS)
    return made


async def report() -> None:
    """Print rates and ratios, each beside its limit; nothing where there is no API server to start."""
    print(f"\nbinding {PODS:,} pods on {NODES} nodes with {GPUS} GPUs, on a real API server")
    assets = find_assets("etcd", "kube-apiserver", "kube-scheduler")
    if assets is None:
        print("  skipped: run `make test-assets`, or set KUBEBUILDER_ASSETS")
        return
    with tempfile.TemporaryDirectory(prefix="gpubus-bench-", dir=SHM) as home:
        plane = ControlPlane(assets, Path(home) / "plane")
        try:
            plane.start()
            async with await Client.connect(str(plane.kubeconfig)) as client:
                cluster = Cluster(client)
                await asyncio.gather(*(cluster.apply(yaml.safe_load(text)) for text in render_crds().values()))
                await cluster.established()
                await cluster.add_pool()
                await asyncio.gather(*(cluster.create(equipped(name)) for name in NAMES))
                bench = Bench(plane, cluster, Path(home))
                native, stock, extender, idle, binding = [], [], [], [], []
                for _ in range(ROUNDS):
                    stock.append(await bench.stock())
                    native.append(await bench.native())
                    idle.append(await bench.idle(binds=False))
                    extender.append(await bench.extender())
                    binding.append(await bench.idle(binds=True))
        finally:
            plane.stop_all()
    print(f"  native path to stock kube-scheduler       {sum(native) / sum(stock):5.2f}   limit 1.5")
    print(f"  our extender to one that does nothing     {100 * sum(extender) / sum(idle):5.0f} % limit 70 %")
    print(f"  our extender to one that only binds       {100 * sum(extender) / sum(binding):5.0f} %")
