"""What DECISION holds beside the decisions themselves: their envelopes, and whether any of them is missing."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from bus import codec
from bus.chain import Break
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Record
from bus.history import batches
from bus.stored import find
from bus.streams import DECISION, LEDGER, StreamInfo
from consumers.allocator.engine.snapshot import Snapshot
from consumers.allocator.replay import Said
from deploy.replay.envelope import Envelopes, origin_of
from deploy.replay.owed import Debt, Heard, Owed
from schemas.decision import Decision
from schemas.event import Event
from schemas.journal import Place, Turn
from schemas.ledger import HOLD

MARGIN: Final = timedelta(seconds=5)
"""What was written down shortly before the oldest announcement may have been announced before it."""

_said = msgspec.json.Decoder(Said)
_announced = msgspec.json.Decoder(Event[msgspec.Raw])


async def begun(bus: Bus, stream: str, info: StreamInfo) -> datetime | None:
    """Return up to when what a stream says may have been dropped: None when it holds its first message.

    Raises:
        ApiError: JetStream refused to look.
    """
    if info.state.first_seq <= 1 or not info.state.messages:
        return None
    message = await find(bus, stream, seq=info.state.first_seq)
    try:
        return _announced.decode(message.data).time + MARGIN if message is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def times_of(turns: dict[str, Record]) -> dict[str, datetime]:
    """Return when each allocator took its last turn, by its own clock; of one that cannot be read, nothing."""
    found: dict[str, datetime] = {}
    for name, record in turns.items():
        try:
            found[name] = codec.decode_as(Turn, record.payload).time
        except UndecodableError:
            continue
    return found


class Announced:
    """Notes what is wrong with what was announced.

    Args:
        last_turns: The allocators that have a journal, each with the time of its last turn.
        since: Up to when announcements may have been dropped; None if none has been.
        most: Announcements that are kept of one pod; older ones are dropped. 0 or less for no limit.
        whole: Whether gaps are looked for here.

    Attributes:
        envelopes: Announcements whose envelope does not agree with what is in it.
        missing: Decisions that were not announced, and messages that were taken out of the stream.
        found: All of these, each with the time that it belongs to.
    """

    def __init__(self, last_turns: dict[str, datetime], since: datetime | None, most: int, *, whole: bool) -> None:
        self._envelopes = Envelopes(last_turns)
        self._owed = Owed(last_turns, since)
        self._most, self._whole = most, whole
        self._read_to = 0
        self._gaps: list[tuple[int, int, int]] = []
        self._asked: dict[str, Place] = {}
        self.envelopes = self.missing = 0
        self.found: list[tuple[int, Break]] = []

    def turn(self, turn: Turn) -> None:
        """A turn is about to be played."""
        self._asked = {step.pod_uid: step for step in turn.steps if isinstance(step, Place)}

    def computed(self, decision: Decision, at: datetime, snapshot: Snapshot) -> None:
        """An allocator has come to a decision at a time, on a snapshot of the cluster."""
        refused = decision.outcome == "unschedulable" and decision.preemption is None
        nothing = decision.outcome == "released" and not decision.node
        if nothing or (refused and not self._is_silent(self._asked.get(decision.pod_uid), snapshot)):
            self._owed.said(decision, at)

    @staticmethod
    def _is_silent(asked: Place | None, snapshot: Snapshot) -> bool:
        """Whether a refusal is not told at once: of a pod that cannot be resized, or for which somebody might be evicted."""
        if asked is None:
            return False
        request = asked.request
        if asked.node and request.uuids:
            return True
        pool = snapshot.pools().get(request.pool)
        if pool is None or pool.preemption == "never" or not request.preempts or request.gang is not None:
            return False
        return snapshot.standing.outranked(request, asked.namespace, pool.preemption)

    def changed(self, record: Record, pod_uid: str, op: str, said: Said, at: datetime) -> None:
        """The ledger adds or removes a pod."""
        if pod_uid.startswith(HOLD) or op not in ("add", "remove"):
            return
        if wrong := self._owed.changed(record.seq, "add" if op == "add" else "remove", said, at):
            self._misaddressed(
                Break(LEDGER, record.seq, record.subject, f"announced otherwise: {wrong}"), record.time_ns
            )

    def numbered(self, record: Record) -> None:
        """A message of DECISION is next: those between it and the one before have been taken out."""
        if self._whole and self._read_to and record.seq > self._read_to + 1:
            self._gaps.append((self._read_to + 1, record.seq - 1, record.time_ns))
        self._read_to = record.seq

    def announced(self, record: Record, event: Event[msgspec.Raw], said: Said) -> None:
        """A decision is announced."""
        wrong = self._envelopes.wrong(record, event, said)
        if late := self._owed.announced(event, said, origin_of(event.id, said)):
            wrong.append(late)
        if wrong:
            self._misaddressed(Break(DECISION, record.seq, record.subject, "; ".join(wrong)), record.time_ns)

    def _misaddressed(self, what: Break, time_ns: int) -> None:
        self.envelopes += 1
        self.found.append((time_ns, what))

    async def settle(self, bus: Bus, until: int) -> None:
        """Everything has been read: look once more at what is announced about the pods of which something is missing.

        Raises:
            BusError: DECISION cannot be read.
        """
        debts = self._owed.open()
        if not debts and not self._gaps:
            return
        wanted = {debt.uid for debt in debts}
        heard: defaultdict[str, list[Heard]] = defaultdict(list)
        kept: Counter[str] = Counter()
        async for batch in batches(bus, DECISION, ["gpubus.decision.>"], until=until):
            for record in batch:
                kept[record.subject] += 1
                one = _heard(record)
                if one is not None and one[0] in wanted:
                    heard[one[0]].append(one[1])
        full = {subject for subject, count in kept.items() if 0 < self._most <= count}
        for debt in debts:
            about = heard[debt.uid]
            if self._owed.unpaid(debt, about) and not any(one.subject in full for one in about):
                self._lacks(debt)
        if not full:
            self._name_gaps(self._gaps)

    def _lacks(self, debt: Debt) -> None:
        author, ordinal = debt.key
        what = f"{debt.outcome} of pod {debt.uid}, decision {ordinal} of {author}, was never announced"
        detail = f"{what}, and {author} or whoever took over went on" if debt.seq else f"{what}, and {author} went on"
        self.missing += 1
        stream, subject = (LEDGER, f"gpubus.ledger.node.{debt.node}") if debt.seq else (DECISION, "")
        self.found.append((int(debt.at.timestamp() * 1e9), Break(stream, debt.seq, subject, detail)))

    def _name_gaps(self, gaps: Iterable[tuple[int, int, int]]) -> None:
        for first, last, time_ns in gaps:
            self.missing += last - first + 1
            where = f"{first}" if first == last else f"{first} to {last}"
            self.found.append((time_ns, Break(DECISION, first, "", f"{where} is not there, and no limit drops it")))


def _heard(record: Record) -> tuple[str, Heard] | None:
    try:
        said = _said.decode(_announced.decode(record.payload).data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    key = said.allocator, said.basis.ordinal
    return said.pod_uid, Heard(key, said.outcome, said.basis, said.way, record.subject)
