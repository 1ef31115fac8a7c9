"""Names that somebody else has, in a real API server: nothing of theirs is touched, and what had to wait is made when they go."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from bus.kube.client import Client
from consumers.workload.called import Caller, workload_document
from consumers.workload.hands import Hands
from schemas.remote import Owner, RemoteClient
from tests.integration.cluster import POOL, Cluster, pod
from tests.integration.test_workload import API, PATIENCE_S, WORKERS, pool, workers, workload

pytestmark = pytest.mark.integration

KEY = ("default", "model")


def called_for(**spec: Any) -> dict[str, Any]:
    owner = Owner(api_version="apps/v1", kind="StatefulSet", name="model", uid="11111111-1111-1111-1111-111111111111")
    client = RemoteClient(
        namespace="default", name="model-0", uid="u", workload="model", spec=spec, pool="shared", owner=owner,
        created_at=datetime.now(UTC),
    )  # fmt: skip
    return workload_document([Caller(client, owner)])


async def shown(cluster: Cluster) -> dict[str, Any]:
    return await cluster.get("TensorFusionWorkload", "model", "default", API)


async def test_a_workload_that_is_somebody_s_is_not_taken_over_though_nobody_has_told_of_it(
    cluster: Cluster, kubeconfig_of
) -> None:
    async with await Client.connect(str(await kubeconfig_of("workload"))) as client:
        hands = Hands(client)
        theirs = await cluster.apply(workload(3))
        assert not await hands.made_by_us(KEY)
        asked = called_for(poolName="shared", replicas=1, gpuModel="A100")
        assert await hands.make_workload(KEY, asked) == ""
        assert not await hands.apply_workload(KEY, "22222222-2222-2222-2222-222222222222", asked)
        assert await shown(cluster) == theirs
        await cluster.delete("TensorFusionWorkload", "model", "default", API)
        assert not await hands.apply_workload(KEY, theirs["metadata"]["uid"], asked), "one that is gone stays so"

        uid = await hands.make_workload(KEY, asked)
        marked = await shown(cluster)
        assert (marked["metadata"]["uid"], marked["metadata"]["annotations"]) == (uid, asked["metadata"]["annotations"])
        assert await hands.apply_workload(KEY, uid, asked)
        assert (await shown(cluster))["spec"] == asked["spec"] | {"isolation": "soft"}
        owner = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "model",
            "uid": "11111111-1111-1111-1111-111111111111",
        }
        older = {**asked, "metadata": {**asked["metadata"], "ownerReferences": [owner]}}
        assert await hands.apply_workload(KEY, uid, older)
        assert (await shown(cluster))["metadata"]["ownerReferences"] == [owner]
        assert await hands.made_by_us(KEY)
        less = called_for(poolName="shared")
        assert await hands.apply_workload(KEY, uid, less)
        found = await shown(cluster)
        assert found["spec"] == {"poolName": "shared", "isolation": "soft"}, "what is called for no more goes"
        assert "ownerReferences" not in found["metadata"], "what an older version has said of its owners goes too"


async def ready_says(cluster: Cluster, then: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the workload's condition is so, and return its status."""
    status: dict[str, Any] = {}
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = (await shown(cluster)).get("status", {})
                if any(one["type"] == "Ready" and then(one) for one in status.get("conditions", ())):
                    return status
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(status) from None


async def test_a_worker_s_name_that_a_pod_has_is_said_and_workers_go_when_none_are_to_be_shared(
    cluster: Cluster, start
) -> None:
    await cluster.create(pod(WORKERS[0]))
    await cluster.apply(pool("worker:1"))
    await cluster.apply(workload(2))
    await asyncio.gather(*map(start, ("watcher", "workload", "workload")))
    status = await ready_says(cluster, lambda one: WORKERS[0] in one.get("message", ""))
    assert status["phase"] == "Failed"
    assert {WORKERS[1]} <= {one["metadata"]["name"] for one in await cluster.list("Pod", "default")}
    await cluster.delete("Pod", WORKERS[0], "default")
    await workers(cluster, WORKERS[:2])
    await ready_says(cluster, lambda one: one["reason"] == "WaitingForWorkers")
    dynamic = workload(2)
    del dynamic["spec"]["replicas"]
    await cluster.apply(dynamic)
    await workers(cluster, [])


async def pool_says(cluster: Cluster, status: str) -> dict[str, Any]:
    """Wait until the pool's condition of its workers has this status, and return it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = (await cluster.get("GPUPool", POOL, api=API)).get("status", {}).get("conditions", ())
            for one in found:
                if (one["type"], one["status"]) == ("WorkersAccepted", status):
                    return dict(one)
            await asyncio.sleep(0.05)


async def test_what_the_api_server_has_against_workers_is_said_by_their_pool_and_ends_when_it_is_mended(
    cluster: Cluster, start
) -> None:
    wrong = pool("worker:1")
    wrong["spec"]["componentConfig"]["worker"]["podTemplate"]["template"]["spec"]["terminationGracePeriodSeconds"] = -1
    wrong["spec"]["componentConfig"]["worker"]["podTemplate"]["template"]["spec"]["dnsPolicy"] = "Nowhere"
    await cluster.apply(wrong)
    await cluster.apply(workload(1))
    await asyncio.gather(*map(start, ("watcher", "workload", "workload")))
    said = await pool_says(cluster, "False")
    assert "dnsPolicy" in said["message"]
    assert "(workload default/model)" in said["message"]
    await ready_says(cluster, lambda one: "dnsPolicy" in one.get("message", ""))
    await cluster.apply(pool("worker:1"))
    await workers(cluster, WORKERS[:1])
    assert (await pool_says(cluster, "True"))["reason"] == "TemplateAccepted"
