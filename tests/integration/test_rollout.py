"""Rollouts in a real API server: agents of nodes, evictions under a disruption budget, and what the pool's status says."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from bus import codec, history, subjects
from bus.connection import Bus
from bus.follower import Follower, Record
from bus.kube.client import MERGE, Client, resource_path
from bus.kube.errors import KubeRefusedError
from bus.streams import LEDGER, STATE
from bus.tasks import end
from consumers.updater.evictions import replace_client, replace_worker
from consumers.updater.owners import wanted_pods
from deploy.cli.main import main
from deploy.local.processes import RoleProcess
from deploy.local.server import LocalServer
from schemas.cluster import Node
from schemas.rollout import Member, Replace, Replaced, Rollout
from schemas.rollout_template import make_template, member_hashes
from tests.conftest import eventually
from tests.integration.cluster import POOL, Cluster
from tests.integration.conftest import SYSTEM
from tests.integration.kubelet import Kubelet, is_ready, say_status
from tests.integration.plane import ControlPlane, find_assets

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
Start = Callable[[str], Awaitable[RoleProcess]]


class Log:
    """Every revision of one rollout's record, and what is said of its members."""

    def __init__(self, bus: Bus, component: str) -> None:
        self.records: list[Rollout] = []
        self.members: dict[str, Member] = {}
        self._members = Follower(bus, STATE, [f"gpubus.state.member.{POOL}.{component}.*"], self._on_member)
        self._follower = Follower(bus, LEDGER, [subjects.ledger_rollout(POOL, component)], self._on_record, since=1)

    async def start(self) -> "Log":
        await self._follower.start()
        await self._members.start()
        return self

    def _on_member(self, record: Record) -> None:
        if record.deleted:
            self.members.pop(record.subject, None)
        else:
            self.members[record.subject] = codec.decode_as(Member, record.payload).data

    async def ready(self, count: int) -> None:
        """Wait until there are so many members, all ready, and the rollout is at rest."""
        await eventually(lambda: [one.ready for one in self.members.values()] == [True] * count, PATIENCE_S)
        await self.reaches("synced")

    def _on_record(self, record: Record) -> None:
        self.records.append(codec.decode_as(Rollout, record.payload).data)

    async def reaches(self, phase: str, then: Callable[[Rollout], bool] = lambda _: True) -> Rollout:
        def there() -> bool:
            return bool(self.records) and self.records[-1].phase == phase and then(self.records[-1])

        try:
            await eventually(there, PATIENCE_S)
        except TimeoutError:
            raise AssertionError(f"not {phase}: {self.records[-1:]}") from None
        return self.records[-1]


@pytest.fixture
async def start(server: LocalServer, bus: Bus, kubeconfig_of) -> AsyncIterator[Start]:
    """Start roles in processes of their own, with the accounts that they have in production."""
    del bus  # it declares the streams
    running: list[RoleProcess] = []

    async def begin(role: str) -> RoleProcess:
        options = [] if role == "updater" else ["--kubeconfig", str(await kubeconfig_of(role))]
        process = RoleProcess(role, [server.url], *options)
        await process.start()
        running.append(process)
        return process

    yield begin
    for process in running:
        await process.kill()


def pool(config: dict[str, Any], **policy: Any) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": [POOL]}]}]
    rolling = {"autoUpdateHypervisor": True, "autoUpdateClient": True, "batchPercentage": 20, "batchInterval": "1s"}
    return {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPUPool",
        "metadata": {"name": POOL},
        "spec": {
            "nodeManagerConfig": {
                "nodeSelector": {"nodeSelectorTerms": terms},
                "nodePoolRollingUpdatePolicy": rolling | policy,
            },
            "componentConfig": config,
        },
    }


def agents(image: str) -> dict[str, Any]:
    container = {"name": "hypervisor", "image": "none", "resources": {"requests": {"cpu": "10m"}}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 5}}
    return {"hypervisor": {"image": image, "podTemplate": {"template": template}}}


