"""Protocol buffers on the wire, as far as a reader of strings and messages needs it.

Source: the protocol buffers encoding specification. Fields that are not known are skipped, groups included, as it demands.
"""

from collections.abc import Iterator
from typing import Final

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_START_GROUP: Final = 3
_END_GROUP: Final = 4
_FIXED32: Final = 5
_LONGEST_VARINT: Final = 10


class WireError(ValueError):
    """The bytes are no message."""


def fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and content of every length-delimited field, in order.

    Raises:
        WireError: The message is cut off or malformed.
    """
    at = 0
    depth = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            size, at = _varint(message, at)
            if size > len(message) - at:
                raise WireError(f"field {number} has {size} bytes, but only {len(message) - at} follow")
            if not depth:
                yield number, message[at : at + size]
            at += size
        elif kind == _START_GROUP:
            depth += 1
        elif kind == _END_GROUP and depth:
            depth -= 1
        else:
            raise WireError(f"field {number} has the unknown kind {kind}")
    if at > len(message) or depth:
        raise WireError("the message is cut off")


def text(content: memoryview) -> str:
    """Return a string field.

    Raises:
        WireError: It is not UTF-8.
    """
    try:
        return bytes(content).decode()
    except UnicodeDecodeError as error:
        raise WireError(f"a string is not UTF-8: {error.reason}") from None


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:  # noqa: PLR2004  the continuation bit
            return value, at + place + 1
    raise WireError("a number is cut off or too long")
