"""Every right that roles have is used, every right that they need they have, and one that is missing is told.

The API server writes down by which role each request of our accounts was allowed. As all tests run roles with their own
accounts and nothing more, and none may be forbidden anything, whatever right is taken out of the manifests makes this fail.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from bus.kube.client import Client, resource_path
from bus.kube.errors import KubeRefusedError
from deploy.doctor.rights import lacks_ourselves
from deploy.local.processes import RoleProcess
from deploy.local.roles import CLUSTER_ROLES, COEXISTING_ROLES
from tests.chart.render import rendered
from tests.integration import audit
from tests.integration.cluster import SYSTEM, Cluster
from tests.integration.plane import ControlPlane
from tests.integration.test_status import CLUSTER

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HERE = Path(__file__).parent
API = "tensor-fusion.ai/v1"
DELIBERATE = {
    "tls-issuer may not delete secrets", "keys-monitor may not list secrets", "gpubus-watcher may not get poddisruptionbudgets",
}  # fmt: skip
"""What a test tries to see it refused."""

CHECKED = (*CLUSTER_ROLES, *COEXISTING_ROLES, "alerter", "gateway", "authenticator")


@pytest.mark.last
def test_every_right_is_used_and_none_is_lacking(plane: ControlPlane, request: pytest.FixtureRequest) -> None:
    ran = {item.path for item in request.session.items}
    chosen = request.config.option.keyword or request.config.option.markexpr
    if chosen or not set(HERE.glob("test_*.py")) <= ran:
        pytest.skip("rights are judged where all of tests/integration has run: `make test MARK=`")
    used, forbidden = audit.done(plane.audit)
    granted = audit.granted()
    assert sorted(forbidden - DELIBERATE) == []
    assert forbidden >= DELIBERATE
    unused = {one for one in granted if not any(one.covers(other) for other in used)}
    assert sorted(unused) == []


@pytest.mark.parametrize("role", CHECKED)
async def test_a_right_that_is_taken_away_is_told_by_name(
    cluster: Cluster, kubeconfig_of: Callable[[str], Awaitable[Path]], role: str
) -> None:
    async with await Client.connect(str(await kubeconfig_of(role))) as client:

        async def told(what: str) -> None:
            """Wait until the doctor says this: the API server takes up a changed role in a moment."""
            said = ""
            try:
                async with asyncio.timeout(20):
                    while said != what:
                        (finding,) = await lacks_ourselves(client, [role], SYSTEM)
                        said = finding.says
            except TimeoutError:
                assert said == what

        well = f"this account may do what {role} do"
        await told(well)
        for document in audit.roles_bound(role):
            single = [
                {"apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb]}
                for one in audit.rights_of(document)
            ]
            try:
                for place, rule in enumerate(single):
                    await cluster.apply(document | {"rules": single[:place] + single[place + 1 :]})
                    await told(f"this account may not {rule['verbs'][0]} {rule['resources'][0]}")
            finally:
                await cluster.apply(document)
            await told(well)


@pytest.fixture
def strict(plane: ControlPlane) -> Iterator[None]:
    """An API server as some distributions have it: who has an object hold up its owner's deletion must be allowed that."""
    plane.stop("kube-apiserver")
    plane.start_apiserver("--enable-admission-plugins=OwnerReferencesPermissionEnforcement")
    yield
    plane.stop("kube-apiserver")
    plane.start_apiserver()


@pytest.mark.usefixtures("strict")
async def test_pools_belong_to_their_cluster_where_more_is_asked_of_who_says_so(
    cluster: Cluster, start: Callable[[str], Awaitable[RoleProcess]]
) -> None:
    """They do not hold up its deletion, so no right over it is needed."""
    await cluster.apply(CLUSTER)
    await asyncio.gather(start("watcher"), start("status"))
    async with asyncio.timeout(30):
        while not (pools := await cluster.list("GPUPool", api=API)):  # noqa: ASYNC110  the API server is asked
            await asyncio.sleep(0.1)
    (owner,) = pools[0]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("TensorFusionCluster", "demo")


async def test_the_scaler_may_read_the_keys_that_values_name_and_no_other_secret(
    cluster: Cluster, kubeconfig_for: Callable[[str], Awaitable[Path]]
) -> None:
    objects, _ = rendered({"scaling": {"apiKeySecrets": [{"namespace": "default", "name": "key"}]}}, "keys", SYSTEM)
    mine = [objects["ServiceAccount", "keys-monitor"]]
    mine += [one for (kind, name), one in objects.items() if name == "keys-scaler-key"]
    assert [one["kind"] for one in mine] == ["ServiceAccount", "Role", "RoleBinding"]
    for document in mine:
        await cluster.apply(document)
    for name in ("key", "other"):
        meta = {"name": name, "namespace": "default"}
        await cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"apiKey": "abc"}})
    try:
        async with await Client.connect(str(await kubeconfig_for("keys-monitor"))) as client, asyncio.timeout(20):
            while True:  # the API server takes up a binding in a moment
                with contextlib.suppress(KubeRefusedError):
                    assert await client.call("GET", resource_path("v1", "secrets", "default", "key"))
                    break
            for path in (resource_path("v1", "secrets", "default", "other"), resource_path("v1", "secrets", "default")):
                with pytest.raises(KubeRefusedError, match="403"):
                    await client.call("GET", path)
    finally:
        for name in ("key", "other"):
            await cluster.delete("Secret", name, "default")
        for one in mine:
            await cluster.delete(one["kind"], one["metadata"]["name"], one["metadata"]["namespace"], one["apiVersion"])