async def shows(cluster: Cluster, then: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the pool's status shows something."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await cluster.get("GPUPool", POOL, api="tensor-fusion.ai/v1")
            if "componentStatus" in found.get("status", {}) and then(found["status"]):
                return found["status"]
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.fault
async def test_forty_nodes_in_five_batches_while_the_updater_and_its_hands_are_killed(
    cluster: Cluster, bus: Bus, start
) -> None:
    names = [f"node-{number:02}" for number in range(40)]
    await cluster.add_nodes(names)
    await cluster.apply(pool(agents("agent:1")))
    log = await Log(bus, "hypervisor").start()
    async with Kubelet(cluster, SYSTEM) as kubelet:
        updater, actuator, _ = [await start(role) for role in ("updater", "actuator", "watcher")]
        await log.ready(40)
        first = {name: list(uids) for name, uids in kubelet.made.items()}

        await cluster.apply(pool(agents("agent:2"), canary=False))
        for number in (1, 2):
            await log.reaches("batch", lambda record, number=number: record.batches == number)
            await updater.kill()
            await actuator.kill()
            await actuator.start()
            await updater.start()
        await log.reaches("interval", lambda record: record.batches == 3)
        await updater.kill()
        await updater.start()
        await log.reaches("synced", lambda record: record.number == 1)
        status = await shows(cluster, lambda status: status["componentStatus"].get("hypervisorConfigSynced", False))
    assert set(kubelet.images.values()) == {"agent:2"}
    assert {name: uids[:1] for name, uids in kubelet.made.items()} == first
    assert {len(uids) for uids in kubelet.made.values()} == {2}  # nobody twice
    assert kubelet.most_down == 8
    batches = [record for record in log.records if record.step == "batch"]
    assert [[one.name for one in record.batch] for record in batches] == [names[i : i + 8] for i in range(0, 40, 8)]
    passed = [record.changed_at for record in log.records if record.step == "passed"]
    for before, after in zip(passed, batches[1:], strict=True):
        assert after.changed_at - before >= timedelta(seconds=1)
    assert status["componentStatus"]["hypervisorUpdateProgress"] == 100
    assert status["componentStatus"]["hypervisor"] == log.records[-1].target.hash


async def test_a_crash_looping_image_stops_after_the_canary_and_rollback_restores_it_alone(
    cluster: Cluster, bus: Bus, server: LocalServer, start
) -> None:
    await cluster.add_nodes([f"node-{number}" for number in range(5)])
    await cluster.apply(pool(agents("agent:1")))
    log = await Log(bus, "hypervisor").start()
    async with Kubelet(cluster, SYSTEM) as kubelet:
        kubelet.crashing = {"agent:bad"}
        await asyncio.gather(*map(start, ("updater", "actuator", "watcher")))
        await log.ready(5)
        await cluster.apply(pool(agents("agent:bad")))
        halted = await log.reaches("halted")
        status = await shows(cluster, lambda status: status["conditions"][0]["reason"] == "CrashLooping")
        (condition,) = status["conditions"]
        assert (condition["type"], condition["status"]) == ("HypervisorsUpdated", "False")
        assert condition["message"] == halted.message == f"crash looping with template {halted.target.hash}: node-0"
        assert status["componentStatus"]["hypervisorUpdateProgress"] == 20
        assert not status["componentStatus"].get("hypervisorConfigSynced", False)
        cordoned = {node.name: node.cordoned_gpus for node in await nodes(bus)}
        assert cordoned == {"node-0": ("*",)} | {f"node-{number}": () for number in range(1, 5)}
        code = await asyncio.to_thread(main, ("rollout", "rollback", POOL, "hypervisor", "--nats", server.url))
        assert code == 0
        await log.reaches("rolled-back")
        assert {node.cordoned_gpus for node in await nodes(bus)} == {()}
        said = await events(cluster, 4)
    assert said["RolloutHalted"]["type"] == "Warning"
    assert said["RolloutHalted"]["note"] == f"hypervisor: {halted.message}, 1 of 5 updated"
    assert said.keys() == {"RolloutStarted", "RolloutHalted", "RollingBack", "RolloutCompleted"}
    assert set(kubelet.images.values()) == {"agent:1"}
    assert {name: len(uids) for name, uids in kubelet.made.items()} == {
        "node-0": 3, "node-1": 1, "node-2": 1, "node-3": 1, "node-4": 1,
    }  # fmt: skip


@pytest.mark.slow
async def test_one_broken_image_after_another_costs_the_same_node(cluster: Cluster, bus: Bus, start) -> None:
    await cluster.add_nodes([f"node-{number}" for number in range(5)])
    await cluster.apply(pool(agents("agent:1")))
    log = await Log(bus, "hypervisor").start()
    async with Kubelet(cluster, SYSTEM) as kubelet:
        kubelet.crashing = {"agent:bad", "agent:worse"}
        await asyncio.gather(*map(start, ("updater", "actuator", "watcher")))
        await log.ready(5)
        await cluster.apply(pool(agents("agent:bad")))
        first = await log.reaches("halted")
        await cluster.apply(pool(agents("agent:worse")))
        await eventually(
            lambda: log.records[-1].phase == "halted" and log.records[-1].target != first.target, PATIENCE_S
        )
        assert log.records[-1].failed == first.failed == ("node-0",)
        await cluster.apply(pool(agents("agent:2")))
        await log.reaches("synced")
    assert set(kubelet.images.values()) == {"agent:2"}
    assert {name: len(uids) for name, uids in kubelet.made.items()} == {
        "node-0": 4, "node-1": 2, "node-2": 2, "node-3": 2, "node-4": 2,
    }  # fmt: skip


async def test_a_node_that_comes_to_another_pool_gets_that_pool_s_agent(cluster: Cluster, bus: Bus, start) -> None:
    await cluster.add_nodes(["node-0"], "other")
    await cluster.add_nodes(["node-1"])
    other = pool(agents("agent:other"))
    other["metadata"]["name"] = "other"
    manager = other["spec"]["nodeManagerConfig"]
    manager["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] = ["other"]
    await asyncio.gather(cluster.apply(other), cluster.apply(pool(agents("agent:1"))))
    log = await Log(bus, "hypervisor").start()
    async with Kubelet(cluster, SYSTEM) as kubelet:
        await asyncio.gather(*map(start, ("updater", "actuator", "watcher")))
        await log.ready(1)
        await eventually(lambda: kubelet.images.get("node-0") == "agent:other", PATIENCE_S)
        body = json.dumps({"metadata": {"labels": {"pool": POOL}}}).encode()
        await cluster.client.call("PATCH", resource_path("v1", "nodes", name="node-0"), body=body, content_type=MERGE)
        done = await log.reaches("synced", lambda record: record.number == 1)
        assert (done.updated, done.total) == (2, 2)
    assert kubelet.images == {"node-0": "agent:1", "node-1": "agent:1"}
    assert {name: len(made) for name, made in kubelet.made.items()} == {"node-0": 2, "node-1": 1}


async def nodes(bus: Bus) -> list[Node]:
    """Return the nodes as the allocators see them."""
    records, _ = await history.newest(bus, STATE, ["gpubus.state.node.*"])
    return [codec.decode_as(Node, record.payload).data for record in records]


async def events(cluster: Cluster, count: int) -> dict[str, dict[str, Any]]:
    """Wait for so many Events about the pool and return them by reason."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await cluster.list("Event", "default", api="events.k8s.io/v1")
            if len(found) >= count:
                assert all(one["regarding"]["name"] == POOL for one in found)
                return {one["reason"]: one for one in found}
            await asyncio.sleep(0.05)


async def test_an_eviction_waits_for_the_disruption_budget_says_so_and_goes_on(
    cluster: Cluster, bus: Bus, start
) -> None:
    await cluster.apply(pool({"client": {"remoteModeImage": "client:1"}}))
    await cluster.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "careful", "namespace": "default"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "training"}}},
        }
    )
    log = await Log(bus, "client").start()
    await asyncio.gather(*map(start, ("updater", "actuator", "watcher")))
    try:
        record = await log.reaches("synced")
        pods = [await create_client(cluster, f"old-{number}", record) for number in range(2)]
        await log.ready(2)
        await allow(cluster, 0)
        await cluster.apply(pool({"client": {"remoteModeImage": "client:2"}}))
        blocked = await log.reaches("canary", lambda record: record.reason == "Blocked")
        assert "disruption budget careful needs 2 healthy pods" in blocked.message
        status = await shows(cluster, lambda status: status["conditions"][0]["message"] == blocked.message)
        assert status["conditions"][0]["reason"] == "Updating"
        assert {one["metadata"]["uid"] for one in await cluster.list("Pod", "default")} == set(pods)
        for number in range(2):
            await allow(cluster, 1)
            await evicted(cluster, 1)
            await create_client(cluster, f"new-{number}", log.records[-1])
        await log.reaches("synced", lambda record: record.number > 0)
    finally:
        path = resource_path("policy/v1", "poddisruptionbudgets", "default", "careful")
        await cluster.client.call("DELETE", path)
    names = {one["metadata"]["name"] for one in await cluster.list("Pod", "default")}
    assert names == {"new-0", "new-1"}


@pytest.mark.slow
async def test_a_changed_image_comes_to_every_worker_once_and_a_changed_number_of_replicas_to_nobody(
    cluster: Cluster, bus: Bus, start
) -> None:
    await cluster.apply(pool(vgpus("worker:1"), autoUpdateWorker=True))
    await asyncio.gather(*(cluster.apply(workload(name, 2)) for name in ("a", "b")))
    log = await Log(bus, "worker").start()
    playing = asyncio.create_task(play_workers(cluster))
    try:
        await asyncio.gather(*map(start, ("updater", "actuator", "watcher", "workload")))
        await log.ready(2)
        old = await uids(cluster)
        await cluster.apply(workload("b", 3))
        await eventually(lambda: sorted(one.pods_ready for one in log.members.values()) == [2, 3], PATIENCE_S)
        grown = await uids(cluster)
        assert grown == old | {"b-tf-worker-2": grown["b-tf-worker-2"]}
        assert (log.records[-1].phase, log.records[-1].number) == ("synced", 0)
        await cluster.apply(pool(vgpus("worker:2"), autoUpdateWorker=True))
        done = await log.reaches("synced", lambda record: record.number == 1)
        assert (done.updated, done.total) == (2, 2)
        await eventually(lambda: sorted(one.pods_ready for one in log.members.values()) == [2, 3], PATIENCE_S)
        pods = await cluster.list("Pod", "default")
        new = await uids(cluster)
    finally:
        await end(playing)
    assert new.keys() == grown.keys()
    assert not set(new.values()) & set(grown.values())
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"worker:2"}
    assert [[one.name for one in record.batch] for record in log.records if record.step == "batch"] == [
        ["default/a"], ["default/b"],
    ]  # fmt: skip


@pytest.mark.slow
async def test_workers_give_way_as_their_disruption_budget_and_the_batch_allow(
    cluster: Cluster, plane: ControlPlane, bus: Bus, start
) -> None:
    """A real disruption controller: the budget forbids, then allows one, then is gone, and the batch alone counts."""
    if find_assets("kube-controller-manager") is None:
        pytest.skip("no kube-controller-manager: run `make test-assets`")
    policy = {"autoUpdateWorker": True, "batchPercentage": 34, "maxDuration": "5m"}
    await cluster.apply(pool(vgpus("worker:1"), **policy))
    await cluster.apply(workload("a", 6))
    await cluster.apply(budget(maxUnavailable=0))
    log, ready = await Log(bus, "worker").start(), ReadyPods(cluster)
    playing = asyncio.create_task(play_workers(cluster, ready.seen))
    plane.start_controllers("disruption-controller")
    try:
        await asyncio.gather(*map(start, ("updater", "updater", "actuator", "watcher", "workload")))
        await log.ready(1)
        await cluster.apply(pool(vgpus("worker:2"), **policy))
        blocked = await log.reaches("canary", lambda record: record.reason == "Blocked")
        assert "disruption budget careful needs 6 healthy pods and has 6 currently" in blocked.message
        ready.least = 6
        await cluster.apply(budget(maxUnavailable=1))
        await eventually(lambda: ready.on["worker:2"] >= 2, PATIENCE_S)
        assert ready.least >= 5
        await cluster.delete("PodDisruptionBudget", "careful", "default", api="policy/v1")
        await log.reaches("synced", lambda record: record.number == 1)
        await eventually(lambda: ready.on["worker:2"] == 6, PATIENCE_S)
    finally:
        plane.stop("kube-controller-manager")
        await end(playing)
    assert ready.least >= 3  # 34 % of six are three
    assert len(ready.uids) == 12  # nobody twice


def budget(**spec: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"tensor-fusion.ai/component": "worker"}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "careful", "namespace": "default"},
        "spec": {"selector": selector} | spec,
    }


class ReadyPods:
    """How many pods were ready at least, how many by image, and whom there ever was."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.least = 0
        self.on: Counter[str] = Counter()
        self.uids: set[str] = set()

    def seen(self, pods: list[dict[str, Any]]) -> None:
        ready = [pod for pod in pods if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")]
        self.least = min(self.least, len(ready))
        self.on = Counter(pod["spec"]["containers"][0]["image"] for pod in ready)
        self.uids |= {pod["metadata"]["uid"] for pod in pods}


async def test_owners_say_how_many_pods_they_want_to_an_account_that_may_do_little(
    cluster: Cluster, kubeconfig_of
) -> None:
    labels = {"app": "a"}
    pods = {
        "metadata": {"labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": "i"}]},
    }
    made: list[tuple[str, str, str, dict[str, Any]]] = [
        ("apps/v1", "ReplicaSet", "web", {"replicas": 3, "selector": {"matchLabels": labels}}),
        ("apps/v1", "StatefulSet", "db", {"replicas": 0, "serviceName": "db", "selector": {"matchLabels": labels}}),
        ("batch/v1", "Job", "train", {"parallelism": 4, "completions": 2}),
        ("batch/v1", "Job", "halted", {"parallelism": 4, "completions": 2, "suspend": True}),
    ]
    always = {**pods, "spec": {**pods["spec"], "restartPolicy": "Always"}}
    for api, kind, name, spec in made:
        meta = {"name": name, "namespace": "default"}
        template = pods if kind == "Job" else always
        document = {"apiVersion": api, "kind": kind, "metadata": meta, "spec": {**spec, "template": template}}
        await cluster.create(document)
    await cluster.apply(workload("w", 5))
    owners = {
        "apps/v1/ReplicaSet/web": 3, "apps/v1/StatefulSet/db": 0, "batch/v1/Job/train": 2, "batch/v1/Job/halted": 0,
        "tensor-fusion.ai/v1/TensorFusionWorkload/w": 5, "apps/v1/ReplicaSet/gone": 0, "batch/v1/Job/gone": 0,
        "apps/v1/DaemonSet/no-scale": -1, "kubeflow.org/v1/PyTorchJob/unknown": -1, "": -1,
    }  # fmt: skip
    try:
        async with await Client.connect(str(await kubeconfig_of("actuator"))) as client:
            found = await wanted_pods(client, [f"default/{owner}" for owner in owners])
    finally:
        for api, kind, name, _ in made:
            await cluster.delete(kind, name, "default", api=api)
    assert found == {f"default/{owner}": wanted for owner, wanted in owners.items()}


def vgpus(image: str) -> dict[str, Any]:
    container = {"name": "vgpu", "resources": {"requests": {"cpu": "10m"}}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}
    return {"worker": {"image": image, "podTemplate": {"template": template}}}


def workload(name: str, replicas: int) -> dict[str, Any]:
    amounts = {"requests": {"tflops": "10", "vram": "4Gi"}, "limits": {"tflops": "20", "vram": "4Gi"}}
    return {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "TensorFusionWorkload",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": replicas, "poolName": POOL, "resources": amounts},
    }


async def play_workers(cluster: Cluster, seen: Callable[[list[dict[str, Any]]], None] = lambda _: None) -> None:
    """Have every worker come up, as its node would."""
    while True:
        pods = await cluster.list("Pod", "default")
        seen(pods)
        for pod in pods:
            if not pod["status"].get("containerStatuses"):
                with contextlib.suppress(KubeRefusedError):  # it is gone meanwhile
                    await say_status(cluster, pod)
        await asyncio.sleep(0.05)


async def uids(cluster: Cluster) -> dict[str, str]:
    pods = await cluster.list("Pod", "default")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


async def create_client(cluster: Cluster, name: str, record: Rollout) -> str:
    """Create a pod as its controller and admission would, ready, and return its UID."""
    member = Member(
        pool=POOL, component="client", name=f"default/{name}", uid="", hash="", created_at=record.changed_at
    )
    labels = {
        "app": "training",
        "tensor-fusion.ai/component": "client",
        "tensor-fusion.ai/gpupool": POOL,
        "tensor-fusion.ai/pod-template-hash": member_hashes(record.target)(member),
    }
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "training", "uid": "a-b-c", "controller": True}
    pod = await cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "main", "image": "none"}], "terminationGracePeriodSeconds": 0},
        }
    )
    await say_status(cluster, pod)
    return pod["metadata"]["uid"]


