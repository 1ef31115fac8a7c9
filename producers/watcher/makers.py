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
from bus.kube.errors import KubeRefusedError
from bus.makers import SERVICE
from bus.rpc import Service
from schemas.kube.base import LabelSelector
from schemas.kube.core import ObjectMeta
from schemas.makers import Made, WhoMade
from schemas.remote import Owner

FORBIDDEN: Final = 403
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
    """A pod's controller is not what it is said to be, or nobody may say; the message says which."""


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
        except UnknownMakerError:
            return Made(top=owner, selector=selector)  # what stands above it is gone, or was never there
        return Made(top=top, selector=selector)
    except UnknownMakerError as error:
        return Made(problem=str(error))
    except msgspec.DecodeError as error:
        return Made(problem=f"{_named(owner)} cannot be read: {error}")


async def _get(client: Client, namespace: str, owner: Owner) -> bytes:
    plural = KINDS.get((owner.api_version, owner.kind)) or await _plural(client, owner)
    try:
        path = resource_path(owner.api_version, plural, namespace, owner.name)
        found = await client.call("GET", path, timeout=PATIENCE_S)
    except KubeRefusedError as error:
        if error.transient:
            raise
        if error.code == FORBIDDEN:
            group = owner.api_version.rpartition("/")[0]
            text = f"{_named(owner)} may not be looked at: let the watcher's account get {plural} of {group or 'the core group'}"
            raise UnknownMakerError(text) from None
        raise UnknownMakerError(f"there is no {_named(owner)}") from None
    return found


async def _plural(client: Client, owner: Owner) -> str:
    """Return what the API server calls the objects of somebody's kind in paths."""
    if not _API.fullmatch(owner.api_version) or not owner.name:
        raise UnknownMakerError(f"{_named(owner)} is no controller of pods")
    try:
        found = _resources.decode(await client.call("GET", f"/apis/{owner.api_version}", timeout=PATIENCE_S)).resources
    except KubeRefusedError as error:
        if error.transient:
            raise
        found = ()
    plural = next((one.name for one in found if one.kind == owner.kind and "/" not in one.name), "")
    if not plural:
        raise UnknownMakerError(f"{owner.api_version} {owner.kind} is no kind that the API server has")
    return plural


def _check(owner: Owner, meta: ObjectMeta) -> None:
    if not owner.uid or meta.uid != owner.uid:
        raise UnknownMakerError(f"{_named(owner)} is another than the pod names: its UID is not {owner.uid or 'said'}")


def _named(owner: Owner) -> str:
    return f"{owner.kind} {owner.name}"
