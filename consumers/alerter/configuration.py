"""Alert rules as people write them in YAML, with all that is wrong named at once: the field, its value and the fix. Pure.

The fields are those of ``dynamicConfig.alertRules`` in the TensorFusion chart, and so is what is read beside them.
"""

from collections import Counter
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from consumers.alerter.rules import SHORTEST_S, RulesError, compile_all
from consumers.metrics.tables import TAKEN
from schemas.alert import AlertRule, ExtraPodLabels
from schemas.dialects.text import RequestError
from schemas.durations import seconds
from schemas.plain import decode_yaml

_FIELDS: Final = {field.encode_name: field for field in msgspec.structs.fields(AlertRule)}
_SOUND: Final[dict[str, Any]] = {"name": "", "query": "SELECT 1", "threshold": 0.0, "evaluationInterval": "1m"}
"""Stand in for required fields that are wrong while the others are checked; such a rule is never in force."""
_KINDS: Final[dict[Any, str]] = {
    str: "text (in quotes where YAML takes it for something else)",
    float: "a number without quotes",
    int: "a whole number without quotes",
}
_EXAMPLES: Final = {
    "name": "GPUTemperatureWarning",
    "query": "SELECT uuid FROM tf_gpu_usage WHERE temperature > {{ .Threshold }} AND {{ .Conditions }}",
    "threshold": "80",
    "evaluationInterval": "30s",
}
"""What a field that must be there could say."""


class Configuration(msgspec.Struct, frozen=True):
    """What a configuration file says about alerts and metrics."""

    rules: tuple[AlertRule, ...]
    metrics_ttl: str = ""
    extra_pod_labels: dict[str, str] = {}


def parse(text: str | bytes) -> Configuration:
    """Read rules from YAML: a list of rules, ``alertRules``, or chart values with ``dynamicConfig``; other keys are others'.

    Raises:
        RulesError: It is no YAML of that shape, or a rule is not good.
    """
    try:
        tree: Any = decode_yaml(text, field="rules", fix="write a list under alertRules")
    except RequestError as error:
        raise RulesError([str(error)]) from None
    if isinstance(tree, list):
        tree = {"alertRules": tree}
    if isinstance(tree, dict) and isinstance(tree.get("dynamicConfig"), dict):
        tree = tree["dynamicConfig"]
    if not isinstance(tree, dict) or not isinstance(tree.get("alertRules"), list):
        found = (
            f"alertRules is {_shown(tree['alertRules'])}"
            if isinstance(tree, dict) and "alertRules" in tree
            else "no rules"
        )
        raise RulesError([f"{found}: write a list under alertRules, or under dynamicConfig.alertRules"])
    problems: list[str] = []
    rules = [
        rule for number, raw in enumerate(tree["alertRules"]) if (rule := _convert(number, raw, problems)) is not None
    ]
    ttl = tree.get("metricsTTL") or ""
    try:
        if ttl and seconds(str(ttl), days=True) < SHORTEST_S:
            problems.append(f"metricsTTL is {ttl}: keep metrics for a second at least")
    except ValueError as error:
        problems.append(f"metricsTTL: {error}")
    labels = _extra_pod_labels(tree.get("metricsExtraPodLabels") or {}, problems)
    compile_all(rules, problems)
    return Configuration(tuple(rules), str(ttl), labels)


def _extra_pod_labels(raw: Any, problems: list[str]) -> dict[str, str]:
    try:
        labels = msgspec.convert(raw, ExtraPodLabels, strict=True)
    except msgspec.ValidationError:
        problems.append(
            f"metricsExtraPodLabels is {_shown(raw)}: write up to 16 labels, each with the name of a tag in a-z, 0-9 and _"
        )
        return {}
    seen = Counter(labels.values())
    for tag in seen:
        if seen[tag] > 1:
            problems.append(f"metricsExtraPodLabels: two labels have the tag {tag}")
        if tag in TAKEN:
            problems.append(f"metricsExtraPodLabels: {tag} is a column already, choose another name")
    return labels


def _convert(number: int, raw: Any, problems: list[str]) -> AlertRule | None:
    """Read one rule. Where fields are wrong all of them are named, and the rest is returned for the checks that follow."""
    place = f"number {number + 1}"
    if not isinstance(raw, dict):
        problems.append(f"rule {place}: it is {_shown(raw)}: write an object with {', '.join(_SOUND)}")
        return None
    rule = {**_SOUND, "name": place}
    wrong = [_unknown(str(key)) for key in raw if key not in _FIELDS]
    for key, field in _FIELDS.items():
        if key in raw:
            try:
                rule[key] = msgspec.convert(raw[key], field.type, strict=True)
            except msgspec.ValidationError:
                wrong.append(f"{key} is {_shown(raw[key])}: write {_fix(key)}")
        elif field.required:
            wrong.append(f"missing required field `{key}`: write {_fix(key)}")
    problems += [f"rule {rule['name']}: {problem}" for problem in wrong]
    return msgspec.convert(rule, AlertRule)


def _shown(value: Any) -> str:
    """Return a value as YAML writes it, or the beginning of a long one."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else f"{value!r:.60}"


def _fix(key: str) -> str:
    kind = _KINDS[_FIELDS[key].type]
    return f"{kind}, such as {_EXAMPLES[key]}" if key in _EXAMPLES else kind


def _unknown(key: str) -> str:
    near = get_close_matches(key, _FIELDS, n=1)
    fix = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(_FIELDS)}"
    return f"unknown field `{key:.60}`: {fix}"
