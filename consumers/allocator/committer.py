"""Writes what the core wants committed, and sees to it that every commit gets a definite answer."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec
import nats.errors

from bus import codec, ledger, subjects
from bus.connection import Bus
from bus.delivery import Delivery
from bus.errors import ApiError, BusError, ConflictError, PublishUnconfirmedError
from bus.follower import Follower
from bus.ledger import Write
from bus.tasks import end
from consumers.allocator.book import Commit
from consumers.allocator.bundle import Bundle
from consumers.allocator.core import Core
from schemas.event import Event
from schemas.registry import TYPE_NAMES

log = logging.getLogger("gpubus.allocator")

OVERTAKER_S: Final = 1.0
"""After a conflict, how long to wait for the newer record before reading the ledger to its end."""

Flight = Commit | Bundle


class Committer:
    """Carries out the commits of ``core``.

    Args:
        bus: The connection.
        source: Who writes.
        core: Hears the answers.
        reader: Follows the whole LEDGER stream for ``core``.
        changed: Called when ``core`` has heard something.
        lease_s: Seconds in which an answer has to come.
    """

    def __init__(
        self, bus: Bus, source: str, core: Core, reader: Follower, changed: Callable[[], None], *, lease_s: float
    ) -> None:
        self._bus = bus
        self._source = source
        self._core = core
        self._reader = reader
        self._changed = changed
        self._lease_s = lease_s
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether something is on its way."""
        return bool(self._tasks)

    def begin(self, flights: Iterable[Flight]) -> None:
        """Send commits off."""
        for flight in flights:
            task = asyncio.create_task(self._fly(flight))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Leave what is on its way to its fate."""
        await end(*self._tasks)

    async def _fly(self, flight: Flight) -> None:
        tokens = (item.token for commit in flight.commits for item in commit.items)
        if any(isinstance(token, Delivery) and token.lapsed for token in tokens):
            self._core.given_up(flight)  # we have been away, and by now somebody else may be placing these pods
            self._changed()
            return
        try:
            seq = await (self._write(flight) if isinstance(flight, Commit) else self._write_all(flight))
        except ConflictError:
            # The record that came first is on its way to us, and the core acts when it arrives. Make sure that it does.
            asyncio.get_running_loop().call_later(OVERTAKER_S, self._check_overtaken, flight)
        except (PublishUnconfirmedError, ApiError) as error:
            log.warning("%s: commit %s: %s", self._core.name, flight.txn, error)
            await self._settle_unconfirmed(flight)
        else:
            self._core.stored(flight, seq)
        self._changed()

    async def _write(self, commit: Commit) -> int:
        write = self._node(commit)
        return await ledger.commit(
            self._bus,
            write.subject,
            write.payload,
            txn=commit.txn,
            expected=commit.expected,
            epoch=self._bus.epoch,
            timeout=self._lease_s,
        )

    async def _write_all(self, bundle: Bundle) -> int:
        writes = [self._node(commit) for commit in bundle.commits]
        writes += [
            Write(seal.subject, self._encode(bundle.txn, seal.name, seal.record), seal.expected)
            for seal in bundle.seals
        ]
        return await ledger.commit_all(self._bus, writes, epoch=self._bus.epoch, timeout=self._lease_s)

    def _node(self, commit: Commit) -> Write:
        commit.payload = self._encode(commit.txn, commit.node, commit.record())
        return Write(subjects.ledger_node(commit.node), commit.payload, commit.expected)

    def _encode(self, txn: str, name: str, record: msgspec.Struct) -> bytes:
        kind = TYPE_NAMES[type(record)]
        event = Event(id=txn, source=self._source, type=kind, subject=name, time=datetime.now(UTC), data=record)
        return codec.encode(event)

    def _check_overtaken(self, flight: Flight) -> None:
        if self._core.is_flying(flight):
            self._bus.spawn(self._settle_unconfirmed(flight), name=f"settle-{flight.txn}")

    async def _settle_unconfirmed(self, flight: Flight) -> None:
        """No definite answer within the lease: read the ledger to its end, then let go of what it does not hold."""
        while self._core.is_flying(flight):
            try:
                async with asyncio.timeout(self._lease_s):
                    await self._reader.caught_up()
            except (TimeoutError, nats.errors.Error, BusError):
                await asyncio.sleep(0.2)
                continue
            self._core.given_up(flight)
