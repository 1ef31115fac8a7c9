"""A worker's pod as the API server has it, read as a :class:`~consumers.workload.plan.Worker`. Pure."""

import msgspec

from consumers.workload.plan import Worker
from schemas.kube.components import WORKER_PORT
from schemas.kube.core import ObjectMeta, PodStatus
from schemas.remote import CLIENT_UID


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct, frozen=True):
    ports: tuple[_Port, ...] = ()


class _Spec(msgspec.Struct, frozen=True):
    containers: tuple[_Container, ...] = ()


class _Status(PodStatus, frozen=True):
    pod_ip: str = msgspec.field(default="", name="podIP")


class PodAsRead(msgspec.Struct, frozen=True):
    """The parts of a pod that say what its worker is."""

    metadata: ObjectMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()


def controller(meta: ObjectMeta) -> str:
    """Return the UID of an object's controller; empty if it has none."""
    return next((owner.uid for owner in meta.owner_references if owner.controller), "")


def worker_of(pod: PodAsRead) -> Worker:
    """Return a pod of a workload as its worker."""
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
