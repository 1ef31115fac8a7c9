"""Rows as InfluxDB line protocol, which GreptimeDB takes.

Source: InfluxDB line protocol reference. A missing field is left out; a row without any field cannot be said and is skipped.
"""

from collections.abc import Callable, Iterable
from typing import Final

from consumers.metrics.tables import Row, Table, Value

_TAG: Final = str.maketrans({",": "\\,", "=": "\\=", " ": "\\ ", "\n": "\\ ", "\r": "\\ ", "\\": "/"})
"""The protocol has no way to write a backslash or a line end in a tag."""

_TEXT: Final = str.maketrans({'"': '\\"', "\\": "\\\\", "\r": " "})


def encode(table: Table, rows: Iterable[Row]) -> bytes:
    """Return rows as lines with times in milliseconds."""
    first_field = 1 + len(table.tags)
    fields = [(f"{name}=", _WRITE[kind]) for name, kind in table.fields.items()]
    heads: dict[tuple[Value, ...], str] = {}
    lines: list[str] = []
    for row in rows:
        tags = row[1:first_field]
        head = heads.get(tags)
        if head is None:
            named = zip(table.tags, tags, strict=True)
            # A tag cannot be empty on the wire; the store reads a missing one as NULL.
            head = heads[tags] = table.name + "".join(f",{name}={_tag(str(tag))}" for name, tag in named if tag != "")
        values = zip(fields, row[first_field:], strict=True)
        said = ",".join([name + write(value) for (name, write), value in values if value is not None])
        if said:
            lines.append(f"{head} {said} {row[0]}")
    return "\n".join(lines).encode()


def _tag(text: str) -> str:
    return text if text.isalnum() else text.translate(_TAG)


def _text(value: Value) -> str:
    return f'"{str(value).translate(_TEXT)}"'


_WRITE: Final[dict[str, Callable[[Value], str]]] = {
    "double": repr,
    "bigint": "{}i".format,
    "boolean": lambda value: "true" if value else "false",
    "string": _text,
}
