"""Strict CSV: every row is checked, and every refusal says where it was found and what was expected there.

A trace is used to judge placement policies, so a silently skipped or mended row would make every later number wrong.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

LARGEST: Final = 10**12 - 1
"""Largest number accepted in any column: as MiB it still fits into 63 bits of bytes."""

_SHOWN: Final = 200
"""Characters of a refused value that an error message repeats."""

_WHOLE: Final = re.compile(r"[0-9]{1,12}")


class TraceError(ValueError):
    """A trace cannot be used. The message names file, line, column and value, where they apply, and what was expected.

    Attributes:
        file: The file, or the directory when the file itself is missing.
        line: Line in the file, counted from 1; None when the file as a whole is wrong.
        column: Column name; None when the line as a whole is wrong.
        value: The text found; None when there is none.
        expected: What should have been there.
    """

    def __init__(
        self,
        expected: str,
        *,
        file: Path,
        line: int | None = None,
        column: str | None = None,
        value: str | None = None,
    ) -> None:
        self.file, self.line, self.column, self.value, self.expected = file, line, column, value, expected
        where = str(file)
        if line is not None:
            where += f", line {line}"
        if column is not None:
            where += f", column {column}"
        if value is not None:
            where += f", value {value if len(value) <= _SHOWN else value[:_SHOWN] + '…'!r}"
        super().__init__(f"{where}: expected {expected}")


class Row(msgspec.Struct, frozen=True):
    """One line of a CSV file, its fields by column name."""

    file: Path
    line: int
    fields: dict[str, str]

    def error(self, column: str, expected: str) -> TraceError:
        """Return the error that refuses this row's value in ``column``."""
        return TraceError(expected, file=self.file, line=self.line, column=column, value=self.fields[column])

    def text(self, column: str) -> str:
        """Return the text in ``column``; empty when the file has no such column."""
        return self.fields.get(column, "")

    def whole(self, column: str, *, most: int = LARGEST) -> int:
        """Return the number in ``column``.

        Raises:
            TraceError: It is not a whole number from 0 to ``most`` written in plain digits.
        """
        text = self.fields[column]
        if not _WHOLE.fullmatch(text) or int(text) > most:
            raise self.error(column, f"a whole number from 0 to {most}")
        return int(text)


def read_rows(file: Path, required: Sequence[str], together: Sequence[str] = ()) -> list[Row]:
    """Return all rows of a CSV file with a header line. Blank lines are skipped and unknown columns ignored.

    Args:
        file: A UTF-8 file, with or without a byte order mark.
        required: Columns that must be there.
        together: Columns of which the file has either all or none.

    Raises:
        TraceError: The file is missing, unreadable, not UTF-8, empty, lacks a column, or has a row with too many or too
            few fields.
    """
    reader = csv.reader(io.StringIO(_read_text(file), newline=""), strict=True)
    try:
        header = next(reader, [])
        _check_header(file, header, required, together)
        rows = [_row(file, reader.line_num, header, fields) for fields in reader if fields]
    except csv.Error as broken:
        raise TraceError("well-formed CSV", file=file, line=reader.line_num, value=str(broken)) from broken
    if not rows:
        raise TraceError("at least one row below the header", file=file, line=1)
    return rows


def _read_text(file: Path) -> str:
    try:
        content = file.read_bytes()
    except OSError as failed:
        raise TraceError("a file that can be read", file=file, value=failed.strerror) from failed
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as broken:
        line = content.count(b"\n", 0, broken.start) + 1
        byte = f"byte 0x{content[broken.start]:02x}"
        raise TraceError("UTF-8 text", file=file, line=line, value=byte) from broken


def _check_header(file: Path, header: Sequence[str], required: Iterable[str], together: Sequence[str]) -> None:
    expected = [*required, *(together if any(column in header for column in together) else ())]
    if not header:
        raise TraceError(f"a header line with the columns {', '.join(expected)}", file=file, line=1, value="")
    for column in expected:
        if header.count(column) != 1:
            problem = f"the column once in the header, among {', '.join(expected)}"
            raise TraceError(problem, file=file, line=1, column=column, value=",".join(header))


def _row(file: Path, line: int, header: Sequence[str], fields: Sequence[str]) -> Row:
    count = f"{len(header)} fields as in the header, found {len(fields)}"
    if len(fields) < len(header):
        raise TraceError(count, file=file, line=line, column=header[len(fields)], value="")
    if len(fields) > len(header):
        raise TraceError(count, file=file, line=line, column=f"#{len(header) + 1}", value=fields[len(header)])
    return Row(file, line, dict(zip(header, fields, strict=True)))
