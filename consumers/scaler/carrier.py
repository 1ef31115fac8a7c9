"""Carries advice out on the workers of a workload: in the ledger first, where capacity and quota are checked, then on the pods.

Whoever dies in between leaves a worker that holds what its annotations do not say yet; the next look asks again, is told that
it is so already, and writes them. Nothing is restarted: what reads its limits once keeps those until it starts anew.
"""

import logging
from typing import Final

import msgspec

from bus import records, rpc, subjects
from bus.connection import Bus
from bus.errors import CallError, UndecodableError
from bus.kube.client import MERGE, Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeRefusedError
from bus.streams import STATE
from consumers.scaler.applied import MARK, applied, target, written
from consumers.scaler.workloads import Asked
from schemas.dialects import tf_keys as keys
from schemas.dialects.tf_defaults import GpuResources
from schemas.kube.annotations import allocation_annotations
from schemas.kube.core import KubePod
from schemas.pod import Pod
from schemas.scaling import Resized, WorkloadUse

log = logging.getLogger("gpubus.scaler")

ASK_TIMEOUT_S: Final = 10.0
_INVALID: Final = 422


class Carried(msgspec.Struct, frozen=True):
    """What became of advice: workers that have it, and why others do not, in words."""

    workers: int = 0
    problem: str = ""


class _Pods(msgspec.Struct):
    items: list[KubePod] = []


_pods = msgspec.json.Decoder(_Pods)


class Carrier:
    """Changes what workers hold.

    Args:
        bus: The connection; an allocator must answer.
        client: The API server.
    """

    def __init__(self, bus: Bus, client: Client) -> None:
        self._bus = bus
        self._client = client

    async def carry(self, asked: Asked, use: WorkloadUse, *, shrinks: bool = True) -> Carried:
        """Have the workers of a workload hold what is advised; without ``shrinks`` none holds less VRAM than before.

        Raises:
            BusError, KubeError: What could not be reached; the next look goes on.
        """
        namespace, name = asked.key
        query = {"labelSelector": f"{keys.WORKLOAD}={name}"}
        found = _pods.decode(await self._client.call("GET", resource_path("v1", "pods", namespace), query=query)).items
        have, problem = 0, ""
        for pod in sorted(found, key=lambda one: one.metadata.name):
            if not pod.spec.node_name or pod.ended or pod.metadata.deletion_timestamp:
                continue
            wanted, source = target(asked, use, marked=MARK in pod.metadata.annotations)
            if wanted == GpuResources():
                continue
            why = await self._resize(pod, wanted, source, shrinks=shrinks)
            have += not why
            problem = problem or (why and f"{pod.metadata.name}: {why}")
        return Carried(have if use.advice.source else 0, problem)

    async def _resize(self, pod: KubePod, wanted: GpuResources, source: str, *, shrinks: bool) -> str:
        """Return why a worker does not hold what is wanted; empty if it does."""
        meta = pod.metadata
        known = await self._known(pod)
        if known is None:
            return "what it asks for is not known"
        request = applied(known.request, wanted, shrinks=shrinks)
        says = written(request, source)
        if all(meta.annotations.get(key) == text for key, text in says.items()):
            return ""
        command = msgspec.structs.replace(known.command(), request=request, node=pod.spec.node_name, way="resize")
        try:
            answer = await rpc.call(self._bus, "resize", command, Resized, timeout=ASK_TIMEOUT_S)
        except CallError as error:
            return str(error)
        if answer.allocation is None:
            return answer.error
        annotations = {**says, **allocation_annotations(pod.spec.node_name, answer.allocation)}
        await self._write(pod, annotations)
        log.info("%s/%s holds what is advised by %s", meta.namespace, meta.name, source or "its workload")
        return ""

    async def _known(self, pod: KubePod) -> Pod | None:
        meta = pod.metadata
        try:
            _, known = await records.read(self._bus, STATE, subjects.state("pod", meta.namespace, meta.name), Pod)
        except UndecodableError:
            return None
        return known if known is not None and known.uid == meta.uid else None

    async def _write(self, pod: KubePod, annotations: dict[str, str | None]) -> None:
        """Write the annotations on exactly this pod; one that is gone needs none."""
        meta = pod.metadata
        body = msgspec.json.encode({"metadata": {"uid": meta.uid, "annotations": annotations}})
        path = resource_path("v1", "pods", meta.namespace, meta.name)
        try:
            await self._client.call("PATCH", path, body=body, content_type=MERGE)
        except KubeRefusedError as error:
            if error.code not in (NOT_FOUND, CONFLICT, _INVALID):
                raise
