"""A pool's ``nodePoolRollingUpdatePolicy`` as a policy, or a refusal that names the field, the value and the fix.

``canary`` and ``readyWithin`` are additions to the contract. Two defaults of upstream are kept although it ignores them:
``maxDuration`` of ten minutes, which here counts the time spent updating, and no window.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from schemas.dialects.text import RequestError, closest, seconds
from schemas.rollout import Component, UpdatePolicy
from schemas.windows import check_window

FIELD: Final = "spec.nodeManagerConfig.nodePoolRollingUpdatePolicy"

_AUTO: Final[dict[Component, str]] = {
    "hypervisor": "autoUpdateHypervisor",
    "worker": "autoUpdateWorker",
    "client": "autoUpdateClient",
}
_KEYS: Final = (
    *_AUTO.values(), "batchPercentage", "batchInterval", "maxDuration", "maintenanceWindow", "canary", "readyWithin"
)  # fmt: skip
_MOST_S: Final = 366 * 86_400


def parse_policy(policy: Mapping[str, Any] | None, component: Component, *, field: str = FIELD) -> UpdatePolicy:
    """Return the policy for one component; None is a pool that states none, which updates nothing by itself.

    Raises:
        RequestError: A key is unknown or a value cannot be followed.
    """
    stated = {} if policy is None else policy
    _known(stated, _KEYS, field)
    auto = [_flag(stated, key, field, default=False) for key in _AUTO.values()]
    return UpdatePolicy(
        auto_update=auto[list(_AUTO).index(component)],
        batch_percentage=_percentage(stated.get("batchPercentage", 100), f"{field}.batchPercentage"),
        batch_interval_s=_seconds(stated.get("batchInterval", "1s"), f"{field}.batchInterval", least=0),
        max_duration_s=_seconds(stated.get("maxDuration", "10m"), f"{field}.maxDuration", least=1),
        windows=_windows(stated.get("maintenanceWindow"), f"{field}.maintenanceWindow"),
        canary=_flag(stated, "canary", field, default=True),
        ready_within_s=_seconds(stated.get("readyWithin", "5m"), f"{field}.readyWithin", least=1),
    )


def _known(stated: object, keys: tuple[str, ...], field: str) -> None:
    if not isinstance(stated, Mapping):
        raise RequestError(field, str(stated), "is not a mapping", f"write keys such as {keys[0]}")
    for key in stated:
        if key not in keys:
            meant = closest(str(key), keys)
            hint = f"did you mean {meant}? " if meant else ""
            raise RequestError(field, str(key), "is an unknown key", f"{hint}use {', '.join(keys)}")


def _flag(stated: Mapping[str, Any], key: str, field: str, *, default: bool) -> bool:
    value = stated.get(key, default)
    if not isinstance(value, bool):
        raise RequestError(f"{field}.{key}", str(value), "is neither true nor false", "write true or false")
    return value


def _percentage(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100:  # noqa: PLR2004  percent
        fix = "write a whole number from 1 to 100"
        if value == 0:
            fix += "; to update nothing, set the autoUpdate switches to false"
        raise RequestError(field, str(value), "is not the size of a batch in percent", fix)
    return value


def _seconds(value: object, field: str, *, least: int) -> int:
    if not isinstance(value, str):
        raise RequestError(field, str(value), "is not a duration", "write one such as 30s, 10m or 1h30m")
    length = seconds(value, field=field)
    if not least <= length <= _MOST_S:
        raise RequestError(field, value, f"is not from {least}s to {_MOST_S // 3600}h", "write one such as 30s or 10m")
    return length


def _windows(value: object, field: str) -> tuple[str, ...]:
    if value is None:
        return ()
    _known(value, ("includes",), field)
    assert isinstance(value, Mapping)  # noqa: S101  for mypy: _known has refused anything else
    includes = value.get("includes", ())
    if (
        not isinstance(includes, Sequence)
        or isinstance(includes, str)
        or not all(isinstance(one, str) for one in includes)
    ):
        raise RequestError(f"{field}.includes", str(includes), "is not a list of texts", "write ['* 2-4 * * SAT']")
    return tuple(check_window(one, field=f"{field}.includes[{i}]") for i, one in enumerate(includes))
