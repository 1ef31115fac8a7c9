"""``autoScalingConfig`` as settings, or a refusal that names the field, the value and the fix.

Percentiles default to those of upstream's code (compute 0.95, 0.5 and 0.99; VRAM 0.98, 0.5 and 0.99), which its own
documentation gives otherwise; everything else to the values of the contract (tensorfusion.md §1).
"""

from typing import Final
from urllib.parse import urlsplit

import msgspec

from schemas.dialects.text import RequestError, seconds
from schemas.kube.defaults import read_resources
from schemas.kube.workloads import AutoScalingConfig, AutoSetResources, CronScalingRule, ExternalScaler
from schemas.scaling import AutoRequests, CronRequests, Percentiles, Ratios
from schemas.windows import check_cron, check_span

FIELD: Final = "spec.autoScalingConfig"

_COMPUTE: Final = Percentiles(lower=0.5, target=0.95, upper=0.99)
_VRAM: Final = Percentiles(lower=0.5, target=0.98, upper=0.99)
_INTERVAL: Final = "1m"
_MOST_S: Final = 30 * 86_400
"""Longer than anybody waits for a recommendation, and well within what a timer can be set to."""

_LEAST_INTERVAL_S: Final = 15
"""Use is recorded at this rate: looking more often sees nothing new."""


class External(msgspec.Struct, frozen=True, kw_only=True):
    """``externalScaler``, understood: who is asked, how often, and with which secret."""

    url: str
    interval_s: int
    delay_s: int
    secret: str = ""
    secret_key: str = ""


class AutoScaling(msgspec.Struct, frozen=True, kw_only=True):
    """What may change a workload's requests."""

    auto: AutoRequests | None = None
    cron: tuple[CronRequests, ...] = ()
    external: External | None = None

    @property
    def interval_s(self) -> int:
        """How often the workload is to be looked at; 0 for never."""
        known = [part.interval_s for part in (self.auto, self.external) if part is not None]
        return min([*known, *([60] if self.cron else [])], default=0)


def parse_autoscaling(written: AutoScalingConfig | None, *, field: str = FIELD) -> AutoScaling:
    """Return what a workload or a scheduling template says of its requests.

    Raises:
        RequestError: A value cannot be followed.
    """
    if written is None:
        return AutoScaling()
    auto, external = written.auto_set_resources, written.external_scaler
    return AutoScaling(
        auto=_auto(auto, f"{field}.autoSetResources") if auto is not None else None,
        cron=tuple(
            _cron(rule, f"{field}.cronScalingRules[{number}]")
            for number, rule in enumerate(written.cron_scaling_rules)
            if rule.enable
        ),
        external=_external(external, f"{field}.externalScaler") if external is not None and external.enable else None,
    )


def _cron(rule: CronScalingRule, field: str) -> CronRequests:
    start, end = (check_cron(getattr(rule, key), field=f"{field}.{key}") for key in ("start", "end"))
    check_span(start, end, field=f"{field}.end")
    desired = read_resources(rule.desired_resources, f"{field}.desiredResources")
    return CronRequests(name=rule.name, start=start, end=end, desired=desired)


def _auto(written: AutoSetResources, field: str) -> AutoRequests:
    which = written.target_resource if isinstance(written.target_resource, str) else "all"
    return AutoRequests(
        apply=written.enable,
        compute=_percentiles(written, "compute", _COMPUTE, field) if which in ("compute", "all") else None,
        vram=_percentiles(written, "vram", _VRAM, field) if which in ("vram", "all") else None,
        margin=_decimal(written.margin_fraction, 0.15, f"{field}.marginFraction", most=10),
        threshold=_decimal(written.update_threshold, 0.1, f"{field}.updateThreshold", most=10),
        history_s=_duration(written.history_data_period, "2h", f"{field}.historyDataPeriod", least=60),
        compute_ratios=_ratios(written, "compute", 0.1, 10.0, field),
        vram_ratios=_ratios(written, "vram", 0.2, 5.0, field),
        delay_s=_duration(written.initial_delay_period, "30m", f"{field}.initialDelayPeriod", least=0),
        interval_s=_duration(written.interval, _INTERVAL, f"{field}.interval", least=_LEAST_INTERVAL_S),
    )


def _percentiles(written: AutoSetResources, resource: str, default: Percentiles, field: str) -> Percentiles:
    word = "VRAM" if resource == "vram" else "Compute"

    def read(bound: str, otherwise: float) -> float:
        value = getattr(written, f"{bound}{'_bound' if bound != 'target' else ''}_{resource}_percentile")
        name = f"{bound}{'Bound' if bound != 'target' else ''}{word}Percentile"
        return _decimal(value, otherwise, f"{field}.{name}", most=1)

    found = Percentiles(
        lower=read("lower", default.lower), target=read("target", default.target), upper=read("upper", default.upper)
    )
    if not found.lower <= found.target <= found.upper:
        raise RequestError(
            f"{field}.target{word}Percentile",
            f"{found.target:g}",
            f"is not between the lower bound {found.lower:g} and the upper bound {found.upper:g}",
            "order the three percentiles",
        )
    return found


def _ratios(written: AutoSetResources, resource: str, least: float, most: float, field: str) -> Ratios:
    word = "VRAM" if resource == "vram" else "Compute"
    found = Ratios(
        least=_decimal(
            getattr(written, f"min_{resource}_resources_ratio"), least, f"{field}.min{word}ResourcesRatio", most=1000
        ),
        most=_decimal(
            getattr(written, f"max_{resource}_resources_ratio"), most, f"{field}.max{word}ResourcesRatio", most=1000
        ),
    )
    if found.least > found.most:
        raise RequestError(
            f"{field}.min{word}ResourcesRatio",
            f"{found.least:g}",
            f"is above max{word}ResourcesRatio, {found.most:g}",
            "swap the two",
        )
    return found


def _external(written: ExternalScaler, field: str) -> External:
    try:
        parts = urlsplit(written.url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RequestError(
            f"{field}.url", written.url, "is no HTTP URL", "write one such as http://scaler.ns.svc/advise"
        )
    secret = written.api_key_secret_ref or {}
    return External(
        url=written.url,
        interval_s=_duration(written.interval, _INTERVAL, f"{field}.interval", least=_LEAST_INTERVAL_S),
        delay_s=_duration(written.initial_delay_period, "30m", f"{field}.initialDelayPeriod", least=0),
        secret=str(secret.get("name", "")),
        secret_key=str(secret.get("key", "")),
    )


def _decimal(written: str | msgspec.UnsetType, default: float, field: str, *, most: float) -> float:
    if not isinstance(written, str):
        return default
    value = float(written)
    if value > most:
        raise RequestError(field, written, f"is more than {most:g}", f"write a decimal from 0 to {most:g}")
    return value


def _duration(written: str | msgspec.UnsetType, default: str, field: str, *, least: int) -> int:
    text = written if isinstance(written, str) else default
    length = seconds(text, field=field)
    if not least <= length <= _MOST_S:
        fix = f"write one from {least}s to {_MOST_S // 3600}h"
        raise RequestError(field, text, f"is not from {least}s to {_MOST_S // 3600}h", fix)
    return length
