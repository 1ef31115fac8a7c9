"""How much of the GPUs the pods of one namespace may hold together, and how much they do.

Two kinds of object say so: TensorFusion's ``GPUResourceQuota`` and the native ``ResourceQuota`` with the hard keys that
HAMi manages. Both become a :class:`Quota`; where a namespace has several, each of them holds.
"""

from typing import Annotated, Self

import msgspec

from schemas.cluster import Amount

Limit = Amount | None
"""An amount that may not be exceeded; None is no limit, and 0 is one."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What pods hold, summed over their GPUs.

    Attributes:
        workers: Pods that hold a GPU.
        gpus: GPUs, or parts of one, that they hold.
        tflops_milli: Compute granted, in thousandths of a TFLOPS (``requests.tflops``). A share counts with what it is of
            the GPU that was given.
        compute_milli: The same in thousandths of a whole GPU (``limits.nvidia.com/gpucores``).
        vram_bytes: VRAM granted (``requests.vram``, ``limits.nvidia.com/gpumem``).
        tflops_limit_milli: Compute they may use (``limits.tflops``); who states no limit counts with the grant.
        vram_limit_bytes: VRAM they may use (``limits.vram``), likewise.
    """

    workers: Amount = 0
    gpus: Amount = 0
    tflops_milli: Amount = 0
    compute_milli: Amount = 0
    vram_bytes: Amount = 0
    tflops_limit_milli: Amount = 0
    vram_limit_bytes: Amount = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in DIMENSIONS})

    def __sub__(self, other: Self) -> Self:
        return type(self)(**{name: getattr(self, name) - getattr(other, name) for name in DIMENSIONS})


DIMENSIONS = Usage.__struct_fields__
"""What is counted; :class:`Budget` has the same fields."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The most that a namespace's pods may hold together, by the fields of :class:`Usage`."""

    workers: Limit = None
    gpus: Limit = None
    tflops_milli: Limit = None
    compute_milli: Limit = None
    vram_bytes: Limit = None
    tflops_limit_milli: Limit = None
    vram_limit_bytes: Limit = None

    def exceeded(self, used: Usage, more: Usage) -> str:
        """Return the first field in which ``more`` takes something and would bring ``used`` above the limit, or nothing."""
        for name in DIMENSIONS:
            limit, amount = getattr(self, name), getattr(more, name)
            if limit is not None and amount and getattr(used, name) + amount > limit:
                return name
        return ""

    def narrowed(self, other: Self) -> Self:
        """Return the budget of whoever must keep within both."""
        return type(self)(**{name: _least(getattr(self, name), getattr(other, name)) for name in DIMENSIONS})


class Single(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The most that one pod may ask for: amounts per GPU, and the number of its GPUs (``single`` of a GPUResourceQuota)."""

    gpus: Limit = None
    tflops_milli: Limit = None
    vram_bytes: Limit = None
    tflops_limit_milli: Limit = None
    vram_limit_bytes: Limit = None

    def narrowed(self, other: Self) -> Self:
        """Return what whoever must keep within both may ask for."""
        names = self.__struct_fields__
        return type(self)(**{name: _least(getattr(self, name), getattr(other, name)) for name in names})


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One quota object of a namespace.

    Attributes:
        name: ``<kind>/<name>`` of the object, such as ``ResourceQuota/gpu``.
        alert_percent: Part of any limit from which on its use is worth an alert (``alertThresholdPercent``).
    """

    namespace: str
    name: str
    total: Budget = Budget()
    single: Single = Single()
    alert_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 95


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
