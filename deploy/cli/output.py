"""How answers look: one JSON style, one table style, amounts for people, and nothing that could steer a terminal."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PIPE_WIDTH: Final = 4096
"""Columns when the output is not a terminal: `grep` and `awk` want a row on one line."""


def clean(text: object) -> str:
    """Return text in which everything unprintable is escaped: names on the bus come from strangers."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)


def print_json(value: Any) -> None:
    """Print a value as indented JSON; typed events become objects as they are on the bus."""
    import msgspec
    import orjson

    left = memoryview(orjson.dumps(msgspec.to_builtins(value), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()
    while left:  # without buffering, a pipe takes a part at a time
        left = left[sys.stdout.buffer.write(left) or 0 :]
    sys.stdout.flush()


def warn(text: str) -> None:
    """Say on stderr what the answer cannot: output for programs stays clean."""
    sys.stderr.write(f"gpubus: {clean(text)}\n")


def make_console() -> "Console":
    """Return a console on stdout that prints text as it is; colour only where the terminal and NO_COLOR allow."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process as if the answer were no

    console = Ours(markup=False, highlight=False, emoji=False)
    return console if console.is_terminal else Ours(markup=False, highlight=False, emoji=False, width=_PIPE_WIDTH)


def make_table(console: "Console", columns: Sequence[str], rows: Sequence[Sequence[object]]) -> "Table":
    """Return a table of cleaned cells. A column whose name ends with ``>`` is aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # Lines would only be in the way of a program that reads the table.
    style = box.SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=style, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    return table


def show_table(console: "Console", title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table under its title, if it has one, or nothing when it has no rows."""
    if rows:
        if title:
            console.print(f"\n{title}", style="bold")
        console.print(make_table(console, columns, rows))


def show_fields(console: "Console", fields: Sequence[tuple[str, object]]) -> None:
    """Print names and values in two columns, those without value left out."""
    shown = [(name, value) for name, value in fields if value not in ("", None)]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        console.print(f"  {name:<{width}}  {clean(value)}")


def tflops(milli: int) -> str:
    """Return thousandths of a TFLOPS as TFLOPS, exactly: ``72600`` is ``72.6``."""
    return _trim(f"{milli // 1000}.{milli % 1000:03}") if milli >= 0 else "-" + tflops(-milli)


def gib(amount: int) -> str:
    """Return bytes as GiB to two places. Totals over thousands of GPUs are no round numbers."""
    return _trim(f"{amount / 2**30:.2f}")


def percent(part: int, whole: int) -> str:
    """Return a share for people; a dash where there is nothing to share."""
    return f"{100 * part / whole:.1f}%" if whole > 0 else "-"


def instant(at: datetime) -> str:
    """Return an instant in UTC to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trim(number: str) -> str:
    return number.rstrip("0").rstrip(".")
