"""How many pods their owners want: whether pods that do not come back are missed, or were scaled away, or have finished."""

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from bus.kube.client import Client, resource_path
from bus.kube.errors import NOT_FOUND, KubeError, KubeRefusedError
from consumers.updater.successors import UNKNOWN
from schemas.kube.base import Condition

_PARTS: Final = 3
"""Namespace, name, and what is between them: API version and kind."""

_JOB: Final = "batch/v1/Job"


class _Replicas(msgspec.Struct, frozen=True):
    replicas: int = 0


class _Scale(msgspec.Struct, frozen=True):
    spec: _Replicas = _Replicas()


class _JobSpec(msgspec.Struct, frozen=True):
    parallelism: int = 1
    completions: int | None = None
    suspend: bool = False


class _JobStatus(msgspec.Struct, frozen=True):
    succeeded: int = 0
    conditions: tuple[Condition, ...] = ()


class _Job(msgspec.Struct, frozen=True):
    spec: _JobSpec = _JobSpec()
    status: _JobStatus = _JobStatus()


class _Resource(msgspec.Struct, frozen=True):
    name: str
    kind: str = ""


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...] = ()


_scale = msgspec.json.Decoder(_Scale)
_job = msgspec.json.Decoder(_Job)
_resources = msgspec.json.Decoder(_Resources)


async def wanted_pods(client: Client, owners: Iterable[str]) -> dict[str, int]:
    """Return how many pods each owner wants, by ``namespace/apiVersion/kind/name``; -1 for one that cannot say."""
    owners = tuple(owners)
    return dict(zip(owners, await asyncio.gather(*(_ask(client, owner) for owner in owners)), strict=True))


async def _ask(client: Client, owner: str) -> int:
    parts = owner.split("/")
    if len(parts) <= _PARTS:
        return UNKNOWN
    namespace, *api, kind, name = parts
    try:
        if "/".join((*api, kind)) == _JOB:
            job = _job.decode(await client.call("GET", resource_path("batch/v1", "jobs", namespace, name)))
            return _left(job)
        plural = await _plural(client, "/".join(api), kind)
        path = resource_path("/".join(api), plural, namespace, name, "scale")
        return _scale.decode(await client.call("GET", path)).spec.replicas if plural else UNKNOWN
    except KubeRefusedError as error:
        # Without a name it is not the owner that is missing, but a scale that its kind does not have.
        return 0 if error.code == NOT_FOUND and error.name else UNKNOWN
    except (KubeError, msgspec.DecodeError):
        return UNKNOWN


async def _plural(client: Client, api: str, kind: str) -> str:
    """Return what the API server calls the objects of a kind in paths; empty if it serves none that can be scaled."""
    path = f"/apis/{api}" if "/" in api else f"/api/{api}"
    found = _resources.decode(await client.call("GET", path)).resources
    names = {one.name for one in found}
    return next((one.name for one in found if one.kind == kind and f"{one.name}/scale" in names), "")


def _left(job: _Job) -> int:
    over = any(one.type in ("Complete", "Failed") and one.status == "True" for one in job.status.conditions)
    if over or job.spec.suspend:
        return 0
    if job.spec.completions is None:
        return job.spec.parallelism if not job.status.succeeded else UNKNOWN
    return max(min(job.spec.parallelism, job.spec.completions - job.status.succeeded), 0)
