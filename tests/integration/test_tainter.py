"""Progressive migration on a real API server: nodes with GPUs of ours say so, and native pods keep away from them."""

import asyncio

import pytest

from bus import codec, subjects
from bus.kube.errors import KubeRefusedError
from deploy.local.processes import RoleProcess
from producers.gateway.configuration import HAMI, NATIVE, Reach
from schemas.decision import GpuGrant
from schemas.event import Event
from schemas.kube.occupied import LABEL, TAINT
from schemas.ledger import Allocation, NodeRecord
from tests.integration.cluster import node, pod
from tests.integration.test_admission import Admission, hami

pytestmark = pytest.mark.integration


async def hold(bus, name, *pods):
    grant = GpuGrant(uuid="GPU-1", index=0, tflops_milli=1, vram_bytes=1)
    held = tuple(Allocation(pod_uid=pod, namespace="ml", name=pod, pool="p", gpus=(grant,)) for pod in pods)
    record = NodeRecord(node=name, txn="t", changes=(), allocations=held)
    event = Event(
        id=f"{name}:{len(pods)}", source="/t", type="gpubus.ledger.node.v1", subject=name, time="2026-11-30T00:00:00Z",
        data=record,
    )  # fmt: skip
    await bus.publisher.publish(subjects.ledger_node(name), codec.encode(event))


async def test_a_node_is_tainted_and_labelled_while_pods_hold_gpus_of_ours(cluster, bus, server, kubeconfig_of):
    other = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    made = node("busy")
    made["spec"] = {"taints": [other]}
    await cluster.create(made)
    await cluster.create(node("idle"))
    tainters = [
        RoleProcess("tainter", [server.url], "--kubeconfig", str(await kubeconfig_of("tainter"))) for _ in range(2)
    ]
    await hold(bus, "busy", "a")  # before anybody looks
    await hold(bus, "gone", "a")  # of which the API server knows nothing
    try:
        await asyncio.gather(*(one.start() for one in tainters))

        async def settled(name, taints, label):
            async with asyncio.timeout(20):
                while True:
                    found = await cluster.get("Node", name)
                    if (found["spec"].get("taints"), found["metadata"]["labels"].get(LABEL)) == (taints, label):
                        return
                    await asyncio.sleep(0.05)

        await settled("busy", [other, TAINT], "true")
        await hold(bus, "idle", "b")
        await settled("idle", [TAINT], "true")
        await hold(bus, "busy")
        await hold(bus, "idle")
        await settled("busy", [other], None)
        await settled("idle", None, None)
    finally:
        await asyncio.gather(*(one.kill() for one in tainters))


@pytest.mark.usefixtures("bus")
async def test_native_pods_are_kept_apart_even_when_they_opt_out_and_pods_without_gpus_never_come(
    cluster, server, tls, tmp_path, kubeconfig_of
):
    await cluster.add_pool()
    (tmp_path / "admission.yaml").write_text("nvidiaOperatorProgressiveMigration: true")
    admission = Admission(
        cluster,
        server,
        tls,
        await kubeconfig_of("watcher"),
        options=("--config", str(tmp_path / "admission.yaml")),
        reach=Reach(resources=(*HAMI, *NATIVE), beside=NATIVE),
    )

    def native(name, **labels):
        made = hami(name, **{"nvidia.com/gpu": "1"})
        made["metadata"]["labels"] = labels
        return made

    try:
        await admission.start()
        async with asyncio.timeout(20):  # a new configuration counts a moment later
            while "affinity" not in (found := await cluster.create(native("probe")))["spec"]:
                await cluster.delete("Pod", "probe", "default")
                await asyncio.sleep(0.05)
        out = await cluster.create(native("out", **{"tensor-fusion.ai/enabled": "false"}))
        for made in (found, out):
            assert made["spec"]["schedulerName"] == "default-scheduler"
            assert made["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
            required = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            expressions = [{"key": LABEL, "operator": "DoesNotExist"}]
            assert required["nodeSelectorTerms"] == [{"matchExpressions": expressions}]
        ours = await cluster.create(hami("ours", **{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}))
        assert ours["spec"]["schedulerName"] == "hami-scheduler"
        await admission.gateway.kill()
        await cluster.create(pod("plain"))
        with pytest.raises(KubeRefusedError, match=r"mpod\.gpubus\.io"):
            await cluster.create(native("down", **{"tensor-fusion.ai/enabled": "false"}))
    finally:
        await admission.stop()
