"""Which pods use GPUs of other nodes, as they come, end and go, and whose a connection is."""

import json
from typing import Any

import msgspec

from producers.watcher.clients import Clients, connection_of
from schemas.kube.core import KubePod
from schemas.kube.resources import TensorFusionConnection

KEY = ("ns", "app")
SAID = {"tensor-fusion.ai/selected-workload": "web", "gpubus.io/workload-spec": json.dumps({"poolName": "p"})}


def pod(version: int, *, phase: str = "Pending", annotations: dict[str, str] | None = None, **meta: Any) -> KubePod:
    metadata = {
        "name": "app", "namespace": "ns", "uid": "u", "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": SAID if annotations is None else annotations,
        "labels": {"tensor-fusion.ai/component": "client", "tensor-fusion.ai/gpupool": "p", "gpubus.io/slot": "s"}, **meta,
    }  # fmt: skip
    return msgspec.convert({"metadata": metadata, "spec": {}, "status": {"phase": phase}}, KubePod)


def test_a_client_is_told_until_it_ends_or_goes() -> None:
    told: list[tuple[str, ...]] = []
    clients = Clients(told.append)
    clients.put(pod(5))
    found, version = clients.project(KEY)
    assert found is not None
    assert (found.workload, found.spec, found.pool, found.slot, version) == ("web", {"poolName": "p"}, "p", "s", 5)
    assert (found.owner.kind, found.owner.uid) == ("Pod", "u")
    clients.put(pod(6))  # nothing that matters
    assert clients.project(KEY)[1] == 5
    clients.put(pod(6, deletionTimestamp="2026-01-01T00:00:30Z"))
    ending, _ = clients.project(KEY)
    assert ending is not None
    assert (found.ending, ending.ending) == (False, True), "it runs on in its grace period"
    clients.put(pod(7, phase="Succeeded"))
    assert clients.project(KEY) == (None, 7)
    clients.put(pod(8, uid="v"))
    clients.gone("ns", "app", 9)
    assert clients.project(KEY) == (None, 9)
    assert told == [KEY] * 5
    clients.done(KEY, 8)  # STATE has not come that far
    assert clients.project(KEY) == (None, 9)
    clients.done(KEY, 9)
    clients.complete(4)
    assert clients.project(KEY) == (None, 9)


def test_what_admission_has_not_written_is_none() -> None:
    clients = Clients(lambda _: None)
    clients.put(pod(5, labels={}))
    clients.put(pod(5, annotations={}))
    clients.put(pod(5, annotations=SAID | {"gpubus.io/workload-spec": "[]"}))
    assert clients.project(KEY) == (None, 0)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "rs", "controller": True}
    clients.put(pod(6, ownerReferences=[owner]))
    found, _ = clients.project(KEY)
    assert found is not None
    assert (found.owner.api_version, found.owner.kind, found.owner.name, found.owner.uid) == (
        "apps/v1", "ReplicaSet", "web-1", "rs",
    )  # fmt: skip


def test_a_connection_is_the_pod_s_that_owns_it() -> None:
    made: dict[str, Any] = {
        "metadata": {"name": "c", "namespace": "ns", "ownerReferences": [{"kind": "Pod", "name": "app", "uid": "u"}]},
        "spec": {"workloadName": "web"},
        "status": {"phase": "Running", "connectionURL": "native+x", "workerName": "w"},
    }
    found = connection_of(msgspec.convert(made, TensorFusionConnection))
    assert (found.client, found.client_uid, found.workload, found.worker, found.url) == (
        "app",
        "u",
        "web",
        "w",
        "native+x",
    )
    made["status"]["phase"] = "Failed"
    assert connection_of(msgspec.convert(made, TensorFusionConnection)).url == ""
    del made["metadata"]["ownerReferences"]
    assert connection_of(msgspec.convert(made, TensorFusionConnection)).client_uid == ""
