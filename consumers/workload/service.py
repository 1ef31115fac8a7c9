"""The shell that keeps workers and connections: looks at a workload whenever something of it has changed, and does its plan.

It looks at the cluster itself and remembers nothing, and every write is bound to a name or a UID, so any number of these
processes may do the same work. It is a role of its own because it is the one that may make pods anywhere.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.kube.client import Client
from bus.kube.errors import KubeError, KubeRefusedError
from bus.streams import LEDGER, STATE
from bus.tasks import until_first
from consumers.workload.called import connection_document, workload_document
from consumers.workload.connections import PATIENCE, client_name, client_uid, seat
from consumers.workload.hands import CONNECTIONS, PODS, Hands
from consumers.workload.plan import Plan, Worker, plan_dedicated, plan_workers
from consumers.workload.render import worker_pod
from consumers.workload.status import workload_status
from consumers.workload.view import LEDGER_FILTERS, STATE_FILTERS, Key, Source, View
from schemas.dialects.text import RequestError
from schemas.kube.base import API_VERSION
from schemas.kube.resources import TensorFusionConnection, TensorFusionWorkload
from schemas.kube.workloads import TensorFusionWorkloadStatus, WorkloadProfileSpec
from schemas.remote import WORKLOAD_MODE

log = logging.getLogger("gpubus.workload")

GATHER_S: Final = 0.05
AT_ONCE: Final = 8
AGAIN_S: Final = (2.0, 60.0)
"""When what the API server would not do is tried again: at first, and at most."""

SWEEP_S: Final = 30.0
"""Looks at everything, whatever happened."""


class WorkloadStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; ``seated`` counts connections of which it was said where their worker is."""

    looked: int
    made: int
    removed: int
    seated: int
    failed: int


