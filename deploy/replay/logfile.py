"""A slice of the log as a file: gzipped lines of JSON, a header first. It can be read anywhere, and put back on a bus."""

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from bus.follower import Record

FORMAT: Final = "gpubus-log/1"
LONGEST: Final = 64 * 1024**2
"""Bytes of a line: a server takes no message that would need more, and a file is not to fill the memory."""
_HEADER: Final = 64 * 1024
"""Bytes of the first line."""
STREAMS: Final = ("STATE", "LEDGER", "DECISION", "JOURNAL")
"""What a file holds. STATE is its whole history, as far as it is known."""


class LogFileError(Exception):
    """A file is no log of ours, or damaged. The message names the line."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line.

    Attributes:
        records: How many lines follow: a file that was cut off is noticed.
        redacted: Whether names and values have been replaced.
    """

    format: str
    records: int
    redacted: bool = False


_Subject = Annotated[str, msgspec.Meta(pattern=r"^gpubus(\.[A-Za-z0-9_=-]+)+$", max_length=4096)]
"""As :mod:`bus.subjects` writes them: whatever else stood there would be sent to a server as it is."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. ``event`` is its body; ``payload`` (base64) stands in for one that is no JSON, neither for a tombstone."""

    stream: str
    seq: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
    subject: _Subject
    time_ns: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    event: msgspec.Raw = msgspec.Raw()
    payload: str = ""


_header = msgspec.json.Decoder(Header)
_line = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


def write(path: Path, entries: list[tuple[str, Record]], *, redacted: bool) -> None:
    """Write messages, each with its stream. The file is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        with gzip.GzipFile(part, "wb", mtime=0) as file:
            file.write(_encoder.encode(Header(format=FORMAT, records=len(entries), redacted=redacted)) + b"\n")
            for stream, record in entries:
                file.write(_encoder.encode(_as_line(stream, record)) + b"\n")
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def _as_line(stream: str, record: Record) -> Line:
    line = Line(stream, record.seq, record.subject, record.time_ns)
    if not record.payload:
        return line
    if b"\n" not in record.payload and _is_json(record.payload):
        return msgspec.structs.replace(line, event=msgspec.Raw(record.payload))
    return msgspec.structs.replace(line, payload=base64.b64encode(record.payload).decode())


def _is_json(payload: bytes) -> bool:
    try:
        json.loads(payload)
        _line.decode(_encoder.encode(Line("", 1, "gpubus.x", 0, msgspec.Raw(payload))))
    except (ValueError, RecursionError):  # nested deeper than readers go
        return False
    return True


def read(path: Path) -> tuple[Header, Iterator[tuple[str, Record]]]:
    """Return the header of a file and its messages, read as they are asked for.

    Raises:
        LogFileError: It is no such file. Also while reading on, when it is damaged or ends early.
        OSError: It cannot be opened.
    """
    file = gzip.open(path, "rb")  # noqa: SIM115  closed by whoever reads to the end
    try:
        header = _header.decode(file.readline(_HEADER))
        if header.format != FORMAT:
            raise LogFileError(f"{path} is in the format {header.format!r}, and this version reads {FORMAT}")
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise LogFileError(f"{path} is no log that `gpubus export` wrote: {error}") from None
    return header, _records(path, file, header.records)


def _records(path: Path, file: gzip.GzipFile, count: int) -> Iterator[tuple[str, Record]]:
    number = 0
    with file:
        try:
            while text := file.readline(LONGEST):
                number += 1
                line = _line.decode(text)
                if line.stream not in STREAMS:
                    raise LogFileError(
                        f"{path}, line {number + 1}: stream {line.stream!r} is none of {', '.join(STREAMS)}"
                    )
                if not line.subject.startswith(f"gpubus.{line.stream.lower()}."):
                    raise LogFileError(
                        f"{path}, line {number + 1}: subject {line.subject!r} does not belong to stream {line.stream}"
                    )
                payload = base64.b64decode(line.payload) if line.payload else bytes(line.event)
                yield line.stream, Record(line.subject, line.seq, payload, line.time_ns, deleted=not payload)
        except (gzip.BadGzipFile, EOFError, UnicodeDecodeError, ValueError, msgspec.DecodeError) as error:
            raise LogFileError(f"{path}, line {number + 1}: {error}") from None
    if number != count:
        raise LogFileError(f"{path} ends after {number} of {count} messages: it was cut off")
