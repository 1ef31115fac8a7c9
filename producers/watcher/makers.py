"""Says whether the controller that a pod names is there, with its UID, and what stands above it.

It asks the API server itself, whose word is current: what a watch has told may lag behind the first pod of a new controller.
"""

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from bus.connection import Bus
from bus.kube.client import Client, resource_path
from bus.kube.errors import NOT_FOUND, KubeRefusedError
from bus.makers import SERVICE
from bus.rpc import Service
from schemas.kube.base import LabelSelector
from schemas.kube.core import ObjectMeta
from schemas.makers import Made, WhoMade
from schemas.remote import Owner

PATIENCE_S: Final = 3.0

KINDS: Final = {
    ("apps/v1", "ReplicaSet"): "replicasets",
    ("apps/v1", "Deployment"): "deployments",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("apps/v1", "DaemonSet"): "daemonsets",
    ("batch/v1", "Job"): "jobs",
    ("batch/v1", "CronJob"): "cronjobs",
    ("v1", "ReplicationController"): "replicationcontrollers",
}
"""Controllers that Kubernetes has itself, which take pods for their own and let those go that are not."""

_ABOVE: Final = {"ReplicaSet": "Deployment", "Job": "CronJob"}
_API: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/v[a-z0-9]+")
_SELECTING: Final = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "Job"})


class _Spec(msgspec.Struct, frozen=True):
    selector: LabelSelector | None = None


class _Controller(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: _Spec = _Spec()


class _Plain(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


class _Resource(msgspec.Struct, frozen=True):
    name: str
    kind: str = ""
    namespaced: bool = True


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...] = ()


_controller = msgspec.json.Decoder(_Controller)
_plain = msgspec.json.Decoder(_Plain)
_resources = msgspec.json.Decoder(_Resources)


@contextlib.asynccontextmanager
async def answering(bus: Bus, client: Client) -> AsyncIterator[None]:
    """Answer who asks for controllers of pods."""

    async def made(asked: WhoMade) -> Made:
        return await made_by(client, asked)

    service = Service(bus, SERVICE, WhoMade, made)
    await service.start()
    try:
        yield
    finally:
        await service.stop()


class UnknownMakerError(Exception):
    """A pod's controller is not what it is said to be, or nobody may say; the message says which.

    Args:
        text: What is so.
        gone: Whether the API server itself has said that there is none of this name and UID.
    """

    def __init__(self, text: str, *, gone: bool = False) -> None:
        super().__init__(text)
        self.gone = gone


async def made_by(client: Client, asked: WhoMade) -> Made:
    """Return what is known of a controller.

    Raises:
        KubeError: The API server gave no answer, so that nothing can be said just now.
    """
    owner = asked.owner
    try:
        selector, above = None, None
        if owner.kind in _SELECTING and (owner.api_version, owner.kind) in KINDS:
            found = _controller.decode(await _get(client, asked.namespace, owner))
            meta, selector = found.metadata, found.spec.selector
            above = next((one for one in meta.owner_references if one.controller), None)
        else:
            meta = _plain.decode(await _get(client, asked.namespace, owner)).metadata
        _check(owner, meta)
        if above is None or above.kind != _ABOVE.get(owner.kind):
            return Made(top=owner, selector=selector)
        top = Owner(api_version=above.api_version, kind=above.kind, name=above.name, uid=above.uid)
        try:
            _check(top, _plain.decode(await _get(client, asked.namespace, top)).metadata)
        except UnknownMakerError as error:
            if not error.gone:
                raise
            return Made(top=owner, selector=selector)  # what stands above it is gone, or was never there
        return Made(top=top, selector=selector)
    except UnknownMakerError as error:
        return Made(problem=str(error), gone=error.gone)
    except msgspec.DecodeError as error:
        return Made(problem=f"{_named(owner)} cannot be read: {error}")


async def _get(client: Client, namespace: str, owner: Owner) -> bytes:
    known = KINDS.get((owner.api_version, owner.kind))
    resource = _Resource(known) if known is not None else await _resource(client, owner)
    try:
        path = resource_path(owner.api_version, resource.name, namespace if resource.namespaced else "", owner.name)
        return await client.call("GET", path, timeout=PATIENCE_S)
    except KubeRefusedError as error:
        if error.transient:
            raise
        if error.code == NOT_FOUND:
            raise UnknownMakerError(f"there is no {_named(owner)}", gone=True) from None
        group = owner.api_version.rpartition("/")[0] or "the core group"
        text = f"{_named(owner)} may not be looked at: let the watcher's account get {resource.name} of {group}"
        raise UnknownMakerError(f"{text} (code {error.code})") from None


async def _resource(client: Client, owner: Owner) -> _Resource:
    """Return what the API server calls the objects of somebody's kind in paths, and whether they are in namespaces."""
    if not _API.fullmatch(owner.api_version) or not owner.name:
        raise UnknownMakerError(f"{_named(owner)} is no controller of pods")
    try:
        found = _resources.decode(await client.call("GET", f"/apis/{owner.api_version}", timeout=PATIENCE_S)).resources
    except KubeRefusedError as error:
        if error.code != NOT_FOUND:
            raise  # it does not say what kinds there are
        found = ()
    resource = next((one for one in found if one.kind == owner.kind and "/" not in one.name), None)
    if resource is None:
        raise UnknownMakerError(f"{owner.api_version} {owner.kind} is no kind that the API server has")
    return resource


def _check(owner: Owner, meta: ObjectMeta) -> None:
    if not owner.uid or meta.uid != owner.uid:
        text = f"{_named(owner)} is another than the pod names: its UID is not {owner.uid or 'said'}"
        raise UnknownMakerError(text, gone=bool(owner.uid))


def _named(owner: Owner) -> str:
    return f"{owner.kind} {owner.name}"
