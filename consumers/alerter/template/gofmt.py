"""Go's ``fmt`` for the values of a row: ``%v`` and the verbs of ``Printf``."""

import math
import re
import sys
from collections.abc import Sequence
from typing import Final

Scalar = str | int | float | bool | None


class GoInt(int):
    """An integer constant of a template, whose Go type is ``int``; those of a row are ``int64``."""


_VERB: Final = re.compile(r"%(?P<flags>[-+# 0]*)(?P<width>[0-9]*)(?P<precision>\.[0-9]*)?(?P<verb>.|\Z)", re.DOTALL)
_VERBS: Final = "vdsqfFeEgGt%"
_EXPONENT_FROM: Final = 6
"""Decimal exponent from which the shortest form of a float is written with one."""
_MOST_WIDTH: Final = 1000


def check_format(text: str) -> str:
    """Return what is wrong with a ``printf`` format, or nothing."""
    for match in _VERB.finditer(text):
        verb = match["verb"]
        if not verb or verb not in _VERBS:
            return f"printf verb {match[0]!r} is not supported: there are {', '.join('%' + verb for verb in _VERBS)}"
        if "#" in match["flags"]:
            return f"printf flag # in {match[0]!r} is not supported"
        if max(int(match["width"] or 0), int((match["precision"] or ".")[1:] or 0)) > _MOST_WIDTH:
            return f"printf width in {match[0]!r} is above {_MOST_WIDTH}"
    return ""


