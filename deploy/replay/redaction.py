"""Takes every name out of a slice of the log in such a way that it still replays. Pure.

All names and values get numbers in their own order, so whatever is decided by the order of names comes out the same; and
the new name of a node falls to the same part of the nodes as the old one, whichever part an allocator prefers.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from bus import subjects
from bus.follower import Record
from consumers.allocator.engine import Policy

_NAMES: Final = frozenset(
    (
        *("namespace", "name", "pod_uid", "uid", "node", "allocator", "pool", "uuid", "uuids", "excluded_uuids"),
        *("examples", "container_names", "workload_profile", "used_by", "workload", "owner"),
    )
)
"""Fields that hold names, or lists of them."""

_VALUES: Final = frozenset(("labels", "annotations", "selector"))
"""Fields that map words to values; the words stay."""

_LISTS: Final = frozenset(("values", "value"))
"""Fields that hold values to compare labels and taints with."""

_COMPOSED: Final = frozenset(("id", "txn", "causationid", "source", "subject", "key"))
"""Fields composed of names and other words."""

_STEPS: Final[dict[str, tuple[int, ...]]] = {
    "place": (1, 2, 3), "free": (1, 2), "drop": (1, 2), "adopt": (1,), "freeze": (1,), "count": (1,),
}  # fmt: skip
"""Which elements of a journal's step are names."""

_TEXT: Final = ("message", "reason")
_WORD: Final = re.compile(r"[^\s,;:()'\"/]+")
_JOINT: Final = re.compile(r"[:/]")
_SUBJECT_WORDS: Final = 2


class Redactor:
    """Replaces names by numbers.

    Args:
        entries: All messages, to number the names in their order.
        parts: Numbers of parts that allocators have divided the nodes into.
    """

    def __init__(self, entries: Iterable[tuple[str, Record]], parts: Iterable[int]) -> None:
        self._found: set[str] = set()
        self._new: dict[str, str] = {}
        for _, record in entries:
            self._found.update(self._tokens(record.subject))
            self._walk(_decoded(record.payload), self._collect)
        self._found.discard("")
        homes = sorted({number for number in parts if number > 1})
        for number, name in enumerate(sorted(self._found), 1):
            self._new[name] = _at_same_home(name, f"x{number:07}", homes)

    def apply(self, record: Record) -> Record:
        """Return a message without names. What is no JSON becomes an empty object, as unreadable as it was."""
        payload = record.payload
        if payload:
            value = _decoded(payload)
            payload = b"{}" if value is None else msgspec.json.encode(self._walk(value, self._replaced))
        return msgspec.structs.replace(record, subject=self._subject(record.subject), payload=payload)

    def _tokens(self, subject: str) -> tuple[str, ...]:
        try:
            names = subjects.names(subject)
        except ValueError:
            return (subject,)
        return names[_SUBJECT_WORDS if names[0] in ("state", "ledger") else 1 :]

    def _subject(self, subject: str) -> str:
        try:
            names = subjects.names(subject)
        except ValueError:
            return self._replaced(subject)
        kept = _SUBJECT_WORDS if names[0] in ("state", "ledger") else 1
        return subjects.subject(*names[:kept], *map(self._replaced, names[kept:]))

    def _collect(self, name: str) -> str:
        self._found.add(name)
        return name

    def _replaced(self, name: str) -> str:
        return self._new.get(name, name)

    def _walk(self, value: Any, name: Any, field: str = "") -> Any:
        """Return a value with ``name`` applied to every name in it."""
        if isinstance(value, dict):
            if field in _VALUES:
                return {key: name(entry) if isinstance(entry, str) else entry for key, entry in value.items()}
            return {key: self._walk(entry, name, key) for key, entry in value.items()}
        if isinstance(value, list):
            where = _STEPS.get(value[0], ()) if field == "step" and value and isinstance(value[0], str) else ()
            inner = "" if where else "step" if field == "steps" else field
            return [name(entry) if i in where else self._walk(entry, name, inner) for i, entry in enumerate(value)]
        return self._text(value, name, field) if isinstance(value, str) else value

    def _text(self, value: str, name: Any, field: str) -> str:
        if field in _NAMES or field in _LISTS:
            return str(name(value))
        if field in _COMPOSED:
            return self._pieces(value, name)
        return _WORD.sub(lambda word: self._word(word[0], name), value) if field in _TEXT else value

    def _pieces(self, value: str, name: Any) -> str:
        """A composed identity is made of names that stand elsewhere too, so nothing is collected here."""
        if name == self._collect:
            return value
        if value in self._new:
            return str(name(value))
        return "".join(name(piece) for piece in re.split(f"({_JOINT.pattern})", value))

    def _word(self, word: str, name: Any) -> str:
        return word if name == self._collect else str(name(word))


def _at_same_home(name: str, stem: str, parts: list[int]) -> str:
    """Return ``stem`` with an ending that puts it in the same part as ``name``, however many parts there are."""

    def homes(node: str) -> list[int]:
        return [next(p for p in range(count) if Policy(part=p, parts=count).at_home(node)) for count in parts]

    if not parts:
        return stem
    wanted, number = homes(name), 0
    while homes(candidate := f"{stem}-{number}") != wanted:
        number += 1
    return candidate


def _decoded(payload: bytes) -> Any:
    try:
        return msgspec.json.decode(payload) if payload else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
