"""Lays what was recorded beside what comes out when it is thought again. Pure.

It looks at millions of decisions, so only the newest are kept whole, and of all others a digest.
"""

from array import array
from bisect import insort
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final, NamedTuple

import msgspec

from bus import codec
from consumers.allocator.replay import Said, bare, completed
from schemas.decision import Attempt, Decision

SHOWN: Final = 10
WHOLE: Final = 16_384
"""Decisions of which one side is still to come that are kept whole; of those beyond, what is told of them is less."""

REBUILDER: Final = "rebuild"
"""Who makes a lost ledger anew (`gpubus ledger rebuild`): it decides nothing, and keeps no journal."""

Key = tuple[str, int]
"""Allocator and ordinal: the identity of a decision."""

_said = msgspec.json.Decoder(Said)
_decision = msgspec.json.Decoder(Decision)


class Difference(msgspec.Struct, frozen=True):
    """A decision that is not what the same engine decides on the same grounds.

    Attributes:
        stream: Where it is recorded.
        sequence: At which sequence.
        fields: The fields that differ.
        recorded: What the log says.
        replayed: What comes out now; empty if that is so long ago that only its digest was kept.
        time_ns: When it was stored, nanoseconds since the epoch.
    """

    stream: str
    sequence: int
    fields: tuple[str, ...]
    recorded: dict[str, Any]
    replayed: dict[str, Any]
    time_ns: int = 0

    @property
    def place(self) -> tuple[int, str, int]:
        """Orders differences, whoever finds them and when: the oldest is the first."""
        return self.time_ns, self.stream, self.sequence


class _Entry(NamedTuple):
    """A decision on record."""

    stream: str
    seq: int
    raw: bytes
    said: Said
    time_ns: int
    excused: bool = False

    @property
    def key(self) -> Key:
        return self.said.allocator, self.said.basis.ordinal


class _Digests:
    """What is kept of the decisions of one allocator, by ordinal: a digest, and of what."""

    OUT: Final = 0
    """Not asked for, or kept whole elsewhere."""
    BARE: Final = 1
    """Of the decision as it comes out."""
    FULL: Final = 2
    """Of the decision as it is on record."""
    WRONG: Final = 3
    """Likewise, and a record of it is not as it should be."""

    def __init__(self) -> None:
        self.values = array("q")
        self.kinds = bytearray()

    def put(self, ordinal: int, kind: int, encoded: bytes) -> None:
        self.values[ordinal - 1], self.kinds[ordinal - 1] = hash(encoded), kind


