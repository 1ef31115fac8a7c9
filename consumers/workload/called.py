"""What clients call for: the workload whose workers they use, and their connections, as they are to be created. Pure.

The newest client says what the workload is to be. It goes with those who made its clients: Kubernetes removes it when the last of
them is gone, so a rolling update of their Deployment leaves it alone.
"""

from collections.abc import Collection, Sequence
from typing import Any

from schemas.dialects import tf_keys as keys
from schemas.dialects.view import POOL_KEY
from schemas.kube.base import API_VERSION
from schemas.kube.components import WORKLOAD_KIND
from schemas.kube.resources import TensorFusionWorkload
from schemas.remote import WORKLOAD_MAKER, WORKLOAD_MODE, Owner, RemoteClient, connection_name

CONNECTION_KIND = "TensorFusionConnection"


def workload_document(clients: Collection[RemoteClient]) -> dict[str, Any]:
    """Return what a workload is to be, for server-side apply, by all of its clients, one at least."""
    newest = max(clients, key=lambda one: (one.created_at, one.name))
    mode = "fixed" if isinstance(newest.spec.get("replicas"), int) else "dynamic"
    owners = {one.owner.uid: _reference(one.owner) for one in clients}
    metadata: dict[str, Any] = {
        "name": newest.workload,
        "namespace": newest.namespace,
        "annotations": {WORKLOAD_MODE: mode, WORKLOAD_MAKER: _maker(newest)},
        "ownerReferences": [owners[uid] for uid in sorted(owners)],
    }
    if newest.pool:
        metadata["labels"] = {POOL_KEY: newest.pool}
    return {"apiVersion": API_VERSION, "kind": WORKLOAD_KIND, "metadata": metadata, "spec": newest.spec}


def entitled(clients: Sequence[RemoteClient], known: TensorFusionWorkload | None) -> list[RemoteClient]:
    """Return which of those that call for a workload may say what it is, and use its workers.

    What a client says stands in its annotations, which anybody may write who may create a pod. So a workload that was written
    by hand is nobody's client's, and one that clients have called for is theirs alone who made its first ones: the same bare pod,
    or the same controller, of which a Deployment's ReplicaSets are one.

    Args:
        clients: All that call for it.
        known: The workload as it is; None if there is none yet, which the oldest client then founds.
    """
    if known is None:
        founder = min(clients, key=lambda one: (one.created_at, one.name), default=None)
        maker = _maker(founder) if founder is not None else ""
    else:
        maker = known.metadata.annotations.get(WORKLOAD_MAKER, "")
    return [one for one in clients if _maker(one) == maker]


def _maker(client: RemoteClient) -> str:
    kind, name, workload = client.owner.kind, client.owner.name, client.workload
    is_deployment = kind == "ReplicaSet" and name.rpartition("-")[0] == workload
    return f"{kind}/{workload if is_deployment else name}"


def connection_document(client: RemoteClient) -> dict[str, Any]:
    """Return a client's connection, which goes with its pod."""
    owner = Owner(api_version="v1", kind="Pod", name=client.name, uid=client.uid)
    return {
        "apiVersion": API_VERSION,
        "kind": CONNECTION_KIND,
        "metadata": {
            "name": connection_name(client.name),
            "namespace": client.namespace,
            "labels": {keys.WORKLOAD: client.workload},
            "ownerReferences": [_reference(owner)],
        },
        "spec": {"workloadName": client.workload, "clientPod": client.name},
    }


def _reference(owner: Owner) -> dict[str, str]:
    return {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
