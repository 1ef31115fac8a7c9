"""Kubernetes quantities, read and written exactly.

``resource.Quantity`` is how Kubernetes writes amounts: ``500m`` of a core, ``16Gi`` of memory, ``1e3`` of anything.
Inside gpubus amounts are integers, so text is turned into thousandths or bytes here, once, with whole-number
arithmetic; a float would already be wrong for ``0.1``. Amounts that fall between two integers are rounded up, as
``Quantity.MilliValue`` and ``Quantity.Value`` do: whoever asks for a little gets a little. Kubernetes lowers amounts
above 2^63-1 to that limit without saying so; here they are refused.

Source: ``k8s.io/apimachinery/pkg/api/resource``, ``quantity.go`` (grammar, canonical form) and ``suffix.go``.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

LARGEST: Final = 2**63 - 1
"""Largest amount, in any unit, that Kubernetes can hold."""

_LONGEST: Final = 100
"""Characters in the longest text that is looked at. Nineteen digits are enough for any amount; the rest is padding."""

_EXPONENT_DIGITS: Final = 3
"""Digits of the longest exponent. An amount that is not zero needs two; ``1e999999999`` would fill the memory."""

_SHOWN: Final = 40
"""Characters of a refused value that an error message repeats."""

_DECIMAL: Final = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY: Final = {10: "Ki", 20: "Mi", 30: "Gi", 40: "Ti", 50: "Pi", 60: "Ei"}
_FACTORS: Final = {
    **{suffix: Fraction(10) ** power for power, suffix in _DECIMAL.items()},
    **{suffix: Fraction(2**power) for power, suffix in _BINARY.items()},
}

_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?:(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]*))?|\.(?P<only_part>[0-9]+))"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]+))?",
)
"""``1E`` is one exa and ``1E3`` one thousand: a letter E is an exponent exactly when digits follow it."""

_FIX: Final = "use a number with one of n, u, m, k, M, G, T, P, E, Ki … Ei or an exponent, such as 16Gi"


class QuantityError(ValueError):
    """A text is no quantity, or not one that the field can hold. The message names the field, the value and the fix."""


class TooLargeError(QuantityError):
    """The amount is more than Kubernetes can hold."""


def parse(text: str, *, field: str = "quantity") -> Fraction:
    """Return the exact amount that ``text`` stands for, of either sign, in the quantity's own unit.

    Args:
        text: A Kubernetes quantity, such as ``1.5``, ``250m``, ``16Gi`` or ``1e3``.
        field: What the quantity is, for the error message.

    Raises:
        QuantityError: The text does not follow the grammar, or the amount exceeds 2^63-1 in either direction.
    """
    found = _GRAMMAR.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise _refusal(field, text, "is not a Kubernetes quantity", _FIX)
    exponent = found["exponent"] or "0"
    if len(exponent.lstrip("+-")) > _EXPONENT_DIGITS:
        raise _refusal(field, text, f"has an exponent of more than {_EXPONENT_DIGITS} digits", _FIX)
    part = found["part"] or found["only_part"] or ""
    amount = _exact((found["whole"] or "") + part, len(part), found["suffix"] or "", int(exponent))
    if amount > LARGEST:
        raise TooLargeError(
            str(_refusal(field, text, "is more than Kubernetes can hold", f"use at most {LARGEST} (2^63-1)"))
        )
    return -amount if found["sign"] == "-" else amount


@lru_cache(maxsize=4096)
def _exact(digits: str, places: int, suffix: str, exponent: int) -> Fraction:
    """Return the amount without its sign. Pods repeat a few amounts, and a fraction costs more than all of its parsing."""
    return Fraction(int(digits), 10**places) * _FACTORS[suffix] * Fraction(10) ** exponent


def parse_milli(text: str, *, field: str, signed: bool = False) -> int:
    """Return ``text`` in thousandths of its unit: milli-cores for CPU, thousandths of a TFLOPS for compute.

    Args:
        text: A Kubernetes quantity.
        field: What the quantity is, for the error message.
        signed: Whether an amount below zero is accepted. A request is never signed.

    Returns:
        The amount x 1000, rounded away from zero to a whole number.

    Raises:
        QuantityError: ``text`` is not a quantity, is negative, or its thousandths exceed 2^63-1.
    """
    return _whole(text, 1000, field=field, signed=signed)


def parse_bytes(text: str, *, field: str, signed: bool = False) -> int:
    """Return ``text`` in bytes, rounded away from zero; see :func:`parse_milli` for arguments and errors."""
    return _whole(text, 1, field=field, signed=signed)


def format_milli(milli: int) -> str:
    """Return thousandths as a canonical quantity: ``1500`` is ``1500m``, ``2000`` is ``2``, ``2000000`` is ``2k``.

    Canonical means no fraction and the largest suffix that is exact, so equal amounts give equal texts and
    :func:`parse_milli` gives the same number back.
    """
    return _decimal(milli, power=-3)


def format_bytes(amount: int) -> str:
    """Return bytes as a canonical quantity, with a binary suffix where one is exact: ``4Gi``, ``1G``, ``1023``.

    Multiples of 1024 take the largest exact binary suffix, all others the largest exact decimal one.
    """
    if amount == 0 or amount % 1024:
        return _decimal(amount, power=0)
    power = 0
    while amount % 1024 == 0 and power + 10 in _BINARY:
        amount, power = amount // 1024, power + 10
    return f"{amount}{_BINARY[power]}"


def _decimal(amount: int, *, power: int) -> str:
    """Write ``amount`` x 10^``power`` with the largest exact decimal suffix."""
    if amount == 0:
        return "0"
    while amount % 1000 == 0 and power + 3 in _DECIMAL:
        amount, power = amount // 1000, power + 3
    return f"{amount}{_DECIMAL[power]}"


@lru_cache(maxsize=4096)
def _whole(text: str, per_unit: int, *, field: str, signed: bool) -> int:
    amount = parse(text, field=field) * per_unit
    if amount < 0 and not signed:
        raise _refusal(field, text, "is negative", "use 0 or more")
    size = -(-abs(amount.numerator) // amount.denominator)
    if size > LARGEST:
        limit = format_milli(LARGEST // 1000 * 1000)
        raise _refusal(field, text, "is too much to count in thousandths", f"use at most {limit}")
    return -size if amount < 0 else size


def _refusal(field: str, text: str, problem: str, fix: str) -> QuantityError:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return QuantityError(f"{field}: {shown!r} {problem}: {fix}")
