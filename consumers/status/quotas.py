"""How much of its quota a namespace uses, as the quota's status shows it. Pure.

What pods hold is read from the ledger, as allocators count it. Source of names and reasons: the contract's ``GPUResourceQuota``.
"""

from typing import Final

from schemas.kube.base import Amounts, Condition
from schemas.kube.workloads import GPUResourceQuotaStatus, QuotaUsed
from schemas.quantity import format_bytes, format_milli
from schemas.quota import Budget, Quota, Usage
from schemas.quota_rules import WORDS, shown

READY: Final = "Ready"

_SHOWN: Final = ("tflops_milli", "vram_bytes", "tflops_limit_milli", "vram_limit_bytes", "workers")
"""Fields of a budget that a ``GPUResourceQuota`` bounds."""


def quota_status(quota: Quota, used: Usage, before: tuple[Condition, ...], now: str) -> GPUResourceQuotaStatus:
    """Return the status of a quota.

    Args:
        quota: What it bounds.
        used: What the namespace's pods hold.
        before: Conditions as they were written last: one keeps its time as long as it stays what it is.
        now: The time, as a status has it.
    """
    return GPUResourceQuotaStatus(
        used=QuotaUsed(
            requests=Amounts(tflops=format_milli(used.tflops_milli), vram=format_bytes(used.vram_bytes)),
            limits=Amounts(tflops=format_milli(used.tflops_limit_milli), vram=format_bytes(used.vram_limit_bytes)),
            workers=used.workers,
        ),
        available_percent=_available(quota.total, used),
        conditions=(_condition(quota, used, before, now),),
    )


def _available(total: Budget, used: Usage) -> dict[str, str]:
    """Return what is left of each limit, in percent; what is held beyond one, for it came first, is nothing left."""
    left = {}
    for name in _SHOWN:
        limit = getattr(total, name)
        if limit is not None:
            free = max(limit - getattr(used, name), 0)
            left[WORDS[name]] = f"{100 * free / limit if limit else 0:.2f}"
    return left


def _condition(quota: Quota, used: Usage, before: tuple[Condition, ...], now: str) -> Condition:
    full = [
        f"{WORDS[name]} {shown(name, getattr(used, name))} of {shown(name, limit)}"
        for name in _SHOWN
        if (limit := getattr(quota.total, name)) is not None
        and getattr(used, name)
        and 100 * getattr(used, name) >= quota.alert_percent * limit
    ]
    if full:
        text = f"{quota.alert_percent} % or more is used: {', '.join(full)}"
        found = Condition(type=READY, status="False", reason="AlertThresholdReached", message=text)
    else:
        text = f"less than {quota.alert_percent} % of every limit is used"
        found = Condition(type=READY, status="True", reason="CapacitySufficient", message=text)
    same = next((one for one in before if one.type == READY and one.status == found.status), None)
    at = same.last_transition_time if same is not None else now
    return Condition(
        type=READY, status=found.status, reason=found.reason, message=found.message, last_transition_time=at
    )
