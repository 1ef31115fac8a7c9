"""Members of a rollout, played over a real bus: they say what they run, and are replaced when they are asked to be."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.rpc import Service
from bus.streams import LEDGER
from consumers.updater.hands import ASK, SERVICE
from schemas.event import Event
from schemas.registry import TYPE_NAMES
from schemas.rollout import Component, ComponentSpec, Member, Replace, Replaced, Rollout, Template, UpdatePolicy
from schemas.rollout_template import make_template, member_hashes
from tests.conftest import eventually

OLD, NEW, NEWER = (make_template({"image": f"agent:{n}"}) for n in (1, 2, 3))
START = datetime(2026, 1, 1, tzinfo=UTC)
POOL = "train.a"
PATIENCE_S = 40.0


class Player:
    """The hypervisors of one pool.

    Attributes:
        history: Every revision of the rollout's record, oldest first.
        asked: How often each UID was really replaced.
        on_replaced: Called after a member has been replaced and before the answer is given.
    """

    def __init__(self, bus: Bus, count: int) -> None:
        self.bus = bus
        self.members = {f"node-{number:02}": self._made(number, OLD, ready=True) for number in range(count)}
        self.history: list[Rollout] = []
        self.asked: Counter[str] = Counter()
        self.crashing = False
        self.blocked = ""
        self.on_replaced: Callable[[], Any] | None = None
        self.most_down = 0
        self._said = 0
        self._service = Service(bus, SERVICE, Replace, self._replace)
        self._asked = Service(bus, ASK, Replace, self._replace)
        self._records = Follower(bus, LEDGER, ["gpubus.ledger.rollout.>"], self._on_record, since=1)

    def _made(self, number: int, template: Template, *, ready: bool, generation: int = 0) -> Member:
        member = Member(
            pool=POOL, component="hypervisor", name=f"node-{number:02}", uid=f"u{number}-{generation}", hash="",
            created_at=START + timedelta(seconds=number), ready=ready,
        )  # fmt: skip
        return msgspec.structs.replace(member, hash=member_hashes(template)(member))

    async def start(self) -> None:
        await self._records.start()
        await self._service.start()
        await self._asked.start()
        for member in self.members.values():
            await self.say(member)

    async def stop(self) -> None:
        await self._service.stop()
        await self._asked.stop()
        await self._records.stop()

    async def want(self, template: Template, component: Component = "hypervisor", **policy: Any) -> None:
        """Publish what the pool wants."""
        known = {"auto_update": True, "batch_percentage": 20, "batch_interval_s": 1, "ready_within_s": 30}
        spec = ComponentSpec(pool=POOL, component=component, template=template, policy=UpdatePolicy(**known | policy))
        await self._publish(subjects.state("component", POOL, component), spec)

    async def say(self, member: Member) -> None:
        """Publish how a member is."""
        self.members[member.name] = member
        self.most_down = max(self.most_down, sum(not one.ready for one in self.members.values()))
        await self._publish(subjects.state("member", POOL, "hypervisor", member.name), member)

    async def _publish(self, subject: str, data: msgspec.Struct) -> None:
        self._said += 1
        event = Event(
            id=f"said-{self._said}", source="/test", type=TYPE_NAMES[type(data)], subject="s", time=START, data=data
        )
        await self.bus.publisher.publish(subject, codec.encode(event))

    async def _replace(self, request: Replace) -> Replaced:
        member = self.members[request.name]
        if self.blocked:
            return Replaced(outcome="blocked", message=self.blocked)
        if member.uid != request.uid:
            return Replaced(outcome="gone")
        self.asked[request.uid] += 1
        number, generation = int(request.name.rpartition("-")[2]), int(member.uid.rpartition("-")[2])
        made = self._made(number, request.template, ready=False, generation=generation + 1)
        assert made.hash == request.hash
        if self.crashing:
            made = msgspec.structs.replace(made, crash_looping=True)
        await self.say(made)
        if not self.crashing:
            self.bus.spawn(self._rise(made), name=f"rise-{made.name}")
        if self.on_replaced is not None and (waiting := self.on_replaced()) is not None:
            await waiting
        return Replaced(outcome="done")

    async def _rise(self, member: Member) -> None:
        await asyncio.sleep(0.1)
        if self.members[member.name].uid == member.uid:
            await self.say(msgspec.structs.replace(member, ready=True))

    def _on_record(self, record: Record) -> None:
        if record.subject == subjects.ledger_rollout(POOL, "hypervisor"):
            with contextlib.suppress(UndecodableError):  # as some tests have it
                self.history.append(codec.decode_as(Rollout, record.payload).data)

    @property
    def record(self) -> Rollout:
        return self.history[-1]

    async def reaches(self, *phases: str, then: Callable[[Rollout], bool] = lambda _: True) -> Rollout:
        """Wait until the newest record is in one of the phases."""
        await eventually(
            lambda: bool(self.history) and self.record.phase in phases and then(self.record), timeout=PATIENCE_S
        )
        return self.record

    def on(self, template: Template) -> list[str]:
        """Return the members that run a template."""
        hash_of = member_hashes(template)
        return [member.name for member in self.members.values() if member.hash == hash_of(member)]
