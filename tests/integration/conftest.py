"""Fixtures of tests against a real API server: one control plane for all of them, and accounts that may do little."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trustme
import yaml

from bus.connection import Bus
from bus.kube.client import Client
from bus.streams import StreamLimits, ensure_streams
from deploy.cli.schema import render_crds, render_priority_classes
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer
from tests.integration.cluster import SYSTEM, Cluster
from tests.integration.parts import ACCOUNTS, Parts
from tests.integration.plane import ControlPlane, find_assets
from tests.integration.secured import SecuredBus

SHM = Path("/dev/shm")
DEPLOY = Path(__file__).parents[2] / "deploy"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Judge rights last: by then every role has done all it does."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A running etcd and kube-apiserver."""
    assets = find_assets("etcd", "kube-apiserver")
    if assets is None:
        pytest.skip("no kube-apiserver and etcd: run `make test-assets` (needs Go) or set KUBEBUILDER_ASSETS")
    with tempfile.TemporaryDirectory(prefix="gpubus-kube-", dir=SHM if SHM.is_dir() else None) as home:
        plane = ControlPlane(assets, Path(home) / "plane")
        try:
            plane.start()
            asyncio.run(_prepare(plane.kubeconfig))
            yield plane
        finally:
            plane.stop_all()


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[Client]:
    """A client that may do everything."""
    async with await Client.connect(str(plane.kubeconfig)) as client:
        yield client


@pytest.fixture
async def cluster(admin: Client) -> AsyncIterator[Cluster]:
    """A cluster with our kinds and accounts, emptied again afterwards."""
    cluster = Cluster(admin)
    yield cluster
    await cluster.empty()


async def _prepare(kubeconfig: Path) -> None:
    """Have the API server know our kinds, and the accounts that our roles have in production."""
    async with await Client.connect(str(kubeconfig)) as client:
        cluster = Cluster(client)
        await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        documents = [yaml.safe_load(text) for text in render_crds().values()]
        for name in ("roles.yaml", "accounts.yaml", "optional/kube-scheduler.yaml"):
            documents += yaml.safe_load_all((DEPLOY / "rbac" / name).read_text())
        documents += yaml.safe_load_all(render_priority_classes())
        await asyncio.gather(*map(cluster.apply, documents))
        await cluster.established()


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    """Return a directory with a certificate, its key and who issued it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    (tmp_path / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    return tmp_path


@pytest.fixture
async def kubeconfig_for(plane: ControlPlane, cluster: Cluster, tmp_path: Path) -> Callable[[str], Awaitable[Path]]:
    """Make a kubeconfig with the token of a service account, by its whole name."""

    async def make(account: str) -> Path:
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        answer = json.loads(await cluster.client.call("POST", path, body=json.dumps(request).encode()))
        file = tmp_path / f"{account}.kubeconfig"
        plane.write_kubeconfig(file, answer["status"]["token"])
        return file

    return make


@pytest.fixture
async def kubeconfig_of(kubeconfig_for) -> Callable[[str], Awaitable[Path]]:
    """Make a kubeconfig of one of our service accounts, with exactly the rights that ``deploy/rbac`` grants it."""

    async def make(role: str) -> Path:
        return await kubeconfig_for(f"gpubus-{role}")

    return make


@pytest.fixture
async def start(server: LocalServer, bus: Bus, kubeconfig_of) -> AsyncIterator[Callable[[str], Awaitable[RoleProcess]]]:
    """Start roles in processes of their own, with the accounts that they have in production."""
    del bus  # it declares the streams
    running: list[RoleProcess] = []

    async def begin(role: str) -> RoleProcess:
        options = [] if role in ("allocator", "inspector") else ["--kubeconfig", str(await kubeconfig_of(role))]
        process = RoleProcess(role, [server.url], *options)
        await process.start()
        running.append(process)
        return process

    yield begin
    for process in running:
        await process.kill()


@pytest.fixture
async def secured(store: Path, cluster: Cluster) -> AsyncIterator[SecuredBus]:
    """The bus as the chart has it, and the accounts of the chart in the cluster."""
    bus = SecuredBus(store)
    for kind in ACCOUNTS:
        for document in (found for (name, _), found in bus.objects.items() if name == kind):
            await cluster.apply(document)
    await bus.start()
    yield bus
    await bus.stop()


@pytest.fixture
async def admin_bus(secured: SecuredBus) -> AsyncIterator[Bus]:
    """A connection to it that may do everything."""
    async with await Bus.connect(secured.urls, name="admin", security=secured.security("admin")) as bus:
        await ensure_streams(bus, StreamLimits(replicas=3))
        yield bus


@pytest.fixture
async def parts(secured: SecuredBus, kubeconfig_for) -> AsyncIterator[Parts]:
    """Whoever starts groups of roles over it."""
    running = Parts(secured, kubeconfig_for)
    yield running
    await running.stop()
