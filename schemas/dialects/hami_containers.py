"""What each container asks for in HAMi resources, and what that comes to for the pod.

Source of the rules: HAMi v2.10, ``pkg/device/nvidia/device.go`` (``MutateAdmission``, ``GenerateResourceRequests``).
"""

from typing import Final, NamedTuple

from schemas.dialects import text
from schemas.dialects.hami_config import HamiConfig
from schemas.dialects.text import RequestError
from schemas.dialects.view import ContainerView, PodSpecView
from schemas.pod import WHOLE
from schemas.requirements import ContainerRequest

MOST_GPUS: Final = 128
_MIB: Final = 2**20
_COUNTABLE: Final = frozenset("0123456789.k")
"""How a count may end. The API server writes 4000 as ``4k``; ``M`` or ``Gi`` is someone's size in bytes."""


class PodAmounts(NamedTuple):
    """What a reader that cannot tell containers apart may safely book: every container on GPUs of its own."""

    gpus: int
    compute_milli: int
    vram_bytes: int
    vram_milli: int


def requests(pod: PodSpecView, config: HamiConfig, *, admitted: bool) -> tuple[ContainerRequest, ...]:
    """Return the requests of the containers that ask for GPUs, init containers first.

    Args:
        pod: The pod.
        config: Resource names and defaults.
        admitted: Whether the webhook's defaults apply. They are the same whether it has run already or not.

    Raises:
        RequestError: A resource is no number, out of bounds, stated twice, or memory or compute is asked of no GPU.
    """
    asked = [_request(container, config, admitted=admitted, init=True) for container in pod.init_containers]
    asked += [_request(container, config, admitted=admitted, init=False) for container in pod.containers]
    return tuple(request for request in asked if request)


def bound(containers: tuple[ContainerRequest, ...]) -> PodAmounts:
    """Return the upper bound of at least one container; see :class:`PodAmounts`.

    The containers that run together get GPUs of their own each, init containers use them before. Bytes and shares of
    memory cannot be compared without a GPU, so a mixture of them takes whole GPUs.
    """
    together = sum(request.count for request in containers if not request.init)
    before = max((request.count for request in containers if request.init), default=0)
    vram_bytes = max(request.vram_bytes for request in containers)
    vram_milli = max(request.vram_milli for request in containers)
    if vram_bytes and vram_milli:
        vram_bytes, vram_milli = 0, WHOLE
    compute = max(request.compute_milli for request in containers)
    return PodAmounts(max(together, before), compute, vram_bytes, vram_milli)


def _request(container: ContainerView, config: HamiConfig, *, admitted: bool, init: bool) -> ContainerRequest | None:
    count = _count(container, config, admitted=admitted)
    if not count:
        return None
    memory = container.resource(config.memory_name)
    percentage = container.resource(config.memory_percentage_name)
    cores = container.resource(config.core_name)
    mib = 0 if memory is None else _mib(container, config, memory)
    percent = 0 if percentage is None else _percent(container, config.memory_percentage_name, percentage)
    if mib and percent:
        raise RequestError(
            _field(container, config.memory_percentage_name),
            percentage or "",
            f"is stated beside {config.memory_name}={memory}",
            "keep one of the two",
        )
    # Whoever asks for a GPU and for no part of its memory is used to getting it alone.
    alone = memory is None and (percentage is None or percent == 100)  # noqa: PLR2004 - percent
    if not mib and not percent:
        mib, percent = (config.default_memory_mib, 0) if config.default_memory_mib else (0, 100)
    if cores is not None:
        core = _percent(container, config.core_name, cores)
    else:
        core = 100 if admitted and alone else config.default_cores_percent
    return ContainerRequest(
        name=container.name,
        count=count,
        compute_milli=core * WHOLE // 100,
        vram_bytes=mib * _MIB,
        vram_milli=percent * WHOLE // 100,
        dedicated=core == 100,  # noqa: PLR2004 - percent
        init=init and not container.restarts,
    )


def _count(container: ContainerView, config: HamiConfig, *, admitted: bool) -> int:
    written = container.resource(config.count_name)
    if written is not None:
        fix = f"write a whole number from 0 to {MOST_GPUS}"
        return _number(written, field=_field(container, config.count_name), most=MOST_GPUS, fix=fix)
    for name in config.own_names:
        part = container.resource(name)
        if part is not None:
            if admitted and config.default_gpu_num:
                return config.default_gpu_num
            raise RequestError(_field(container, name), part, "is asked of no GPU", f'add {config.count_name}: "1"')
    return 0


def _mib(container: ContainerView, config: HamiConfig, written: str) -> int:
    field, factor = _field(container, config.memory_name), max(1, config.memory_factor)
    fix = f"write a whole number of MiB, at most {text.INT32 // factor}"
    if written[-1:] not in _COUNTABLE:
        in_bytes = text.exact(written, field=field)
        if in_bytes >= _MIB:
            fix = f"write the number of MiB, such as {-(-int(in_bytes) // _MIB)}"
    return _number(written, field=field, most=text.INT32 // factor, fix=fix) * factor


def _percent(container: ContainerView, name: str, written: str) -> int:
    return _number(written, field=_field(container, name), most=100, fix="write a whole number from 0 to 100")


def _number(written: str, *, field: str, most: int, fix: str) -> int:
    number = text.exact(written, field=field)
    if written[-1:] not in _COUNTABLE or number.denominator != 1 or not 0 <= number <= most:
        raise RequestError(field, written, f"must be an integer between 0 and {most}", fix)
    return int(number)


def _field(container: ContainerView, name: str) -> str:
    return f"container {container.name} {name}"
