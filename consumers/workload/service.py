"""The shell that keeps workers: looks at a workload whenever something of it has changed, and does what its plan says.

It looks at the cluster itself and remembers nothing, and every write is bound to a name or a UID, so any number of these
processes may do the same work. It is a role of its own because it is the one that may make pods anywhere.
"""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.kube.client import APPLY, Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeError, KubeRefusedError
from bus.streams import LEDGER, STATE
from bus.tasks import until_first
from consumers.workload.plan import Plan, Worker, plan_workers
from consumers.workload.render import worker_pod
from consumers.workload.status import workload_status
from consumers.workload.view import LEDGER_FILTERS, STATE_FILTERS, Key, Source, View
from schemas.dialects.text import RequestError
from schemas.dialects.tf_keys import COMPONENT, WORKLOAD
from schemas.kube.base import API_VERSION
from schemas.kube.core import KubePod
from schemas.kube.resources import TensorFusionWorkload
from schemas.kube.workloads import TensorFusionWorkloadStatus

log = logging.getLogger("gpubus.workload")

MANAGER: Final = "gpubus-workload"
GATHER_S: Final = 0.05
AT_ONCE: Final = 8
AGAIN_S: Final = (2.0, 60.0)
"""When what the API server would not do is tried again: at first, and at most."""

SWEEP_S: Final = 30.0
"""Looks at everything, whatever happened."""

_PLURAL: Final = "tensorfusionworkloads"


class _Pods(msgspec.Struct):
    items: list[KubePod] = []


class _Stated(msgspec.Struct):
    status: TensorFusionWorkloadStatus = TensorFusionWorkloadStatus()


_pods = msgspec.json.Decoder(_Pods)
_stated = msgspec.json.Decoder(_Stated)


class WorkloadStatistics(msgspec.Struct, frozen=True):
    """Counters since the start."""

    looked: int
    made: int
    removed: int
    failed: int


