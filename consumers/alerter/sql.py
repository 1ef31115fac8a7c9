"""Whether a query only reads, told from its syntax tree.

The tree is DuckDB's: rules must run unchanged on both stores, so what its parser refuses is refused. Nothing is executed.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import duckdb
import msgspec

MOST_SQL: Final = 20_000
"""Characters of the longest query that is looked at."""

_READS: Final = frozenset(
    ("SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE", "RECURSIVE_CTE_NODE", "VALUES_NODE", "STATEMENT_NODE")
)
_SERIES: Final = frozenset(("generate_series", "range", "unnest"))
_NOW: Final = frozenset(("now", "transaction_timestamp", "get_current_timestamp"))


class _Tree(msgspec.Struct):
    error: bool
    error_message: str = ""
    position: str = ""
    statements: list[dict[str, Any]] = []


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    """An empty database whose only use is its parser; making one takes far longer than parsing."""
    return duckdb.connect()


def _parse(sql: str) -> _Tree:
    if len(sql) > MOST_SQL:
        raise ValueError(f"query has {len(sql)} characters: at most {MOST_SQL} are allowed")
    with _parser().cursor() as parser:
        row = parser.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert row is not None  # noqa: S101  a scalar always comes back
    return msgspec.json.decode(row[0], type=_Tree)


def check_reads(sql: str) -> None:
    """Check that ``sql`` is one statement that only reads tables.

    Raises:
        ValueError: It does not parse, is no query, holds several statements, or calls what reaches beyond the tables.
    """
    tree = _parse(sql)
    if tree.error:
        at = f" at character {int(tree.position) + 1}" if tree.position.isdecimal() else ""
        raise ValueError(f"query does not parse{at}, or is no SELECT: {tree.error_message}")
    if len(tree.statements) != 1:
        raise ValueError(f"query holds {len(tree.statements)} statements: write one")
    for node in _walk(tree.statements[0]):
        kind = node.get("type", "")
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _READS:
            raise ValueError(f"query does more than read: {kind.removesuffix('_NODE').removesuffix('_QUERY')}")
        if kind == "TABLE_FUNCTION" and (name := node["function"].get("function_name", "")) not in _SERIES:
            raise ValueError(f"query calls the table function {name}: only tables can be read")


def at_instant(sql: str, instant: str) -> str:
    """Return ``sql`` with every ``now()`` replaced by a constant, so that it answers as it would have answered then."""
    spots = {
        (node["query_location"], node["query_location_length"])
        for node in _walk({"statements": _parse(sql).statements})
        if (node.get("class") == "FUNCTION" and node.get("function_name") in _NOW and not node["arguments"])
        or (
            node.get("class") == "COLUMN_REF"
            and [name.lower() for name in node["column_names"]] == ["current_timestamp"]
        )
    }
    encoded = sql.encode()
    for start, length in sorted(spots, reverse=True):
        # The tree counts bytes.
        encoded = encoded[:start] + f"'{instant}'::TIMESTAMP".encode() + encoded[start + length :]
    return encoded.decode()


def tables(sql: str) -> set[str]:
    """Return the names of the tables that a query reads, those it defines itself left out.

    A name with its schema is a table's, and so is a name in the body of the very definition that hides it.
    """
    found: set[str] = set()
    real: set[str] = set()
    defined: set[str] = set()
    for node in _walk({"statements": _parse(sql).statements}):
        if node.get("type") == "BASE_TABLE":
            name = str(node["table_name"])
            (real if node.get("schema_name") else found).add(name)
        if isinstance(node.get("cte_map"), dict):
            for entry in node["cte_map"]["map"]:
                defined.add(key := str(entry["key"]))
                body = (one for one in _walk(entry["value"]) if one.get("type") == "BASE_TABLE")
                real.update(key for one in body if str(one["table_name"]).lower() == key.lower())
    return real | (found - defined)


def _walk(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
