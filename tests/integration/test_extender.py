"""A stock kube-scheduler places pods that only it can place, and has us give them GPUs."""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
import trustme

from bus import codec, history
from bus.connection import Bus
from bus.follower import Record
from bus.streams import DECISION
from consumers.mutator.moved import move
from deploy.local.audit import audit
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer, free_port
from deploy.replay.jobs import verify
from producers.gateway.configuration import HAMI
from schemas.decision import Decision
from tests.integration.cluster import Cluster, create_all, hami_pod, play_agents, tensorfusion_pod
from tests.integration.observe import agree
from tests.integration.plane import ControlPlane, find_assets

pytestmark = pytest.mark.integration

NAME = "gpubus-extender"


class Extender:
    """The processes that a test may kill."""

    def __init__(self, gateway: RoleProcess, allocators: list[RoleProcess], binder: RoleProcess, url: str) -> None:
        self.gateway, self.allocators, self.binder, self.url = gateway, allocators, binder, url


@pytest.fixture
async def extender(
    *,
    plane: ControlPlane,
    cluster: Cluster,
    server: LocalServer,
    start: Callable[[str], Awaitable[RoleProcess]],
    kubeconfig_of: Callable[[str], Awaitable[Path]],
    tmp_path: Path,
) -> AsyncIterator[Extender]:
    """A watcher, two allocators, a binder, a gateway, and a kube-scheduler that asks the gateway."""
    if find_assets("kube-scheduler") is None:
        pytest.skip("no kube-scheduler: run `make test-assets`")
    await cluster.add_pool()
    authority, clients = trustme.CA(), trustme.CA()
    write_pair(tmp_path / "tls", authority.issue_cert("127.0.0.1"))
    write_pair(tmp_path / "client", clients.issue_cert("kube-scheduler"))
    write_pair(tmp_path / "other", clients.issue_cert("nats"))
    write_pair(tmp_path / "stranger", trustme.CA().issue_cert("kube-scheduler"))
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    port = free_port()
    certificate = ["--certificate", str(tmp_path / "tls.crt"), "--key", str(tmp_path / "tls.key")]
    certificate += ["--client-ca", str(tmp_path / "clients.pem"), "--client-name", "kube-scheduler"]
    gateway = RoleProcess("gateway", [server.url], "--listen", f"0.0.0.0:{port}", *certificate)
    roles = ("allocator", "allocator", "binder", "watcher")
    _, *allocators, binder, _ = await asyncio.gather(gateway.start(), *map(start, roles))
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    url, account = f"https://127.0.0.1:{port}", await kubeconfig_of("scheduler")
    options = ["--url", url, "--ca", tmp_path / "ca.pem", "--kubeconfig", account]
    options += ["--client-certificate", tmp_path / "client.crt", "--client-key", tmp_path / "client.key"]
    command = [sys.executable, "-m", "deploy.cli.main", "schema", "scheduler", "--name", NAME, *options]
    shown = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    (tmp_path / "scheduler.yaml").write_bytes((await shown.communicate())[0])
    plane.start_scheduler(tmp_path / "scheduler.yaml")
    try:
        yield Extender(gateway, allocators, binder, url)
    finally:
        plane.stop("kube-scheduler")
        await gateway.kill()


def write_pair(name: Path, issued: trustme.LeafCert) -> None:
    issued.private_key_pem.write_to_path(name.with_suffix(".key"))
    name.with_suffix(".crt").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))


