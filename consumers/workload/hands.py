"""What the keeper of workers reads and writes in the API server. Every write is bound to a name or a UID, and may come twice."""

from typing import Any, Final

import msgspec

from bus.kube.client import APPLY, Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeRefusedError
from consumers.workload.plan import Worker
from consumers.workload.reading import PodAsRead, controller, worker_of
from schemas.dialects.tf_keys import COMPONENT, SELECTED_WORKLOAD, WORKLOAD
from schemas.kube.base import API_VERSION, Condition
from schemas.kube.components import WORKLOAD_KIND
from schemas.kube.core import KubePod, ObjectMeta
from schemas.kube.resources import TensorFusionConnection
from schemas.kube.workloads import TensorFusionConnectionStatus, TensorFusionWorkloadStatus

MANAGER: Final = "gpubus-workload"
PODS: Final = "pods"
WORKLOADS: Final = "tensorfusionworkloads"
CONNECTIONS: Final = "tensorfusionconnections"
POOLS: Final = "gpupools"

_FORCED: Final = {"fieldManager": MANAGER, "force": "true"}

Key = tuple[str, str]
"""Namespace and name of a workload."""


class _Pods(msgspec.Struct):
    items: list[PodAsRead] = []


class _Connections(msgspec.Struct):
    items: list[TensorFusionConnection] = []


class _Clients(msgspec.Struct):
    items: list[KubePod] = []


class _Made(msgspec.Struct):
    metadata: ObjectMeta


class _Manager(msgspec.Struct, rename="camel"):
    manager: str = ""
    operation: str = ""
    subresource: str = ""


class _ManagedMeta(msgspec.Struct, rename="camel"):
    managed_fields: list[_Manager] = []


class _Managed(msgspec.Struct):
    metadata: _ManagedMeta


class Holder(msgspec.Struct, frozen=True):
    """Whose a pod's name is.

    Attributes:
        workload: UID of the workload whose worker it is; empty if it is none's.
        ending: Whether it has been deleted and is not gone yet.
    """

    workload: str
    ending: bool


class _Stated(msgspec.Struct):
    status: TensorFusionWorkloadStatus = TensorFusionWorkloadStatus()


class _Conditions(msgspec.Struct):
    conditions: tuple[Condition, ...] = ()


class _Told(msgspec.Struct):
    status: _Conditions = msgspec.field(default_factory=_Conditions)


