"""What is done about one workload: its workers are made and removed, its clients connected, and its status says how it is."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from bus.kube.errors import KubeRefusedError
from bus.makers import Makers
from consumers.workload.connecting import Connecting
from consumers.workload.connections import PATIENCE, client_uid, own_workers, seated, status_of, staying
from consumers.workload.founding import FRESH_S, Founding
from consumers.workload.hands import PODS, Hands
from consumers.workload.plan import Plan, Worker, plan_dedicated, plan_workers
from consumers.workload.pools import Pools, blamed
from consumers.workload.refused import UNKNOWN
from consumers.workload.render import worker_pod
from consumers.workload.seating import Seating
from consumers.workload.status import OURS, workload_status
from consumers.workload.view import Key, Source, View
from schemas.dialects.text import RequestError
from schemas.kube.base import Condition
from schemas.kube.resources import TensorFusionConnection, TensorFusionWorkload
from schemas.kube.workloads import TensorFusionWorkloadStatus
from schemas.remote import client_of

SOON_S: Final = 0.05
AGAIN_S: Final = 2.0
"""When a name is asked for again whose holder goes."""


class _Found(NamedTuple):
    """A workload as it was found.

    Attributes:
        seats: Sequence of the record of its seats, and these.
        workers: Its workers.
        connections: Those of its clients.
        problem: What is in the way of other connections; empty if nothing is.
    """

    seats: tuple[int, dict[str, str]]
    workers: list[Worker]
    connections: list[TensorFusionConnection]
    problem: str


class Keeper:
    """Looks at workloads one by one.

    Args:
        view: What is set, and which clients there are.
        hands: The API server.
        seating: Who uses which worker.
        makers: Says who has made clients.
        look_at: Has a workload looked at again in so many seconds.
    """

    def __init__(
        self, view: View, hands: Hands, seating: Seating, makers: Makers, look_at: Callable[[Key, float], None]
    ) -> None:
        self._hands, self._seating = hands, seating
        self.view = view
        self._look_at = look_at
        self._shown: dict[Key, TensorFusionWorkloadStatus] = {}
        self._founding = Founding(view, hands, makers)
        self._pools = Pools(hands)
        self._connecting = Connecting(self._founding, hands)
        self.looked = self.made = self.removed = self.seated = 0

    async def forget(self, key: Key) -> None:
        """The workload is no more."""
        await self._pools.forget(key)
        self._shown.pop(key, None)
        self._founding.forget(key)

    async def keep(self, key: Key) -> str:
        """Do what a workload's plan says, show how it is, and return what was in the way."""
        self.looked += 1
        known = self.view.workload(key)
        # In this order: who has a seat has had its connection before, and so has who has a worker of its own.
        before = self._seating.read(key)
        workers = await self._hands.workers(key, known.metadata.uid) if known is not None else []
        there = await self._hands.connections(key)
        seated_before = {*before[1], *(one.client for one in workers), *map(client_uid, there)}
        settled = await self._founding.settle(key, seated_before)
        if any(one.reason == UNKNOWN for one in self._founding.refused(key)):
            self._look_at(key, FRESH_S)
        workload = self.view.workload(key)
        if not settled or known is None or workload is None or workload.metadata.uid != known.metadata.uid:
            return ""  # it was called for just now, or is another by now, and we shall hear of it
        connections, taken = await self._connecting.connect(key, there)
        if not connections and await self._founding.end(key, workload):
            return ""
        return await self._keep(key, workload, _Found(before, workers, connections, taken))

    async def _keep(self, key: Key, workload: TensorFusionWorkload, found: _Found) -> str:
        """Do what a workload's plan says for the clients that it has."""
        before, workers, connections, taken = found
        replicas = workload.spec.replicas
        count, now = replicas if isinstance(replicas, int) else None, datetime.now(UTC)
        seats: dict[str, str] = {}
        if count is None:
            seats = staying(connections, workers) | own_workers(connections, workers)
            clients = {one.uid for one in self._founding.clients(key)}
            kept = {one.name: one.client for one in workers if one.client in clients}
            wanted = kept | {one.metadata.name: client_uid(one) for one in connections}
            plan = plan_dedicated(key[1], wanted, workers, now, seats.values())
        else:
            plan = plan_workers(key[1], count, workers, now)
        source, unknown = self._source(key)
        problem = taken or unknown
        prevented, refused = await self._carry_out(key, workload, plan, source)
        problem = prevented or problem
        if plan.again is not None:
            self._look_at(key, max((plan.again - now).total_seconds(), SOON_S))
        if count is not None:
            seats = seated(before[1], connections, workers, replicas=count, now=now)
            if not await self._seating.settle(key, before[0], seats):
                if self._seating.unreadable(key):
                    problem = "the record of who uses which worker cannot be read: see `gpubus dead list`"
                    await self._show(key, count, workers, source.hash if source is not None else "", problem)
                    return problem
                self._look_at(key, SOON_S)
                return problem
            if len(seats) < len(connections):
                self._look_at(key, PATIENCE.total_seconds())
        await self._tell(key, connections, workers, seats, problem)
        await self._show(key, count, workers, source.hash if source is not None else "", problem)
        if source is not None:
            await self._pools.tell(key, source.pool, refused)
        return problem

    def _source(self, key: Key) -> tuple[Source | None, str]:
        """Return what workers are made from, or why that is not known."""
        try:
            return self.view.source(key), ""
        except RequestError as error:
            return None, str(error)

    async def fail(self, key: Key, problem: str) -> None:
        """Have a workload say that it cannot be kept, and why; its workers stay as they are."""
        workload = self.view.workload(key)
        if workload is not None:
            workers = await self._hands.workers(key, workload.metadata.uid)
            replicas = workload.spec.replicas
            count = replicas if isinstance(replicas, int) else None
            await self._show(key, count, workers, "", problem)

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

    async def _carry_out(
        self, key: Key, workload: TensorFusionWorkload, plan: Plan, source: Source | None
    ) -> tuple[str, str]:
        """Return what was in the way, and what of that is the fault of the pool's template; both empty if nothing was."""
        problem, refused = "", ""
        for one in plan.remove:
            try:
                if not one.ended and one.client and await self._hands.runs(key[0], client_of(one.name), one.client):
                    continue  # whatever else is known of its client
                await self._hands.remove("v1", PODS, key[0], one.name, one.uid)
                self.removed += 1
            except KubeRefusedError as error:
                problem = problem or error.message
        if source is None:
            return problem, ""
        for name in plan.make:
            try:
                problem = await self._make(key, workload, name, source, plan.clients.get(name, "")) or problem
            except RequestError as error:
                problem = str(error)
            except KubeRefusedError as error:
                problem = error.message
                refused = refused or blamed(error, workload.spec)
        return problem, refused

    async def _make(self, key: Key, workload: TensorFusionWorkload, name: str, source: Source, client: str) -> str:
        """Make a worker, and return what is in the way of its name; empty if nothing is.

        Raises:
            RequestError: It cannot be made of what is stated.
            KubeRefusedError: The API server would not have it.
        """
        pod = worker_pod(
            name,
            workload,
            source.template,
            pool=source.pool,
            vendor=source.vendor,
            template_hash=source.hash,
            client=client,
        )
        if await self._hands.make_pod(key[0], pod):
            self.made += 1
            return ""
        return await self._taken(key, workload, name)

    async def _taken(self, key: Key, workload: TensorFusionWorkload, name: str) -> str:
        """Return what is in the way of a worker whose name a pod has; empty if that is it, or goes."""
        holder = await self._hands.holder(key, name)
        if holder is None or holder.ending:
            self._look_at(key, AGAIN_S)
            return ""
        if holder.workload == workload.metadata.uid:
            return ""  # another process made it first, and the next look tells
        return f"pod {name} is no worker of this workload, and a worker has to have its name: delete it"

    async def _show(
        self, key: Key, count: int | None, workers: Sequence[Worker], template_hash: str, problem: str
    ) -> None:
        """Write a workload's status if it says something new; a condition keeps its time as long as it stays what it is."""
        status = workload_status(count, workers, template_hash, problem, self._founding.refused(key))
        if self._shown.get(key) == status:
            return
        before = await self._hands.workload_status(key)
        if before is None:
            return  # it was deleted, and we shall hear of it
        known = {one.type: one for one in before.conditions}
        conditions = tuple(_dated(one, known.get(one.type)) for one in status.conditions)
        said = msgspec.structs.replace(status, conditions=conditions)
        if not _says(before, said):
            await self._hands.show_workload(key, said)
        self._shown[key] = status


def _dated(condition: Condition, before: Condition | None) -> Condition:
    kept = before is not None and before.status == condition.status
    at = (
        before.last_transition_time if before is not None and kept else datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )
    return msgspec.structs.replace(condition, last_transition_time=at)


def _says(before: TensorFusionWorkloadStatus, said: TensorFusionWorkloadStatus) -> bool:
    """Return whether a status says all of what is to be said, whatever else is in it."""
    fields = ("phase", "worker_count", "ready_workers", "pod_template_hash")
    same = all(getattr(before, field) == getattr(said, field) for field in fields)
    return same and set(said.conditions) == {one for one in before.conditions if one.type in OURS}
