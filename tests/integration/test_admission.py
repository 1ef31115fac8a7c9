"""A real API server sends us its pods: those that ask for GPUs, and only those."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import yaml

from bus.connection import Bus
from bus.kube.errors import KubeError, KubeRefusedError
from consumers.mutator.mutate import SLOT_LABEL
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer, free_port
from producers.gateway.configuration import HAMI, Reach, webhook_configuration
from tests.integration.cluster import Cluster, pod
from tests.integration.plane import ControlPlane, find_assets

pytestmark = pytest.mark.integration

NAME = "gpubus-test"
TENSORFUSION = """
metadata:
  labels:
    tensor-fusion.ai/enabled: "true"
  annotations:
    tensor-fusion.ai/tflops-request: "100"
    tensor-fusion.ai/tflops-limit: "200"
    tensor-fusion.ai/vram-request: "3Gi"
    tensor-fusion.ai/vram-limit: "3Gi"
spec:
  containers:
    - name: my-workload
      image: none
      resources:
        requests: {memory: 1Gi, cpu: 1000m}
        limits: {memory: 4Gi, cpu: 4000m}
"""


class Admission:
    """A watcher, two mutators and a gateway in processes of their own, and the configuration that sends pods to them."""

    def __init__(
        self,
        cluster: Cluster,
        server: LocalServer,
        tls: Path,
        watchers: Path,
        *,
        options: tuple[str, ...] = (),
        gateway_options: tuple[str, ...] = (),
        reach: Reach = Reach(resources=HAMI),  # noqa: B008
    ) -> None:
        self._options, self._reach = options, reach
        self.cluster, self._server, self._tls = cluster, server, tls
        self._port = free_port()
        self._gateway_options = gateway_options
        self.url = f"https://127.0.0.1:{self._port}"
        self.gateway: RoleProcess | None = None
        self.mutators: list[RoleProcess] = []
        self.watcher = RoleProcess("watcher", [server.url], "--kubeconfig", str(watchers))

    async def start(self) -> None:
        await self.watcher.start()
        for _ in range(2):
            mutator = RoleProcess("mutator", [self._server.url], *self._options)
            await mutator.start()
            self.mutators.append(mutator)
        await self.start_gateway()
        await self.cluster.apply(
            webhook_configuration(
                NAME,
                ca_bundle=(self._tls / "ca.pem").read_bytes(),
                url=self.url,
                reach=self._reach,
                timeout_s=5,
            )
        )

    async def start_gateway(self) -> None:
        options = [
            "--certificate", str(self._tls / "tls.crt"), "--key", str(self._tls / "tls.key"), *self._gateway_options
        ]  # fmt: skip
        self.gateway = RoleProcess("gateway", [self._server.url], "--listen", f"127.0.0.1:{self._port}", *options)
        await self.gateway.start()

    async def stop(self) -> None:
        with contextlib.suppress(KubeError):
            await self.cluster.delete("MutatingWebhookConfiguration", NAME, api="admissionregistration.k8s.io/v1")
        for process in (self.watcher, self.gateway, *self.mutators):
            if process is not None:
                await process.kill()


@pytest.fixture
async def admission(
    cluster: Cluster, server: LocalServer, bus: Bus, tls: Path, kubeconfig_of: Callable
) -> AsyncIterator[Admission]:
    del bus  # it declares the streams
    await cluster.add_pool()
    found = Admission(cluster, server, tls, await kubeconfig_of("watcher"))
    try:
        await found.start()
        await reached(cluster)
        yield found
    finally:
        await found.stop()


async def reached(cluster: Cluster) -> None:
    """Wait until the API server sends pods our way: a new configuration counts a moment later."""
    async with asyncio.timeout(20):
        while True:
            made = await cluster.create(hami("probe", **{"nvidia.com/gpu": "1"}))
            await cluster.delete("Pod", "probe", "default")
            if made["spec"]["schedulerName"] == "hami-scheduler":
                return
            await asyncio.sleep(0.05)


def tensorfusion(name: str, **annotations: str) -> dict:
    made = {"apiVersion": "v1", "kind": "Pod", **yaml.safe_load(TENSORFUSION)}
    made["metadata"] |= {"name": name, "namespace": "default"}
    made["metadata"]["annotations"] |= annotations
    return made


def hami(name: str, **limits: str) -> dict:
    return pod(name, containers=[{"name": "main", "image": "none", "resources": {"limits": limits}}])


async def test_pods_of_the_guides_are_changed_and_others_never_come_to_us(
    cluster: Cluster, admission: Admission
) -> None:
    made = await cluster.create(tensorfusion("guide"))
    assert made["spec"]["schedulerName"] == "tensor-fusion-scheduler"
    assert made["metadata"]["labels"]["tensor-fusion.ai/component"] == "worker"
    variables = {one["name"]: one for one in made["spec"]["containers"][0]["env"]}
    path = variables["NVIDIA_VISIBLE_DEVICES"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['gpubus.io/visible-devices']"

    ports = []
    for name in ("listens", "listens-too"):
        target = tensorfusion(name)
        target["metadata"]["labels"] |= {"tensor-fusion.ai/host-port": "auto", "tensor-fusion.ai/port-name": "http"}
        target["spec"]["containers"][0]["ports"] = [{"name": "http", "containerPort": 80}]
        made = await cluster.create(target)
        ports.append(made["spec"]["containers"][0]["ports"][0]["hostPort"])
        assert made["metadata"]["annotations"]["tensor-fusion.ai/port-number"] == str(ports[-1])
    assert ports == [42_000, 42_001]

    made = await cluster.create(
        hami("vgpu", **{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"})
    )
    assert made["spec"]["schedulerName"] == "hami-scheduler"
    assert "nvidia.com/gpu" not in str(made["spec"]["containers"][0]["resources"])

    with pytest.raises(KubeRefusedError, match="write the number of MiB, such as 16384"):
        await cluster.create(hami("wrong", **{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi"}))
    with pytest.raises(KubeRefusedError, match="compute-percent-request"):
        await cluster.create(tensorfusion("both", **{"tensor-fusion.ai/compute-percent-request": "10"}))

    # Nobody is at home: GPU pods are refused, all others go on; when somebody is there again, so do they.
    assert admission.gateway is not None
    await admission.gateway.kill()
    with pytest.raises(KubeRefusedError, match=r"mpod\.gpubus\.io"):
        await cluster.create(tensorfusion("down"))
    for some in ({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "0", "nvidia.com/gpumem": "1k"}):
        with pytest.raises(KubeRefusedError, match=r"mpod\.gpubus\.io"):
            await cluster.create(hami("down", **some))
    both = tensorfusion("down")
    both["metadata"]["labels"]["hami.io/webhook"] = "ignore"
    with pytest.raises(KubeRefusedError, match=r"mpod\.gpubus\.io"):
        await cluster.create(both)
    back = tensorfusion("rolled-back")
    back["metadata"]["labels"]["tensor-fusion.ai/enabled"] = "false"
    ignored, none = hami("ignored", **{"nvidia.com/gpu": "1"}), hami("none", **{"nvidia.com/gpu": "0"})
    ignored["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    off = tensorfusion("off")
    off["metadata"]["labels"]["tensor-fusion.ai/enabled"] = "0"
    for other in (pod("plain"), back, ignored, none, off):
        assert (await cluster.create(other))["spec"]["schedulerName"] == "default-scheduler"
    await admission.start_gateway()
    await cluster.create(tensorfusion("up"))
    # One of two mutators dies: nobody notices.
    await admission.mutators[0].kill()
    await asyncio.gather(*(cluster.create(tensorfusion(f"one-left-{number}")) for number in range(20)))
    # None is left: that is said.
    await admission.mutators[1].kill()
    with pytest.raises(KubeRefusedError, match=r"mpod\.gpubus\.io"):
        await cluster.create(tensorfusion("nobody"))


@pytest.mark.usefixtures("admission")
async def test_three_of_ten_replicas_are_ours(cluster: Cluster, plane: ControlPlane) -> None:
    if find_assets("kube-controller-manager") is None:
        pytest.skip("no kube-controller-manager: run `make test-assets`")
    plane.start_controllers("replicaset-controller")
    try:
        template = yaml.safe_load(TENSORFUSION)
        template["metadata"]["labels"]["app"] = "web"
        template["metadata"]["annotations"] = {"tensor-fusion.ai/enabled-replicas": "3"}
        template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        replicas = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"replicas": 10, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        }
        await cluster.apply(replicas)
        ours = await settled(cluster, 10)
        assert len(ours) == 3
        # One of ours goes; whoever comes in its place is ours again.
        await cluster.delete("Pod", ours[0]["metadata"]["name"], "default")
        async with asyncio.timeout(30):
            while True:
                again = await settled(cluster, 10)
                if len(again) == 3 and ours[0]["metadata"]["uid"] not in {one["metadata"]["uid"] for one in again}:
                    break
                # The replacement may have come before its slot was free: then it is another's turn.
                others = [
                    one for one in await cluster.list("Pod", "default") if SLOT_LABEL not in one["metadata"]["labels"]
                ]
                await cluster.delete("Pod", others[0]["metadata"]["name"], "default")
    finally:
        await cluster.delete("ReplicaSet", "web", "default", api="apps/v1")
        plane.stop("kube-controller-manager")


EXAMPLES = Path(__file__).parent / "examples"
OUTCOMES = {
    "limits": (1, 1, "medium"),
    "guaranteed": (1, 1, "high"),
    "number": (10, 0, ""),
    "gradual": (10, 3, "medium"),
    "rollback": (10, 0, ""),
}
"""Pods, how many of them are ours, and their QoS. In this order, for one replaces another of its name."""


@pytest.mark.slow
@pytest.mark.usefixtures("admission")
async def test_deployments_as_the_guides_write_them_become_what_they_say(cluster: Cluster, plane: ControlPlane) -> None:
    if find_assets("kube-controller-manager") is None:
        pytest.skip("no kube-controller-manager: run `make test-assets`")
    plane.start_controllers("deployment-controller", "replicaset-controller")
    try:
        for example, (pods, expected, qos) in OUTCOMES.items():
            document = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
            await cluster.apply(document)
            template = document["spec"]["template"]["metadata"]
            made = await of_template(cluster, template["labels"] | template["annotations"], pods)
            ours = [one for one in made if one["spec"]["schedulerName"] == "tensor-fusion-scheduler"]
            assert len(ours) == expected, example
            for one in made:
                native = "nvidia.com/gpu" in str(one["spec"]["containers"][0].get("resources"))
                assert native == (one not in ours), example
                env = {variable["name"] for variable in one["spec"]["containers"][0].get("env", ())}
                assert ("NVIDIA_VISIBLE_DEVICES" in env) == (one in ours), example
            assert {one["metadata"]["annotations"]["tensor-fusion.ai/qos"] for one in ours} == ({qos} if qos else set())
    finally:
        plane.stop("kube-controller-manager")
        for kind in ("Deployment", "ReplicaSet"):
            for one in await cluster.list(kind, "default", api="apps/v1"):
                await cluster.delete(kind, one["metadata"]["name"], "default", api="apps/v1")


async def of_template(cluster: Cluster, words: dict[str, str], count: int) -> list[dict]:
    """Wait until there are ``count`` pods with these labels and annotations, and return them."""
    async with asyncio.timeout(60):
        while True:
            found = []
            for one in await cluster.list("Pod", "default"):
                meta = one["metadata"]
                has = meta.get("labels", {}) | meta.get("annotations", {})
                if "deletionTimestamp" not in meta and words.items() <= has.items():
                    found.append(one)
            if len(found) == count:
                return found
            await asyncio.sleep(0.1)


async def settled(cluster: Cluster, count: int) -> list[dict]:
    """Wait until there are ``count`` pods, and return those that are ours."""
    async with asyncio.timeout(60):
        while True:
            pods = [one for one in await cluster.list("Pod", "default") if "deletionTimestamp" not in one["metadata"]]
            if len(pods) == count:
                return [one for one in pods if one["spec"]["schedulerName"] == "tensor-fusion-scheduler"]
            await asyncio.sleep(0.1)
