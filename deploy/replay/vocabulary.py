"""The words that are ours in what we say of pods: all that may stay of a sentence in a log without names.

They are read from the sentences in the allocator's own source, so a new sentence needs no second list of its words.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from consumers import allocator
from consumers.allocator.engine.policy import MODES
from schemas import reasons
from schemas.quota import DIMENSIONS

WORD: Final = re.compile(r"[^\s,;:()=\[\]'\"]*[^\s,;:()=\[\]'\".]")
"""A word of a sentence. Names have dots and slashes in them, but none ends with a dot."""

_AMOUNT: Final = re.compile(r"[-+]?\d+(?:[.\d+:T-]*Z?|[.\d]*(?:%|ns|us|ms|[smhd]|[KMGT]i?B?))")
"""A number, one with a unit, or a time."""


def is_amount(word: str) -> bool:
    """Whether a word is a number, with a unit or without, or a part of a time."""
    return _AMOUNT.fullmatch(word) is not None


def words(text: str) -> list[str]:
    """Return the words of a sentence, in order."""
    return WORD.findall(text)


@cache
def ours() -> frozenset[str]:
    """Return all words of our own sentences, and the codes and names of parts that stand in decisions."""
    found = set(MODES) | set(DIMENSIONS) | reasons.CODES.keys()
    for reason in reasons.CODES.values():
        found.update(words(reason.help))
    root = Path(allocator.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for text in _texts(ast.parse(path.read_bytes())):
            for word in words(text):
                found.update((word, *word.split("/")))
    return frozenset(found)


def _texts(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of a module, parts of f-strings too, but for those that only describe it."""
    described = set(_descriptions(ast.walk(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield node.value


def _descriptions(nodes: Iterable[ast.AST]) -> Iterator[int]:
    return (id(node.value) for node in nodes if isinstance(node, ast.Expr))