async def allow(cluster: Cluster, disruptions: int) -> None:
    """Say what the controller of disruption budgets would say."""
    path = resource_path("policy/v1", "poddisruptionbudgets", "default", "careful", "status")
    status = {
        "observedGeneration": 1, "disruptionsAllowed": disruptions, "currentHealthy": 2, "desiredHealthy": 2,
        "expectedPods": 2,
    }  # fmt: skip
    await cluster.client.call("PATCH", path, body=json.dumps({"status": status}).encode(), content_type=MERGE)


async def evicted(cluster: Cluster, left: int) -> None:
    """Wait until so many pods are left."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if len(await cluster.list("Pod", "default")) == left:
                return
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_what_is_only_asked_after_is_left_alone(cluster: Cluster, kubeconfig_of) -> None:
    target = make_template({"image": "new:1"})
    record = Rollout(pool=POOL, component="client", target=target, changed_at=datetime.now(UTC), step="recorded")
    uid = await create_client(cluster, "asked", record)
    owner = {"apiVersion": "tensor-fusion.ai/v1", "kind": "TensorFusionWorkload", "name": "shared", "uid": "w-u"}
    labels = {"tensor-fusion.ai/component": "worker", "tensor-fusion.ai/workload": "shared"}
    meta = {"namespace": "default", "labels": labels, "ownerReferences": [owner]}
    spec = {"containers": [{"name": "main", "image": "none"}], "terminationGracePeriodSeconds": 0}
    for number in range(2):
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "name": f"w{number}"}, "spec": spec}
        await say_status(cluster, await cluster.create(document))
    before = await uids(cluster)
    asked = Replace(
        pool=POOL, component="client", name="default/asked", uid=uid, template=target, hash="new", keep=True
    )
    of_worker = msgspec.structs.replace(asked, component="worker", name="default/shared", uid="w-u", up=2, at_once=2)
    async with await Client.connect(str(await kubeconfig_of("actuator"))) as client:
        assert (await replace_client(client, asked)).outcome == "kept"
        assert (await replace_worker(client, of_worker)) == Replaced(outcome="kept", up=2)
        missed = await replace_worker(client, msgspec.structs.replace(of_worker, up=3))
        assert (missed.outcome, missed.pods) == ("part", 0)  # one is missed, and those that are up stay
        assert await uids(cluster) == before
        assert (await replace_client(client, msgspec.structs.replace(asked, uid="other"))).outcome == "gone"
        assert (await replace_client(client, msgspec.structs.replace(asked, name="default/no"))).outcome == "gone"
        assert (await replace_worker(client, msgspec.structs.replace(of_worker, keep=False))).outcome == "done"
        assert set(await uids(cluster)) == {"asked"}
