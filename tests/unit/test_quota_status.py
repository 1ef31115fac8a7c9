"""What a quota's status says of what its namespace's pods hold."""

import pytest

from consumers.status.quotas import quota_status
from schemas.kube.base import Condition
from schemas.quota import Budget, Quota, Usage

GIB = 2**30
BUDGET = Budget(tflops_milli=100_000, vram_bytes=100 * GIB, workers=10)
USED = Usage(
    workers=3, gpus=3, tflops_milli=60_000, vram_bytes=30 * GIB, tflops_limit_milli=90_000, vram_limit_bytes=30 * GIB
)


def quota(total: Budget = BUDGET, percent: int = 80) -> Quota:
    return Quota(namespace="ml", name="GPUResourceQuota/gpus", total=total, alert_percent=percent)


def test_use_and_what_is_left_are_shown_in_the_contracts_units() -> None:
    status = quota_status(quota(), USED, (), "2026-01-01T00:00:00Z")
    assert status.used is not None
    assert (status.used.requests.tflops, status.used.requests.vram, status.used.workers) == ("60", "30Gi", 3)
    assert (status.used.limits.tflops, status.used.limits.vram) == ("90", "30Gi")
    assert status.available_percent == {"requests.tflops": "40.00", "requests.vram": "70.00", "workers": "70.00"}
    (condition,) = status.conditions
    assert (condition.type, condition.status, condition.reason) == ("Ready", "True", "CapacitySufficient")


@pytest.mark.parametrize(
    ("total", "used", "alerts"),
    [
        (BUDGET, Usage(tflops_milli=79_999), False),
        (BUDGET, Usage(tflops_milli=80_000), True),
        (BUDGET, Usage(tflops_milli=120_000), True),
        (Budget(workers=0), Usage(), False),
        (Budget(workers=0), Usage(workers=1), True),
        (Budget(), Usage(tflops_milli=1), False),
    ],
)
def test_the_alert_begins_at_its_threshold(total: Budget, used: Usage, alerts: bool) -> None:
    status = quota_status(quota(total), used, (), "2026-01-01T00:00:00Z")
    (condition,) = status.conditions
    assert condition.reason == ("AlertThresholdReached" if alerts else "CapacitySufficient")
    assert condition.status == ("False" if alerts else "True")
    assert all(float(text) >= 0 for text in status.available_percent.values())


def test_a_condition_keeps_its_time_while_it_stays_what_it_is() -> None:
    before = (Condition(type="Ready", status="True", reason="CapacitySufficient", last_transition_time="then"),)
    (same,) = quota_status(quota(), USED, before, "now").conditions
    (other,) = quota_status(quota(percent=10), USED, before, "now").conditions
    assert (same.last_transition_time, other.last_transition_time) == ("then", "now")
