"""What binding and admission write on pods is changed by our own accounts and by nobody else, as a real API server judges."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bus.connection import Bus
from bus.kube.client import JSON, MERGE, Client, resource_path
from bus.kube.errors import KubeRefusedError
from deploy.doctor.guard import guard_findings
from deploy.doctor.parts import Parts
from deploy.doctor.rights import accounts_of
from producers.gateway.guard import API, WRITERS, guard
from tests.integration import test_carrying
from tests.integration.cluster import SYSTEM, Cluster, create_all, play_agents, pod, tensorfusion_pod
from tests.integration.observe import agree
from tests.integration.test_carrying import metrics, scaler

__all__ = ("metrics", "scaler")

pytestmark = pytest.mark.integration

RELEASE = "guarded"
OURS = [f"system:serviceaccount:{account.replace('/', ':')}" for account in accounts_of(WRITERS)]
VISIBLE, ALLOCATION, SLOT = "gpubus.io/visible-devices", "gpubus.io/allocation", "gpubus.io/slot"
TF = "tensor-fusion.ai/"
STOLEN = "GPU-a-2"
FORBIDDEN = 403


@pytest.fixture
async def tenant(cluster: Cluster, kubeconfig_for) -> AsyncIterator[Client]:
    """Somebody who may do with pods of ``default`` all that an editor of a namespace may, and bind them."""
    name, rbac = "tenant", "rbac.authorization.k8s.io/v1"
    here = {"name": name, "namespace": "default"}
    parts = ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
    rules = [
        {"apiGroups": [""], "resources": parts, "verbs": ["get", "update", "patch"]},
        {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    ]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": SYSTEM}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    await cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": SYSTEM}})
    await cluster.apply({"apiVersion": rbac, "kind": "Role", "metadata": here, "rules": rules})
    await cluster.apply(
        {"apiVersion": rbac, "kind": "RoleBinding", "metadata": here, "roleRef": role, "subjects": [subject]}
    )
    async with await Client.connect(str(await kubeconfig_for(name))) as client:
        async with asyncio.timeout(20):
            while True:  # the API server takes up a role in a moment
                try:
                    await client.find(resource_path("v1", "pods", "default", "none"))
                    break
                except KubeRefusedError:
                    await asyncio.sleep(0.02)
        yield client


@pytest.fixture
async def guarded(cluster: Cluster) -> AsyncIterator[None]:
    """The policy as the manifests' accounts have it, in force."""
    documents = guard(f"{RELEASE}-guard", OURS)
    for document in documents:
        await cluster.apply(document)
    try:
        await _until(cluster, denied=True)
        yield
    finally:
        for document in documents:
            await cluster.delete(document["kind"], document["metadata"]["name"], api=API)
        await _until(cluster, denied=False)


async def _until(cluster: Cluster, *, denied: bool) -> None:
    """Wait until the API server, which takes a policy up in a moment, does or does not deny."""
    await cluster.create(pod("probe"))
    async with asyncio.timeout(30):
        for turn in range(10_000):
            said = await change(cluster.client, "probe", annotations={"gpubus.io/probe": str(turn)})
            if bool(said) is denied:
                break
            await asyncio.sleep(0.05)
    await cluster.delete("Pod", "probe", "default")


async def change(client: Client, name: str, part: str = "", **metadata: Any) -> str:
    """Patch the metadata of a pod, or by one of its parts, and return why that is refused; empty if it is not."""
    path = resource_path("v1", "pods", "default", name, part)
    try:
        await client.call("PATCH", path, body=json.dumps({"metadata": metadata}).encode(), content_type=MERGE)
    except KubeRefusedError as error:
        if error.code != FORBIDDEN:
            raise
        return str(error)
    return ""


async def placed(cluster: Cluster, bus: Bus, start) -> dict[str, str]:
    """Have our roles bind a pod under their own accounts, and return what it says."""
    await cluster.add_pool()
    await cluster.add_nodes(["a"])
    await play_agents(bus, ["a"])
    await asyncio.gather(*map(start, ("allocator", "watcher", "binder")))
    made = tensorfusion_pod("mine")
    made["metadata"]["labels"] |= {SLOT: "its-own", f"{TF}component": "worker"}
    await create_all(cluster, [made])
    (found,) = await agree(bus, cluster, placed=1, timeout=30)
    written: dict[str, str] = found["metadata"]["annotations"]
    return written


async def test_without_it_who_may_patch_a_pod_takes_the_gpus_of_others(
    cluster: Cluster, bus: Bus, tenant: Client, start
) -> None:
    await placed(cluster, bus, start)
    for part, gpus in (("", STOLEN), ("status", f"{STOLEN},GPU-a-3")):
        assert await change(tenant, "mine", part, annotations={VISIBLE: gpus}) == ""
        assert (await cluster.get("Pod", "mine", "default"))["metadata"]["annotations"][VISIBLE] == gpus
    for part in ("ephemeralcontainers", "resize"):  # the API server takes no metadata there
        await change(tenant, "mine", part, annotations={VISIBLE: "all"})
        assert (await cluster.get("Pod", "mine", "default"))["metadata"]["annotations"][VISIBLE] != "all"
    (finding,) = await guard_findings(cluster.client, Parts((), frozenset(), pools_run_agents=False), SYSTEM, RELEASE)
    assert (finding.severity, "there is no ValidatingAdmissionPolicy" in finding.says) == ("critical", True)


