"""Lays what was recorded beside what comes out when it is thought again. Pure."""

from array import array
from collections import defaultdict
from typing import Any, Final

import msgspec

from bus import codec
from consumers.allocator.replay import completed
from schemas.decision import Attempt, Decision

SHOWN: Final = 10

Key = tuple[str, int]
"""Allocator and ordinal: the identity of a decision."""


class _Ordinal(msgspec.Struct):
    ordinal: int
    ledger: int


class _Identity(msgspec.Struct):
    allocator: str
    basis: _Ordinal


_identity = msgspec.json.Decoder(_Identity)
_decision = msgspec.json.Decoder(Decision)


class Difference(msgspec.Struct, frozen=True):
    """A decision that is not what the same engine decides on the same grounds.

    Attributes:
        stream: Where it is recorded.
        sequence: At which sequence.
        fields: The fields that differ.
        recorded: What the log says.
        replayed: What comes out now.
    """

    stream: str
    sequence: int
    fields: tuple[str, ...]
    recorded: dict[str, Any]
    replayed: dict[str, Any]


class Comparison:
    """Matches decisions by allocator and ordinal, whichever side comes first.

    Args:
        first: Only decisions that had read the ledger at least up to this sequence.
        last: And at most up to this one; None for no bound.

    Attributes:
        reproduced: Decisions on record that came out the same, bit for bit.
        wrong: Those that did not.
        different: Records that are not what comes out; the ledger and the announcement of one decision count as two.
        differences: The first of them.
        undecodable: Recorded decisions that cannot be read.
        attempts: Overtaken placements that a later decision tells of, and that came out the same.
    """

    def __init__(self, first: int = 0, last: int | None = None) -> None:
        self._first, self._last = first, last
        self.reproduced = self.wrong = self.different = self.undecodable = self.attempts = 0
        self.differences: list[Difference] = []
        self._digests: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))
        self._computed: dict[Key, Decision] = {}
        self._expected: dict[Key, bytes] = {}
        self._recorded: defaultdict[Key, list[tuple[str, int, bytes]]] = defaultdict(list)

    @property
    def unexplained(self) -> list[Key]:
        """Recorded decisions that no journal leads to."""
        return list(self._recorded)

    @property
    def unheard(self) -> int:
        """Decisions that nobody ever heard of: their allocator died over them, or left the pod to others."""
        return len(self._computed)

    def computed(self, decision: Decision) -> None:
        """A decision has been thought again."""
        key = decision.allocator, decision.basis.ordinal
        self._digests[key[0]].append(0)
        if not self._asked(decision.basis.ledger):
            return
        self._computed[key] = decision
        for entry in self._recorded.pop(key, ()):
            self._compare(key, *entry)

    def _asked(self, ledger: int) -> bool:
        return self._first <= ledger and (self._last is None or ledger <= self._last)

    def recorded(self, stream: str, seq: int, raw: bytes) -> None:
        """LEDGER or DECISION holds a decision."""
        try:
            identity = _identity.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.undecodable += 1
            return
        if not self._asked(identity.basis.ledger):
            return
        key = identity.allocator, identity.basis.ordinal
        if key in self._computed or key in self._expected:
            self._compare(key, stream, seq, raw)
        elif key[1] > len(self._digests[key[0]]):
            self._recorded[key].append((stream, seq, raw))
        elif self._digests[key[0]][key[1] - 1] != hash(raw):  # repeated after a crash: it must be as before
            self._differ(stream, seq, raw, b"{}")

    def _compare(self, key: Key, stream: str, seq: int, raw: bytes) -> None:
        expected = self._expected.pop(key, None)
        if expected is not None:  # the ledger and the announcement say the same bytes
            if raw != expected:
                self._differ(stream, seq, raw, expected)
            return
        computed = self._computed.pop(key, None)
        if computed is None:
            self.recorded(stream, seq, raw)
            return
        said = _decision.decode(raw)
        expected = codec.encode(completed(computed, said))
        self._digests[key[0]][key[1] - 1] = hash(expected)
        if said.node:
            self._expected[key] = expected
        if raw != expected:
            self._differ(stream, seq, raw, expected)
            self.wrong += 1
        elif all(self._holds(stream, seq, said, attempt) for attempt in said.attempts):
            self.reproduced += 1
        else:
            self.wrong += 1

    def _holds(self, stream: str, seq: int, said: Decision, attempt: Attempt) -> bool:
        """Whether an earlier placement of the pod is told as it came out; one that was told before is not looked at again."""
        tried = self._computed.pop((said.allocator, attempt.decided), None)
        if tried is None:
            return True
        self.attempts += 1
        told = msgspec.structs.replace(tried, node=attempt.node, gpus=attempt.gpus)
        if told == tried:
            return True
        self._differ(stream, seq, codec.encode(told), codec.encode(tried))
        return False

    def _differ(self, stream: str, seq: int, recorded: bytes, replayed: bytes) -> None:
        self.different += 1
        if len(self.differences) < SHOWN:
            left, right = msgspec.json.decode(recorded), msgspec.json.decode(replayed)
            fields = tuple(field for field in Decision.__struct_fields__ if left.get(field) != right.get(field))
            self.differences.append(Difference(stream, seq, fields or ("encoding",), left, right))
