"""Tokens to nodes, refusing whatever is not supported."""

import re
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from consumers.alerter.template.functions import FUNCTIONS, GoInt, Scalar, check_format
from consumers.alerter.template.lexer import TemplateSyntaxError, Token, tokens


class Text(msgspec.Struct, frozen=True):
    """Text between actions."""

    text: str


class Constant(msgspec.Struct, frozen=True):
    """A constant operand."""

    value: Scalar


class Dot(msgspec.Struct, frozen=True):
    """``.`` or, with ``root``, ``$``."""

    root: bool


class Field(msgspec.Struct, frozen=True):
    """``.name``: a column of the row."""

    name: str


class Call(msgspec.Struct, frozen=True):
    """A function and its operands. In a pipeline the value of the command before it is the last of them."""

    name: str
    arguments: "tuple[Operand, ...]"


Operand = Constant | Dot | Field | Call


class Print(msgspec.Struct, frozen=True):
    """An action that prints."""

    value: Operand


class Branch(msgspec.Struct, frozen=True):
    """``if``, ``with`` or ``range``."""

    kind: str
    value: Operand
    then: "tuple[Node, ...]"
    otherwise: "tuple[Node, ...]"


Node = Text | Print | Branch

LONGEST: Final = 20_000
DEEPEST: Final = 30
"""Parentheses and branches inside each other; whoever writes rules may not exhaust our stack."""

_UNSUPPORTED: Final = frozenset(("template", "block", "define", "break", "continue"))
_FLOAT: Final = frozenset(".eEpP")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))")


