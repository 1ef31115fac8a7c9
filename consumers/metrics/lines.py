"""Rows as InfluxDB line protocol, which GreptimeDB takes.

Source: InfluxDB line protocol reference. A missing field is left out; a row without any field cannot be said and is skipped.
"""

from collections.abc import Iterable
from typing import Final

from consumers.metrics.tables import Row, Table, Value

_TAG: Final = str.maketrans({",": "\\,", "=": "\\=", " ": "\\ ", "\n": "\\ ", "\r": "\\ ", "\\": "/"})
"""The protocol has no way to write a backslash or a line end in a tag."""

_TEXT: Final = str.maketrans({'"': '\\"', "\\": "\\\\", "\r": " "})


def encode(table: Table, rows: Iterable[Row]) -> bytes:
    """Return rows as lines with times in milliseconds."""
    first_field = 1 + len(table.tags)
    cache: dict[tuple[Value, ...], str] = {}
    lines: list[str] = []
    for row in rows:
        tags = row[1:first_field]
        head = cache.get(tags)
        if head is None:
            named = zip(table.tags, tags, strict=True)
            # A tag cannot be empty on the wire; the store reads a missing one as NULL or empty.
            written = (f",{name}={_tag(str(tag))}" for name, tag in named if tag != "")
            head = cache[tags] = table.name + "".join(written)
        fields = ",".join(
            f"{name}={_field(value, kind)}"
            for (name, kind), value in zip(table.fields.items(), row[first_field:], strict=True)
            if value is not None
        )
        if fields:
            lines.append(f"{head} {fields} {row[0]}")
    return "\n".join(lines).encode()


def _tag(text: str) -> str:
    return text if text.isalnum() else text.translate(_TAG)


def _field(value: Value, kind: str) -> str:
    match kind:
        case "double":
            return repr(float(value))  # type: ignore[arg-type]
        case "bigint":
            return f"{int(value)}i"  # type: ignore[arg-type]
        case "boolean":
            return "true" if value else "false"
        case _:
            return f'"{str(value).translate(_TEXT)}"'
