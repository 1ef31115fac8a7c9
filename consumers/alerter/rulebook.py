"""Which rules are in force: written in a file or a ConfigMap, agreed upon on the bus, followed by every alerter.

A set of rules is taken whole or refused whole. A refusal is a record on the bus, next to the rules that stay in force, until
its source says something good. What cannot be read on either record is put right by whoever notices.
"""

import asyncio
import contextlib
import logging
import time
from importlib.resources import files
from typing import Final

import msgspec

from bus import records, subjects
from bus.codec import decode_as
from bus.connection import Bus
from bus.errors import BusError, ConflictError, UndecodableError
from bus.follower import Follower, Record
from bus.streams import STATE
from bus.tasks import end
from consumers.alerter.configuration import Configuration, parse
from consumers.alerter.rules import CompiledRule, RulesError, compile_all, digest
from consumers.alerter.sources import Offer, RuleSource
from schemas.alert import RuleRefusal, RuleSet
from schemas.event import Event, utc

log = logging.getLogger("gpubus.alerter")

ACTIVE: Final = subjects.state("rules", "active")
REFUSED: Final = subjects.state("rules", "refused")
BUILT_IN: Final = "built in"
AGAIN_S: Final = 2.0


def built_in(runbooks: str = "") -> Configuration:
    """Return the rules that hold where no others are given.

    Args:
        runbooks: Address of a page with a section for each rule, which alerts then link to; empty leaves the links as they are.
    """
    found = parse(files("consumers.alerter").joinpath("builtin.yaml").read_text())
    if not runbooks:
        return found
    rules = (msgspec.structs.replace(rule, runbook_url=f"{runbooks}#{rule.name.lower()}") for rule in found.rules)
    return msgspec.structs.replace(found, rules=tuple(rules))


