"""Update policies as pools state them."""

from typing import Any

import pytest

from schemas.dialects.text import RequestError
from schemas.rollout import UpdatePolicy
from schemas.update_policy import FIELD, parse_policy

GUIDE: dict[str, Any] = {
    "autoUpdateHypervisor": True,
    "autoUpdateWorker": False,
    "autoUpdateClient": False,
    "batchPercentage": 20,
    "batchInterval": "5m",
}


def test_the_users_guide_s_policy_is_read_as_written() -> None:
    hypervisor = parse_policy(GUIDE, "hypervisor")
    assert hypervisor == UpdatePolicy(auto_update=True, batch_percentage=20, batch_interval_s=300)
    assert not parse_policy(GUIDE, "worker").auto_update
    assert not parse_policy(GUIDE, "client").auto_update


def test_a_pool_that_states_no_policy_updates_nothing_by_itself() -> None:
    assert parse_policy(None, "hypervisor") == parse_policy({}, "hypervisor") == UpdatePolicy()


def test_everything_a_policy_can_say() -> None:
    stated = {
        "autoUpdateClient": True,
        "maxDuration": "1h30m",
        "maintenanceWindow": {"includes": ["CRON_TZ=Europe/Berlin * 2-4 * * SAT", "* 3 * * SUN"]},
        "canary": False,
        "readyWithin": "90s",
    }
    assert parse_policy(stated, "client") == UpdatePolicy(
        auto_update=True,
        max_duration_s=5400,
        windows=("CRON_TZ=Europe/Berlin * 2-4 * * SAT", "* 3 * * SUN"),
        canary=False,
        ready_within_s=90,
    )


@pytest.mark.parametrize(
    ("stated", "field", "value", "fix"),
    [
        ({"batchPercentage": 0}, "batchPercentage", "0", "set the autoUpdate switches to false"),
        ({"batchPercentage": 101}, "batchPercentage", "101", "from 1 to 100"),
        ({"batchPercentage": "20%"}, "batchPercentage", "20%", "from 1 to 100"),
        ({"batchPercentage": True}, "batchPercentage", "True", "from 1 to 100"),
        ({"batchInterval": "5 minutes"}, "batchInterval", "5 minutes", "such as 30s"),
        ({"batchInterval": 5}, "batchInterval", "5", "such as 30s"),
        ({"batchInterval": "-1s"}, "batchInterval", "-1s", "such as 30s"),
        ({"maxDuration": "0s"}, "maxDuration", "0s", "such as 30s"),
        ({"readyWithin": "99999h"}, "readyWithin", "99999h", "such as 30s"),
        ({"autoUpdateWorker": "yes"}, "autoUpdateWorker", "yes", "true or false"),
        ({"batchPercent": 20}, "", "batchPercent", "did you mean batchPercentage?"),
        ({"maintenanceWindow": {"include": []}}, "maintenanceWindow", "include", "did you mean includes?"),
        ({"maintenanceWindow": ["* 2 * * *"]}, "maintenanceWindow", "['* 2 * * *']", "write keys such as includes"),
        ({"maintenanceWindow": {"includes": "* 2 * * *"}}, "maintenanceWindow.includes", "* 2 * * *", "SAT"),
        ({"maintenanceWindow": {"includes": 5}}, "maintenanceWindow.includes", "5", "SAT"),
        ({"maintenanceWindow": {"includes": False}}, "maintenanceWindow.includes", "False", "SAT"),
        ({"maintenanceWindow": {"includes": ""}}, "maintenanceWindow.includes", "", "SAT"),
        ({"maintenanceWindow": {"includes": ["* 2 * * *", "0 2 * * *"]}}, "maintenanceWindow.includes[1]", "0 2 * * *", "3-5"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_with_the_field_the_value_and_the_fix(
    stated: dict[str, Any], field: str, value: str, fix: str
) -> None:
    with pytest.raises(RequestError) as refusal:
        parse_policy(GUIDE | stated, "hypervisor")
    assert refusal.value.field == (f"{FIELD}.{field}" if field else FIELD)
    assert refusal.value.value == value
    assert fix in refusal.value.fix


@pytest.mark.parametrize("stated", [[], "", 0])
def test_a_policy_that_is_no_mapping_is_refused(stated: Any) -> None:
    with pytest.raises(RequestError, match="is not a mapping"):
        parse_policy(stated, "hypervisor")