class WorkloadKeeper:
    """One process that keeps workers.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
    """

    def __init__(self, bus: Bus, client: Client) -> None:
        self._hands = Hands(client)
        self.view = View(self._look_soon)
        self._state = Follower(bus, STATE, STATE_FILTERS, self._on_state)
        self._ledger = Follower(bus, LEDGER, LEDGER_FILTERS, self._on_ledger, recreated=self.view.forget_records)
        self._changed: set[Key] = set()
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._failures: dict[Key, int] = {}
        self._shown: dict[Key, TensorFusionWorkloadStatus] = {}
        self._applied: dict[Key, bytes] = {}
        self._looked = self._made = self._removed = self._seated = self._failed = 0

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
        if self.view.workload(key) is None and not self.view.clients(key):
            for known in (self._failures, self._shown, self._applied):
                known.pop(key, None)
            return
        try:
            async with self._slots:
                problem = await self._keep(key)
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

    async def _keep(self, key: Key) -> str:
        """Do what a workload's plan says, show how it is, and return what was in the way."""
        self._looked += 1
        await self._call_for(key)
        workload = self.view.workload(key)
        if workload is None:
            return ""  # it was called for just now, and we shall hear of it
        replicas = workload.spec.replicas
        count, now = replicas if isinstance(replicas, int) else None, datetime.now(UTC)
        # In this order: whoever has made a worker for one client has made the connection before.
        workers = await self._hands.workers(key, workload.metadata.uid)
        connections = await self._connections(key)
        if count is None:
            plan = plan_dedicated({one.metadata.name: client_uid(one) for one in connections}, workers, now)
        else:
            plan = plan_workers(key[1], count, workers, now)
        source, problem = None, ""
        try:
            source = self.view.source(key)
        except RequestError as error:
            problem = str(error)
        problem = await self._carry_out(key, workload, plan, source) or problem
        if plan.again is not None:
            self._look_at(key, max((plan.again - now).total_seconds(), GATHER_S))
        await self._seat(key, connections, workers, replicas=count, now=now, problem=problem)
        status = workload_status(count, workers, source.hash if source is not None else "", problem)
        await self._show(key, status, now)
        return problem

    async def _call_for(self, key: Key) -> None:
        """Have the API server hold the workload that clients call for, if it does not."""
        clients, known = self.view.clients(key), self.view.workload(key)
        if not clients:
            return
        document = workload_document(clients, adopt=known is None or WORKLOAD_MODE in known.metadata.annotations)
        said = msgspec.json.encode(document, order="sorted")
        if known is None or self._applied.get(key) != said or not _includes(known.spec, document["spec"]):
            await self._hands.apply_workload(key, document)
            self._applied[key] = said

    async def _connections(self, key: Key) -> list[TensorFusionConnection]:
        """Return the connections of a workload's clients: missing ones are made, those of clients that are gone removed."""
        clients = {client.uid: client for client in self.view.clients(key)}
        kept = []
        for one in await self._hands.connections(key):
            meta, uid = one.metadata, client_uid(one)
            if not uid:
                continue  # nobody could be told its URL
            if uid in clients or await self._hands.runs(meta.namespace, client_name(one), uid):
                kept.append(one)
            else:
                await self._hands.remove(API_VERSION, CONNECTIONS, meta.namespace, meta.name, meta.uid)
        there = {client_uid(one) for one in kept}
        for uid in clients.keys() - there:
            made = await self._hands.make_connection(key[0], connection_document(clients[uid]))
            if made is not None:
                kept.append(made)
        return kept

    async def _seat(
        self,
        key: Key,
        connections: Sequence[TensorFusionConnection],
        workers: Sequence[Worker],
        *,
        replicas: int | None,
        now: datetime,
        problem: str,
    ) -> None:
        """Say of each connection where its worker is."""
        wanted = seat(connections, workers, replicas=replicas, now=now, problem=problem)
        if replicas is not None and any(not status.worker_name for status in wanted.values()):
            self._look_at(key, PATIENCE.total_seconds())
        for one in connections:
            status = wanted[one.metadata.name]
            if status == one.status:
                continue
            if await self._hands.show_connection(one, status):
                self._seated += 1
            else:
                self._look_soon(key)

    async def _carry_out(self, key: Key, workload: TensorFusionWorkload, plan: Plan, source: Source | None) -> str:
        problem = ""
        for one in plan.remove:
            try:
                await self._hands.remove("v1", PODS, key[0], one.name, one.uid)
                self._removed += 1
            except KubeRefusedError as error:
                problem = problem or error.message
        if source is not None:
            for name in plan.make:
                problem = await self._make(key, workload, name, source, plan.clients.get(name, "")) or problem
        return problem

    async def _make(self, key: Key, workload: TensorFusionWorkload, name: str, source: Source, client: str) -> str:
        try:
            pod = worker_pod(
                name, workload, source.template, pool=source.pool, vendor=source.vendor, template_hash=source.hash,
                client=client,
            )  # fmt: skip
            self._made += await self._hands.make_pod(key[0], pod)
        except RequestError as error:
            return str(error)
        except KubeRefusedError as error:
            return error.message
        return ""

    async def _show(self, key: Key, status: TensorFusionWorkloadStatus, now: datetime) -> None:
        """Write a workload's status if it says something new; a condition keeps its time as long as it stays what it is."""
        if self._shown.get(key) == status:
            return
        before = await self._hands.workload_status(key)
        if before is None:
            return  # it was deleted, and we shall hear of it
        (condition,) = status.conditions
        same = next((one for one in before.conditions if one.type == condition.type), None)
        kept = same is not None and same.status == condition.status
        at = same.last_transition_time if same is not None and kept else now.strftime("%Y-%m-%dT%H:%M:%SZ")
        said = msgspec.structs.replace(
            status, conditions=(msgspec.structs.replace(condition, last_transition_time=at),)
        )
        if not _says(before, said):
            await self._hands.show_workload(key, said)
        self._shown[key] = status

    def statistics(self) -> WorkloadStatistics:
        """Return the counters of this process."""
        return WorkloadStatistics(
            looked=self._looked, made=self._made, removed=self._removed, seated=self._seated, failed=self._failed
        )


def _says(before: TensorFusionWorkloadStatus, said: TensorFusionWorkloadStatus) -> bool:
    """Return whether a status says all of what is to be said, whatever else is in it."""
    fields = ("phase", "worker_count", "ready_workers", "pod_template_hash")
    same = all(getattr(before, field) == getattr(said, field) for field in fields)
    return same and set(said.conditions) <= set(before.conditions)


def _includes(spec: WorkloadProfileSpec, wanted: dict[str, Any]) -> bool:
    """Return whether a workload says all of what its clients call for, whatever else it says."""
    said, asked = msgspec.to_builtins(spec), msgspec.to_builtins(msgspec.convert(wanted, WorkloadProfileSpec))
    return all(said.get(key) == value for key, value in asked.items())