class Rulebook:
    """The rules in force, compiled.

    Args:
        bus: The connection.
        speaker: Who we are, as the source of events.
        source: Where rules are written; None leaves that to others, or to the built-in rules.
        runbooks: See :func:`built_in`.
    """

    def __init__(self, bus: Bus, speaker: str, source: RuleSource | None, *, runbooks: str = "") -> None:
        self._bus = bus
        self._speaker = speaker
        self._source = source
        self._runbooks = runbooks
        self._follower = Follower(bus, STATE, [ACTIVE, REFUSED], self._apply)
        self.active: RuleSet | None = None
        self.refusal: RuleRefusal | None = None
        self.rules: dict[str, CompiledRule] = {}
        self.reloads = self.refusals = 0
        self.changed = asyncio.Event()
        self._spoiled = asyncio.Event()
        self._last: Offer | None = None

    async def start(self) -> None:
        """Learn which rules are in force; where there are none and nobody writes any, the built-in ones are."""
        await self._follower.start()
        if self._source is None and (self.active is None or self.active.origin == BUILT_IN):
            await self._offer(built_in(self._runbooks), BUILT_IN, 0)

    async def stop(self) -> None:
        """Stop following."""
        await self._follower.stop()

    async def watch(self) -> None:
        """Take what the source says, at first and whenever it changes, and put unreadable records right. Until cancelled."""
        mending = self._bus.spawn(self._mending(), name="rules-mending")
        try:
            if self._source is not None:
                async for offer in self._source.offers():
                    await self._insist(offer)
            await mending
        finally:
            await end(mending)

    async def _insist(self, offer: Offer) -> None:
        while True:
            try:
                await self.take(offer)
            except (BusError, TimeoutError) as error:
                log.info("the rules of %s could not be published: %s; trying again", offer.origin, error)
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def take(self, offer: Offer) -> None:
        """Put rules in force; what is wrong with them is published instead, and those in force stay.

        Raises:
            BusError: The bus did not answer.
        """
        self._last = offer
        problems = [offer.problem] if offer.problem else []
        if not problems:
            try:
                configuration = await asyncio.to_thread(parse, offer.text)
                await self._offer(configuration, offer.origin, offer.revision)
            except RulesError as error:
                problems = error.problems
        # What could never be read has no revision. It was there once: that it is gone is the newest of it.
        heard = [said.revision for said in (self.active, self.refusal) if said and said.origin == offer.origin]
        revision = offer.revision or max(heard, default=0)
        refusal = RuleRefusal(digest=offer.digest, origin=offer.origin, revision=revision, problems=tuple(problems))
        if problems:
            await self._refuse(refusal)
        else:
            await self._forget(refusal)

    async def _offer(self, configuration: Configuration, origin: str, revision: int) -> None:
        rules = RuleSet(
            digest=digest(list(configuration.rules)),
            origin=origin,
            revision=revision,
            rules=configuration.rules,
            metrics_ttl=configuration.metrics_ttl,
            extra_pod_labels=configuration.extra_pod_labels,
        )
        while True:
            seq, active = await self._stored()
            if active is not None and _substance(active) == _substance(rules):
                break
            if active is not None and origin == BUILT_IN != active.origin:
                break  # somebody has written rules meanwhile
            if active is not None and active.origin == origin and revision < active.revision:
                log.warning("%s is older than the rules in force, of %s: it is passed over", origin, active.origin)
                break
            try:
                seq = await self._publish(ACTIVE, rules, "gpubus.rules.v1", rules.digest, seq)
            except ConflictError:
                continue
            log.info("%d rules of %s are in force", len(rules.rules), origin)
            break
        if seq:
            await self._follower.reached(seq)

    async def _stored(self) -> tuple[int, RuleSet | None]:
        stored = await records.latest(self._bus, STATE, ACTIVE)
        try:
            return stored.seq, decode_as(RuleSet, stored.payload).data if stored.payload else None
        except UndecodableError as error:
            log.warning("the rules in force are unreadable and are replaced: %s", error.reason)
            return stored.seq, None

    async def _refuse(self, refusal: RuleRefusal) -> None:
        """Say that rules are refused, unless the same source has said something newer since."""
        active = self.active
        if active is not None and active.origin == refusal.origin and refusal.revision < active.revision:
            return
        self.refusals += 1
        for problem in refusal.problems:
            log.error("rules of %s refused: %s", refusal.origin, problem)
        while True:
            seq, said = await self._refused()
            if said is not None and _overtakes(said, refusal):
                return
            try:
                seq = await self._publish(REFUSED, refusal, "gpubus.rulerefusal.v1", refusal.digest, seq)
            except ConflictError:
                continue
            await self._follower.reached(seq)
            return

    async def _forget(self, good: RuleRefusal) -> None:
        """Take back what was refused before: a source says something good now."""
        while True:
            seq, said = await self._refused()
            if not seq or (said is not None and (_overtakes(said, good) or not said.problems)):
                return
            try:
                seq = await self._publish(REFUSED, good, "gpubus.rulerefusal.v1", good.digest, seq)
            except ConflictError:
                continue
            await self._follower.reached(seq)
            return

    async def _refused(self) -> tuple[int, RuleRefusal | None]:
        stored = await records.latest(self._bus, STATE, REFUSED)
        try:
            return stored.seq, decode_as(RuleRefusal, stored.payload).data if stored.payload else None
        except UndecodableError as error:
            log.warning("what was refused is unreadable and is replaced: %s", error.reason)
            return stored.seq, None

    async def _mending(self) -> None:
        """Where a record cannot be read, say again what our source says, or what holds where there is none."""
        while True:
            await self._spoiled.wait()
            self._spoiled.clear()
            try:
                if self._last is not None:
                    await self.take(self._last)
                elif self._source is None:
                    await self._restore()
                    seq, said = await self._refused()
                    if seq and said is None:
                        await self._forget(RuleRefusal(digest="", origin=BUILT_IN, revision=0, problems=()))
            except (BusError, TimeoutError) as error:
                log.info("unreadable rules could not be replaced: %s; trying again", error)
                await asyncio.sleep(AGAIN_S)
                self._spoiled.set()

    async def _restore(self) -> None:
        seq, said = await self._stored()
        if said is None and seq and self.active is not None:
            with contextlib.suppress(ConflictError):  # somebody else was faster
                await self._publish(ACTIVE, self.active, "gpubus.rules.v1", self.active.digest, seq)

    async def _publish(self, where: str, data: RuleSet | RuleRefusal, kind: str, name: str, expected: int) -> int:
        event = Event(
            id=f"{kind}:{name}:{data.revision}",
            source=self._speaker,
            type=kind,
            subject=data.origin,
            time=utc(time.time()),
            data=data,
        )
        return await records.replace(self._bus, where, event, expected=expected)

    def _apply(self, record: Record) -> None:
        try:
            if record.subject == REFUSED:
                self.refusal = None if record.deleted else decode_as(RuleRefusal, record.payload).data
            elif not record.deleted:
                active = decode_as(RuleSet, record.payload).data
                self.rules = compile_all(active.rules)
                self.active = active
                self.reloads += 1
                self.changed.set()
        except (UndecodableError, RulesError) as error:
            log.warning("rules on the bus are not understood, those in force stay: %s", error)
            self._spoiled.set()


def _substance(rules: RuleSet) -> tuple[object, ...]:
    """Return what of a set of rules makes a difference."""
    return rules.digest, rules.metrics_ttl, rules.extra_pod_labels


def _overtakes(one: RuleRefusal, other: RuleRefusal) -> bool:
    """Whether ``one`` is what the source of ``other`` said later."""
    return one.origin == other.origin and one.revision > other.revision