async def test_what_binding_and_admission_write_is_closed_and_what_users_say_is_not(
    cluster: Cluster, bus: Bus, guarded: None, tenant: Client, start
) -> None:
    del guarded
    before = await placed(cluster, bus, start)
    closed: list[tuple[str, str, str | None]] = [
        ("annotations", VISIBLE, STOLEN), ("annotations", VISIBLE, None), ("annotations", f"{VISIBLE}-1", STOLEN),
        ("annotations", ALLOCATION, "{}"), ("annotations", "gpubus.io/vram-limit-0", "80000m"),
        ("annotations", f"{TF}gpu-ids", STOLEN), ("annotations", f"{TF}effective-hard-sm-percent", "99"),
        ("annotations", "hami.io/vgpu-node", "b"), ("annotations", "gpubus.io/workload-spec", "{}"),
        ("labels", SLOT, None), ("labels", SLOT, "another"), ("labels", "gpubus.io/host-port", "42000-x"),
        ("labels", f"{TF}component", "client"),
    ]  # fmt: skip
    for part in ("", "status"):
        for where, key, value in closed:
            said = await change(tenant, "mine", part, **{where: {key: value}})
            assert f"gpubus: {where[:-1]} {key} may not be changed: only gpubus writes" in said, (part, key, said)
    assert "delete the pod and create it again" in said
    assert "gpubus.io/allocation" in await change(cluster.client, "mine", annotations=None)  # nor an administrator
    path = resource_path("v1", "pods", "default", "mine")
    whole = json.loads(await tenant.call("GET", path))
    whole["metadata"]["annotations"][VISIBLE] = STOLEN
    with pytest.raises(KubeRefusedError, match=f"annotation {VISIBLE} may not be changed"):
        await tenant.call("PUT", path, body=json.dumps(whole).encode(), content_type=JSON)

    own = {f"{TF}tflops-request": "40", f"{TF}qos": "high", f"{TF}eviction-protection": "1h", "team": "a"}
    assert await change(tenant, "mine", annotations=own) == ""
    assert await change(tenant, "mine", labels={"team": "a"}) == ""
    for part in ("status", "ephemeralcontainers"):
        assert await change(tenant, "mine", part) == ""
    status = {"status": {"phase": "Running"}}
    await cluster.client.call("PATCH", f"{path}/status", body=json.dumps(status).encode(), content_type=MERGE)
    found = await cluster.get("Pod", "mine", "default")
    assert found["status"]["phase"] == "Running"
    assert {**before, **own} == found["metadata"]["annotations"]


async def test_pods_that_are_not_ours_keep_their_words_and_cannot_become_ours(
    cluster: Cluster, guarded: None, tenant: Client
) -> None:
    del guarded
    await cluster.create(pod("other"))
    theirs = {f"{TF}gpu-ids": "gpu-b-0", "hami.io/vgpu-node": "b", f"{TF}selected-workload": "c"}
    assert await change(tenant, "other", annotations=theirs, labels={f"{TF}component": "worker"}) == ""
    assert "gpubus.io/moved-resources" in await change(tenant, "other", annotations={"gpubus.io/moved-resources": "{}"})
    await cluster.add_nodes(["a"])
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "other", "annotations": {VISIBLE: STOLEN}},
        "target": {"kind": "Node", "name": "a"},
    }
    path = resource_path("v1", "pods", "default", "other", "binding")
    with pytest.raises(KubeRefusedError, match=f"annotation {VISIBLE} may not be changed"):
        await tenant.call("POST", path, body=json.dumps(binding).encode())
    del binding["metadata"]["annotations"]  # type: ignore[attr-defined]
    await tenant.call("POST", path, body=json.dumps(binding).encode())
    assert (await cluster.get("Pod", "other", "default"))["spec"]["nodeName"] == "a"


async def test_a_pod_with_many_keys_is_judged_too(cluster: Cluster, guarded: None, tenant: Client) -> None:
    del guarded
    made = pod("many")
    made["metadata"]["annotations"] = {f"{number:x}": "" for number in range(2_000)} | {VISIBLE: "GPU-a-0"}
    await cluster.create(made)
    assert VISIBLE in await change(tenant, "many", annotations={VISIBLE: STOLEN})
    assert await change(tenant, "many", annotations={"1": "2"}) == ""


@pytest.mark.slow
async def test_workers_are_made_bound_and_resized_under_it(
    guarded: None, cluster: Cluster, bus: Bus, scaler: Client, metrics: Any
) -> None:
    del guarded
    await test_carrying.test_workers_that_run_hold_what_is_advised_and_nothing_is_restarted(
        cluster, bus, scaler, metrics
    )


async def test_the_doctor_sees_what_lets_others_through(cluster: Cluster, guarded: None) -> None:
    del guarded
    none = Parts((), frozenset(), pools_run_agents=False)

    async def said() -> tuple[str, str]:
        (finding,) = await guard_findings(cluster.client, none, SYSTEM, RELEASE)
        return finding.severity, finding.says

    assert (await said())[0] == "ok"
    policy, binding = guard(f"{RELEASE}-guard", OURS)
    await cluster.apply(binding | {"spec": binding["spec"] | {"validationActions": ["Audit"]}})
    assert (await said()) == (
        "critical", "the binding does not deny by this policy: who may patch a pod can give it the GPUs of others",
    )  # fmt: skip
    await cluster.apply(binding)
    await cluster.apply(policy | {"spec": policy["spec"] | {"variables": [], "validations": [{"expression": "true"}]}})
    assert (await said())[0] == "warning"
    await cluster.apply(policy)
    await cluster.delete("ValidatingAdmissionPolicyBinding", f"{RELEASE}-guard", api=API)
    assert "there is no ValidatingAdmissionPolicyBinding" in (await said())[1]
    await cluster.apply(binding)
