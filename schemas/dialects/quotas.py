"""Quota objects of both dialects as one :class:`~schemas.quota.Quota`.

Differences from the originals, all towards what the objects say:

=========================================  ====================================  =====================================
case                                       original                              here
=========================================  ====================================  =====================================
total left out of a GPUResourceQuota       a field of 0 allows nothing           no limit; a written 0 allows nothing
share of a GPU against TFLOPS or VRAM      not counted                           counted as what it is of the GPU given
several ResourceQuotas in a namespace      the last event wins                   each holds
``limits.nvidia.com/gpu``                  not managed                           the GPUs that pods hold
amount that cannot be read                 taken as 0 or left out                refused, with field, value and fix
=========================================  ====================================  =====================================

Source: HAMi ``pkg/device/quota.go``; TensorFusion ``api/v1/gpuresourcequota_types.go`` and ``internal/quota``.
"""

from collections.abc import Mapping
from typing import Any, Final

from schemas.dialects import text
from schemas.dialects.hami_config import HamiConfig
from schemas.dialects.text import RequestError
from schemas.dialects.tf_defaults import GpuAmounts, GpuResources
from schemas.pod import WHOLE
from schemas.quota import Budget, Quota, Single

_MIB: Final = 2**20
_MOST_WORKERS: Final = 32_768
"""``total.maxWorkers`` where it is not stated."""

_TOTAL: Final = ("requests", "limits", "maxWorkers", "alertThresholdPercent")
_SINGLE: Final = ("maxRequests", "maxLimits", "maxGPUCount", "defaultRequests", "defaultLimits")
_AMOUNTS: Final = ("tflops", "vram", "compute")


def resource_quota(namespace: str, name: str, hard: Mapping[str, str], config: HamiConfig) -> Quota | None:
    """Return what a native ``ResourceQuota`` says of GPUs, or None when it says nothing.

    Args:
        namespace: Its namespace.
        name: Its name.
        hard: ``spec.hard``. Keys other than ``limits.`` and one of the configured resource names are Kubernetes' own.
        config: Names and factor of the resources.

    Raises:
        RequestError: An amount is no whole number of 0 or more.
    """
    memory, cores, gpus = (
        _number(hard, f"limits.{key}") for key in (config.memory_name, config.core_name, config.count_name)
    )
    if memory is None and cores is None and gpus is None:
        return None
    budget = Budget(
        gpus=gpus,
        compute_milli=None if cores is None else cores * WHOLE // 100,
        vram_bytes=None if memory is None else memory * max(1, config.memory_factor) * _MIB,
    )
    return Quota(namespace=namespace, name=f"ResourceQuota/{name}", total=budget)


def gpu_resource_quota(namespace: str, name: str, spec: Mapping[str, Any]) -> tuple[Quota, GpuResources]:
    """Return what a ``GPUResourceQuota`` allows, and the amounts it gives pods that state none.

    Args:
        namespace: Its namespace.
        name: Its name.
        spec: ``spec`` of the object, as Kubernetes stores it.

    Raises:
        RequestError: A key is unknown, or an amount cannot be read.
    """
    total = _part(spec, "total", _TOTAL)
    single = _part(spec, "single", _SINGLE)
    requests, limits = _amounts(total, "total", "requests"), _amounts(total, "total", "limits")
    most, most_limits = _amounts(single, "single", "maxRequests"), _amounts(single, "single", "maxLimits")
    defaults = GpuResources(requests=_defaults(single, "defaultRequests"), limits=_defaults(single, "defaultLimits"))
    quota = Quota(
        namespace=namespace,
        name=f"GPUResourceQuota/{name}",
        total=Budget(
            workers=_integer(total, "total", "maxWorkers", _MOST_WORKERS),
            tflops_milli=requests.get("tflops"),
            compute_milli=requests.get("compute"),
            vram_bytes=requests.get("vram"),
            tflops_limit_milli=limits.get("tflops"),
            vram_limit_bytes=limits.get("vram"),
        ),
        single=Single(
            gpus=_integer(single, "single", "maxGPUCount", None),
            tflops_milli=most.get("tflops"),
            vram_bytes=most.get("vram"),
            tflops_limit_milli=most_limits.get("tflops"),
            vram_limit_bytes=most_limits.get("vram"),
        ),
        alert_percent=_integer(total, "total", "alertThresholdPercent", 95, most=100) or 0,
    )
    return quota, defaults


def _number(hard: Mapping[str, str], key: str) -> int | None:
    written = hard.get(key)
    if written is None:
        return None
    number = text.exact(written, field=key)
    if number < 0 or number.denominator != 1:
        raise RequestError(key, written, "is not a whole number of 0 or more", "write such a number in digits")
    return int(number)


def _part(spec: Mapping[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    part: Mapping[str, Any] = spec.get(name) or {}
    for key in part:
        if key not in known:
            meant = text.closest(key, known)
            raise RequestError(
                f"{name}.{key}", str(part[key]), "is under an unknown key", f"did you mean {meant or known}?"
            )
    return part


def _integer(part: Mapping[str, Any], name: str, key: str, default: int | None, most: int = text.INT32) -> int | None:
    written = part.get(key)
    return default if written is None else text.integer(str(written), field=f"{name}.{key}", least=0, most=most)


def _amounts(part: Mapping[str, Any], name: str, key: str) -> dict[str, int]:
    """Return the amounts that are written: thousandths of a TFLOPS, bytes, thousandths of a GPU."""
    resources = _part(part, key, _AMOUNTS)
    found = {}
    for unit, written in resources.items():
        field = f"{name}.{key}.{unit}"
        if unit == "vram":
            found[unit] = text.size(str(written), field=field)
        elif unit == "tflops":
            found[unit] = text.milli(str(written), field=field)
        else:
            found[unit] = text.milli(str(written), field=field) // 100  # percent of one GPU each
    return found


def _defaults(single: Mapping[str, Any], key: str) -> GpuAmounts:
    stated = _amounts(single, "single", key)
    return GpuAmounts(
        tflops_milli=stated.get("tflops", 0),
        compute_milli=0 if stated.get("tflops") else min(stated.get("compute", 0), WHOLE),
        vram_bytes=stated.get("vram", 0),
    )