def show(value: Scalar) -> str:
    """Return a value as ``%v`` prints it."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case float():
            return _float(value, "g", -1)
        case _:
            return str(int(value)) if isinstance(value, int) else value


def sprint(operands: Sequence[Scalar]) -> str:
    """``fmt.Sprint``: a space between two operands when neither is text."""
    out = ""
    for number, value in enumerate(operands):
        if number and not isinstance(value, str) and not isinstance(operands[number - 1], str):
            out += " "
        out += show(value)
    return out


def sprintln(operands: Sequence[Scalar]) -> str:
    """``fmt.Sprintln``: a space between all operands, and a newline."""
    return " ".join(map(show, operands)) + "\n"


def sprintf(text: str, operands: Sequence[Scalar]) -> str:
    """``fmt.Sprintf`` for formats that :func:`check_format` passes."""
    used = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal used
        verb = match["verb"]
        if verb == "%":
            return "%"
        if used >= len(operands):
            return f"%!{verb}(MISSING)"
        value = operands[used]
        used += 1
        precision = int(match["precision"][1:] or 0) if match["precision"] is not None else -1
        flags = match["flags"].replace("+", "") if verb == "v" else match["flags"]  # %+v is about field names
        return _format(value, verb, flags, int(match["width"] or 0), precision)

    out = _VERB.sub(replace, text)
    if used < len(operands):
        out += "%!(EXTRA " + ", ".join(_typed(value) for value in operands[used:]) + ")"
    return out


def _type(value: Scalar) -> str:
    match value:
        case bool():
            return "bool"
        case GoInt():
            return "int"
        case int():
            return "int64"
        case float():
            return "float64"
        case _:
            return "string"


def _typed(value: Scalar) -> str:
    return "<nil>" if value is None else f"{_type(value)}={show(value)}"


def _format(value: Scalar, verb: str, flags: str, width: int, precision: int) -> str:
    body: str | None = None
    match value:
        case None:
            body = "<nil>" if verb == "v" else None
        case bool():
            body = show(value) if verb in "vt" else None
        case int():
            body = _integer(int(value), verb, flags, precision)
        case float():
            verb_g = "g" if verb == "v" else verb
            body = _signed(_float(value, verb_g, precision), flags) if verb_g in "gGeEfF" else None
        case str():
            body = _text(value, verb, flags, precision)
    if body is None:
        if value is None:
            return f"%!{verb}(<nil>)"
        return f"%!{verb}({_type(value)}={_format(value, 'v', flags, width, precision)})"
    if isinstance(value, int) and not isinstance(value, bool):
        zero = precision < 0 or verb == "q"
    else:
        zero = not isinstance(value, float) or math.isfinite(value)
    return _pad(body, flags, width, zero=zero, signed=isinstance(value, int | float))


def _pad(body: str, flags: str, width: int, *, zero: bool, signed: bool) -> str:
    missing = width - len(body)
    if missing <= 0:
        return body
    if "-" in flags:
        return body + " " * missing
    if "0" in flags and zero:
        sign = body[0] if signed and body[:1] in ("+", "-", " ") else ""
        return sign + "0" * missing + body[len(sign) :]
    return " " * missing + body


def _signed(body: str, flags: str) -> str:
    if body.startswith(("-", "+")):
        return body
    return ("+" if "+" in flags else " " if " " in flags else "") + body


def _integer(value: int, verb: str, flags: str, precision: int) -> str | None:
    if verb == "q":
        return _quote_char(value, ascii_only="+" in flags)
    if verb not in "vd":
        return None
    if precision == 0 and value == 0:
        return ""
    digits = str(abs(value)).rjust(precision, "0")
    return _signed(("-" if value < 0 else "") + digits, flags)


def _text(value: str, verb: str, flags: str, precision: int) -> str | None:
    if precision >= 0:
        value = value[:precision]
    match verb:
        case "v" | "s":
            return value
        case "q":
            return _quote(value, ascii_only="+" in flags)
    return None


_ESCAPES: Final = dict(zip("\\\a\b\f\n\r\t\v", ("\\\\", *(f"\\{letter}" for letter in "abfnrtv")), strict=True))


def _quote(text: str, *, ascii_only: bool) -> str:
    return '"' + "".join(_escape(char, '"', ascii_only=ascii_only) for char in text) + '"'


def _quote_char(code: int, *, ascii_only: bool) -> str:
    char = chr(code) if 0 <= code <= sys.maxunicode and not 0xD800 <= code < 0xE000 else "\ufffd"  # noqa: PLR2004
    return "'" + _escape(char, "'", ascii_only=ascii_only) + "'"


def _escape(char: str, quote: str, *, ascii_only: bool) -> str:
    """One character as ``strconv.Quote`` writes it."""
    if char == quote:
        return "\\" + char
    if char in _ESCAPES or (char.isprintable() and (char.isascii() or not ascii_only)):
        return _ESCAPES.get(char, char)
    code = ord(char)
    if code < 0x20 or code == 0x7F:  # noqa: PLR2004
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004


def _float(value: float, verb: str, precision: int) -> str:
    """``strconv.FormatFloat``; precision -1 is the shortest that reads back the same."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if verb in "fF":
        return f"{value:.{6 if precision < 0 else precision}f}"
    if verb in "eE":
        return f"{value:.{6 if precision < 0 else precision}{verb}}"
    return _general(value, precision, verb)


def _general(value: float, precision: int, verb: str) -> str:
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if precision < 0:
        mantissa, _, exponent_text = f"{abs(value)!r}".partition("e")
        whole, _, fraction = mantissa.partition(".")
        digits = (whole + fraction).lstrip("0")
        exponent = len(whole) - 1 + int(exponent_text or 0)
        if whole == "0":
            exponent -= len(whole + fraction) - len(digits)
        digits = digits.rstrip("0") or "0"
        exponent = 0 if value == 0 else exponent
        limit = _EXPONENT_FROM
    else:
        shown = f"{abs(value):.{max(precision, 1) - 1}e}"
        mantissa, _, exponent_text = shown.partition("e")
        digits = mantissa.replace(".", "").rstrip("0") or "0"
        exponent = int(exponent_text)
        limit = max(precision, 1)
        if limit > len(digits) and len(digits) >= exponent + 1:
            limit = len(digits)
    if exponent < -4 or exponent >= limit:  # noqa: PLR2004  as %g has it
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        body = f"{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
        return sign + (body.upper() if verb == "G" else body)
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return sign + whole + (f".{fraction}" if fraction else "")
