"""What the keeper of workers reads and writes in the API server. Every write is bound to a name or a UID, and may come twice."""

from typing import Any, Final

import msgspec

from bus.kube.client import APPLY, Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeRefusedError
from consumers.workload.plan import Worker
from schemas.dialects.tf_keys import COMPONENT, WORKLOAD
from schemas.kube.base import API_VERSION
from schemas.kube.components import WORKER_PORT, WORKLOAD_KIND
from schemas.kube.core import KubePod, ObjectMeta, PodStatus
from schemas.kube.resources import TensorFusionConnection
from schemas.kube.workloads import TensorFusionConnectionStatus, TensorFusionWorkloadStatus
from schemas.remote import CLIENT_UID

MANAGER: Final = "gpubus-workload"
PODS: Final = "pods"
WORKLOADS: Final = "tensorfusionworkloads"
CONNECTIONS: Final = "tensorfusionconnections"

_FORCED: Final = {"fieldManager": MANAGER, "force": "true"}

Key = tuple[str, str]
"""Namespace and name of a workload."""


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct, frozen=True):
    ports: tuple[_Port, ...] = ()


class _Spec(msgspec.Struct, frozen=True):
    containers: tuple[_Container, ...] = ()


class _Status(PodStatus, frozen=True):
    pod_ip: str = msgspec.field(default="", name="podIP")


class _Pod(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Pods(msgspec.Struct):
    items: list[_Pod] = []


class _Connections(msgspec.Struct):
    items: list[TensorFusionConnection] = []


class _Stated(msgspec.Struct):
    status: TensorFusionWorkloadStatus = TensorFusionWorkloadStatus()


_pods = msgspec.json.Decoder(_Pods)
_pod = msgspec.json.Decoder(KubePod)
_connections = msgspec.json.Decoder(_Connections)
_connection = msgspec.json.Decoder(TensorFusionConnection)
_stated = msgspec.json.Decoder(_Stated)


class Hands:
    """Calls to one API server.

    Args:
        client: The session.

    Raises:
        KubeError: From every method: the API server would not, or gave no answer.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def workers(self, key: Key, uid: str) -> list[Worker]:
        """Return the pods of the workload that has this UID."""
        found = _pods.decode(await self._list(PODS, "v1", key, f"{COMPONENT}=worker,{WORKLOAD}={key[1]}"))
        return [_worker(pod) for pod in found.items if _owner(pod) == uid]

    async def connections(self, key: Key) -> list[TensorFusionConnection]:
        """Return the connections to workers of a workload."""
        return _connections.decode(await self._list(CONNECTIONS, API_VERSION, key, f"{WORKLOAD}={key[1]}")).items

    async def _list(self, plural: str, api: str, key: Key, selector: str) -> bytes:
        return await self._client.call("GET", resource_path(api, plural, key[0]), query={"labelSelector": selector})

    async def runs(self, namespace: str, name: str, uid: str) -> bool:
        """Return whether a pod is there and has not ended."""
        found = await self._client.find(resource_path("v1", PODS, namespace, name))
        pod = _pod.decode(found) if found is not None else None
        return pod is not None and pod.metadata.uid == uid and not pod.ended

    async def make_pod(self, namespace: str, pod: dict[str, Any]) -> bool:
        """Create a pod; False if there is one of its name: another process made it first, and the next look tells."""
        return await self._create(resource_path("v1", PODS, namespace), pod) is not None

    async def make_connection(self, namespace: str, document: dict[str, Any]) -> TensorFusionConnection | None:
        """Create a connection and return it; None if there is one of its name."""
        made = await self._create(resource_path(API_VERSION, CONNECTIONS, namespace), document)
        return _connection.decode(made) if made is not None else None

    async def _create(self, path: str, document: dict[str, Any]) -> bytes | None:
        try:
            return await self._client.call("POST", path, body=msgspec.json.encode(document))
        except KubeRefusedError as error:
            if error.code == CONFLICT:
                return None
            raise

    async def remove(self, api: str, plural: str, namespace: str, name: str, uid: str) -> None:
        """Delete an object, if it is still the one that has this UID."""
        body = msgspec.json.encode({"preconditions": {"uid": uid}})
        try:
            await self._client.call("DELETE", resource_path(api, plural, namespace, name), body=body)
        except KubeRefusedError as error:
            if error.code not in (NOT_FOUND, CONFLICT):
                raise

    async def apply_workload(self, key: Key, document: dict[str, Any]) -> None:
        """Have a workload say what its clients call for; what others have set beside that stays."""
        path = resource_path(API_VERSION, WORKLOADS, *key)
        await self._client.call("PATCH", path, query=_FORCED, body=msgspec.json.encode(document), content_type=APPLY)

    async def workload_status(self, key: Key) -> TensorFusionWorkloadStatus | None:
        """Return the status of a workload; None if there is no such workload."""
        found = await self._client.find(resource_path(API_VERSION, WORKLOADS, *key))
        return _stated.decode(found).status if found is not None else None

    async def show_workload(self, key: Key, status: TensorFusionWorkloadStatus) -> None:
        """Write the status of a workload."""
        document = {
            "apiVersion": API_VERSION, "kind": WORKLOAD_KIND, "metadata": {"name": key[1]}, "status": status
        }  # fmt: skip
        await self._status(WORKLOADS, *key, document)

    async def show_connection(self, connection: TensorFusionConnection, status: TensorFusionConnectionStatus) -> bool:
        """Write the status of a connection; False if it has changed since it was read."""
        meta = connection.metadata
        document = {
            "apiVersion": API_VERSION,
            "kind": "TensorFusionConnection",
            "metadata": {"name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version},
            # An apply that states nothing of an object leaves none.
            "status": {"phase": status.phase, **msgspec.to_builtins(status)},
        }
        try:
            await self._status(CONNECTIONS, meta.namespace, meta.name, document)
        except KubeRefusedError as error:
            if error.code == CONFLICT:
                return False
            raise
        return True

    async def _status(self, plural: str, namespace: str, name: str, document: dict[str, Any]) -> None:
        path = resource_path(API_VERSION, plural, namespace, name, "status")
        body = msgspec.json.encode(document)
        try:
            await self._client.call("PATCH", path, query=_FORCED, body=body, content_type=APPLY)
        except KubeRefusedError as error:
            if error.code != NOT_FOUND:
                raise  # else it was deleted, and we shall hear of it


def _owner(pod: _Pod) -> str:
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")


def _worker(pod: _Pod) -> Worker:
    meta, status = pod.metadata, pod.status
    ready = any(one.type == "Ready" and one.status == "True" for one in status.conditions)
    ports = [port for container in pod.spec.containers for port in container.ports]
    named = next(
        (port.container_port for port in ports if port.name == WORKER_PORT["name"]), WORKER_PORT["containerPort"]
    )
    created = meta.created_at
    assert created is not None  # noqa: S101  for mypy: the API server has stored it
    return Worker(
        name=meta.name,
        uid=meta.uid,
        created_at=created,
        ready=ready and not meta.deletion_timestamp,
        ending=bool(meta.deletion_timestamp),
        ended=status.phase in ("Succeeded", "Failed"),
        address=status.pod_ip,
        port=named,
        client=meta.annotations.get(CLIENT_UID, ""),
    )
