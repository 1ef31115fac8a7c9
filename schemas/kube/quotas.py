"""Quota objects of either kind as one :class:`schemas.quota.Quota`.

``ResourceQuota`` counts for the hard keys that HAMi manages, ``limits.nvidia.com/{gpu,gpumem,gpucores}``; the API server
enforces the others itself. Percent and MiB are their units, as in a pod's limits.
"""

from collections.abc import Callable
from typing import Final

from schemas import quantity
from schemas.kube.base import Amounts
from schemas.kube.resources import GPUResourceQuota, ResourceQuota
from schemas.quota import Budget, Quota, Single

_PREFIX: Final = "limits.nvidia.com/"
_MIB: Final = 2**20
_PERCENT: Final = 10
"""Thousandths of a GPU in a percent of one."""


def tensorfusion_quota(item: GPUResourceQuota) -> Quota:
    """Return what a ``GPUResourceQuota`` bounds; an amount that is not written bounds nothing.

    Raises:
        QuantityError: An amount cannot be read.
    """
    total, single = item.spec.total, item.spec.single
    requests, limits = (total.requests, total.limits) if total is not None else (None, None)
    most, bound = (single.max_requests, single.max_limits) if single is not None else (None, None)
    count = single.max_gpu_count if single is not None else None
    return Quota(
        namespace=item.metadata.namespace,
        name=f"GPUResourceQuota/{item.metadata.name}",
        total=Budget(
            workers=total.max_workers if total is not None else None,
            tflops_milli=_tflops(requests),
            vram_bytes=_vram(requests),
            tflops_limit_milli=_tflops(limits),
            vram_limit_bytes=_vram(limits),
        ),
        single=Single(
            gpus=count if isinstance(count, int) else None,
            tflops_milli=_tflops(most),
            vram_bytes=_vram(most),
            tflops_limit_milli=_tflops(bound),
            vram_limit_bytes=_vram(bound),
        ),
        alert_percent=total.alert_threshold_percent if total is not None else 95,
    )


def native_quota(item: ResourceQuota) -> Quota | None:
    """Return what a ``ResourceQuota`` bounds of GPUs; None if nothing.

    Raises:
        QuantityError: An amount cannot be read.
    """
    hard = {key.removeprefix(_PREFIX): text for key, text in item.spec.hard.items() if key.startswith(_PREFIX)}
    gpus, cores, memory = (_whole(hard.get(key), f"{_PREFIX}{key}") for key in ("gpu", "gpucores", "gpumem"))
    if gpus is None and cores is None and memory is None:
        return None
    return Quota(
        namespace=item.metadata.namespace,
        name=f"ResourceQuota/{item.metadata.name}",
        total=Budget(
            gpus=gpus,
            compute_milli=None if cores is None else cores * _PERCENT,
            vram_bytes=None if memory is None else memory * _MIB,
        ),
    )


def _whole(text: str | None, field: str) -> int | None:
    return None if text is None else quantity.parse_bytes(text, field=field)


def _tflops(amounts: Amounts | None) -> int | None:
    return _amount(amounts.tflops if amounts is not None else None, quantity.parse_milli, "tflops")


def _vram(amounts: Amounts | None) -> int | None:
    return _amount(amounts.vram if amounts is not None else None, quantity.parse_bytes, "vram")


def _amount(written: object, parse: Callable[..., int], field: str) -> int | None:
    return parse(str(written), field=field) if isinstance(written, int | str) else None