def apart(pod: dict) -> dict:
    """Have kube-scheduler place the pod, on a node without another of its kind."""
    pod["metadata"].setdefault("labels", {})["app"] = "apart"
    term = {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": "kubernetes.io/hostname"}
    pod["spec"] |= {
        "schedulerName": NAME,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
    }
    return pod


def placed_by_it(pod: dict) -> dict:
    pod["spec"]["schedulerName"] = NAME
    return pod


async def refused(cluster: Cluster, name: str, why: str) -> None:
    """Wait until kube-scheduler says why it has found no node for a pod: first perhaps that it has lost a race for one."""
    async with asyncio.timeout(30):
        while True:
            found = await cluster.get("Pod", name, "default")
            assert "nodeName" not in found["spec"]
            for condition in found["status"].get("conditions", ()):
                if (
                    condition["type"] == "PodScheduled"
                    and condition["status"] == "False"
                    and why in condition["message"]
                ):
                    return
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("extender")
async def test_pods_that_stay_apart_get_gpus_and_the_last_place_is_given_once(bus: Bus, cluster: Cluster) -> None:
    names = ["node-a", "node-b"]
    await cluster.add_nodes(names)
    await play_agents(bus, names, gpus=1)

    await cluster.create(apart(tensorfusion_pod("apart-0", tflops="156", vram="40Gi")))
    admitted = hami_pod("apart-1", gpumem="40960", gpucores="50")
    move(admitted, frozenset(HAMI), {})  # as admission does: no node offers such resources
    await cluster.create(apart(admitted))
    pods = await agree(bus, cluster, placed=2, timeout=30)
    assert {pod["spec"]["nodeName"] for pod in pods} == set(names)
    # There is room on both GPUs, but kube-scheduler allows no third.
    await cluster.create(apart(tensorfusion_pod("apart-2", tflops="31.2", vram="8Gi")))
    await refused(cluster, "apart-2", "anti-affinity")
    await cluster.delete("Pod", "apart-2", "default")

    # Half a GPU is left on either node, and nobody minds who is there: two of five get it.
    for number in range(5):
        await cluster.create(placed_by_it(tensorfusion_pod(f"half-{number}", tflops="156", vram="40Gi")))
    pods = await agree(bus, cluster, placed=4, timeout=30)
    got = {pod["metadata"]["name"] for pod in pods}
    waiting = [f"half-{number}" for number in range(5) if f"half-{number}" not in got]
    for name in waiting:
        await refused(cluster, name, "0/2 nodes are available")
    await agree(bus, cluster, placed=4, timeout=5)

    # Whoever goes makes room for the next.
    await cluster.delete("Pod", "apart-0", "default")
    pods = await agree(bus, cluster, placed=4, timeout=30)
    assert len({pod["metadata"]["name"] for pod in pods} & set(waiting)) == 1

    # These are decisions like all others: on record once, with what is needed to make them again.
    decided: list[Decision] = []

    def read(record: Record) -> None:
        decided.append(codec.decode_as(Decision, record.payload).data)

    await history.read(bus, DECISION, ["gpubus.decision.>"], read)
    assert {decision.way for decision in decided if decision.outcome != "released"} == {"extender"}
    allocated = [decision.pod_uid for decision in decided if decision.outcome == "allocated"]
    assert len(allocated) == len(set(allocated)) == 5
    assert {d.name for d in decided if d.outcome == "unschedulable"} >= set(waiting)
    verdict = await verify(bus)
    assert (verdict.different, verdict.unexplained, verdict.astray, verdict.violations, verdict.notes) == (
        0,
        0,
        [],
        [],
        [],
    )
    assert verdict.reproduced == verdict.decisions
    assert (await audit(bus)).violations == []


async def test_nobody_without_our_certificate_is_answered(extender: Extender, tmp_path: Path) -> None:
    async def status(name: str) -> int:
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        if name:
            context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{extender.url}/extender/bind", data=b"no json", ssl=context) as answer,
        ):
            return answer.status

    assert await status("") == 401
    with pytest.raises(aiohttp.ClientError):
        await status("stranger")
    assert await status("other") == 401  # of the same authority, and of another name
    assert await status("client") == 200


@pytest.mark.slow
async def test_nothing_is_lost_or_given_twice_when_allocator_binder_and_gateway_are_killed(
    bus: Bus, cluster: Cluster, extender: Extender
) -> None:
    names = [f"node-{number}" for number in range(8)]
    await cluster.add_nodes(names)
    await play_agents(bus, names, gpus=2)
    pods = [placed_by_it(tensorfusion_pod(f"half-{number:02}", tflops="156", vram="40Gi")) for number in range(40)]
    await create_all(cluster, pods[:10])
    await extender.allocators[0].kill()
    await create_all(cluster, pods[10:20])
    await extender.binder.kill()
    await create_all(cluster, pods[20:30])
    await extender.gateway.kill()
    await create_all(cluster, pods[30:])
    await extender.binder.start()
    await extender.gateway.start()
    placed = await agree(bus, cluster, placed=32, timeout=90)
    for pod in placed[:6]:
        await cluster.delete("Pod", pod["metadata"]["name"], "default")
    await agree(bus, cluster, placed=32, timeout=60)
    verdict = await verify(bus)
    assert (verdict.different, verdict.unexplained, verdict.astray, verdict.violations) == (0, 0, [], [])
    assert (await audit(bus)).violations == []
