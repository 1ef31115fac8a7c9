"""Which containers of a TensorFusion pod get the GPUs, and how many: by annotation, or taken over from native limits.

A pod that moves from the native device plugin keeps its ``nvidia.com/gpu`` limits. Where nothing else says how many GPUs it
wants, they do, and each stands for a whole GPU. Source: TensorFusion, ``internal/webhook/v1/tf_parser.go``.
"""

from typing import Final, NamedTuple

from schemas.dialects import text
from schemas.dialects import tf_keys as keys
from schemas.dialects.text import RequestError
from schemas.dialects.tf_defaults import TensorFusionDefaults, WorkloadProfile
from schemas.dialects.view import ContainerView, PodSpecView

MOST_GPUS: Final = 128


class Native(NamedTuple):
    """Native GPU limits of a pod, by container that has any, and the vendor and resource they are of."""

    gpus: dict[str, int]
    vendor: str
    resource: str


class Gpus(NamedTuple):
    """How many GPUs, which, for which containers.

    Attributes:
        counts: GPUs of each of ``containers``; empty when each sees all.
        native: Vendor of the native limits that were taken over; empty when none were.
    """

    total: int
    indices: tuple[int, ...]
    containers: tuple[str, ...]
    counts: tuple[int, ...]
    native: str


def gpus(pod: PodSpecView, profile: WorkloadProfile, defaults: TensorFusionDefaults) -> Gpus:
    """Return the GPUs the pod asks for: ``gpu-count``, else the profile's, else its native limits, else one.

    ``gpu-indices`` names the GPUs and so says how many.

    Raises:
        RequestError: A count is no whole number from 1 to 128, two statements of it contradict each other, or it is
            unclear which containers the GPUs are for.
    """
    written = pod.annotation(keys.GPU_COUNT)
    count = text.integer(written, field=keys.GPU_COUNT, least=1, most=MOST_GPUS) if written else 0
    named = pod.annotation(keys.GPU_INDICES)
    indices = _indices(named) if named else profile.indices
    if named and count and count != len(indices):
        raise RequestError(
            keys.GPU_INDICES, named, f"does not name the {count} GPUs of gpu-count", "drop one of the two"
        )
    taken = Native({}, "", "")
    if not count and not profile.count:
        taken = _native(pod, defaults)
        total = sum(taken.gpus.values())
        if total > MOST_GPUS:
            raise RequestError(
                taken.resource, str(total), "is more GPUs than a pod may have", f"use at most {MOST_GPUS}"
            )
        if named and total and total != len(indices):
            fix = "name as many GPUs as the native limits ask for"
            raise RequestError(keys.GPU_INDICES, named, f"does not name the {total} GPUs of the native limits", fix)
        count = total
    if count and not named and len(indices) != count:
        # A count in the pod's own words outranks the profile's choice of GPUs.
        indices = ()
    names, counts = _containers(pod, taken)
    return Gpus(len(indices) or count or profile.count or 1, indices, names, counts, taken.vendor)


def _indices(named: str) -> tuple[int, ...]:
    parts = [part.strip() for part in named.split(",")]
    indices = tuple(text.integer(part, field=keys.GPU_INDICES, least=0) for part in parts)
    if len(set(indices)) < len(indices) or len(indices) > MOST_GPUS:
        fix = f"name each GPU once, such as 0,2, and at most {MOST_GPUS}"
        raise RequestError(keys.GPU_INDICES, named, "repeats a GPU or names too many", fix)
    return indices


def _native(pod: PodSpecView, defaults: TensorFusionDefaults) -> Native:
    found, vendor, resource = dict[str, int](), "", ""
    for name, of in defaults.native_resources:
        for container in pod.init_containers:
            amount = _native_count(container, name)
            if amount:
                field, problem = (
                    f"container {container.name} {name}",
                    "is asked by an init container, which gets no shared GPU",
                )
                raise RequestError(field, str(amount), problem, "move it to a container")
        for container in pod.containers:
            amount = _native_count(container, name)
            if not amount:
                continue
            if vendor and vendor != of:
                field, fix = f"container {container.name} {name}", "ask for GPUs of one vendor per pod"
                raise RequestError(field, str(amount), f"is beside GPUs of {vendor}", fix)
            found[container.name] = found.get(container.name, 0) + amount
            vendor, resource = of, name
    return Native(found, vendor, resource)


def _native_count(container: ContainerView, name: str) -> int:
    written = container.resource(name)
    if written is None:
        return 0
    field = f"container {container.name} {name}"
    number = text.exact(written, field=field)
    if number.denominator != 1 or not 0 <= number <= MOST_GPUS:
        raise RequestError(field, written, "is not a number of GPUs", f"write a whole number from 0 to {MOST_GPUS}")
    return int(number)


def _containers(pod: PodSpecView, taken: Native) -> tuple[tuple[str, ...], tuple[int, ...]]:
    present = tuple(container.name for container in pod.containers)
    written = pod.annotation(keys.INJECT)
    names = text.names(written)
    for name in names:
        if name not in present:
            raise RequestError(keys.INJECT, written, f"names no container {name[:60]!r}", f"use {', '.join(present)}")
    holders = tuple(taken.gpus)
    if holders and names and set(holders) != set(names):
        fix = f"name {', '.join(holders)}, or drop the annotation"
        raise RequestError(keys.INJECT, written, "names other containers than those with native GPU limits", fix)
    names = names or holders or (present if len(present) == 1 else ())
    if not names:
        fix = "name the containers that use the GPUs, such as main"
        raise RequestError(keys.INJECT, written, f"is needed for a pod of {len(present)} containers", fix)
    return names, tuple(taken.gpus[name] for name in names) if len(holders) > 1 else ()
