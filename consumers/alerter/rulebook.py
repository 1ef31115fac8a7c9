"""Which rules are in force: read from a file when it changes, agreed upon on the bus, followed by every alerter.

A set of rules is taken whole or refused whole. A refusal is a record on the bus, next to the rules that stay in force.
"""

import asyncio
import hashlib
import logging
import time
from importlib.resources import files
from pathlib import Path
from typing import Final

from bus import records, subjects
from bus.codec import decode_as
from bus.connection import Bus
from bus.errors import BusError, ConflictError, UndecodableError
from bus.follower import Follower, Record
from bus.streams import STATE
from consumers.alerter.rules import CompiledRule, Configuration, RulesError, compile_all, digest, parse
from schemas.alert import RuleRefusal, RuleSet
from schemas.event import Event, utc

log = logging.getLogger("gpubus.alerter")

ACTIVE: Final = subjects.state("rules", "active")
REFUSED: Final = subjects.state("rules", "refused")
BUILT_IN: Final = "built in"
LOOK_EVERY_S: Final = 2.0
"""A mounted ConfigMap changes by a rename that no notification reaches us of, so the file is looked at."""


def built_in() -> Configuration:
    """Return the rules that hold where no others are given."""
    return parse(files("consumers.alerter").joinpath("builtin.yaml").read_text())


class Rulebook:
    """The rules in force, compiled.

    Args:
        bus: The connection.
        source: Who we are.
        path: File with the rules; None leaves it to others, or to the built-in rules.
    """

    def __init__(self, bus: Bus, source: str, path: Path | None) -> None:
        self._bus = bus
        self._source = source
        self._path = path
        self._follower = Follower(bus, STATE, [ACTIVE, REFUSED], self._apply)
        self._seen = ""
        self.active: RuleSet | None = None
        self.refusal: RuleRefusal | None = None
        self.rules: dict[str, CompiledRule] = {}
        self.reloads = self.refusals = 0
        self.changed = asyncio.Event()

    async def start(self) -> None:
        """Learn which rules are in force, and offer ours."""
        await self._follower.start()
        if self._path is not None:
            await self.look()
        if self.active is None or (self.active.origin == BUILT_IN and self._path is None):
            await self._offer(built_in(), BUILT_IN, 0)

    async def stop(self) -> None:
        """Stop following."""
        await self._follower.stop()

    async def watch(self) -> None:
        """Look at the file again and again."""
        while self._path is not None:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except BusError as error:
                self._seen = ""
                log.info("the rules could not be published: %s; trying again", error)

    async def look(self) -> None:
        """Read the file, and offer its rules if they are new; what is wrong with them is published instead."""
        assert self._path is not None  # noqa: S101
        origin = str(self._path)
        try:
            text, revision = await asyncio.to_thread(self._read)
        except OSError as error:
            text, revision = b"", 0
            problem = f"{origin} cannot be read: {error.strerror}"
        else:
            problem = ""
        seen = hashlib.blake2b(text + problem.encode(), digest_size=8).hexdigest()
        if seen == self._seen:
            return
        problems = [problem] if problem else []
        if not problems:
            try:
                configuration = await asyncio.to_thread(parse, text)
                await self._offer(configuration, origin, revision)
            except RulesError as error:
                problems = error.problems
        if problems or (self.refusal is not None and self.refusal.problems):
            await self._refuse(RuleRefusal(digest=seen, origin=origin, revision=revision, problems=tuple(problems)))
        self._seen = seen

    def _read(self) -> tuple[bytes, int]:
        assert self._path is not None  # noqa: S101
        return self._path.read_bytes(), self._path.stat().st_mtime_ns

    async def _offer(self, configuration: Configuration, origin: str, revision: int) -> None:
        rules = RuleSet(
            digest=digest(list(configuration.rules)),
            origin=origin,
            revision=revision,
            rules=configuration.rules,
            metrics_ttl=configuration.metrics_ttl,
        )
        while True:
            seq, active = await self._stored()
            if active is not None and (active.digest, active.metrics_ttl) == (rules.digest, rules.metrics_ttl):
                break
            if active is not None and revision < active.revision and active.origin != BUILT_IN:
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
        self.refusals += bool(refusal.problems)
        for problem in refusal.problems:
            log.error("rules of %s refused: %s", refusal.origin, problem)
        while True:
            stored = await records.latest(self._bus, STATE, REFUSED)
            try:
                seq = await self._publish(REFUSED, refusal, "gpubus.rulerefusal.v1", refusal.digest, stored.seq)
            except ConflictError:
                continue
            await self._follower.reached(seq)
            return

    async def _publish(self, where: str, data: RuleSet | RuleRefusal, kind: str, name: str, expected: int) -> int:
        event = Event(
            id=f"{kind}:{name}:{data.revision}",
            source=self._source,
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