_told = msgspec.json.Decoder(_Told)
_pods = msgspec.json.Decoder(_Pods)
_pod = msgspec.json.Decoder(KubePod)
_clients = msgspec.json.Decoder(_Clients)
_managed = msgspec.json.Decoder(_Managed)
_connections = msgspec.json.Decoder(_Connections)
_connection = msgspec.json.Decoder(TensorFusionConnection)
_made = msgspec.json.Decoder(_Made)
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
        return [worker_of(pod) for pod in found.items if controller(pod.metadata) == uid]

    async def connections(self, key: Key) -> list[TensorFusionConnection]:
        """Return the connections to workers of a workload."""
        return _connections.decode(await self._list(CONNECTIONS, API_VERSION, key, f"{WORKLOAD}={key[1]}")).items

    async def connection(self, namespace: str, name: str) -> TensorFusionConnection | None:
        """Return the connection of this name, whatever it is labelled with; None if there is none."""
        path, query = resource_path(API_VERSION, CONNECTIONS, namespace), {"fieldSelector": f"metadata.name={name}"}
        return next(iter(_connections.decode(await self._client.call("GET", path, query=query)).items), None)

    async def _list(self, plural: str, api: str, key: Key, selector: str) -> bytes:
        return await self._client.call("GET", resource_path(api, plural, key[0]), query={"labelSelector": selector})

    async def runs(self, namespace: str, name: str, uid: str) -> bool:
        """Return whether a pod is there and has not ended."""
        found = await self._client.find(resource_path("v1", PODS, namespace, name))
        pod = _pod.decode(found) if found is not None else None
        return pod is not None and pod.metadata.uid == uid and not pod.ended

    async def called(self, key: Key) -> bool:
        """Return whether a pod that has not ended calls for a workload, whosever that is."""
        selector = {"labelSelector": f"{COMPONENT}=client"}
        found = _clients.decode(await self._client.call("GET", resource_path("v1", PODS, key[0]), query=selector))
        return any(pod.metadata.annotations.get(SELECTED_WORKLOAD) == key[1] and not pod.ended for pod in found.items)

    async def made_by_us(self, key: Key) -> bool:
        """Return whether what a workload is was stated by us, of any version, by what the API server has noted of that."""
        found = await self._client.find(resource_path(API_VERSION, WORKLOADS, *key))
        fields = _managed.decode(found).metadata.managed_fields if found is not None else []
        return any((one.manager, one.operation, one.subresource) == (MANAGER, "Apply", "") for one in fields)

    async def holder(self, key: Key, name: str) -> Holder | None:
        """Return whose the pod is that has a name; None if there is none by now."""
        found = await self._client.find(resource_path("v1", PODS, key[0], name))
        if found is None:
            return None
        meta = _made.decode(found).metadata
        seen = meta.labels.get(COMPONENT) == "worker" and meta.labels.get(WORKLOAD) == key[1]
        return Holder(controller(meta) if seen else "", bool(meta.deletion_timestamp))

    async def make_pod(self, namespace: str, pod: dict[str, Any]) -> bool:
        """Create a pod; False if there is one of its name: :meth:`holder` says whose."""
        return await self._create(resource_path("v1", PODS, namespace), pod) is not None

    async def make_connection(self, namespace: str, document: dict[str, Any]) -> TensorFusionConnection | None:
        """Create a connection and return it; None if there is one of its name: :meth:`connection` says which."""
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

    async def make_workload(self, key: Key, document: dict[str, Any]) -> str:
        """Create a workload that is marked as its clients' and says nothing yet, and return its UID; empty if there is one.

        An apply would do in one step, and take one of that name over which somebody has written meanwhile.
        """
        meta = document["metadata"]
        marked = {key: meta[key] for key in ("name", "namespace", "annotations")}
        made = await self._create(
            resource_path(API_VERSION, WORKLOADS, key[0]), {**document, "metadata": marked, "spec": {}}
        )
        return _made.decode(made).metadata.uid if made is not None else ""

    async def apply_workload(self, key: Key, uid: str, document: dict[str, Any]) -> bool:
        """Have the workload of this UID say what its clients call for; False if the name is another's by now.

        What others have set beside that stays.
        """
        path = resource_path(API_VERSION, WORKLOADS, *key)
        body = msgspec.json.encode({**document, "metadata": {**document["metadata"], "uid": uid}})
        try:
            await self._client.call("PATCH", path, query=_FORCED, body=body, content_type=APPLY)
        except KubeRefusedError:
            # Whether a UID that is no more is a conflict or an invalid change differs by kind: only the object itself says.
            found = await self._client.find(path)
            if found is None or _made.decode(found).metadata.uid != uid:
                return False
            raise
        return True

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

    async def pool_condition(self, pool: str, kind: str) -> Condition | None:
        """Return a condition of a pool; None if it has none of this type, or there is no such pool."""
        found = await self._client.find(resource_path(API_VERSION, POOLS, name=pool))
        conditions = _told.decode(found).status.conditions if found is not None else ()
        return next((one for one in conditions if one.type == kind), None)

    async def show_pool(self, document: dict[str, Any]) -> None:
        """Write a condition into the status of a pool."""
        await self._status(POOLS, "", document["metadata"]["name"], document)

    async def _status(self, plural: str, namespace: str, name: str, document: dict[str, Any]) -> None:
        path = resource_path(API_VERSION, plural, namespace, name, "status")
        body = msgspec.json.encode(document)
        try:
            await self._client.call("PATCH", path, query=_FORCED, body=body, content_type=APPLY)
        except KubeRefusedError as error:
            if error.code != NOT_FOUND:
                raise  # else it was deleted, and we shall hear of it
