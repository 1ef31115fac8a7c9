"""What an updater has done for it: members replaced, and owners of pods asked, by whoever can for the cluster at hand."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from bus import rpc
from bus.connection import Bus
from bus.errors import CallError, NoResponderError
from consumers.updater.look import current_of
from consumers.updater.progress import is_tight, replaced, request_of
from consumers.updater.seen import Seen
from consumers.updater.successors import UNKNOWN, missing, told
from schemas.rollout import BatchMember, Replaced, Rollout, UpdatePolicy, Wanted, WantedPods

log = logging.getLogger("gpubus.updater")

SERVICE: Final = "rollout.replace"
"""Request/reply service that replaces members."""

ASK: Final = "rollout.ask"
"""The same for requests that only ask (``keep``). An actuator that is too old to know of them would replace what stands."""

OWNERS: Final = "rollout.wanted"
"""Request/reply service that asks owners of pods how many they want."""

TIMEOUT_S: Final = 20.0
AT_ONCE: Final = 16
"""Members that are replaced at the same time."""


class Hands:
    """Both services, called; an answer that does not come blocks a member, and leaves open what an owner wants.

    Attributes:
        replaced: Members replaced since the start.
        blocked: Answers that it could not be.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.replaced = self.blocked = 0

    async def replace(
        self, record: Rollout, batch: tuple[BatchMember, ...], seen: Seen, policy: UpdatePolicy
    ) -> Rollout | None:
        """Have members of the batch replaced, and return the record with the answers, or None if they are no news."""
        names = {one.name for one in batch}
        owned = {member.name: member for member in seen.members if member.owned}
        members = {name: member for name, member in owned.items() if name in names}
        tight = is_tight(record, owned, policy, current_of(record.target))

        async def ask(one: BatchMember) -> Replaced:
            member = members.get(one.name)
            if member is None or member.uid != one.uid:
                return Replaced(outcome="gone")
            request = request_of(record, one, member, policy, tight=tight)
            service = ASK if request.keep else SERVICE
            try:
                return await rpc.call(self._bus, service, request, Replaced, timeout=TIMEOUT_S)
            except CallError as error:
                return Replaced(outcome="blocked", message=str(error), unsure=not isinstance(error, NoResponderError))

        answers = dict(zip((one.name for one in batch), await asyncio.gather(*map(ask, batch)), strict=True))
        self.replaced += sum(answer.outcome == "done" for answer in answers.values())
        self.blocked += sum(answer.outcome == "blocked" for answer in answers.values())
        return replaced(record, answers, datetime.now(UTC))

    async def ask_owners(self, record: Rollout, seen: Seen, policy: UpdatePolicy) -> Rollout | None:
        """Ask owners that miss clients how many they want, and return the record with that, or None if it is no news."""
        short = tuple(missing(record, seen.members))
        if not short:
            return None
        try:
            answer = await rpc.call(self._bus, OWNERS, Wanted(owners=short), WantedPods, timeout=TIMEOUT_S)
            wanted = answer.pods
        except CallError as error:
            log.warning("owners of pods could not be asked: %s", error)
            wanted = dict.fromkeys(short, UNKNOWN)
        return told(record, wanted, policy, datetime.now(UTC))
