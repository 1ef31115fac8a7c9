"""Who holds what on this node, by the ledger, and what those pods asked for.

There is one agent on every node, so it has no consumer of its own on the bus: ten thousand would cost the server more than
everything they are told. It hears the writes of its own record as they pass, and then asks for what is stored, because a
write that passes may be refused; any server of the bus may answer. What it missed it finds at the next look round.
"""

import asyncio
import contextlib
import logging
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus import codec, records, subjects
from bus.connection import Bus
from bus.errors import BusError, UndecodableError
from bus.streams import LEDGER, STATE
from schemas.ledger import Allocation, NodeRecord
from schemas.pod import GpuRequest, Pod

log = logging.getLogger("gpubus.agent")

LOOK_AGAIN_S: Final = (0.02, 0.2, 1.0)
"""After a write has been heard: when to look, until the record has changed. A write that is refused never changes it."""

ROUND_S: Final = 30.0
"""Time between two looks when nothing is heard."""


class Holdings:
    """The node's ledger record, kept up with, and the requests of its pods, read once each.

    Attributes:
        allocations: What pods hold, by pod UID. A record that cannot be decoded changes nothing here: what it replaced stays.
        requests: What they asked for, as far as STATE tells, by pod UID.
        changed: Set whenever either changes; whoever waits for it clears it.
    """

    def __init__(self, bus: Bus, node: str) -> None:
        self._bus = bus
        self._subject = subjects.ledger_node(node)
        self._subscription: Subscription | None = None
        self._heard = asyncio.Event()
        self._seq = -1
        self.allocations: dict[str, Allocation] = {}
        self.requests: dict[str, GpuRequest] = {}
        self.changed = asyncio.Event()

    async def start(self) -> None:
        """Read the record and begin to listen.

        Raises:
            BusError: It could not be read.
        """
        self._subscription = await self._bus.client.subscribe(self._subject, cb=self._on_write)
        self._bus.on_reconnect(self._heard.set)
        await self._read_record()
        self._heard.set()  # what the pods asked for is read as soon as somebody keeps up

    async def stop(self) -> None:
        """Stop listening."""
        self._bus.off_reconnect(self._heard.set)
        if self._subscription is not None and self._bus.client.is_connected:
            await self._subscription.unsubscribe()

    def held(self) -> list[Allocation]:
        """Return what pods hold now."""
        return list(self.allocations.values())

    async def _on_write(self, message: Msg) -> None:
        del message  # it may be refused yet
        self._heard.set()

    async def keep_up(self) -> None:
        """Follow the record until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND_S):
                    await self._heard.wait()
            heard = self._heard.is_set()
            pauses = LOOK_AGAIN_S if heard else LOOK_AGAIN_S[:1]
            self._heard.clear()
            before = self._seq
            for pause in pauses:
                await asyncio.sleep(pause)
                try:
                    await self._read_record(at_leisure=not heard)
                    await self._read_requests()
                except BusError as error:
                    log.info("%s", error)
                if self._seq != before:
                    break

    async def _read_record(self, *, at_leisure: bool = True) -> None:
        stored = await records.nearest(self._bus, LEDGER, self._subject)
        if stored.seq == self._seq or (stored.seq < self._seq and not at_leisure):
            return  # a server that lags behind says what we know already; much later it is another stream
        self._seq = stored.seq
        allocations: tuple[Allocation, ...] = ()
        if stored.payload:
            try:
                allocations = codec.decode_as(NodeRecord, stored.payload).data.allocations
            except UndecodableError as error:
                log.warning("ledger record %d: %s; the one before stays in force here", stored.seq, error)
                return
        self.allocations = {allocation.pod_uid: allocation for allocation in allocations}
        self.requests = {uid: self.requests[uid] for uid in self.requests.keys() & self.allocations.keys()}
        self.changed.set()

    async def _read_requests(self) -> None:
        """Read what pods asked for that is not known yet. A pod that STATE does not know is asked for at the next look."""
        for uid, allocation in self.allocations.items():
            if not allocation.gpus or uid in self.requests:
                continue
            subject = subjects.state("pod", allocation.namespace, allocation.name)
            try:
                pod = await records.peek(self._bus, STATE, subject, Pod)
            except UndecodableError:
                continue  # buried by whoever decides about pods
            if pod is not None and pod.uid == uid:
                self.requests[uid] = pod.request
                self.changed.set()
