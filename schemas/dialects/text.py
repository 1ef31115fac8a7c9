"""Annotation and resource texts as values, or a refusal that names the field, the value and the fix.

Nothing is guessed here: a text that does not mean exactly one thing is refused, because a default in its place would run
the pod with other GPUs than its author meant, and say nothing.
"""

import difflib
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Final, TypeVar

from schemas import quantity
from schemas.pod import WHOLE

Word = TypeVar("Word", bound=str)

INT32: Final = 2**31 - 1

_SHOWN: Final = 60
"""Characters of a refused value that the message repeats."""

_CLOSE: Final = 0.8
"""Similarity from which a word is taken for a mistyped one (0..1, ``difflib`` ratio)."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,12}")
_DURATION: Final = re.compile(r"(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:ns|us|µs|μs|ms|s|m|h)")
_SECONDS: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_LONGEST_DURATION_S: Final = (2**63 - 1) // 10**9
"""Seconds in the longest Go duration, about 292 years."""

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class RequestError(ValueError):
    """A pod asks for something that cannot be understood or granted as written.

    Attributes:
        field: The annotation, label or resource at fault.
        value: Its text, whole.
        fix: What to write instead.
    """

    def __init__(self, field: str, value: str, problem: str, fix: str) -> None:
        shown = value if len(value) <= _SHOWN else value[:_SHOWN] + "…"
        super().__init__(f"{field}: {shown!r} {problem}: {fix}")
        self.field, self.value, self.fix = field, value, fix


def closest(text: str, words: Iterable[str]) -> str:
    """Return the word that ``text`` looks like a mistyped form of, or nothing."""
    folded = {known.lower(): known for known in words}
    matches = difflib.get_close_matches(text[:_SHOWN].lower(), folded, n=1, cutoff=_CLOSE)
    return folded[matches[0]] if matches else ""


def word(text: str, *, field: str, words: tuple[Word, ...]) -> Word:
    """Return the one of ``words`` that ``text`` is.

    Raises:
        RequestError: It is none of them.
    """
    for known in words:
        if text == known:
            return known
    meant = closest(text, words)
    hint = f"did you mean {meant}? " if meant else ""
    raise RequestError(field, text, "is not a known word", f"{hint}use one of {', '.join(words)}")


def boolean(text: str, *, field: str) -> bool:
    """Return a truth value written in any way that Go's ``strconv.ParseBool`` reads.

    Raises:
        RequestError: It is written in none of them.
    """
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise RequestError(field, text, "is neither true nor false", 'write "true" or "false"')


def integer(text: str, *, field: str, least: int, most: int = INT32) -> int:
    """Return a plain whole number.

    Raises:
        RequestError: It is no whole number, or outside ``least`` to ``most``.
    """
    if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
        raise RequestError(
            field, text, f"is not a whole number from {least} to {most}", "write such a number in digits"
        )
    return int(text)


def names(text: str) -> tuple[str, ...]:
    """Return a comma list without blanks and repetitions, in written order."""
    return tuple(dict.fromkeys(part for part in (piece.strip() for piece in text.split(",")) if part))


def milli(text: str, *, field: str) -> int:
    """Return a quantity of 0 or more in thousandths of its unit, rounded up; ``50`` TFLOPS is 50000.

    Raises:
        RequestError: It is no quantity, negative, or too large.
    """
    try:
        return quantity.parse_milli(text, field=field)
    except quantity.QuantityError as error:
        raise RequestError(
            field, text, "is not an amount that can be asked for", "write one such as 50 or 500m"
        ) from error


def size(text: str, *, field: str) -> int:
    """Return a quantity of 0 or more in bytes, rounded up.

    Raises:
        RequestError: It is no quantity, negative, or too large.
    """
    try:
        return quantity.parse_bytes(text, field=field)
    except quantity.TooLargeError as error:
        raise RequestError(field, text, "is more than can be counted", f"write at most {quantity.LARGEST}") from error
    except quantity.QuantityError as error:
        raise RequestError(field, text, "is not a size that can be asked for", "write bytes such as 16Gi") from error


def exact(text: str, *, field: str) -> Fraction:
    """Return a quantity as it is.

    Raises:
        RequestError: It is no quantity, or too large.
    """
    try:
        return quantity.parse(text, field=field)
    except quantity.TooLargeError as error:
        raise RequestError(field, text, "is more than can be counted", f"write at most {quantity.LARGEST}") from error
    except quantity.QuantityError as error:
        raise RequestError(field, text, "is not a number", "write a number in digits, such as 8192") from error


def share(text: str, *, field: str) -> int:
    """Return percent of one GPU in thousandths of it, rounded up: ``33.3`` is 333.

    Raises:
        RequestError: It is no quantity, or outside 0 to 100.
    """
    percent = exact(text, field=field)
    if not 0 <= percent <= 100:  # noqa: PLR2004 - percent
        raise RequestError(field, text, "is not a percentage", "write a number from 0 to 100, without a percent sign")
    part = percent * WHOLE / 100
    return -(-part.numerator // part.denominator)


def seconds(text: str, *, field: str) -> int:
    """Return a Go duration such as ``1h30m`` or ``500ms`` in seconds, rounded up.

    Raises:
        RequestError: It is no duration, negative, or longer than Go can hold (about 292 years).
    """
    if text == "0":
        return 0
    parts = _DURATION.findall(text)
    if not parts or "".join(parts) != text:
        raise RequestError(field, text, "is not a duration", "write one such as 30s, 10m or 1h30m")
    total = Fraction(0)
    for part in parts:
        number = part.rstrip("nuµμmsh")
        total += Fraction(number) * _SECONDS[part[len(number) :]]
    if total > _LONGEST_DURATION_S:
        raise RequestError(field, text, "is longer than can be held", "write at most 2562047h")
    return -(-total.numerator // total.denominator)
