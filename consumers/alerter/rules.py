"""Alert rules, checked when they are loaded and ready to be evaluated.

The fields are those of ``dynamicConfig.alertRules`` in the TensorFusion chart, and so is what templates may use. A set of
rules is taken whole or refused whole, with every problem named.
"""

import hashlib
from collections import Counter
from datetime import timedelta
from typing import Final

import msgspec

from consumers.alerter import sql
from consumers.alerter.template import Template, TemplateSyntaxError
from schemas.alert import AlertRule
from schemas.durations import seconds

QUERY_NAMES: Final = ("Threshold", "Conditions", "Severity", "Name")
SHORTEST_S: Final = 1.0
LONGEST_S: Final = 86_400.0
MOST_COUNT: Final = 1000
MOST_RULES: Final = 1000
_LONGEST_NAME: Final = 200


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
            sound = msgspec.structs.replace(sound, evaluation_interval="1m")
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
