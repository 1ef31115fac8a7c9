"""The functions that a template may call, as Go defines them."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from consumers.alerter.template.gofmt import GoInt, Scalar, check_format, sprint, sprintf, sprintln

__all__ = ["FUNCTIONS", "GoInt", "Scalar", "TemplateRunError", "check_format", "truth"]


class TemplateRunError(ValueError):
    """Go would stop here with an error too."""


class Function(NamedTuple):
    """What a function does, and the least and most operands it takes. ``lazy`` ones are short-circuited."""

    arity: tuple[int, int]
    apply: Callable[[Sequence[Scalar]], Scalar]


_MANY: Final = 64


def truth(value: Scalar) -> bool:
    """Whether Go counts a value as true: not false, zero, empty or nil."""
    return bool(value)


def _kind(value: Scalar) -> str:
    match value:
        case None:
            return "invalid"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case _:
            return "string"


def _eq(operands: Sequence[Scalar]) -> bool:
    first, *others = operands
    for other in others:
        if _kind(first) != _kind(other) and first is not None and other is not None:
            raise TemplateRunError(f"incompatible types for comparison: {first!r} and {other!r}")
        if _kind(first) == _kind(other) and first == other:
            return True
    return False


def _less(first: Scalar, second: Scalar) -> bool:
    if _kind(first) in ("invalid", "bool") or _kind(second) in ("invalid", "bool"):
        raise TemplateRunError(f"invalid type for comparison: {first!r} and {second!r}")
    if _kind(first) != _kind(second):
        raise TemplateRunError(f"incompatible types for comparison: {first!r} and {second!r}")
    if isinstance(first, str) and isinstance(second, str):
        return first.encode() < second.encode()
    assert isinstance(first, int | float)  # noqa: S101  the kinds are equal, and only numbers are left
    assert isinstance(second, int | float)  # noqa: S101
    return first < second


def _len(operands: Sequence[Scalar]) -> Scalar:
    (value,) = operands
    if not isinstance(value, str):
        raise TemplateRunError(f"len of {value!r}: only text has a length")
    return GoInt(len(value.encode()))


def _first(operands: Sequence[Scalar], *, stop: bool) -> Scalar:
    for value in operands[:-1]:
        if truth(value) is stop:
            return value
    return operands[-1]


FUNCTIONS: Final[dict[str, Function]] = {
    "and": Function((1, _MANY), lambda o: _first(o, stop=False)),
    "or": Function((1, _MANY), lambda o: _first(o, stop=True)),
    "not": Function((1, 1), lambda o: not truth(o[0])),
    "eq": Function((2, _MANY), _eq),
    "ne": Function((2, 2), lambda o: not _eq(o)),
    "lt": Function((2, 2), lambda o: _less(o[0], o[1])),
    "le": Function((2, 2), lambda o: _less(o[0], o[1]) or _eq(o)),
    "gt": Function((2, 2), lambda o: not (_less(o[0], o[1]) or _eq(o))),
    "ge": Function((2, 2), lambda o: not _less(o[0], o[1])),
    "len": Function((1, 1), _len),
    "print": Function((0, _MANY), sprint),
    "printf": Function((1, _MANY), lambda o: sprintf(str(o[0]), o[1:])),
    "println": Function((0, _MANY), sprintln),
}