class WorkloadKeeper:
    """One process that keeps workers.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
    """

    def __init__(self, bus: Bus, client: Client) -> None:
        self._client = client
        self.view = View(self._look_soon)
        self._state = Follower(bus, STATE, STATE_FILTERS, self._on_state)
        self._ledger = Follower(bus, LEDGER, LEDGER_FILTERS, self._on_ledger, recreated=self.view.forget_records)
        self._changed: set[Key] = set()
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._failures: dict[Key, int] = {}
        self._shown: dict[Key, TensorFusionWorkloadStatus] = {}
        self._looked = self._made = self._removed = self._failed = 0

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Keep workers until ``stop`` is set."""
        await self._ledger.start()
        await self._state.start()
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(loop) for loop in (stop.wait(), self._working(), self._sweeping())
        ]
        if ready is not None:
            ready.set()
        try:
            await until_first(*tasks)
        finally:
            await self._state.stop()
            await self._ledger.stop()

    def _on_state(self, record: Record) -> None:
        try:
            self.view.on_state(record)
        except UndecodableError as error:  # its own reader buries it
            log.info("%s at %d: %s", record.subject, record.seq, error)

    def _on_ledger(self, record: Record) -> None:
        try:
            self.view.on_ledger(record)
        except UndecodableError as error:
            log.info("%s at %d: %s", record.subject, record.seq, error)

    def _look_soon(self, key: Key) -> None:
        self._changed.add(key)
        self._wake.set()

    def _look_at(self, key: Key, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._look_soon, key)

    async def _sweeping(self) -> None:
        while True:
            for key in self.view.keys():  # noqa: SIM118  no mapping
                self._look_soon(key)
            await asyncio.sleep(SWEEP_S)

    async def _working(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_S)
            self._wake.clear()
            changed, self._changed = self._changed, set()
            await asyncio.gather(*map(self._look, sorted(changed)))

    async def _look(self, key: Key) -> None:
        workload = self.view.workload(key)
        if workload is None:
            self._failures.pop(key, None)
            self._shown.pop(key, None)
            return
        try:
            async with self._slots:
                problem = await self._keep(key, workload)
        except KubeError as error:
            problem = str(error)
        if not problem:
            self._failures.pop(key, None)
            return
        self._failed += 1
        tries = self._failures[key] = self._failures.get(key, 0) + 1
        first, most = AGAIN_S
        log.warning("workload %s: %s; trying again", "/".join(key), problem)
        self._look_at(key, min(first * 2 ** min(tries - 1, 10), most))

    async def _keep(self, key: Key, workload: TensorFusionWorkload) -> str:
        """Do what a workload's plan says, show how it is, and return what was in the way."""
        self._looked += 1
        assert isinstance(workload.spec.replicas, int)  # noqa: S101  for mypy: the view returns no other
        workers, now = await self._workers(key, workload), datetime.now(UTC)
        plan = plan_workers(key[1], workload.spec.replicas, workers, now)
        source, problem = None, ""
        try:
            source = self.view.source(key)
        except RequestError as error:
            problem = str(error)
        problem = await self._carry_out(key, workload, plan, source) or problem
        if plan.again is not None:
            self._look_at(key, max((plan.again - now).total_seconds(), GATHER_S))
        status = workload_status(workload.spec.replicas, workers, source.hash if source is not None else "", problem)
        await self._show(key, status, now)
        return problem

    async def _workers(self, key: Key, workload: TensorFusionWorkload) -> list[Worker]:
        namespace, name = key
        query = {"labelSelector": f"{COMPONENT}=worker,{WORKLOAD}={name}"}
        pods = _pods.decode(await self._client.call("GET", resource_path("v1", "pods", namespace), query=query)).items
        return [_worker(pod) for pod in pods if _owner(pod) == workload.metadata.uid]

    async def _carry_out(self, key: Key, workload: TensorFusionWorkload, plan: Plan, source: Source | None) -> str:
        problems = [await self._remove(key, one) for one in plan.remove]
        if source is not None:
            problems += [await self._make(key, workload, name, source) for name in plan.make]
        return next(filter(None, problems), "")

    async def _make(self, key: Key, workload: TensorFusionWorkload, name: str, source: Source) -> str:
        try:
            pod = worker_pod(
                name, workload, source.template, pool=source.pool, vendor=source.vendor, template_hash=source.hash
            )
            await self._client.call("POST", resource_path("v1", "pods", key[0]), body=msgspec.json.encode(pod))
        except RequestError as error:
            return str(error)
        except KubeRefusedError as error:
            # Another process made it first, or a pod of somebody else has the name, and the next look tells which.
            return "" if error.code == CONFLICT else error.message
        self._made += 1
        return ""

    async def _remove(self, key: Key, worker: Worker) -> str:
        body = msgspec.json.encode({"preconditions": {"uid": worker.uid}})
        try:
            await self._client.call("DELETE", resource_path("v1", "pods", key[0], worker.name), body=body)
        except KubeRefusedError as error:
            return "" if error.code in (NOT_FOUND, CONFLICT) else error.message
        self._removed += 1
        return ""

    async def _show(self, key: Key, status: TensorFusionWorkloadStatus, now: datetime) -> None:
        """Write a workload's status if it says something new; a condition keeps its time as long as it stays what it is."""
        if self._shown.get(key) == status:
            return
        namespace, name = key
        path = resource_path(API_VERSION, _PLURAL, namespace, name)
        try:
            before = _stated.decode(await self._client.call("GET", path)).status
            (condition,) = status.conditions
            same = next((one for one in before.conditions if one.type == condition.type), None)
            kept = same is not None and same.status == condition.status
            at = same.last_transition_time if same is not None and kept else now.strftime("%Y-%m-%dT%H:%M:%SZ")
            said = msgspec.structs.replace(
                status, conditions=(msgspec.structs.replace(condition, last_transition_time=at),)
            )
            if not _says(before, said):
                document = {
                    "apiVersion": API_VERSION, "kind": "TensorFusionWorkload", "metadata": {"name": name},
                    "status": said,
                }  # fmt: skip
                query = {"fieldManager": MANAGER, "force": "true"}
                await self._client.call(
                    "PATCH", f"{path}/status", query=query, body=msgspec.json.encode(document), content_type=APPLY
                )
        except KubeRefusedError as error:
            if error.code != NOT_FOUND:
                raise
            return  # it was deleted, and we shall hear of it
        self._shown[key] = status

    def statistics(self) -> WorkloadStatistics:
        """Return the counters of this process."""
        return WorkloadStatistics(looked=self._looked, made=self._made, removed=self._removed, failed=self._failed)


def _says(before: TensorFusionWorkloadStatus, said: TensorFusionWorkloadStatus) -> bool:
    """Return whether a status says all of what is to be said, whatever else is in it."""
    fields = ("phase", "worker_count", "ready_workers", "pod_template_hash")
    same = all(getattr(before, field) == getattr(said, field) for field in fields)
    return same and set(said.conditions) <= set(before.conditions)


def _owner(pod: KubePod) -> str:
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")


def _worker(pod: KubePod) -> Worker:
    meta = pod.metadata
    ready = any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
    return Worker(
        name=meta.name,
        uid=meta.uid,
        created_at=datetime.fromisoformat(meta.creation_timestamp),
        ready=ready and not meta.deletion_timestamp,
        ending=bool(meta.deletion_timestamp),
        ended=pod.ended,
    )