class _Parser:
    def __init__(self, text: str, known: Collection[str] | None) -> None:
        self._text = text
        self._known = known
        self._tokens = [*tokens(text), Token("end", "", len(text))]
        self._at = 0
        self._depth = 0
        self._scalar_dot = 0
        """How many ``with`` and ``range`` around us make the dot a value that has no columns."""

    def error(self, token: Token, reason: str) -> TemplateSyntaxError:
        return TemplateSyntaxError(self._text, token.at, reason)

    def peek(self) -> Token:
        while self._tokens[self._at].kind == "space":
            self._at += 1
        return self._tokens[self._at]

    def take(self) -> Token:
        token = self.peek()
        self._at += 1
        return token

    def nodes(self, opener: Token | None) -> tuple[tuple[Node, ...], Token | None]:
        """Parse up to the ``else`` or ``end`` of ``opener``, and return the nodes with that word."""
        found: list[Node] = []
        while True:
            token = self.take()
            if token.kind == "text":
                found.append(Text(token.text))
            elif token.kind == "end":
                if opener is not None:
                    raise self.error(opener, f"{opener.text} has no end")
                return tuple(found), None
            else:
                word = self.peek()
                if word.kind == "word" and word.text in ("else", "end"):
                    if opener is None:
                        raise self.error(word, f"{word.text} without if, with or range")
                    return tuple(found), self.take()
                found.append(self.action(word))

    def action(self, word: Token) -> Node:
        if word.kind == "word" and word.text in ("if", "with", "range"):
            return self.branch(self.take())
        if word.kind == "word" and word.text in _UNSUPPORTED:
            raise self.error(word, f"{word.text} is not supported in alert rules")
        value = self.pipeline()
        self.close()
        return Print(value)

    def close(self) -> None:
        token = self.take()
        if token.kind != "close":
            raise self.error(token, f"unexpected {token.text!r}: expected }}}}")

    def branch(self, word: Token, kind: str = "") -> Branch:
        kind = kind or word.text
        value = self.pipeline()
        self.descend(1)
        self.close()
        scalar = kind != "if" and not (isinstance(value, Dot) and (value.root or not self._scalar_dot))
        before = self._scalar_dot
        if kind != "if":
            self._scalar_dot = int(scalar)
        then, stop = self.nodes(word)
        self._scalar_dot = before
        self.descend(-1)
        assert stop is not None  # noqa: S101  nodes() raises where there is no end
        if stop.text == "end":
            self.close()
            return Branch(kind, value, then, ())
        chained = self.peek()
        if chained.kind == "word" and chained.text in ("if", "with") and chained.text == kind:
            self.take()
            self.descend(1)
            chain = (self.branch(word, kind),)
            self.descend(-1)
            return Branch(kind, value, then, chain)
        self.close()
        otherwise, stop = self.nodes(word)
        assert stop is not None  # noqa: S101
        if stop.text != "end":
            raise self.error(stop, f"a second else for {word.text}")
        self.close()
        return Branch(kind, value, then, otherwise)

    def pipeline(self) -> Operand:
        before = self._depth
        self.descend(1)
        value = self.command(None)
        while self.peek().text == "|":
            self.descend(1)
            self.take()
            value = self.command(value)
        self._depth = before
        return value

    def descend(self, by: int) -> None:
        self._depth += by
        if self._depth > DEEPEST:
            raise self.error(self.peek(), f"nested more than {DEEPEST} deep")

    def command(self, piped: Operand | None) -> Operand:
        first = self.peek()
        if first.kind == "word" and first.text not in ("true", "false", "nil"):
            self.take()
            return self.call(first, piped)
        value = self.operand()
        following = self.peek()
        if piped is not None or self.begins_operand(following):
            raise self.error(first, f"{first.text} is no function: it takes no operands")
        return value

    def begins_operand(self, token: Token) -> bool:
        return (
            token.kind in ("field", "root", "dot", "string", "char", "number", "word", "variable") or token.text == "("
        )

    def call(self, word: Token, piped: Operand | None) -> Call:
        if word.text not in FUNCTIONS:
            raise self.error(word, f"function {word.text!r} is not supported: there are {', '.join(sorted(FUNCTIONS))}")
        arguments: list[Operand] = []
        while self.begins_operand(self.peek()):
            arguments.append(self.operand())
        if piped is not None:
            arguments.append(piped)
        low, high = FUNCTIONS[word.text].arity
        if not low <= len(arguments) <= high:
            raise self.error(
                word, f"{word.text} takes {low if low == high else f'at least {low}'}, not {len(arguments)}"
            )
        if word.text == "printf":
            fmt = arguments[0]
            if not (isinstance(fmt, Constant) and isinstance(fmt.value, str)):
                raise self.error(word, "printf needs a constant format")
            if problem := check_format(fmt.value):
                raise self.error(word, problem)
        return Call(word.text, tuple(arguments))

    def operand(self) -> Operand:
        token = self.take()
        spaced = self._tokens[self._at].kind == "space"
        value = self.simple(token)
        following = self._tokens[self._at]
        if not spaced and following.kind == "field" and token.kind in ("field", "sign"):
            raise self.error(following, f"{token.text}{following.text}: columns have no fields of their own")
        if not spaced and following.kind in ("field", "word", "number", "string", "dot", "root"):
            raise self.error(
                following, f"unexpected {following.text!r} right behind {token.text!r}: put a space between"
            )
        return value

    def simple(self, token: Token) -> Operand:  # noqa: C901, PLR0911, PLR0912  one per kind of token
        match token.kind:
            case "field":
                name = token.text.partition(".")[2]
                if self._scalar_dot and not token.text.startswith("$"):
                    raise self.error(token, f"inside with and range the dot is one value: write $.{name}")
                if self._known is not None and name not in self._known:
                    raise self.error(token, f".{name} is not known here: there are {', '.join(sorted(self._known))}")
                return Field(name)
            case "dot":
                return Dot(root=False)
            case "root":
                return Dot(root=True)
            case "string":
                return Constant(self.string(token))
            case "char":
                char = self.unescape(token, token.text[1:-1], "'")
                if len(char) != 1:
                    raise self.error(token, f"{token.text} is no single character")
                return Constant(GoInt(ord(char)))
            case "number":
                return Constant(self.number(token))
            case "word" if token.text in ("true", "false"):
                return Constant(token.text == "true")
            case "word" if token.text == "nil":
                raise self.error(token, "nil is not supported")
            case "word":
                return self.call_alone(token)
            case "sign" if token.text == "(":
                value = self.pipeline()
                closing = self.take()
                if closing.text != ")":
                    raise self.error(closing, f"unexpected {closing.text!r}: expected )")
                return value
            case "variable":
                raise self.error(token, f"variable {token.text} is not supported: $ alone is the row")
        raise self.error(token, f"unexpected {token.text or 'end'!r}: a value is missing")

    def call_alone(self, token: Token) -> Operand:
        """A function's name as an operand is a call without operands."""
        if token.text not in FUNCTIONS:
            raise self.error(token, f"function {token.text!r} is not supported")
        if FUNCTIONS[token.text].arity[0] > 0:
            raise self.error(token, f"{token.text} needs operands: put it in parentheses")
        return Call(token.text, ())

    def string(self, token: Token) -> str:
        if token.text.startswith("`"):
            return token.text[1:-1].replace("\r", "")
        return self.unescape(token, token.text[1:-1], '"')

    def unescape(self, token: Token, text: str, quote: str) -> str:
        def replace(match: re.Match[str]) -> str:
            hexadecimal, short, long, octal, char = match.groups()
            if octal:
                return chr(int(octal, 8))
            if hexadecimal or short or long:
                return chr(int(hexadecimal or short or long, 16))
            if char == quote:
                return char
            if char not in _ESCAPES:
                raise self.error(token, f"unknown escape \\{char}")
            return _ESCAPES[char]

        return _ESCAPE.sub(replace, text)

    def number(self, token: Token) -> Scalar:
        digits = token.text.replace("_", "")
        try:
            if not digits.lstrip("+-").lower().startswith(("0x", "0b", "0o")):
                if _FLOAT & set(digits):
                    return float(digits)
                if len(digits.lstrip("+-")) > 1 and digits.lstrip("+-").startswith("0"):
                    return GoInt(int(digits, 8))
            number = int(digits, 0)
        except ValueError:
            raise self.error(token, f"{token.text} is no number") from None
        if not -(2**63) <= number < 2**63:
            raise self.error(token, f"{token.text} does not fit 64 bits")
        return GoInt(number)


def parse(text: str, known: Collection[str] | None) -> tuple[Node, ...]:
    """Parse a template.

    Raises:
        TemplateSyntaxError: It is wrong or uses what is not supported.
    """
    if len(text) > LONGEST:
        raise TemplateSyntaxError(text, LONGEST, f"at most {LONGEST} characters are allowed")
    return _Parser(text, known).nodes(None)[0]


def fields_of(nodes: Iterable[Node | Operand]) -> frozenset[str]:
    """Return the names of all columns that nodes mention."""
    found: set[str] = set()
    waiting: list[Node | Operand] = list(nodes)
    while waiting:
        match waiting.pop():
            case Field(name):
                found.add(name)
            case Call(_, arguments):
                waiting += arguments
            case Print(value):
                waiting.append(value)
            case Branch(_, value, then, otherwise):
                waiting += (value, *then, *otherwise)
    return frozenset(found)
