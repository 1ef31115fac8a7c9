"""A cluster of members in memory, and a clock that jumps: what the pure updater is played against.

It counts by itself who is down by our doing, over successive templates, and lets nobody be taken down beyond one batch.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from consumers.updater.lifecycle import advance
from consumers.updater.orders import resume
from consumers.updater.plan import most_down
from consumers.updater.progress import due, replaced, to_replace
from consumers.updater.seen import Seen
from consumers.updater.successors import UNKNOWN, missing, told
from consumers.updater.verdict import Firing
from schemas.rollout import Component, ComponentSpec, Member, Replaced, Rollout, Template, UpdatePolicy
from schemas.rollout_template import make_template, member_hashes

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
OLD, NEW, NEWER, LAST, OTHER = (make_template({"image": f"i:{n}"}) for n in (1, 2, 3, 4, 5))
OWNER = "apps/v1/ReplicaSet/r"
POLICY = UpdatePolicy(auto_update=True, batch_percentage=20, batch_interval_s=60, canary=False)


class World:
    """Members that come up ten seconds after they were replaced, unless told otherwise."""

    def __init__(self, count: int = 10, component: Component = "hypervisor", policy: UpdatePolicy = POLICY) -> None:
        self.now = START
        self.component: Component = component
        self.spec: ComponentSpec | None = ComponentSpec(pool="p", component=component, template=OLD, policy=policy)
        self.members: dict[str, Member] = {}
        self.alerts: tuple[Firing, ...] = ()
        self.record: Rollout | None = None
        self.history: list[Rollout] = []
        self.touched: list[str] = []
        self.touches: list[tuple[int, str]] = []
        self.made = 0
        self.rises: dict[str, datetime] = {}
        self.crashing: set[str] = set()
        self.broken: set[str] = set()
        self.ours: set[str] = set()
        self.begun: set[str] = set()
        self.blocked: dict[str, str] = {}
        self.stuck: set[str] = set()
        self.wanted: dict[str, int] = {}
        self.parts: dict[str, int] = {}
        self.answers: Callable[[], Replaced] | None = None
        self.most_down = 0
        for number in range(count):
            self.add(f"n{number:02}", OLD)
        self.settle()

    def add(self, name: str, template: Template, **facts: Any) -> None:
        self.made += 1
        facts = ({"owner": OWNER} if self.component == "client" else {}) | facts
        known = {"pool": "p", "component": self.component, "name": name, "uid": f"u{self.made}", "ready": True}
        member = Member(**known | {"created_at": START + timedelta(seconds=self.made), "hash": ""} | facts)
        self.members[name] = msgspec.structs.replace(member, hash=member_hashes(template)(member))

    def alert(self, name: str) -> None:
        """Let an alert begin to fire now."""
        self.alerts = (*self.alerts, Firing(name=name, since=self.now))

    def want(self, template: Template, **policy: Any) -> None:
        assert self.spec is not None
        changed = msgspec.structs.replace(self.spec.policy, **policy)
        self.spec = msgspec.structs.replace(self.spec, template=template, policy=changed)

    def on(self, template: Template) -> set[str]:
        """Return the members that run a template."""
        hash_of = member_hashes(template)
        return {member.name for member in self.members.values() if member.hash == hash_of(member)}

    def order(self, order: Callable[[Rollout, datetime, str], Rollout]) -> None:
        assert self.record is not None
        if order is resume and self.record.phase == "halted" and self.component == "client":
            self.ours.clear()  # accepted, whatever did not come back
        self._keep(order(self.record, self.now, "somebody"))

    def settle(self) -> None:
        """Look until nothing is left to do at this instant."""
        while True:
            seen = Seen(self.spec, tuple(self.members.values()), self.alerts, gone=self.spec is None)
            changed = advance(self.record, seen, self.now)
            if changed is None:
                assert self.record is not None
                changed = replaced(
                    self.record, {one.name: self._replace(one) for one in to_replace(self.record)}, self.now
                )
            if changed is None and (short := missing(self.record, self.members.values())) and self.spec is not None:
                wanted = {owner: self.wanted.get(owner, UNKNOWN) for owner in short}
                changed = told(self.record, wanted, self.spec.policy, self.now)
            if changed is None:
                return
            self._keep(changed)
            self.most_down = max(self.most_down, sum(not member.ready for member in self.members.values()))

    def _keep(self, record: Rollout) -> None:
        self.record = msgspec.json.decode(msgspec.json.encode(record), type=Rollout)  # all there is, is what is stored
        self.history.append(self.record)
        if record.step == "completed":
            self.ours -= set(record.skipped)  # accepted for good

    def _replace(self, one: Any) -> Replaced:
        assert self.record is not None
        if self.answers is not None:
            return self.answers()
        if one.name in self.parts:
            pods, self.parts[one.name] = self.parts[one.name], 0
            self.begun.add(one.name)
            return Replaced(outcome="part", message="others wait", pods=pods)
        member = self.members.get(one.name)
        if member is None or member.uid != one.uid:
            return Replaced(outcome="gone")
        if one.unsure and (self.component != "worker" or member.ready):
            return Replaced(outcome="kept")
        if one.name in self.blocked:
            return Replaced(outcome="blocked", message=self.blocked[one.name])
        self.touched.append(one.name)
        self.touches.append((self.record.number, one.name))
        name = one.name if self.component != "client" else f"{one.name}x"
        self._take_down(member, name)
        del self.members[one.name]
        if one.name not in self.stuck:
            looping = one.name in self.crashing or self.record.target.hash in self.broken
            self.add(name, self.record.target, ready=False, crash_looping=looping, owner=member.owner)
            self.rises[name] = self.now + timedelta(seconds=10)
        return Replaced(outcome="done")

    def down_by_us(self) -> set[str]:
        """Return who was up before it was replaced and has not been since, but for those accepted as they are."""
        assert self.record is not None
        up = {name for name, member in self.members.items() if member.ready and not member.crash_looping}
        self.ours -= up if self.component == "client" else up | (self.ours - set(self.members))
        return self.ours - set(self.record.skipped)

    def _take_down(self, member: Member, successor: str) -> None:
        down = self.down_by_us()
        if member.ready and member.name not in self.begun:  # whose pods went in part is under way already
            assert self.spec is not None
            total = sum(one.owned for one in self.members.values()) + len(down - set(self.members))
            most = most_down(total, self.spec.policy.batch_percentage)
            assert len(down | {member.name}) <= most, (
                f"{sorted(down)} are down by us, and {member.name} is taken down too"
            )
        if member.ready or member.name in self.ours:
            self.ours = self.ours - {member.name} | {successor}
        self.begun.discard(member.name)

    def step(self) -> bool:
        """Jump to the next instant at which anything can happen, and settle; return whether there was one."""
        assert self.record is not None
        if self.spec is None:
            return False
        look = due(self.record, self.spec.policy, self.now)
        instants = [*self.rises.values(), *([look] if look is not None else [])]
        if not instants:
            return False
        self.now = max(self.now, min(instants))
        for name in [name for name, at in self.rises.items() if at <= self.now]:
            del self.rises[name]
            if name in self.members and not self.members[name].crash_looping:
                self.members[name] = msgspec.structs.replace(self.members[name], ready=True)
        self.settle()
        return True

    def run(self, until: Callable[["World"], bool] = lambda _: False, steps: int = 1000) -> None:
        """Step until something holds, or nothing is left to happen."""
        for _ in range(steps):
            if until(self) or not self.step():
                return
        raise AssertionError(f"no end after {steps} steps: {self.record}")

    @property
    def phase(self) -> str:
        assert self.record is not None
        return self.record.phase

    def phases(self) -> list[str]:
        """Return the phases passed through, without repetition."""
        passed: list[str] = []
        for record in self.history:
            if not passed or passed[-1] != record.phase:
                passed.append(record.phase)
        return passed