class Comparison:
    """Matches decisions by allocator and ordinal, whichever side comes first.

    Args:
        allocators: Whose journals there are: decisions of others are counted and not kept.
        mine: Whose decisions are compared here, as others are compared elsewhere; None for all, those of strangers included.
        strangers: Whether decisions of those without a journal, and those that cannot be read, are counted here.
        first: Only decisions that had read the ledger at least up to this sequence.
        last: And at most up to this one; None for no bound.
        whole: Decisions of each kind to keep whole.

    Attributes:
        reproduced: Decisions on record that came out the same, bit for bit.
        wrong: Those that did not.
        different: Records that are not what comes out; the ledger and the announcement of one decision count as two.
        differences: The first of them.
        undecodable: Recorded decisions that cannot be read.
        attempts: Overtaken placements that a later decision tells of, and that came out the same.
    """

    def __init__(
        self,
        allocators: Collection[str],
        first: int = 0,
        last: int | None = None,
        *,
        mine: Collection[str] | None = None,
        strangers: bool = True,
        whole: int = WHOLE,
    ) -> None:
        self._first, self._last, self._allocators, self._whole = first, last, allocators, whole
        self._mine, self._strangers = allocators if mine is None else mine, strangers
        self.reproduced = self.wrong = self.different = self.undecodable = self.attempts = 0
        self.differences: list[Difference] = []
        self._digests: defaultdict[str, _Digests] = defaultdict(_Digests)
        self._computed: dict[Key, Decision] = {}
        self._expected: dict[Key, bytes] = {}
        self._recorded: defaultdict[Key, list[_Entry]] = defaultdict(list)
        self._left: defaultdict[str, set[int]] = defaultdict(set)
        self._excused: defaultdict[str, set[int]] = defaultdict(set)

    @property
    def unexplained(self) -> int:
        """Recorded decisions that no journal leads to."""
        return len(self._recorded) + sum(map(len, self._left.values()))

    @property
    def unfounded(self) -> int:
        """How many of these nothing excuses: they are no decisions of the allocators that they name."""
        strangers = (name for name in self._left if name not in self._allocators and name != REBUILDER)
        return len(self._recorded) + sum(len(self._left[name] - self._excused[name]) for name in list(strangers))

    @property
    def unheard(self) -> int:
        """Decisions that nobody ever heard of: their allocator died over them, or left the pod to others."""
        return len(self._computed) + sum(digests.kinds.count(_Digests.BARE) for digests in self._digests.values())

    def computed(self, decision: Decision) -> None:
        """A decision has been thought again."""
        key = decision.allocator, decision.basis.ordinal
        digests = self._digests[key[0]]
        digests.values.append(0)
        digests.kinds.append(_Digests.OUT)
        if not self.asked(decision.basis.ledger):
            return
        self._computed[key] = decision
        for entry in self._recorded.pop(key, ()):
            self._compare(entry)
        if len(self._computed) > self._whole:
            oldest = next(iter(self._computed))
            encoded = codec.encode(bare(self._computed.pop(oldest)))
            self._digests[oldest[0]].put(oldest[1], _Digests.BARE, encoded)

    def leave(self, allocator: str) -> None:
        """An allocator cannot be followed further: what it decides from here on is counted and not kept."""
        ordinals = self._left[allocator]
        for key in [key for key in self._recorded if key[0] == allocator]:
            ordinals.add(key[1])
            del self._recorded[key]

    def asked(self, ledger: int) -> bool:
        """Whether decisions that had read the ledger up to this sequence are compared."""
        return self._first <= ledger and (self._last is None or ledger <= self._last)

    def counted(self, allocator: str) -> int:
        """Return how many decisions of an allocator are on record behind the point where it could not be followed further."""
        return len(self._left.get(allocator, ()))

    def recorded(self, stream: str, seq: int, raw: bytes, time_ns: int = 0, *, excused: bool = False) -> Said | None:
        """LEDGER or DECISION holds a decision, stored at that time; return what is told of it if it is compared here.

        It is excused from having a journal that leads to it if that of whoever made it may have been dropped.
        """
        try:
            said = _said.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.undecodable += self._strangers
            return None
        ours = said.allocator in self._mine or (self._strangers and said.allocator not in self._allocators)
        if not ours or not self.asked(said.basis.ledger):
            return None
        self._compare(_Entry(stream, seq, raw, said, time_ns, excused))
        return said

    def _compare(self, entry: _Entry) -> None:
        expected = self._expected.pop(entry.key, None)
        if expected is not None:  # the ledger and the announcement say the same bytes
            if entry.raw != expected:
                self._differ_again(entry, expected)
            return
        computed = self._computed.pop(entry.key, None)
        if computed is None:
            self._compare_digest(entry)
        else:
            self._settle(entry, codec.encode(completed(computed, entry.said)))

    def _settle(self, entry: _Entry, expected: bytes) -> None:
        """The first record of a decision has come, and ``expected`` is what it should be."""
        if entry.said.node:
            self._expected[entry.key] = expected
            if len(self._expected) > self._whole:
                del self._expected[next(iter(self._expected))]
        same = entry.raw == expected
        if not same:
            self._differ(entry, entry.raw, expected)
        # Of either record alike: what is found must not depend on which comes first.
        for attempt in entry.said.attempts:
            same = self._holds(entry, attempt) and same
        allocator, ordinal = entry.key
        self._digests[allocator].put(ordinal, _Digests.FULL if same else _Digests.WRONG, expected)
        if same:
            self.reproduced += 1
        else:
            self.wrong += 1

    def _differ_again(self, entry: _Entry, expected: bytes) -> None:
        """Another record of a decision is not as it should be: whichever of its records came first, it has not come out."""
        allocator, ordinal = entry.key
        kinds = self._digests[allocator].kinds
        if kinds[ordinal - 1] == _Digests.FULL:
            kinds[ordinal - 1] = _Digests.WRONG
            self.reproduced -= 1
            self.wrong += 1
        self._differ(entry, entry.raw, expected)

    def _compare_digest(self, entry: _Entry) -> None:
        allocator, ordinal = entry.key
        digests = self._digests[allocator]
        kind = digests.kinds[ordinal - 1] if 0 < ordinal <= len(digests.kinds) else None
        if kind is None and (allocator in self._left or allocator not in self._allocators):
            self._left[allocator].add(ordinal)
            if entry.excused:
                self._excused[allocator].add(ordinal)
        elif kind is None:
            self._recorded[entry.key].append(entry)
        elif kind == _Digests.BARE:
            self._settle_late(entry)
        elif digests.values[ordinal - 1] != hash(entry.raw):  # repeated after a crash: it must be as before
            self._differ_again(entry, b"{}")

    def _settle_late(self, entry: _Entry) -> None:
        try:
            decision = _decision.decode(entry.raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.undecodable += 1
            return
        allocator, ordinal = entry.key
        same = self._digests[allocator].values[ordinal - 1] == hash(codec.encode(bare(decision)))
        self._settle(entry, codec.encode(decision) if same else b"{}")

    def _holds(self, entry: _Entry, attempt: Attempt) -> bool:
        """Whether an earlier placement of the pod is told as it came out; one that was told before is not looked at again."""
        tried = self._computed.pop((entry.said.allocator, attempt.decided), None)
        if tried is None:
            return True
        self.attempts += 1
        told = msgspec.structs.replace(tried, node=attempt.node, gpus=attempt.gpus)
        if told == tried:
            return True
        self._differ(entry, codec.encode(told), codec.encode(tried))
        return False

    def _differ(self, entry: _Entry, recorded: bytes, replayed: bytes) -> None:
        self.different += 1
        place = entry.time_ns, entry.stream, entry.seq
        if len(self.differences) < SHOWN or place < self.differences[-1].place:
            left, right = msgspec.json.decode(recorded), msgspec.json.decode(replayed)
            fields = tuple(field for field in Decision.__struct_fields__ if left.get(field) != right.get(field))
            found = Difference(entry.stream, entry.seq, fields or ("encoding",), left, right, entry.time_ns)
            insort(self.differences, found, key=lambda one: one.place)
            del self.differences[SHOWN:]
