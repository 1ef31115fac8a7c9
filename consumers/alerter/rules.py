"""Alert rules, checked when they are loaded and ready to be evaluated.

The fields are those of ``dynamicConfig.alertRules`` in the TensorFusion chart, and so is what templates may use. A set of
rules is taken whole or refused whole, with every problem named.
"""

import hashlib
from collections import Counter
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from consumers.alerter import sql
from consumers.alerter.template import Template, TemplateSyntaxError
from consumers.metrics.tables import TAKEN
from schemas.alert import AlertRule, ExtraPodLabels
from schemas.dialects.text import RequestError
from schemas.durations import seconds
from schemas.plain import decode_yaml

QUERY_NAMES: Final = ("Threshold", "Conditions", "Severity", "Name")
SHORTEST_S: Final = 1.0
LONGEST_S: Final = 86_400.0
MOST_COUNT: Final = 1000
MOST_RULES: Final = 1000
_LONGEST_NAME: Final = 200
_FIELDS: Final = {field.encode_name: field for field in msgspec.structs.fields(AlertRule)}
_SOUND: Final[dict[str, Any]] = {"name": "", "query": "SELECT 1", "threshold": 0.0, "evaluationInterval": "1m"}
"""Stand in for required fields that are wrong while the others are checked; such a rule is never in force."""
_KINDS: Final[dict[Any, str]] = {
    str: "text, in quotes where YAML takes it for something else",
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


class RulesError(ValueError):
    """A set of rules is refused; ``problems`` names all that is wrong with it."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class CompiledRule:
    """A rule that was found good.

    Raises:
        RulesError: It was not.
    """

    def __init__(self, rule: AlertRule) -> None:
        self.rule = rule
        self.digest = digest([rule])
        problems: list[str] = []
        if not rule.name or len(rule.name) > _LONGEST_NAME or not rule.name.isprintable():
            problems.append(f"name {rule.name!r}: write 1 to {_LONGEST_NAME} printable characters")
        if not 1 <= rule.consecutive_count <= MOST_COUNT:
            problems.append(f"consecutiveCount is {rule.consecutive_count}: use 1 to {MOST_COUNT}")
        sound = rule  # what the query is checked with, so that one mistake hides no other
        if not abs(rule.threshold) < float("inf"):
            problems.append(f"threshold is {rule.threshold}: use a finite number")
            sound = msgspec.structs.replace(sound, threshold=0.0)
        before = len(problems)
        self.interval = timedelta(seconds=_interval(rule.evaluation_interval, problems))
        if len(problems) > before:
            sound = msgspec.structs.replace(sound, evaluation_interval=_SOUND["evaluationInterval"])
        before = len(problems)
        self.query = _template("query", rule.query, problems, known=QUERY_NAMES)
        self.tables: frozenset[str] = frozenset()
        """Names of the tables that the query reads, in small letters."""
        if len(problems) == before:
            try:
                text = _sql(self.query, sound)
                sql.check_reads(text)
                self.tables = frozenset(name.lower() for name in sql.tables(text))
            except ValueError as error:
                problems.append(f"query: {error}")
        self.summary = _template("summary", rule.summary, problems)
        self.description = _template("description", rule.description, problems)
        self.instance = _template("alertTargetInstance", rule.alert_target_instance, problems)
        if problems:
            raise RulesError([f"rule {rule.name}: {problem}" for problem in problems])

    def sql(self, *, now: str | None = None) -> str:
        """Return the query that is sent; with ``now``, a UTC instant as SQL writes it, as of then."""
        return _sql(self.query, self.rule, now)


def _sql(query: Template, rule: AlertRule, now: str | None = None) -> str:
    window = rule.evaluation_interval
    if now is None:
        conditions = f"ts >= now() - '{window}'::INTERVAL"
    else:
        conditions = f"ts >= '{now}'::TIMESTAMP - '{window}'::INTERVAL AND ts <= '{now}'::TIMESTAMP"
    text = query.render(
        {"Threshold": rule.threshold, "Conditions": conditions, "Severity": rule.severity, "Name": rule.name}
    )
    return text if now is None else sql.at_instant(text, now)


def _interval(text: str, problems: list[str]) -> float:
    try:
        interval = seconds(text)
    except ValueError as error:
        problems.append(f"evaluationInterval: {error}")
        return SHORTEST_S
    if not SHORTEST_S <= interval <= LONGEST_S or interval != int(interval):
        problems.append(f"evaluationInterval is {text}: use whole seconds from 1s to 24h")
        return SHORTEST_S
    return interval


def _template(field: str, text: str, problems: list[str], known: tuple[str, ...] | None = None) -> Template:
    try:
        return Template(text, known)
    except TemplateSyntaxError as error:
        problems.append(f"{field}: {error}")
        return Template("")


def digest(rules: list[AlertRule]) -> str:
    """Return a hash of everything in the rules."""
    return hashlib.blake2b(msgspec.json.encode(rules), digest_size=8).hexdigest()


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
        raise RulesError(["no rules: write a list under alertRules, or under dynamicConfig.alertRules"])
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
    except msgspec.ValidationError as error:
        problems.append(
            f"metricsExtraPodLabels: {error}: write up to 16 labels, each with the name of a tag in a-z, 0-9 and _"
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
        problems.append(f"rule {place}: it is {raw!r:.40}: write an object with {', '.join(_SOUND)}")
        return None
    rule = {**_SOUND, "name": place}
    wrong = [_unknown(str(key)) for key in raw if key not in _FIELDS]
    for key, field in _FIELDS.items():
        if key in raw:
            try:
                rule[key] = msgspec.convert(raw[key], field.type, strict=True)
            except msgspec.ValidationError:
                wrong.append(f"{key} is {raw[key]!r:.60}: write {_KINDS[field.type]}")
        elif field.required:
            wrong.append(f"missing required field `{key}`: write {_KINDS[field.type]}, such as {_EXAMPLES[key]}")
    problems += [f"rule {rule['name']}: {problem}" for problem in wrong]
    return msgspec.convert(rule, AlertRule)


def _unknown(key: str) -> str:
    near = get_close_matches(key, _FIELDS, n=1)
    fix = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(_FIELDS)}"
    return f"unknown field `{key:.60}`: {fix}"


def compile_all(
    rules: list[AlertRule] | tuple[AlertRule, ...], problems: list[str] | None = None
) -> dict[str, CompiledRule]:
    """Compile rules by name.

    Args:
        rules: The rules.
        problems: What is wrong already.

    Raises:
        RulesError: Any is not good, there are too many, or two have one name.
    """
    found = [] if problems is None else problems
    compiled: dict[str, CompiledRule] = {}
    seen = Counter[str]()
    if len(rules) > MOST_RULES:
        found.append(f"{len(rules)} rules: at most {MOST_RULES} are allowed")
    for rule in rules[:MOST_RULES]:
        seen[rule.name] += 1
        if seen[rule.name] == 2:  # noqa: PLR2004  said once, however many there are
            found.append(f"rule {rule.name}: there are two of that name")
        try:
            compiled[rule.name] = CompiledRule(rule)
        except RulesError as error:
            found += error.problems
    if found:
        raise RulesError(found)
    return compiled
