"""Which worker each client of a workload uses: the one it has as long as that runs, else the one that fewest use. Pure.

Source: the contract's ``TensorFusionConnection``. The last part of the URL tells a worker from a later one of its name: upstream
writes the resource version that the worker's pod happened to have, we what follows from its UID, which stays.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from consumers.workload.plan import Worker
from schemas.kube.resources import TensorFusionConnection
from schemas.kube.workloads import TensorFusionConnectionStatus

_BYTES: Final = 6

PATIENCE: Final = timedelta(seconds=10)
"""How long a client waits for a worker that fewer use."""


def url_of(worker: Worker) -> str:
    """Return where a client's library reaches a worker; empty while it has no address."""
    if not worker.address:
        return ""
    number = int.from_bytes(hashlib.blake2b(worker.uid.encode(), digest_size=_BYTES).digest())
    return f"native+{worker.address}+{worker.port}+{worker.name}-{number}"


def client_uid(connection: TensorFusionConnection) -> str:
    """Return the UID of the pod whose connection it is; empty for one that no pod owns."""
    return next((owner.uid for owner in connection.metadata.owner_references if owner.kind == "Pod"), "")


def client_name(connection: TensorFusionConnection) -> str:
    """Return the name of the pod whose connection it is; empty for one that no pod owns."""
    return next((owner.name for owner in connection.metadata.owner_references if owner.kind == "Pod"), "")


def seated(
    before: Mapping[str, str],
    connections: Collection[TensorFusionConnection],
    workers: Iterable[Worker],
    *,
    replicas: int,
    now: datetime,
) -> dict[str, str]:
    """Return which worker each client of a workload uses, both by UID, of those that share its workers.

    A client is not moved from a worker that is not ready for a moment, nor when others come that fewer use: it would lose what
    it holds there. So that not all start on the worker that is ready first, no worker gets more than its share of the clients
    before these have waited for :data:`PATIENCE`.

    Args:
        before: What it was.
        connections: Of the workload; clients without one are gone.
        workers: Its workers.
        replicas: Workers that are wanted.
        now: The time.
    """
    running = {worker.uid: worker for worker in workers if not worker.ending and not worker.ended}
    share = -(-len(connections) // max(replicas, 1))
    found, waiting = {}, []
    for one in sorted(connections, key=lambda one: one.metadata.name):
        uid = client_uid(one)
        if before.get(uid) in running:
            found[uid] = before[uid]
        else:
            waiting.append(one)
    load = Counter(found.values())
    ready = [worker for worker in running.values() if worker.ready and worker.address]
    for one in waiting:
        created = one.metadata.created_at
        late = created is not None and now - created >= PATIENCE
        choice = [worker for worker in ready if late or load[worker.uid] < share]
        worker = min(choice, key=lambda worker: (load[worker.uid], worker.name), default=None)
        if worker is not None:
            load[worker.uid] += 1
            found[client_uid(one)] = worker.uid
    return found


def own_workers(connections: Iterable[TensorFusionConnection], workers: Iterable[Worker]) -> dict[str, str]:
    """Return which worker each client uses, both by UID, where each has one of its own.

    That has its connection's name and says whose it is: who has come back under its name finds its predecessor's there.
    """
    own = {(worker.name, worker.client): worker for worker in workers if not worker.ending and not worker.ended}
    found = {}
    for one in connections:
        uid = client_uid(one)
        worker = own.get((one.metadata.name, uid))
        known = worker is not None and one.status.connection_url == url_of(worker)
        if worker is not None and worker.address and (worker.ready or known):
            found[uid] = worker.uid
    return found


def staying(connections: Iterable[TensorFusionConnection], workers: Iterable[Worker]) -> dict[str, str]:
    """Return which clients still use a worker that others use too, both by UID, where each is to have one of its own.

    It holds what they have there until that is ready.
    """
    shared = {
        url_of(worker): worker for worker in workers if not worker.client and not worker.ending and not worker.ended
    }
    shared.pop("", None)
    return {
        client_uid(one): shared[one.status.connection_url].uid
        for one in connections
        if one.status.connection_url in shared
    }


def status_of(
    connection: TensorFusionConnection, seats: Mapping[str, str], workers: Iterable[Worker], problem: str
) -> TensorFusionConnectionStatus:
    """Return how a connection is to be.

    Args:
        connection: The connection.
        seats: Which worker each client uses, both by UID.
        workers: All workers of the workload.
        problem: Why workers could not be made; empty if nothing is in the way.
    """
    uid = seats.get(client_uid(connection), "")
    worker = next((worker for worker in workers if worker.uid == uid and worker.address), None)
    if worker is None:
        return TensorFusionConnectionStatus(phase="Failed" if problem else "Pending")
    return TensorFusionConnectionStatus(phase="Running", connection_url=url_of(worker), worker_name=worker.name)
