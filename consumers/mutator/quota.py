"""Quotas at admission: a pod that its namespace's quotas could never let run is refused while its user is looking. Pure.

A pod of HAMi's words is refused as well when there is no room for it just now, as HAMi's webhook does; one of TensorFusion's
waits for room. Whoever admits does not book: the allocator holds the quota when it places the pod.
"""

from collections.abc import Iterable

import msgspec

from schemas.dialects import RequestError
from schemas.pod import GpuRequest
from schemas.quota import Quota, Usage
from schemas.quota_rules import WORDS, shown, singles, stated


class Bounds(msgspec.Struct, frozen=True):
    """The quotas of a namespace, and what its pods hold by the ledger."""

    quotas: tuple[Quota, ...] = ()
    held: Usage = Usage()


def check(bounds: Bounds, request: GpuRequest) -> None:
    """Refuse a pod that its namespace's quotas do not allow.

    Raises:
        RequestError: One pod may not ask for so much, or all of the namespace's together may not hold so much.
    """
    asked = _least(request)
    for quota in bounds.quotas:
        name = f"quota {quota.name} of namespace {quota.namespace}"
        for word, amount, limit in singles(quota, request):
            raise RequestError(name, f"{word}={amount}", f"allows {limit} per pod or GPU", f"ask for at most {limit}")
        for held in _counted(bounds, request):
            exceeded = quota.total.exceeded(held, asked)
            if exceeded:
                limit, used, more = (shown(exceeded, getattr(of, exceeded)) for of in (quota.total, held, asked))
                fix = "ask for less, or wait until pods of the namespace end" if held != Usage() else "ask for less"
                problem = f"exceeds {limit} in all, of which {used} is used"
                raise RequestError(name, f"{WORDS[exceeded]}={more}", problem, fix)


def _least(request: GpuRequest) -> Usage:
    """Return the least that the pod will hold. Containers hold together what they hold, and init containers went before them.

    Source of the last: HAMi ``pkg/device/quota.go``, the larger of the containers' sum and the largest init container.
    """
    if not request.containers:
        return stated(request)
    vram, compute = (
        max(
            sum(getattr(one, name) * one.count for one in request.containers if not one.init),
            *(getattr(one, name) * one.count for one in request.containers if one.init),
            0,
        )
        for name in ("vram_bytes", "compute_milli")
    )
    return msgspec.structs.replace(stated(request), vram_bytes=vram, compute_milli=compute)


def _counted(bounds: Bounds, request: GpuRequest) -> Iterable[Usage]:
    return (Usage(), bounds.held) if request.dialect == "hami" else (Usage(),)
