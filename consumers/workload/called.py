"""What clients call for: the workload whose workers they use, and their connections, as they are to be created. Pure.

The newest client says what the workload is to be. It has no owner: whatever is deleted, in whichever order and way, clients
that still run keep its workers. Who has made its clients stands in its annotations, and it ends by our hand.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from schemas.dialects import tf_keys as keys
from schemas.dialects.view import POOL_KEY
from schemas.kube.base import API_VERSION
from schemas.kube.components import WORKLOAD_KIND
from schemas.kube.resources import TensorFusionWorkload
from schemas.remote import (
    WORKLOAD_MAKER,
    WORKLOAD_MAKER_API,
    WORKLOAD_MODE,
    Owner,
    RemoteClient,
    connection_name,
    maker_of,
)

CONNECTION_KIND = "TensorFusionConnection"

_BUILT_IN: Final = {"Pod": "v1", "ReplicationController": "v1", "Job": "batch/v1", "CronJob": "batch/v1"}
"""API versions of makers of which a workload does not say it yet."""

_GENERATED: Final = 5
"""Characters that the API server puts behind ``generateName``; admission, which does not know them, puts eight of its own."""


class Caller(NamedTuple):
    """A client, and whose it is by the API server's word."""

    client: RemoteClient
    maker: Owner


def workload_document(callers: Sequence[Caller]) -> dict[str, Any]:
    """Return what a workload is to be, for server-side apply, by all of its clients, one at least."""
    newest, maker = max(callers, key=lambda one: (one.client.created_at, one.client.name))
    mode = "fixed" if isinstance(newest.spec.get("replicas"), int) else "dynamic"
    metadata: dict[str, Any] = {
        "name": newest.workload,
        "namespace": newest.namespace,
        "annotations": {
            WORKLOAD_MODE: mode,
            WORKLOAD_MAKER: maker_of(maker),
            WORKLOAD_MAKER_API: maker.api_version,
        },
    }
    if newest.pool:
        metadata["labels"] = {POOL_KEY: newest.pool}
    return {"apiVersion": API_VERSION, "kind": WORKLOAD_KIND, "metadata": metadata, "spec": newest.spec}


def caller_of(client: RemoteClient, top: Owner | None) -> Caller | None:
    """Return whose a client is that calls for this workload; None if it has no right to the name, whoever made it.

    A workload has the name of who calls for it, so that nobody can have somebody else's: of what stands above the pod, of its
    controller, or of the pod itself, which counts as its own where nothing else is known to stand above it.

    Args:
        client: The client.
        top: What stands above its pod, by the API server's word; None if nothing is known of it.
    """
    if top is not None and client.workload in (top.name, client.owner.name):
        return Caller(client, top if top.name == client.workload else client.owner)
    own = Owner(api_version="v1", kind="Pod", name=client.name, uid=client.uid)
    stem = client.name[:-_GENERATED].rstrip("-.")
    if client.workload == client.name or re.fullmatch(rf"{re.escape(stem)}-[0-9a-f]{{8}}", client.workload):
        return Caller(client, own)
    return None


def entitled(callers: Sequence[Caller], known: TensorFusionWorkload | None) -> list[Caller]:
    """Return which of those that call for a workload may say what it is, and use its workers.

    A workload that was written by hand is nobody's client's, and one that clients have called for is theirs alone who made its
    first ones: the same bare pod, or what stands above all of them, by kind and name.

    Args:
        callers: All that call for it and may.
        known: The workload as it is; None if there is none yet, which the oldest client then founds.
    """
    if known is None:
        founder = min(callers, key=lambda one: (one.client.created_at, one.client.name), default=None)
        maker = maker_of(founder.maker) if founder is not None else ""
    else:
        maker = known.metadata.annotations.get(WORKLOAD_MAKER, "")
    return [one for one in callers if maker_of(one.maker) == maker]


def maker_in(known: TensorFusionWorkload) -> Owner | None:
    """Return whom a workload says to be called for by, whatever its UID; None for one that was not called for."""
    annotations = known.metadata.annotations
    kind, _, name = annotations.get(WORKLOAD_MAKER, "").partition("/")
    api = annotations.get(WORKLOAD_MAKER_API) or _BUILT_IN.get(kind, "apps/v1")
    return Owner(api_version=api, kind=kind, name=name, uid="") if name else None


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
