"""A template's text cut into tokens, with the place of each."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class TemplateSyntaxError(ValueError):
    """A template that is wrong or uses what is not supported."""

    def __init__(self, text: str, at: int, reason: str) -> None:
        self.line = text.count("\n", 0, at) + 1
        self.column = at - (text.rfind("\n", 0, at) + 1) + 1
        self.reason = reason
        super().__init__(f"line {self.line}, column {self.column}: {reason}")


class Token(NamedTuple):
    """One token: ``kind`` is text, open, close, field, word, text constant, number or a sign; ``at`` is its offset."""

    kind: str
    text: str
    at: int


_SPACE: Final = " \t\r\n"
_ACTION: Final = re.compile(
    r"""(?P<close>[ \t\r\n]+-\}\}|\}\})
      | (?P<space>[ \t\r\n]+)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|`[^`]*`)
      | (?P<char>'(?:[^'\\\n]|\\.)+')
      | (?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|(?:[0-9][0-9_]*)?\.?[0-9][0-9_]*\.?(?:[eE][+-]?[0-9]+)?))
      | (?P<field>\$?\.[A-Za-z_][A-Za-z0-9_]*)
      | (?P<root>\$(?![A-Za-z0-9_]))
      | (?P<variable>\$[A-Za-z0-9_]+)
      | (?P<dot>\.)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<sign>:=|[|(),=])
    """,
    re.VERBOSE,
)


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a template; space next to ``{{-`` and ``-}}`` is trimmed as Go does.

    Raises:
        TemplateSyntaxError: An action is not closed, or holds a character that means nothing.
    """
    at, trim = 0, False
    while True:
        start = text.find("{{", at)
        plain = text[at:] if start < 0 else text[at:start]
        if trim:
            plain = plain.lstrip(_SPACE)
        left_trim = start >= 0 and text[start + 2 : start + 3] == "-" and text[start + 3 : start + 4] in tuple(_SPACE)
        if left_trim:
            plain = plain.rstrip(_SPACE)
        if plain:
            yield Token("text", plain, at)
        if start < 0:
            return
        inside = start + (3 if left_trim else 2)
        comment = inside + 1 if left_trim else inside
        if text.startswith("/*", comment):
            at, trim = _comment(text, start, comment)
            continue
        yield Token("open", "{{", start)
        token = Token("open", "{{", inside)
        for token in _action(text, start, inside):
            yield token
        trim = token.text != "}}"
        at = token.at + len(token.text)


def _action(text: str, start: int, at: int) -> Iterator[Token]:
    """Yield the tokens inside one action, its closing sign, with the minus if there is one, as the last."""
    kind = "open"
    while kind != "close":
        match = _ACTION.match(text, at)
        if match is None:
            raise TemplateSyntaxError(text, min(at, len(text)), _complaint(text, at, start))
        kind = str(match.lastgroup)
        yield Token(kind, match.group(), match.start())
        at = match.end()


def _comment(text: str, start: int, comment: int) -> tuple[int, bool]:
    """Return where a comment's action ends and whether it trims the space behind it."""
    end = text.find("*/", comment)
    if end < 0:
        raise TemplateSyntaxError(text, start, "comment is not closed: end it with */}}")
    if text.startswith("}}", end + 2):
        return end + 4, False
    if re.match(r"[ \t\r\n]-\}\}", text[end + 2 : end + 6]):
        return end + 6, True
    raise TemplateSyntaxError(text, end, "a comment must end right before }}")


def _complaint(text: str, at: int, start: int) -> str:
    if at >= len(text) or "}}" not in text[start:]:
        return "action is not closed: add }}"
    if text[at] in "\"'`":
        return "text constant is not closed"
    return f"unexpected character {text[at]!r}"
