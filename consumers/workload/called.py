"""What clients call for: the workload whose workers they use, and their connections, as they are to be created. Pure.

The newest client says what the workload is to be. It goes with those who made its clients: Kubernetes removes it when the last of
them is gone, so a rolling update of their Deployment leaves it alone.
"""

from collections.abc import Collection
from typing import Any

from schemas.dialects import tf_keys as keys
from schemas.dialects.view import POOL_KEY
from schemas.kube.base import API_VERSION
from schemas.kube.components import WORKLOAD_KIND
from schemas.remote import WORKLOAD_MODE, Owner, RemoteClient, connection_name

CONNECTION_KIND = "TensorFusionConnection"


def workload_document(clients: Collection[RemoteClient], *, adopt: bool) -> dict[str, Any]:
    """Return what a workload is to be, for server-side apply.

    Args:
        clients: All of its clients, one at least.
        adopt: Whether it is theirs: one that somebody else has created stays when they go.
    """
    newest = max(clients, key=lambda one: (one.created_at, one.name))
    mode = "fixed" if isinstance(newest.spec.get("replicas"), int) else "dynamic"
    metadata: dict[str, Any] = {"name": newest.workload, "namespace": newest.namespace}
    if newest.pool:
        metadata["labels"] = {POOL_KEY: newest.pool}
    if adopt:
        owners = {one.owner.uid: _reference(one.owner) for one in clients}
        metadata["annotations"] = {WORKLOAD_MODE: mode}
        metadata["ownerReferences"] = [owners[uid] for uid in sorted(owners)]
    return {"apiVersion": API_VERSION, "kind": WORKLOAD_KIND, "metadata": metadata, "spec": newest.spec}


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
