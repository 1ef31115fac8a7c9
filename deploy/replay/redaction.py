"""Takes every name out of a slice of the log in such a way that it still replays. Pure.

What may stay is listed (:mod:`deploy.replay.roles`, :mod:`deploy.replay.vocabulary`), all other text goes. Names get numbers
in their own order, so whatever is decided by the order of names comes out the same; and the new name of a node falls to the
same part of the nodes as the old one, whichever part an allocator prefers. So the file still tells which of two names comes
first, when things happened, and how large they are.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from bus import subjects
from bus.chain import link
from bus.follower import Record
from bus.streams import HISTORY_KINDS, JOURNAL
from consumers.allocator.engine.affinity import NAME_FIELD
from consumers.allocator.engine.policy import Policy
from deploy.replay.roles import Role, Say, walk_event
from deploy.replay.vocabulary import WORD, is_amount, ours
from schemas.cluster import EVERY_GPU
from schemas.event import Event
from schemas.ledger import HOLD
from schemas.node_rules import whole_number

Entry = tuple[str, Record]

_KINDS: Final = frozenset((*HISTORY_KINDS, "gang", "ports", "rollout", "seats", "workload"))
_STAYS: Final = frozenset(("", EVERY_GPU))
_JOINT: Final = re.compile(r"([:/])")
_SHAPES: Final = {Role.VERSION: re.compile(r"\d+(\.\d+)*"), Role.DIGEST: re.compile(r"[0-9a-f]{16}")}
_LOST: Final = "0" * 32
"""Stands for the digest of a message that the file does not have."""
_BEFORE: Final = re.compile(r"(?:'|\b(?:gang|pool|namespace|quota|node|on|leaves?|left) )$")
_BEHIND: Final = re.compile(r" is (?:the best|kube-scheduler's choice)| would fit|, which kube-scheduler|: [A-Z]\w+: ")
"""Where a sentence of ours has a name and not a word, should somebody call a pod ``node``."""


def redact(entries: Iterable[Entry], parts: Iterable[int]) -> list[Entry]:
    """Return all messages without names, in their order.

    Args:
        entries: All of them: names are numbered in their order.
        parts: Numbers of parts that allocators have divided the nodes into.
    """
    known = list(entries)
    redactor = Redactor(known, parts)
    done = {at: redactor.apply(known[at][1]) for at in sorted(range(len(known)), key=lambda at: _turn(*known[at]))}
    return [(stream, done[at]) for at, (stream, _) in enumerate(known)]


def _turn(stream: str, record: Record) -> tuple[str, int]:
    """Order in which each message comes behind the one whose digest it names: turns may be stored late."""
    if stream != JOURNAL:
        return stream, record.seq
    try:
        return stream, _numbered.decode(record.payload).data.number
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return stream, record.seq


class _Numbered(msgspec.Struct):
    number: int


_numbered = msgspec.json.Decoder(Event[_Numbered])


class Redactor:
    """Replaces names by numbers: the same by the same, wherever it stands.

    Args:
        entries: All messages, to number the names in their order.
        parts: Numbers of parts that allocators have divided the nodes into.
    """

    def __init__(self, entries: Iterable[Entry], parts: Iterable[int]) -> None:
        self._found: set[str] = set()
        self._loose: set[str] = set()
        self._numbers: set[str] = set()
        self._models: set[str] = set()
        self._words: set[str] = set()
        self._links: dict[str, str] = {}
        self._new: dict[str, str] = {}
        known = [record for _, record in entries]
        self._compares = any(b'"Gt"' in record.payload or b'"Lt"' in record.payload for record in known)
        for record in known:
            self._subject(record.subject, self._collect)
            if (event := _decoded(record.payload)) is not None:
                walk_event(event, self._collect)
        self._number({number for number in parts if number > 1})

    def _number(self, parts: set[int]) -> None:
        self._hardware = "\n".join(self._models).lower()
        self._found.update(word for word in self._words if not self._stays(Role.HARDWARE_WORD, word))
        for word in self._loose - self._found:  # composed of names that are known by themselves, or unknown
            self._found.update(piece for piece in _JOINT.split(word) if not _is_plain(piece) and piece not in ":/")
        names = sorted(self._found - _STAYS)
        width, homes = max(7, len(str(len(names)))), sorted(parts)
        for number, name in enumerate(names, 1):
            self._new[name] = _at_same_home(name, f"x{number:0{width}}", homes)
        # Equal numbers that are written differently stay different, and equal.
        ranks = {rank: place for place, rank in enumerate(sorted({int(text) for text in self._numbers}))}
        written: dict[int, int] = {}
        self._ranks: dict[str, str] = {}
        for text in sorted(self._numbers):
            zeros = written[int(text)] = written.get(int(text), -1) + 1
            self._ranks[text] = "0" * zeros + str(ranks[int(text)])

    def apply(self, record: Record) -> Record:
        """Return a message without names. What is no JSON becomes an empty object, as unreadable as it was.

        It names the digest of the new form of the message before it, if that has been applied before: digests of the original
        would confirm whoever guesses a name.
        """
        payload = record.payload
        if payload:
            event = _decoded(payload)
            payload = b"{}" if event is None else msgspec.json.encode(walk_event(event, self._say))
            self._links[link(record.payload)] = link(payload)
        subject = self._subject(record.subject, self._say)
        return msgspec.structs.replace(record, subject=subject, payload=payload)

    def _subject(self, subject: str, say: Say) -> str:
        try:
            stream, *names = subjects.names(subject)
        except ValueError:
            return say(Role.NAME, subject)
        kept = 1 if stream in ("state", "ledger") and names and names[0] in _KINDS else 0
        return subjects.subject(stream, *names[:kept], *(say(Role.NAME, name) for name in names[kept:]))

    def _collect(self, role: Role, text: str) -> str:
        match role:
            case Role.COMPOSED:
                self._loose.add(text)
            case Role.SENTENCE:
                self._loose.update(word for word in WORD.findall(text) if not _is_plain(word))
            case Role.HARDWARE:
                self._models.add(text)
            case Role.HARDWARE_WORD:
                self._words.add(text)
            case Role.LABEL if self._compares and whole_number(text) is not None:
                self._numbers.add(text)
            case Role.LINK:
                pass
            case _ if not self._stays(role, text):
                self._found.add(text.removeprefix(HOLD))
        return text

    def _stays(self, role: Role, text: str) -> bool:
        if role in _SHAPES:
            return not text or _SHAPES[role].fullmatch(text) is not None
        match role:
            case Role.HARDWARE:
                return True
            case Role.HARDWARE_WORD:  # says no more than the models do
                return text in self._hardware
            case Role.CODE:
                return text in ours()
        return role is Role.LABEL and text == NAME_FIELD

    def _say(self, role: Role, text: str) -> str:
        if role is Role.LINK:
            return self._links.get(text, _LOST) if text else text
        if self._stays(role, text):
            return text
        match role:
            case Role.COMPOSED:
                return self._composed(text)
            case Role.SENTENCE:
                return WORD.sub(self._word, text)
            case Role.LABEL if text in self._ranks:
                return self._ranks[text]
        return HOLD + self._name(text.removeprefix(HOLD)) if text.startswith(HOLD) else self._name(text)

    def _name(self, name: str) -> str:
        return self._new.get(name, name)

    def _composed(self, text: str) -> str:
        return self._new[text] if text in self._new else "".join(map(self._name, _JOINT.split(text)))

    def _word(self, match: re.Match[str]) -> str:
        word = match[0]
        if _is_plain(word) and not (
            _BEFORE.search(match.string, 0, match.start()) or _BEHIND.match(match.string, match.end())
        ):
            return word
        return self._composed(word)


def _is_plain(word: str) -> bool:
    """Whether a word of a sentence, or a piece of a composed name, is one of ours or a number."""
    return word in ours() or is_amount(word)


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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
