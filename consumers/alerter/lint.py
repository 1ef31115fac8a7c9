"""What a set of rules that is taken would do that nobody can want: read what is not there, print ``<no value>``, watch nothing.

These are warnings. A metrics store may have tables and functions of its own, and a missing value is printed as Go prints it.
"""

from typing import Final

import duckdb

from consumers.alerter.configuration import Configuration
from consumers.alerter.rules import CompiledRule
from consumers.metrics.duckdb import create
from consumers.metrics.tables import OF_WORKERS, TABLES

_TEXTS: Final = ("summary", "description", "alertTargetInstance")
_ALWAYS: Final = ("Threshold",)


def warnings(found: Configuration) -> list[str]:
    """Return what is odd about rules that are good; each names the rule, the field and what to do."""
    if not found.rules:
        return ["there are no rules: nothing would be watched; leave alertRules out to keep the built-in ones"]
    with duckdb.connect(config={"enable_external_access": False}) as tables:
        workers = {table.name for table in OF_WORKERS}
        for table in TABLES.values():
            more = found.extra_pod_labels.values() if table.name in workers else ()
            tables.execute(create(table.with_tags(more))).fetchall()
        return [warning for rule in found.rules for warning in _of_rule(CompiledRule(rule), tables)]


def _of_rule(compiled: CompiledRule, tables: duckdb.DuckDBPyConnection) -> list[str]:
    name = compiled.rule.name
    try:
        columns = [str(row[0]) for row in tables.execute(f"DESCRIBE {compiled.sql()}").fetchall()]
    except duckdb.Error as error:
        said = " ".join(str(error).partition("\n\nLINE")[0].split())
        return [f"rule {name}: query: it would fail on the nine tf_* tables: {said}"]
    known = {*columns, *_ALWAYS}
    templates = dict(zip(_TEXTS, (compiled.summary, compiled.description, compiled.instance), strict=True))
    return [
        f"rule {name}: {field}: .{missing} would be printed as <no value>: there are {', '.join(sorted(known))}"
        for field, template in templates.items()
        for missing in sorted(template.fields - known)
    ]
