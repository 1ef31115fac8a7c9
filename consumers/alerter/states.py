"""The states of rules on the bus, and what they have to tell, each replaced or told exactly once by compare-and-set."""

import logging
import time
from typing import Final

from bus import records, subjects
from bus.codec import decode_as, encode
from bus.connection import Bus
from bus.errors import ConflictError, UndecodableError
from bus.streams import ALERT, STATE
from consumers.alerter.streaks import retired
from schemas.alert import AlertNotice, RuleState
from schemas.event import Event, utc

log = logging.getLogger("gpubus.alerter")

KIND: Final = "alert"


class RuleStates:
    """Reads and replaces the states of rules.

    What an evaluation has to tell is part of the state it writes. Told it is afterwards, and whoever dies in between leaves
    it to the next one that looks at the rule: :meth:`tell` is idempotent.
    """

    def __init__(self, bus: Bus, source: str) -> None:
        self._bus = bus
        self._source = source
        self.told = 0

    async def read(self, rule: str) -> tuple[int, RuleState]:
        """Return a rule's state and its sequence; a rule without one is at its beginning.

        Raises:
            BusError: The bus did not answer.
        """
        stored = await records.latest(self._bus, STATE, subjects.state(KIND, rule))
        if not stored.payload:
            return stored.seq, RuleState(rule=rule)
        try:
            return stored.seq, decode_as(RuleState, stored.payload).data
        except UndecodableError as error:
            log.warning("the state of rule %s is unreadable and begins anew: %s", rule, error.reason)
            return stored.seq, RuleState(rule=rule)

    async def replace(self, seq: int, state: RuleState) -> bool:
        """Write the state that follows the one at ``seq``; return False when somebody else came first.

        Raises:
            BusError: The bus did not answer.
        """
        event = Event(
            id=f"rulestate:{state.rule}:{state.slot}",
            source=self._source,
            type="gpubus.rulestate.v1",
            subject=state.rule,
            time=utc(time.time()),
            data=state,
        )
        try:
            await records.replace(self._bus, subjects.state(KIND, state.rule), event, expected=seq)
        except ConflictError:
            return False
        return True

    async def tell(self, notice: AlertNotice | None) -> None:
        """Publish what a rule has to tell, unless that has been told, or something newer has.

        Raises:
            BusError: The bus did not answer.
        """
        if notice is None:
            return
        where = subjects.alert(notice.rule)
        event = Event(
            id=f"alert:{notice.rule}:{notice.slot}",
            source=self._source,
            type="gpubus.alert.v1",
            subject=notice.rule,
            time=utc(time.time()),
            data=notice,
        )
        while True:
            last = await records.latest(self._bus, ALERT, where)
            if _slot(last.payload) >= notice.slot:
                return
            try:
                await self._bus.publisher.publish(where, encode(event), expected=last.seq)
            except ConflictError:
                continue
            self.told += 1
            return

    async def retire(self, rule: str) -> None:
        """Resolve whatever a rule that is no more has firing, then forget its state.

        Raises:
            BusError: The bus did not answer.
        """
        while True:
            seq, state = await self.read(rule)
            await self.tell(state.notice)
            if any(streak.firing for streak in state.streaks):
                after = retired(state, slot=max(time.time_ns(), state.slot + 1))
                if await self.replace(seq, after):
                    await self.tell(after.notice)
                continue
            try:
                await records.erase(self._bus, subjects.state(KIND, rule), expected=seq)
            except ConflictError:
                continue
            return


def _slot(payload: bytes) -> int:
    """Return the evaluation that a notice is of; what is no notice is older than any."""
    try:
        return decode_as(AlertNotice, payload).data.slot if payload else 0
    except UndecodableError:
        return 0
