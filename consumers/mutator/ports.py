"""Ports of nodes for pods that ask for one: which are free, who has which, and where they are written. Pure.

A port is one pod's in the whole cluster, so no two pods of ours ever compete for one on a node. As a slot it is taken at
admission, confirmed by its pod and given back. The ports of a cluster are kept in blocks, each under compare-and-set, and the
first that is free is taken. Source of label, annotation and range: TensorFusion 2.17, ``host-port`` and ``port-number``.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from consumers.mutator.slots import LEASE
from schemas.admission import PatchOperation
from schemas.dialects import PodSpecView, RequestError
from schemas.dialects import tf_keys as keys
from schemas.dialects.text import word
from schemas.slots import Slot, WorkloadSlots

PORT_LABEL: Final = "gpubus.io/host-port"
"""Label of a pod that has a port of its node: the port, and the UID of the admission that took it."""

OWNER: Final = "host-ports"
"""Whose the blocks are: ``host-ports/42240`` has the ports from 42240 on."""

BLOCK: Final = 256


class Place(msgspec.Struct, frozen=True):
    """Where a port is written: the place of the container, and of the port in it."""

    container: int
    port: int


class PortWish(msgspec.Struct, frozen=True, kw_only=True):
    """A pod asks for a port of its node.

    Attributes:
        admission: UID of the admission request.
        taken: Label of a pod that comes a second time; empty for one that has no port yet.
        place: Where it is written in the pod as it is changed.
        annotated: Whether the changed pod has annotations.
    """

    admission: str
    taken: str
    place: Place
    annotated: bool


def wish_of(changed: dict[str, Any], view: PodSpecView, admission: str) -> PortWish | None:
    """Return what a pod asks for, as it is when everything else has been changed; None if it asks for no port.

    Raises:
        RequestError: It asks in a way that cannot be granted.
    """
    written = view.labels.get(keys.HOST_PORT, "")
    if not written:
        return None
    word(written, field=keys.HOST_PORT, words=("auto",))
    name = view.labels.get(keys.PORT_NAME, "")
    if not name:
        raise RequestError(keys.PORT_NAME, "", "is missing beside host-port", "name a port of one of the containers")
    spec = changed["spec"]
    if spec.get("hostNetwork"):
        fix = "drop one of the two"
        raise RequestError(
            keys.HOST_PORT, written, "is for pods with a network of their own, and hostNetwork is true", fix
        )
    there = [
        (Place(number, place), port)
        for number, container in enumerate(spec["containers"])
        for place, port in enumerate(container.get("ports") or ())
    ]
    found = next((one for one in there if one[1].get("name") == name), None)
    if found is None:
        names = ", ".join(sorted(port["name"] for _, port in there if port.get("name"))) or "there is none"
        raise RequestError(keys.PORT_NAME, name, "names no port of a container", f"use one of: {names}")
    taken = view.labels.get(PORT_LABEL, "")
    if found[1].get("hostPort") and str(found[1]["hostPort"]) != taken.partition(".")[0]:
        fix = f"drop it, or the label {keys.HOST_PORT}"
        raise RequestError(f"hostPort of port {name}", str(found[1]["hostPort"]), "is stated already", fix)
    annotated = bool(changed["metadata"].get("annotations"))
    return PortWish(admission=admission, taken=taken, place=found[0], annotated=annotated)


def check_stated(spec: dict[str, Any], own: int, bounds: tuple[int, int]) -> None:
    """Refuse a port that a pod states itself and that another may be given: on one node only one of them could run.

    Args:
        spec: The pod's.
        own: The port that admission gave it before; 0 for none.
        bounds: The first of the ports that are given, and the one after the last.

    Raises:
        RequestError: It states such a port.
    """
    first, end = bounds
    for container in (one for kind in ("initContainers", "containers") for one in spec.get(kind) or ()):
        for port in container.get("ports") or ():
            stated = port.get("hostPort")
            if isinstance(stated, int) and first <= stated < end and stated != own:
                fix = f"use one outside {first} to {end - 1}, or ask for one with the label {keys.HOST_PORT}: auto"
                if spec.get("hostNetwork"):
                    fix = f"listen on one outside {first} to {end - 1}"
                where = f"container {container['name']} hostPort"
                raise RequestError(where, str(stated), "is one of the ports that pods are given by label", fix)


def written_into(patch: tuple[PatchOperation, ...], wish: PortWish, slot: str) -> tuple[PatchOperation, ...]:
    """Return the patch with the port of ``slot`` in it. Operations apply one after the other, so these see the changed pod."""
    port = port_of(slot)
    where = f"/spec/containers/{wish.place.container}/ports/{wish.place.port}/hostPort"
    annotation = PatchOperation("add", f"/metadata/annotations/{_escaped(keys.PORT_NUMBER)}", str(port))
    if not wish.annotated:
        annotation = PatchOperation("add", "/metadata/annotations", {keys.PORT_NUMBER: str(port)})
    label = PatchOperation("add", f"/metadata/labels/{_escaped(PORT_LABEL)}", slot)
    return (*patch, PatchOperation("add", where, port), annotation, label)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def port_of(slot: str) -> int:
    """Return the port of a slot; 0 for what is none."""
    written = slot.partition(".")[0]
    return int(written) if written.isascii() and written.isdecimal() and len(written) < 6 else 0  # noqa: PLR2004


def block_of(port: int) -> str:
    """Return the owner of the slots of a port."""
    return f"{OWNER}/{port // BLOCK * BLOCK}"


def blocks(first: int, end: int) -> Iterator[str]:
    """Return the owners of the slots of all ports from ``first`` to before ``end``, in order."""
    for start in range(first // BLOCK * BLOCK, end, BLOCK):
        yield block_of(start)


def held(record: WorkloadSlots, wish: PortWish) -> str:
    """Return the slot that a pod has in a block though no pod has been seen with it: the same admission may come twice."""
    return next(
        (
            slot.id
            for slot in record.slots
            if not slot.pod_uid and (slot.id == wish.taken or slot.id.endswith(f".{wish.admission}"))
        ),
        "",
    )


def take_port(
    record: WorkloadSlots, wish: PortWish, bounds: tuple[int, int], now: datetime, heard: datetime | None = None
) -> tuple[WorkloadSlots, str]:
    """Take the first free port of a block that lies within ``bounds``; the record is the same and the slot empty if none is.

    ``heard`` is when the last word about any pod came, by which leases end; none given: ``now``.
    """
    heard = min(heard or now, now)
    start = int(record.owner.rpartition("/")[2])
    kept = tuple(one for one in record.slots if one.pod_uid or heard - one.taken_at < LEASE)
    taken = {port_of(one.id) for one in kept}
    first, end = bounds
    free = next((port for port in range(max(start, first), min(start + BLOCK, end)) if port not in taken), None)
    if free is None:
        return record, ""
    slot = f"{free}.{wish.admission}"
    return msgspec.structs.replace(record, slots=(*kept, Slot(id=slot, taken_at=now))), slot
