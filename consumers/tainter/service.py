"""The tainter's shell: follows who holds GPUs on which node, and has the nodes say so.

Any number of these processes do the same: who comes second finds nothing to do.
"""

import asyncio
import logging
from typing import Final

import msgspec

from bus import codec, subjects
from bus.connection import Bus
from bus.errors import UndecodableError
from bus.follower import Follower, Record
from bus.kube.client import MERGE, Client, resource_path
from bus.kube.errors import CONFLICT, NOT_FOUND, KubeError, KubeRefusedError
from bus.streams import LEDGER, STATE
from bus.tasks import until_first
from consumers.tainter.plan import patch_of
from schemas.ledger import NodeRecord

log = logging.getLogger("gpubus.tainter")

AGAIN_S: Final = 2.0
"""When what the API server would not do is tried again."""

AT_ONCE: Final = 8


class TainterStatistics(msgspec.Struct):
    """Counters since the start."""

    written: int = 0
    failed: int = 0


class Tainter:
    """One tainter process.

    Args:
        bus: The connection; the streams must exist.
        client: The API server.
        name: Unique name of this process.
    """

    def __init__(self, bus: Bus, client: Client, name: str) -> None:
        self._client, self._name = client, name
        self._occupied: set[str] = set()
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._state = Follower(bus, STATE, ["gpubus.state.node.*"], self._on_node)
        self._ledger = Follower(bus, LEDGER, ["gpubus.ledger.node.*"], self._on_ledger, recreated=self._forget)
        self.statistics = TainterStatistics()

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Keep nodes as they should be until ``stop`` is set."""
        await self._ledger.start()  # first: a node that is known from STATE alone would be taken for an idle one
        await self._state.start()
        tasks = [
            asyncio.create_task(work, name=f"{self._name}-{number}")
            for number, work in enumerate((stop.wait(), self._write()))
        ]
        if ready is not None:
            ready.set()
        try:
            await until_first(*tasks)
        finally:
            await self._state.stop()
            await self._ledger.stop()

    def _on_node(self, record: Record) -> None:
        self._touch(subjects.names(record.subject)[-1])

    def _on_ledger(self, record: Record) -> None:
        node = subjects.names(record.subject)[-1]
        try:
            data = None if record.deleted else codec.decode_as(NodeRecord, record.payload).data
        except UndecodableError as error:  # who holds what there cannot be told: it counts as held
            log.warning("%s at sequence %d: %s", record.subject, record.seq, error)
            self._occupied.add(node)
        else:
            held = data is not None and any(one.gpus for one in data.allocations)
            (self._occupied.add if held else self._occupied.discard)(node)
        self._touch(node)

    def _forget(self) -> None:
        """LEDGER was made anew."""
        for node in self._occupied:
            self._touch(node)
        self._occupied.clear()

    def _touch(self, node: str) -> None:
        self._due.add(node)
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                nodes = [self._due.pop() for _ in range(min(AT_ONCE, len(self._due)))]
                await asyncio.gather(*map(self._settle, nodes))

    async def _settle(self, node: str) -> None:
        path = resource_path("v1", "nodes", name=node)
        try:
            found = msgspec.json.decode(await self._client.call("GET", path, timeout=10.0))
            patch = patch_of(found, occupied=node in self._occupied)
            if patch is not None:
                await self._client.call(
                    "PATCH", path, body=msgspec.json.encode(patch), content_type=MERGE, timeout=10.0
                )
                self.statistics.written += 1
        except KubeRefusedError as error:
            if error.code == CONFLICT:
                self._touch(node)
            elif error.code != NOT_FOUND:
                self._later(node, error)
        except KubeError as error:
            self._later(node, error)

    def _later(self, node: str, error: KubeError) -> None:
        self.statistics.failed += 1
        log.info("node %s: %s; trying again", node, error)
        asyncio.get_running_loop().call_later(AGAIN_S, self._touch, node)
