"""Which worker each client of a workload uses: the one it has as long as that runs, else the one that fewest use. Pure.

Source: the contract's ``TensorFusionConnection``. The last part of the URL tells a worker from a later one of its name: upstream
writes the resource version that the worker's pod happened to have, we what follows from its UID, which stays.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
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


def seat(
    connections: Collection[TensorFusionConnection],
    workers: Iterable[Worker],
    *,
    replicas: int | None,
    now: datetime,
    problem: str = "",
) -> dict[str, TensorFusionConnectionStatus]:
    """Return how each connection is to be, by its name.

    A client is not moved from a worker that is not ready for a moment, nor when others come that fewer use: it would lose what
    it holds there. So that not all start on the worker that is ready first, no worker gets more than its share of the clients
    before these have waited for :data:`PATIENCE`.

    Args:
        connections: Of one workload.
        workers: Its workers.
        replicas: Workers that are wanted; None where each client has one of its own, which has its connection's name and says
            whose it is.
        now: The time.
        problem: Why workers could not be made; empty if nothing is in the way.
    """
    running = {worker.name: worker for worker in workers if not worker.ending and not worker.ended}
    load: Counter[str] = Counter()
    found: dict[str, TensorFusionConnectionStatus] = {}
    waiting: list[TensorFusionConnection] = []
    share = -(-len(connections) // max(replicas or 1, 1))
    for one in sorted(connections, key=lambda one: one.metadata.name):
        worker = running.get(one.status.worker_name)
        if worker is not None and one.status.connection_url and one.status.connection_url == url_of(worker):
            load[worker.name] += 1
            found[one.metadata.name] = _bound(worker)
        else:
            waiting.append(one)
    ready = [worker for worker in running.values() if worker.ready and worker.address]
    for one in waiting:
        name, created = one.metadata.name, one.metadata.created_at
        if replicas is None:
            # A client that has come back under its name finds its predecessor's worker there: that goes.
            own = name, client_uid(one)
            choice = [worker for worker in ready if (worker.name, worker.client) == own]
        else:
            late = created is not None and now - created >= PATIENCE
            choice = [worker for worker in ready if late or load[worker.name] < share]
        worker = min(choice, key=lambda worker: (load[worker.name], worker.name), default=None)
        if worker is None:
            found[name] = TensorFusionConnectionStatus(phase="Failed" if problem else "Pending")
        else:
            load[worker.name] += 1
            found[name] = _bound(worker)
    return found


def _bound(worker: Worker) -> TensorFusionConnectionStatus:
    return TensorFusionConnectionStatus(phase="Running", connection_url=url_of(worker), worker_name=worker.name)
