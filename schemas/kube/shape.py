"""Parts of pods that people state freely, and that are merged into pods: whether all that we touch has its shape. Pure.

What is not named here is passed on as it is: the API server judges it. A null takes away what the pod had, so it may stand
where a pod may do without.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from schemas.dialects.text import RequestError

Shape = TypeVar("Shape", bound=msgspec.Struct)

_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Amounts = dict[str, str | int | float | None]
_Mapping = dict[str, Any]


class _Named(msgspec.Struct, frozen=True):
    name: _Name


class _Mount(msgspec.Struct, frozen=True, rename="camel"):
    mount_path: _Name


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    container_port: int


class _Resources(msgspec.Struct, frozen=True):
    requests: _Amounts | None = None
    limits: _Amounts | None = None


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """What is merged into a container; its name may be ours to add."""

    name: _Name | msgspec.UnsetType = msgspec.UNSET
    image: str | None = None
    env: tuple[_Named, ...] | None = None
    env_from: tuple[_Mapping, ...] | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    ports: tuple[_Port, ...] | None = None
    volume_mounts: tuple[_Mount, ...] | None = None
    resources: _Resources | None = None
    security_context: _Mapping | None = None


class _Container(_Part, frozen=True, kw_only=True):
    name: _Name


class _Metadata(msgspec.Struct, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: tuple[_Part, ...] = ()
    init_containers: tuple[_Container, ...] | None = None
    volumes: tuple[_Named, ...] | None = None
    image_pull_secrets: tuple[_Named, ...] | None = None
    tolerations: tuple[_Mapping, ...] | None = None
    topology_spread_constraints: tuple[_Mapping, ...] | None = None
    resource_claims: tuple[_Mapping, ...] | None = None
    affinity: _Mapping | None = None
    node_selector: dict[str, str] | None = None
    security_context: _Mapping | None = None
    scheduler_name: str | None = None
    priority_class_name: str | None = None
    automount_service_account_token: bool | None = None


class _Template(msgspec.Struct, frozen=True):
    metadata: _Metadata | None = None
    spec: _Spec | None = None


_FIX: Final = (
    "see the Kubernetes API: metadata and spec are mappings, and entries of lists have the name they are merged by"
)


def check_template(stated: object, field: str, *, first_named: bool = False) -> None:
    """Check a pod template, or a patch of pods, in JSON; with or without a level ``template``.

    Args:
        stated: What is stated.
        field: What that is called.
        first_named: Whether the first container must have a name as the others do, and is not a pool's first.

    Raises:
        RequestError: What is stated cannot be part of a pod; the message says where.
    """
    whole = stated if isinstance(stated, dict) else {"template": stated}
    inner, place = (whole["template"], f"{field}.template") if "template" in whole else (whole, field)
    found = _shaped(inner, _Template, place if isinstance(stated, dict) else field)
    containers = found.spec.containers if found.spec is not None else ()
    for number, one in enumerate(containers[0 if first_named else 1 :], 0 if first_named else 1):
        if one.name is msgspec.UNSET:
            where = f"{field}.spec.containers[{number}].name"
            raise RequestError(where, "", "is missing", "name the container that is meant, or the one to add")


def check_part(stated: object, field: str) -> None:
    """Check what is merged into containers.

    Raises:
        RequestError: It cannot be part of one.
    """
    _shaped(stated, _Part, field)


def check_client(stated: Mapping[str, Any], field: str) -> None:
    """Check what a pool puts into pods.

    Raises:
        RequestError: It cannot be part of one.
    """
    check_template(stated.get("patchToPod") or {}, f"{field}.patchToPod", first_named=True)
    check_part(stated.get("patchToContainer") or {}, f"{field}.patchToContainer")


def _shaped(stated: object, shape: type[Shape], field: str) -> Shape:
    try:
        return msgspec.convert(stated, shape)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        raise RequestError(
            field + place.rstrip("`"), repr(stated), f"has another shape: {problem.lower()}", _FIX
        ) from None
