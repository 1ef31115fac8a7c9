"""Pods that use GPUs of other nodes, and their connections, as the API server has them. No I/O.

A pod that has ended is no client any more: its connection may go, and its worker with it.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from producers.watcher.plan import Key
from schemas.dialects.tf_keys import COMPONENT, SELECTED_WORKLOAD
from schemas.dialects.view import POOL_KEY
from schemas.kube.core import KubePod
from schemas.kube.resources import TensorFusionConnection
from schemas.kube.workloads import WorkloadProfileSpec
from schemas.remote import WORKLOAD_SPEC, Connection, Owner, RemoteClient
from schemas.slots import HOST_PORT_SLOT

log = logging.getLogger("gpubus.watcher")

SLOT: Final = "gpubus.io/slot"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_spec = msgspec.json.Decoder(dict[str, Any])


class Clients:
    """Clients by namespace and name; ``changed`` is called with the key of one that has to be told anew."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._items: dict[Key, RemoteClient] = {}
        self._versions: dict[Key, int] = {}
        self._latest = 0

    def put(self, item: KubePod) -> None:
        """The pod is so."""
        meta = item.metadata
        key = (meta.namespace, meta.name)
        found = None if item.ended else _client(item)
        before = self._items.get(key)
        if found is None:
            self.gone(*key, meta.version)
        elif found != before:
            self._items[key] = found
            self._versions[key] = meta.version
            self._changed(key)

    def gone(self, namespace: str, name: str, version: int) -> None:
        """There is no client of that name."""
        key = (namespace, name)
        if self._items.pop(key, None) is not None:
            self._versions[key] = version
            self._changed(key)

    def complete(self, version: int) -> None:
        """Everything that existed at ``version`` has been told."""
        self._latest = max(self._latest, version)

    def project(self, key: Key) -> tuple[RemoteClient | None, int]:
        """Return a client, or None if there is none of that name, and the version since which that is so."""
        return self._items.get(key), self._versions.get(key, self._latest)

    def done(self, key: Key, version: int) -> None:
        """STATE says of a client what it was at ``version``, or something newer: forget what is needed no more."""
        if key not in self._items and self._versions.get(key, version + 1) <= version:
            self._latest = max(self._latest, self._versions.pop(key))


def _client(item: KubePod) -> RemoteClient | None:
    meta = item.metadata
    workload, written = meta.annotations.get(SELECTED_WORKLOAD, ""), meta.annotations.get(WORKLOAD_SPEC, "")
    if meta.labels.get(COMPONENT) != "client" or not workload or not written:
        return None
    try:
        spec = _spec.decode(written)
        msgspec.convert(spec, WorkloadProfileSpec)
    except msgspec.DecodeError as error:
        log.warning(
            "pod %s/%s: %s is nothing that admission writes: %s", meta.namespace, meta.name, WORKLOAD_SPEC, error
        )
        return None
    controller = next((owner for owner in meta.owner_references if owner.controller), None)
    owner = Owner(api_version="v1", kind="Pod", name=meta.name, uid=meta.uid)
    if controller is not None:
        owner = Owner(
            api_version=controller.api_version, kind=controller.kind, name=controller.name, uid=controller.uid
        )
    return RemoteClient(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        workload=workload,
        spec=spec,
        pool=meta.labels.get(POOL_KEY, ""),
        owner=owner,
        created_at=meta.created_at or _EPOCH,
        slot=meta.labels.get(SLOT, ""),
        host_port=meta.labels.get(HOST_PORT_SLOT, ""),
        ending=bool(meta.deletion_timestamp),
    )


def connection_of(item: TensorFusionConnection) -> Connection:
    """Return what STATE says of a connection: it is the client's that owns it."""
    meta, status = item.metadata, item.status
    owner = next((one for one in meta.owner_references if one.kind == "Pod"), None)
    return Connection(
        namespace=meta.namespace,
        name=meta.name,
        workload=item.spec.workload_name,
        client=owner.name if owner is not None else "",
        client_uid=owner.uid if owner is not None else "",
        worker=status.worker_name,
        url=status.connection_url if status.phase == "Running" else "",
    )
