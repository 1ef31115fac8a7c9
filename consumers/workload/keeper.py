"""What is done about one workload: its workers are made and removed, its clients connected, and its status says how it is."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bus.kube.errors import KubeRefusedError
from consumers.workload.called import connection_document, entitled, workload_document
from consumers.workload.connections import PATIENCE, client_name, client_uid, own_workers, seated, status_of
from consumers.workload.hands import CONNECTIONS, PODS, Hands
from consumers.workload.plan import Plan, Worker, plan_dedicated, plan_workers
from consumers.workload.render import worker_pod
from consumers.workload.seating import Seating
from consumers.workload.status import workload_status
from consumers.workload.view import Key, Source, View
from schemas.dialects.text import RequestError
from schemas.kube.base import API_VERSION
from schemas.kube.resources import TensorFusionConnection, TensorFusionWorkload
from schemas.kube.workloads import TensorFusionWorkloadStatus, WorkloadProfileSpec
from schemas.remote import RemoteClient

log = logging.getLogger("gpubus.workload")

SOON_S: Final = 0.05


class Keeper:
    """Looks at workloads one by one.

    Args:
        view: What is set, and which clients there are.
        hands: The API server.
        seating: Who uses which worker.
        look_at: Has a workload looked at again in so many seconds.
    """

    def __init__(self, view: View, hands: Hands, seating: Seating, look_at: Callable[[Key, float], None]) -> None:
        self._hands, self._seating = hands, seating
        self.view = view
        self._look_at = look_at
        self._shown: dict[Key, TensorFusionWorkloadStatus] = {}
        self._applied: dict[Key, bytes] = {}
        self._strangers: dict[Key, frozenset[str]] = {}
        self.looked = self.made = self.removed = self.seated = 0

    def forget(self, key: Key) -> None:
        """The workload is no more."""
        self._shown.pop(key, None)
        self._applied.pop(key, None)
        self._strangers.pop(key, None)

    async def keep(self, key: Key) -> str:
        """Do what a workload's plan says, show how it is, and return what was in the way."""
        self.looked += 1
        await self._call_for(key)
        workload = self.view.workload(key)
        if workload is None:
            return ""  # it was called for just now, and we shall hear of it
        replicas = workload.spec.replicas
        count, now = replicas if isinstance(replicas, int) else None, datetime.now(UTC)
        # In this order: who has a seat has had its connection before, and so has who has a worker of its own.
        before = self._seating.read(key)
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
            self._look_at(key, max((plan.again - now).total_seconds(), SOON_S))
        seats = own_workers(connections, workers)
        if count is not None:
            seats = seated(before[1], connections, workers, replicas=count, now=now)
            if not await self._seating.settle(key, before[0], seats):
                if self._seating.unreadable(key):
                    return "the record of who uses which worker cannot be read: see `gpubus dead list`"
                self._look_at(key, SOON_S)
                return problem
            if len(seats) < len(connections):
                self._look_at(key, PATIENCE.total_seconds())
        await self._tell(key, connections, workers, seats, problem)
        status = workload_status(count, workers, source.hash if source is not None else "", problem)
        await self._show(key, status, now)
        return problem

    async def fail(self, key: Key, problem: str) -> None:
        """Have a workload say that it cannot be kept, and why; its workers stay as they are."""
        workload = self.view.workload(key)
        if workload is not None:
            workers = await self._hands.workers(key, workload.metadata.uid)
            replicas = workload.spec.replicas
            count = replicas if isinstance(replicas, int) else None
            await self._show(key, workload_status(count, workers, "", problem), datetime.now(UTC))

    async def _call_for(self, key: Key) -> None:
        """Have the API server hold the workload that clients call for, if it does not."""
        known, clients = self.view.workload(key), self._clients(key)
        if not clients:
            return
        document = workload_document(clients, adopt=True)
        said = msgspec.json.encode(document, order="sorted")
        if known is None or self._applied.get(key) != said or not _includes(known.spec, document["spec"]):
            await self._hands.apply_workload(key, document)
            self._applied[key] = said

    def _clients(self, key: Key) -> list[RemoteClient]:
        """Return a workload's clients; others that call for it are told nothing, and change nothing."""
        calling = self.view.clients(key)
        clients = entitled(calling, self.view.workload(key))
        strangers = frozenset(one.name for one in calling) - {one.name for one in clients}
        if strangers and self._strangers.get(key) != strangers:
            shown = ", ".join(sorted(strangers)[:3])
            log.warning(
                "workload %s belongs to others, and is not what %d pods call for, such as %s: rename them or it",
                "/".join(key), len(strangers), shown,
            )  # fmt: skip
        self._strangers[key] = strangers
        return clients

    async def _connections(self, key: Key) -> list[TensorFusionConnection]:
        """Return the connections of a workload's clients: missing ones are made, those of clients that are gone removed."""
        clients = {client.uid: client for client in self._clients(key)}
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

    async def _tell(
        self,
        key: Key,
        connections: Sequence[TensorFusionConnection],
        workers: Sequence[Worker],
        seats: dict[str, str],
        problem: str,
    ) -> None:
        """Say of each connection where its worker is."""
        for one in connections:
            status = status_of(one, seats, workers, problem)
            if status == one.status:
                continue
            if await self._hands.show_connection(one, status):
                self.seated += 1
            else:
                self._look_at(key, SOON_S)

    async def _carry_out(self, key: Key, workload: TensorFusionWorkload, plan: Plan, source: Source | None) -> str:
        problem = ""
        for one in plan.remove:
            try:
                await self._hands.remove("v1", PODS, key[0], one.name, one.uid)
                self.removed += 1
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
            self.made += await self._hands.make_pod(key[0], pod)
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


def _says(before: TensorFusionWorkloadStatus, said: TensorFusionWorkloadStatus) -> bool:
    """Return whether a status says all of what is to be said, whatever else is in it."""
    fields = ("phase", "worker_count", "ready_workers", "pod_template_hash")
    same = all(getattr(before, field) == getattr(said, field) for field in fields)
    return same and set(said.conditions) <= set(before.conditions)


def _includes(spec: WorkloadProfileSpec, wanted: dict[str, Any]) -> bool:
    """Return whether a workload says all of what its clients call for, whatever else it says."""
    said, asked = msgspec.to_builtins(spec), msgspec.to_builtins(msgspec.convert(wanted, WorkloadProfileSpec))
    return all(said.get(key) == value for key, value in asked.items())
